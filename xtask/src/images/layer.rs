//! A layer of an image as a tar archive: the same tree gives the same bytes.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

use super::table::Layer;

/// Adds the further files of a layer to a tree of packages; programs come from a directory of the user.
pub fn finish(layer: &Layer, tree: &Path, programs: &Path) -> Result<()> {
    let place = |path: &str| tree.join(path.trim_start_matches('/'));
    for directory in &layer.directories {
        make_directory(&place(&directory.path), directory.mode)?;
    }
    for program in &layer.programs {
        let bytes = std::fs::read(programs.join(&program.name))?;
        write(&place(&program.path), program.mode, &bytes)?;
    }
    for file in &layer.files {
        write(&place(&file.path), file.mode, file.text.as_bytes())?;
    }
    for (path, target) in &layer.links {
        let path = place(path);
        make_parent(&path)?;
        clear(&path)?;
        symlink(target, &path).with_context(|| format!("cannot link {}", path.display()))?;
    }
    if let Some(busybox) = &layer.applets {
        link_applets(&place(busybox))?;
    }
    if let Some(archive) = &layer.unpack {
        let mut tar = Command::new("tar");
        tar.arg("-xf").arg(programs.join(archive)).arg("-C").arg(tree);
        ensure!(tar.status().context("tar cannot be run")?.success(), "{archive} cannot be unpacked");
    }
    Ok(())
}

/// Removes the file of a package at the path of a link.
fn clear(path: &Path) -> Result<()> {
    if path.is_dir() && !path.is_symlink() {
        std::fs::remove_dir_all(path)?;
    } else if path.is_symlink() || path.exists() {
        std::fs::remove_file(path)?;
    }
    Ok(())
}

fn make_directory(path: &Path, mode: u32) -> Result<()> {
    std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    Ok(())
}

fn make_parent(path: &Path) -> Result<()> {
    let parent = path.parent().context("the root is no file")?;
    if !parent.exists() {
        make_directory(parent, 0o755)?;
    }
    Ok(())
}

/// Writes a file and replaces an existing one.
pub fn write(path: &Path, mode: u32, bytes: &[u8]) -> Result<()> {
    make_parent(path)?;
    let _ = std::fs::remove_file(path);
    let mut file = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))?;
    Ok(())
}

/// Links the applets of busybox whose names no other program has.
fn link_applets(busybox: &Path) -> Result<()> {
    let output = Command::new(busybox).arg("--list").output().context("busybox cannot be run")?;
    let dir = busybox.parent().context("busybox is in a directory")?;
    for applet in String::from_utf8_lossy(&output.stdout).lines() {
        let link = dir.join(applet);
        if !link.is_symlink() && !link.exists() {
            symlink("busybox", link)?;
        }
    }
    Ok(())
}

/// Writes a tree as a layer, and returns its digest.
pub fn pack(tree: &Path, path: &Path) -> Result<String> {
    let mut builder = tar::Builder::new(Digesting { file: BufWriter::new(File::create(path)?), digest: Sha256::new() });
    for entry in entries(tree)? {
        append(&mut builder, tree, &entry)?;
    }
    let mut written = builder.into_inner()?;
    written.file.flush()?;
    Ok(hex(&written.digest.finalize()))
}

/// Returns everything below a directory, parents first, sorted by name.
fn entries(dir: &Path) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            found.append(&mut entries(&path)?);
        }
        found.insert(path);
    }
    Ok(found)
}

fn append<W: Write>(builder: &mut tar::Builder<W>, tree: &Path, path: &Path) -> Result<()> {
    let name = path.strip_prefix(tree)?;
    let metadata = path.symlink_metadata()?;
    let mut header = header(&metadata);
    if metadata.is_symlink() {
        header.set_entry_type(tar::EntryType::Symlink);
        builder.append_link(&mut header, name, std::fs::read_link(path)?)?;
    } else if metadata.is_dir() {
        header.set_entry_type(tar::EntryType::Directory);
        builder.append_data(&mut header, name, std::io::empty())?;
    } else if metadata.is_file() {
        header.set_size(metadata.len());
        builder.append_data(&mut header, name, File::open(path)?)?;
    }
    Ok(())
}

/// Returns owner and mode; no time, which would change every layer.
fn header(metadata: &Metadata) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_uid(u64::from(metadata.uid()));
    header.set_gid(u64::from(metadata.gid()));
    header.set_mode(metadata.mode() & 0o7777);
    header.set_size(0);
    header
}

struct Digesting {
    file: BufWriter<File>,
    digest: Sha256,
}

impl Write for Digesting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.file.flush()
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::images::table::{Directory, File as TextFile, Program};

    #[test]
    fn the_same_layer_has_the_same_digest() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("p"), "program").unwrap();
        let layer = Layer {
            programs: vec![Program { name: "p".into(), path: "/bin/p".into(), mode: 0o4755 }],
            files: vec![TextFile { path: "/etc/f".into(), mode: 0o644, text: "text".into() }],
            directories: vec![Directory { path: "/tmp".into(), mode: 0o1777 }],
            links: vec![("/bin/q".into(), "p".into())],
            ..Layer::default()
        };
        let pack = |name: &str| {
            let tree = dir.path().join(name);
            finish(&layer, &tree, dir.path()).unwrap();
            super::pack(&tree, &dir.path().join(format!("{name}.tar"))).unwrap()
        };
        assert_eq!(pack("a"), pack("b"));
        let mut archive = tar::Archive::new(File::open(dir.path().join("a.tar")).unwrap());
        let entries = archive.entries().unwrap().map(|entry| {
            let entry = entry.unwrap();
            (entry.path().unwrap().display().to_string(), entry.header().mode().unwrap())
        });
        let entries: Vec<(String, u32)> = entries.collect();
        let names: Vec<&str> = entries.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["bin", "bin/p", "bin/q", "etc", "etc/f", "tmp"]);
        assert_eq!((entries[1].1, entries[5].1), (0o4755, 0o1777));
    }
}
