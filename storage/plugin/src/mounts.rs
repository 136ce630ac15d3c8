//! The mounts of this process's mount namespace: the table, mount, bind and unmount.

use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, MsFlags, mount, umount2};

use crate::error::{During, Result};

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The device's numbers, as `7:3`.
    pub device: String,
    /// The directory of the file system that is mounted.
    pub root: PathBuf,
    pub target: PathBuf,
    /// Whether the whole file system is read-only, which it also becomes by errors.
    pub read_only_file_system: bool,
}

/// Returns the mounts, in the order in which they were made.
pub fn all() -> Result<Vec<Mount>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").during(|| "read the mounts".to_owned())?;
    Ok(table.lines().filter_map(parse).collect())
}

/// Returns the mount on top at a path.
pub fn at(target: &Path) -> Result<Option<Mount>> {
    let target = real(target);
    Ok(all()?.into_iter().rfind(|mount| mount.target == target))
}

/// Returns a path without symbolic links, as the table shows it; the kubelet's directory may be one.
pub fn real(path: &Path) -> PathBuf {
    path.canonicalize().unwrap_or_else(|_| path.to_owned())
}

fn parse(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let mut fields = left.split(' ').skip(2);
    let device = fields.next()?.to_owned();
    let root = unescape(fields.next()?);
    let target = unescape(fields.next()?);
    let options = right.split(' ').nth(2).unwrap_or_default();
    let read_only_file_system = options.split(',').any(|option| option == "ro");
    Some(Mount { device, root, target, read_only_file_system })
}

/// Replaces the octal escapes of spaces, tabs, newlines and backslashes.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Mounts the file system of a device with the mount options of a volume.
pub fn mount_device(device: &Path, target: &Path, file_system: &str, options: &[String]) -> Result<()> {
    let (flags, data) = split_options(options);
    let data = Some(data.as_str()).filter(|data| !data.is_empty());
    mount(Some(device), target, Some(file_system), flags, data)
        .during(|| format!("mount {} at {}", device.display(), target.display()))
}

/// Splits mount options into the kernel's flags and the file system's own options.
fn split_options(options: &[String]) -> (MsFlags, String) {
    let mut flags = MsFlags::empty();
    let mut data: Vec<&str> = Vec::new();
    for option in options.iter().flat_map(|options| options.split(',')).filter(|option| !option.is_empty()) {
        match option {
            "defaults" | "rw" => {}
            "ro" => flags |= MsFlags::MS_RDONLY,
            "noatime" => flags |= MsFlags::MS_NOATIME,
            "nodiratime" => flags |= MsFlags::MS_NODIRATIME,
            "relatime" => flags |= MsFlags::MS_RELATIME,
            "strictatime" => flags |= MsFlags::MS_STRICTATIME,
            "nodev" => flags |= MsFlags::MS_NODEV,
            "noexec" => flags |= MsFlags::MS_NOEXEC,
            "nosuid" => flags |= MsFlags::MS_NOSUID,
            "sync" => flags |= MsFlags::MS_SYNCHRONOUS,
            "dirsync" => flags |= MsFlags::MS_DIRSYNC,
            own => data.push(own),
        }
    }
    (flags, data.join(","))
}

/// Makes `target` show `source`, a directory or a device node.
pub fn bind(source: &Path, target: &Path, read_only: bool) -> Result<()> {
    let none = None::<&str>;
    mount(Some(source), target, none, MsFlags::MS_BIND, none)
        .during(|| format!("bind {} to {}", source.display(), target.display()))?;
    if read_only {
        let flags = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        let remounted =
            mount(none, target, none, flags, none).during(|| format!("make {} read-only", target.display()));
        if remounted.is_err() {
            let _ = umount2(target, MntFlags::UMOUNT_NOFOLLOW);
        }
        remounted?;
    }
    Ok(())
}

/// Removes all mounts at a path; a path without a mount, or no path at all, is the wanted state.
pub fn unmount(target: &Path) -> Result<()> {
    while at(target)?.is_some() {
        umount2(target, MntFlags::UMOUNT_NOFOLLOW).during(|| format!("unmount {}", target.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_parsed() {
        let line = r"36 35 7:3 /a\040b /mnt/with\134back rw,noatime shared:1 - ext4 /dev/loop3 ro,errors=continue";
        let mount = parse(line).unwrap();
        assert_eq!(mount.device, "7:3");
        assert_eq!(mount.root, Path::new("/a b"));
        assert_eq!(mount.target, Path::new(r"/mnt/with\back"));
        assert!(mount.read_only_file_system);
        assert_eq!(parse("nonsense"), None);
        assert_eq!(parse("1 2 - ext4"), None);
    }

    #[test]
    fn options_are_flags_or_the_own_of_the_file_system() {
        let options = ["noatime,data=ordered".to_owned(), "defaults".to_owned(), "ro".to_owned()];
        let (flags, data) = split_options(&options);
        assert_eq!(flags, MsFlags::MS_NOATIME | MsFlags::MS_RDONLY);
        assert_eq!(data, "data=ordered");
    }
}
