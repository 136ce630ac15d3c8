//! Volumes whose mounts propagate between the node and a container.
//!
//! The kernel propagates mounts only below a shared mount. A node whose init does not share the machine's mounts, as
//! systemd does, has private ones, and a volume on them would propagate nothing without an error. The mount that holds
//! such a volume is therefore made shared before the container is created. This must never change a mount that no
//! volume needs, nor one that hides the volume's own.

use std::ffi::OsString;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use corten_cri::v1;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::mount::{MountPropagationFlags, mount_change};

use crate::Error;

const MOUNTS: &str = "/proc/self/mountinfo";

/// A mount of the node.
#[derive(Debug, PartialEq, Eq)]
struct NodeMount {
    id: u64,
    point: PathBuf,
    is_shared: bool,
}

impl NodeMount {
    /// Reads a line of `mountinfo`: id, parent, device, root, mount point, options, optional fields, `-`, and the rest.
    fn parse(line: &str) -> Option<NodeMount> {
        let mut fields = line.split(' ');
        let id = fields.next()?.parse().ok()?;
        let point = unescaped(fields.nth(3)?);
        let is_shared = fields.skip(1).take_while(|field| *field != "-").any(|field| field.starts_with("shared:"));
        Some(NodeMount { id, point, is_shared })
    }
}

/// Makes the mounts shared that hold propagating volumes.
pub(super) fn share_sources(mounts: &[v1::Mount]) -> Result<(), Error> {
    let is_private = |mount: &v1::Mount| mount.propagation() == v1::MountPropagation::PropagationPrivate;
    for mount in mounts.iter().filter(|mount| !mount.host_path.is_empty() && !is_private(mount)) {
        share(Path::new(&mount.host_path))?;
    }
    Ok(())
}

fn share(path: &Path) -> Result<(), Error> {
    let id = mount_id(&open(path)?).map_err(Error::file("find the mount of", path))?;
    let table = std::fs::read_to_string(MOUNTS).map_err(Error::file("read", Path::new(MOUNTS)))?;
    let found = table.lines().filter_map(NodeMount::parse).find(|mount| mount.id == id);
    let found = found.ok_or_else(|| Error::Invalid(format!("path {path:?} is on a mount that the node cannot see")))?;
    if found.is_shared {
        return Ok(());
    }
    let point = open(&found.point)?;
    // Another mount may hide the mount point.
    if mount_id(&point).map_err(Error::file("find the mount of", &found.point))? != id {
        let point = &found.point;
        return Err(Error::Invalid(format!("path {path:?} is mounted on {point:?} but it is not a shared mount")));
    }
    let descriptor = format!("/proc/self/fd/{}", point.as_raw_fd());
    let shared = mount_change(descriptor, MountPropagationFlags::SHARED);
    shared.map_err(|errno| Error::file("share the mount", &found.point)(errno.into()))
}

fn open(path: &Path) -> Result<OwnedFd, Error> {
    let opened = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    opened.map_err(|errno| Error::file("open", path)(errno.into()))
}

fn mount_id(place: &impl AsFd) -> std::io::Result<u64> {
    let facts = rustix::fs::statx(place, "", AtFlags::EMPTY_PATH, StatxFlags::MNT_ID)?;
    Ok(facts.stx_mnt_id)
}

/// Decodes a field of `mountinfo`: spaces, tabs, line ends and backslashes are written as three octal digits.
fn unescaped(field: &str) -> PathBuf {
    let bytes = field.as_bytes();
    let mut path = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let digits =
            bytes.get(at + 1..at + 4).filter(|_| *byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                path.push(escaped);
                at += 4;
            }
            None => {
                path.push(*byte);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_are_read_with_their_propagation() {
        for (line, id, point, is_shared) in [
            ("36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue", 36, "/mnt2", false),
            ("27 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw", 27, "/", true),
            ("28 1 8:1 / /a\\040b\\134c rw shared:7 master:3 - ext4 /dev/sda1 rw", 28, "/a b\\c", true),
            ("29 1 8:1 / /data rw,shared:9 - tmpfs shared:2 rw", 29, "/data", false),
        ] {
            let expected = NodeMount { id, point: point.into(), is_shared };
            assert_eq!(NodeMount::parse(line), Some(expected), "{line}");
        }
        for line in ["", "x 1 8:1 / / rw - ext4 a rw", "27 1 8:1 /"] {
            assert_eq!(NodeMount::parse(line), None, "{line}");
        }
    }
}
