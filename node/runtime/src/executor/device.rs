//! Device nodes and the links that programs expect in `/dev`.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{AtFlags, FileType, Gid, Mode, Uid};
use rustix::io::Errno;

use super::{Failure, Step};
use crate::rooted::{Rooted, relative};
use crate::spec::Device;

const LINKS: [(&str, &str); 5] = [
    ("dev/fd", "/proc/self/fd"),
    ("dev/stdin", "/proc/self/fd/0"),
    ("dev/stdout", "/proc/self/fd/1"),
    ("dev/stderr", "/proc/self/fd/2"),
    ("dev/ptmx", "pts/ptmx"),
];

/// Makes nodes and links. `/dev` is a file system of its own, unless a volume is mounted there: a file of a volume
/// under the same name must be the same device.
pub(super) fn populate(root: &Rooted, devices: &[Device]) -> Result<(), Failure> {
    let previous = nix::sys::stat::umask(nix::sys::stat::Mode::empty());
    let made = devices.iter().try_for_each(|device| make(root, device).step(format!("device {:?}", device.path)));
    nix::sys::stat::umask(previous);
    made?;
    for (link, target) in LINKS {
        let folder = root.directory(Path::new("dev")).step("open /dev")?;
        let name = link.trim_start_matches("dev/");
        match rustix::fs::symlinkat(target, &folder, name) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(format!("link {link}: {errno}")),
        }
    }
    Ok(())
}

fn make(root: &Rooted, device: &Device) -> Result<(), Failure> {
    let path = relative(Path::new(&device.path));
    let name = path.file_name().ok_or("a device without a name")?;
    let folder = root.directory(path.parent().unwrap_or(Path::new(""))).step("open its folder")?;
    let kind = if device.block { FileType::BlockDevice } else { FileType::CharacterDevice };
    let number = rustix::fs::makedev(device.major, device.minor);
    match rustix::fs::mknodat(&folder, name, kind, Mode::from_raw_mode(device.mode), number) {
        Ok(()) => {}
        Err(Errno::EXIST) => return same(&folder, name, kind, number),
        Err(errno) => return Err(errno.to_string()),
    }
    let uid = Uid::from_raw(device.uid);
    let gid = Gid::from_raw(device.gid);
    rustix::fs::chownat(&folder, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).step("set its owner")
}

/// Refuses a file at a device's path that is not that device.
fn same(folder: &OwnedFd, name: &OsStr, kind: FileType, number: u64) -> Result<(), Failure> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).step("stat the existing file")?;
    match FileType::from_raw_mode(found.st_mode) == kind && found.st_rdev == number {
        true => Ok(()),
        false => Err("something else is in its place".into()),
    }
}
