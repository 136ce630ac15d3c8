//! Writes the files of a volume so that a container sees either all of the old or all of the new files.
//!
//! The files are in a new directory `..<time>`; the link `..data` points to it, and every visible name is a link
//! through `..data`. Replacing `..data` by rename is the one moment of change. The layout is upstream's, because
//! programs watch for it.
//!
//! Invariant: a visible name never points to a directory that has been removed.

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Component, Path, PathBuf};

use super::{File, Payload};
use crate::error::{Error, Result};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// Writes the payload to the volume; returns whether it changed.
pub fn write(volume: &Path, payload: &Payload, group: Option<u32>) -> Result<bool> {
    for path in payload.keys() {
        check_path(path)?;
    }
    let old = current(volume);
    if let Some(old) = &old
        && shows(&volume.join(old), payload, group)
    {
        link_names(volume, payload)?;
        return Ok(false);
    }
    let new = fill_new_directory(volume, payload, group)?;
    swap(volume, &new)?;
    link_names(volume, payload)?;
    unlink_old_names(volume, payload)?;
    if let Some(old) = old {
        let old = volume.join(old);
        fs::remove_dir_all(&old).map_err(Error::file("remove", &old))?;
    }
    Ok(true)
}

/// Checks a path. The API validates paths, but a path that leaves the volume would be fatal.
fn check_path(path: &str) -> Result<()> {
    let good = !path.is_empty()
        && !path.starts_with("..")
        && Path::new(path).components().all(|part| matches!(part, Component::Normal(_)));
    if good { Ok(()) } else { Err(Error::pod(format!("invalid path: {path:?} leaves the volume"))) }
}

/// Returns the directory that `..data` points to.
fn current(volume: &Path) -> Option<PathBuf> {
    fs::read_link(volume.join(DATA)).ok()
}

fn shows(directory: &Path, payload: &Payload, group: Option<u32>) -> bool {
    let mut present = BTreeSet::new();
    if collect(directory, directory, &mut present).is_err() || !present.iter().eq(payload.keys()) {
        return false;
    }
    payload.iter().all(|(path, file)| {
        let path = directory.join(path);
        let (Ok(content), Ok(metadata)) = (fs::read(&path), fs::metadata(&path)) else { return false };
        content == file.content && metadata.mode() & 0o7777 == effective_mode(file, group)
    })
}

fn collect(root: &Path, directory: &Path, into: &mut BTreeSet<String>) -> std::io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, into)?;
        } else if let Ok(relative) = path.strip_prefix(root) {
            into.insert(relative.display().to_string());
        }
    }
    Ok(())
}

/// Returns the mode of a file: a group reads what the owner reads.
fn effective_mode(file: &File, group: Option<u32>) -> u32 {
    if group.is_some() { file.mode | 0o440 } else { file.mode }
}

fn fill_new_directory(volume: &Path, payload: &Payload, group: Option<u32>) -> Result<PathBuf> {
    let name = format!("..{}", jiff::Timestamp::now().strftime("%Y_%m_%d_%H_%M_%S.%9f"));
    let directory = volume.join(&name);
    fs::create_dir(&directory).map_err(Error::file("create", &directory))?;
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).map_err(Error::file("chmod", &directory))?;
    for (path, file) in payload {
        let path = directory.join(path);
        let parent = path.parent().unwrap_or(&directory);
        fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
        write_file(&path, file, group)?;
    }
    Ok(PathBuf::from(name))
}

fn write_file(path: &Path, file: &File, group: Option<u32>) -> Result<()> {
    let mode = effective_mode(file, group);
    let mut options = fs::OpenOptions::new();
    let mut open = options.create_new(true).write(true).mode(mode).open(path).map_err(Error::file("create", path))?;
    open.write_all(&file.content).map_err(Error::file("write", path))?;
    if file.owner.is_some() || group.is_some() {
        chown(path, file.owner, group).map_err(Error::file("chown", path))?;
    }
    // The umask took bits from the mode above.
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(Error::file("chmod", path))
}

fn swap(volume: &Path, new: &Path) -> Result<()> {
    let staged = volume.join(NEW_DATA);
    if fs::symlink_metadata(&staged).is_ok() {
        fs::remove_file(&staged).map_err(Error::file("remove", &staged))?;
    }
    symlink(new, &staged).map_err(Error::file("link", &staged))?;
    fs::rename(&staged, volume.join(DATA)).map_err(Error::file("rename", &staged))
}

fn visible_names(payload: &Payload) -> BTreeSet<&str> {
    payload.keys().filter_map(|path| path.split('/').next()).collect()
}

fn link_names(volume: &Path, payload: &Payload) -> Result<()> {
    for name in visible_names(payload) {
        let link = volume.join(name);
        if fs::symlink_metadata(&link).is_err() {
            symlink(Path::new(DATA).join(name), &link).map_err(Error::file("link", &link))?;
        }
    }
    Ok(())
}

fn unlink_old_names(volume: &Path, payload: &Payload) -> Result<()> {
    let wanted = visible_names(payload);
    for entry in fs::read_dir(volume).map_err(Error::file("read", volume))?.flatten() {
        let name = entry.file_name();
        let Some(name) = name.to_str() else { continue };
        if !name.starts_with("..") && !wanted.contains(name) {
            fs::remove_file(entry.path()).map_err(Error::file("remove", &entry.path()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, text)| {
                ((*path).to_owned(), File { content: text.as_bytes().to_vec(), mode: 0o644, owner: None })
            })
            .collect()
    }

    fn shown(volume: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(volume)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.starts_with(".."))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn changes_are_atomic_and_unchanged_files_stay() {
        let volume = tempfile::tempdir().unwrap();
        let path = volume.path();
        assert!(write(path, &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap());
        assert_eq!(fs::read_to_string(path.join("d/b")).unwrap(), "2");
        let before = current(path).unwrap();
        assert!(!write(path, &payload(&[("a", "1"), ("d/b", "2")]), None).unwrap());
        assert_eq!(current(path).unwrap(), before, "nothing changed, nothing moved");
        assert!(write(path, &payload(&[("a", "3"), ("c", "4")]), None).unwrap());
        assert_eq!(shown(path), ["a", "c"]);
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "3");
        assert!(!path.join(before).exists(), "the old directory is gone");
    }

    #[test]
    fn an_empty_payload_is_an_empty_volume() {
        let volume = tempfile::tempdir().unwrap();
        write(volume.path(), &payload(&[("a", "1")]), None).unwrap();
        write(volume.path(), &Payload::new(), None).unwrap();
        assert!(shown(volume.path()).is_empty());
    }

    #[test]
    fn modes_hold_in_spite_of_the_umask_and_change_the_volume() {
        let volume = tempfile::tempdir().unwrap();
        let mut files = payload(&[("a", "1")]);
        files.get_mut("a").unwrap().mode = 0o666;
        write(volume.path(), &files, None).unwrap();
        assert_eq!(fs::metadata(volume.path().join("a")).unwrap().mode() & 0o777, 0o666);
        files.get_mut("a").unwrap().mode = 0o400;
        assert!(write(volume.path(), &files, None).unwrap());
    }

    #[test]
    fn paths_that_leave_the_volume_are_refused() {
        let volume = tempfile::tempdir().unwrap();
        for path in ["../x", "/etc/x", "a/../../x", "", "..data"] {
            assert!(write(volume.path(), &payload(&[(path, "x")]), None).is_err(), "{path}");
        }
    }
}
