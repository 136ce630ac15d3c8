//! One image layer, from a tar stream to a directory that overlayfs can use as a lower layer.
//!
//! Whiteouts become overlayfs' own (a 0:0 character device, the opaque attribute). The kernel resolves every path below
//! the layer's directory (`Rooted`): no name or link of an archive can reach outside of it. Runs in a process of its
//! own (`unpacker`), because an attacker may have made the layer.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use serde::{Deserialize, Serialize};

use super::digest::shortened;
use super::room::{Room, Roomy};
use super::sparse::{self, Sparse};
use super::tarball;
use crate::Error;
use crate::rooted::{Rooted, relative};

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE_WHITEOUT: &[u8] = b".wh..wh..opq";
/// Names that aufs reserved for itself, and that some layers still hold.
const AUFS_PREFIX: &[u8] = b".wh..wh.";
/// The prefix of extended attributes in PAX headers.
const PAX_XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";
/// Extended attributes that control overlayfs.
const OVERLAY_XATTRS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
/// The most bytes of one layer, packed or unpacked.
pub(super) const MAX_LAYER_BYTES: u64 = 64 << 30;

/// The kinds of entries that are files.
const KINDS: [tar::EntryType; 9] = [
    tar::EntryType::Regular,
    tar::EntryType::Continuous,
    tar::EntryType::GNUSparse,
    tar::EntryType::Directory,
    tar::EntryType::Symlink,
    tar::EntryType::Link,
    tar::EntryType::Char,
    tar::EntryType::Block,
    tar::EntryType::Fifo,
];

/// The disk usage of a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    /// The bytes of its regular files.
    pub bytes: u64,
    /// The number of its files of every kind; each hard link counts too.
    pub inodes: u64,
}

/// Unpacks a plain tar stream into `directory`, which must exist and be empty.
pub(super) fn unpack(archive: impl Read, directory: &Path) -> Result<Size, Error> {
    let root = Rooted::open(directory).map_err(Error::file("open", directory))?;
    let room = Room::on(root.descriptor()).map_err(Error::file("open", directory))?;
    let mut unpacking = Unpacking { root, room, size: Size::default(), directory_times: Vec::new() };
    tarball::for_each(archive, |entry| {
        let shown = shortened(&String::from_utf8_lossy(&entry.path_bytes()));
        unpacking.entry(entry).map_err(|source| Error::Image(format!("unpack {shown:?}: {source}")))
    })?;
    unpacking.finish();
    Ok(unpacking.size)
}

struct Unpacking {
    root: Rooted,
    room: Room,
    size: Size,
    /// The times of directories, which are set last, because every file put into one changes them.
    directory_times: Vec<(PathBuf, i64)>,
}

/// The file's attributes in the header of an entry.
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: i64,
    xattrs: Vec<(OsString, Vec<u8>)>,
}

impl Unpacking {
    fn entry(&mut self, entry: &mut tar::Entry<'_, impl Read>) -> io::Result<()> {
        // Global headers and unknown kinds carry no file, and their content is not read into memory.
        if !KINDS.contains(&entry.header().entry_type()) {
            return Ok(());
        }
        self.room.entry()?;
        self.size.inodes += 1;
        let sparse = Sparse::of(entry)?;
        let own_name = sparse.as_ref().and_then(|sparse| sparse.name.as_deref());
        let path = match own_name {
            Some(name) => relative(name),
            None => relative(&entry.path()?),
        };
        let Some(name) = path.file_name().map(OsStr::to_os_string) else {
            return Ok(()); // The root itself.
        };
        let parent_path = path.parent().unwrap_or(Path::new("")).to_path_buf();
        if name.as_bytes().starts_with(WHITEOUT_PREFIX) {
            return whiteout(&self.root.plain_directory(&parent_path)?, name.as_bytes());
        }
        let parent = self.root.directory(&parent_path)?;
        let attributes = attributes(entry)?;
        if let Some(sparse) = sparse.filter(|_| entry.header().entry_type() == tar::EntryType::Regular) {
            self.write_sparse(entry, &sparse, &parent, &name)?;
            return apply(&parent, &name, tar::EntryType::Regular, &attributes);
        }
        self.create(entry, &parent, &path, &name, &attributes)
    }

    fn create(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        parent: &OwnedFd,
        path: &Path,
        name: &OsStr,
        attributes: &Attributes,
    ) -> io::Result<()> {
        let kind = entry.header().entry_type();
        if kind != tar::EntryType::Directory {
            remove_existing(parent, name)?;
        }
        match kind {
            tar::EntryType::Directory => {
                make_directory(parent, name)?;
                self.directory_times.push((path.to_path_buf(), attributes.mtime));
            }
            tar::EntryType::Regular | tar::EntryType::Continuous => {
                self.require_room(entry.size())?;
                let mut file = new_file(parent, name)?;
                self.size.bytes += io::copy(&mut Roomy { inner: entry, room: &mut self.room }, &mut file)?;
            }
            tar::EntryType::GNUSparse => {
                let size = entry.size();
                self.require_room(size)?;
                let content = Roomy { inner: entry, room: &mut self.room };
                sparse::write_with_holes(content, &new_file(parent, name)?, size)?;
                self.size.bytes += size;
            }
            tar::EntryType::Symlink => {
                let target = entry.link_name_bytes().ok_or_else(|| invalid("a symbolic link without a target"))?;
                rustix::fs::symlinkat(OsStr::from_bytes(&target), parent, name)?;
            }
            tar::EntryType::Link => {
                let target = entry.link_name()?.ok_or_else(|| invalid("a hard link without a target"))?;
                return self.hard_link(&relative(&target), parent, name);
            }
            tar::EntryType::Char | tar::EntryType::Block | tar::EntryType::Fifo => {
                make_node(parent, name, kind, entry.header())?;
            }
            _ => return Ok(()),
        }
        apply(parent, name, kind, attributes)
    }

    fn write_sparse(
        &mut self,
        entry: &mut tar::Entry<'_, impl Read>,
        sparse: &Sparse,
        parent: &OwnedFd,
        name: &OsStr,
    ) -> io::Result<()> {
        self.require_room(sparse.size)?;
        remove_existing(parent, name)?;
        let mut content = Roomy { inner: entry, room: &mut self.room };
        sparse.write(&mut content, &mut new_file(parent, name)?)?;
        self.size.bytes += sparse.size;
        Ok(())
    }

    /// Refuses a file by the size that its header claims; a sparse file needs few bytes in the archive to claim any.
    fn require_room(&self, size: u64) -> io::Result<()> {
        if size > MAX_LAYER_BYTES.saturating_sub(self.size.bytes) {
            return Err(invalid("the layer is larger than a layer may be"));
        }
        self.room.fits(size)
    }

    fn hard_link(&self, target: &Path, parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
        let target_name = target.file_name().ok_or_else(|| invalid("a hard link to the root"))?;
        let target_parent = self.root.directory(target.parent().unwrap_or(Path::new("")))?;
        Ok(rustix::fs::linkat(&target_parent, target_name, parent, name, AtFlags::empty())?)
    }

    /// Sets the times of directories, deepest first. Ignores errors: a wrong time does no harm.
    fn finish(&self) {
        for (path, mtime) in self.directory_times.iter().rev() {
            if let Ok(directory) = self.root.directory(path) {
                let _ = rustix::fs::futimens(&directory, &times(*mtime));
            }
        }
    }
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn attributes(entry: &mut tar::Entry<'_, impl Read>) -> io::Result<Attributes> {
    let header = entry.header();
    let mut attributes = Attributes {
        mode: header.mode()? & 0o7777,
        // An empty field is zero, as other readers take it.
        uid: u32::try_from(header.uid().unwrap_or(0)).map_err(|_| invalid("a user id beyond 32 bits"))?,
        gid: u32::try_from(header.gid().unwrap_or(0)).map_err(|_| invalid("a group id beyond 32 bits"))?,
        mtime: i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0),
        xattrs: Vec::new(),
    };
    if let Some(extensions) = entry.pax_extensions()? {
        for extension in extensions {
            let extension = extension?;
            let name = extension.key_bytes().strip_prefix(PAX_XATTR_PREFIX);
            // overlayfs' own attributes come from whiteouts alone: a layer must not redirect names of layers below it.
            if let Some(name) = name.filter(|name| !OVERLAY_XATTRS.iter().any(|own| name.starts_with(own))) {
                attributes.xattrs.push((OsString::from_vec(name.to_vec()), extension.value_bytes().to_vec()));
            }
        }
    }
    Ok(attributes)
}

fn remove_existing(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match corten_files::remove_at(parent, name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn make_directory(parent: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => {
            let found = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
            if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
                return Ok(());
            }
            remove_existing(parent, name)?;
            Ok(rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(0o755))?)
        }
        Err(errno) => Err(errno.into()),
    }
}

fn new_file(parent: &OwnedFd, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?))
}

fn make_node(parent: &OwnedFd, name: &OsStr, kind: tar::EntryType, header: &tar::Header) -> io::Result<()> {
    let (kind, device) = match kind {
        tar::EntryType::Char => (FileType::CharacterDevice, device(header)?),
        tar::EntryType::Block => (FileType::BlockDevice, device(header)?),
        _ => (FileType::Fifo, 0),
    };
    Ok(rustix::fs::mknodat(parent, name, kind, Mode::from_raw_mode(0o600), device)?)
}

fn device(header: &tar::Header) -> io::Result<u64> {
    let major = header.device_major()?.ok_or_else(|| invalid("a device without a number"))?;
    let minor = header.device_minor()?.ok_or_else(|| invalid("a device without a number"))?;
    Ok(rustix::fs::makedev(major, minor))
}

/// Makes an overlayfs whiteout: an opaque directory has an attribute, and a lower file is hidden by a character device
/// 0:0 of its name. Refuses `.` and `..`, which would name the directory itself and its parent.
fn whiteout(parent: &OwnedFd, name: &[u8]) -> io::Result<()> {
    if name == OPAQUE_WHITEOUT {
        return set_xattr(parent, OsStr::new("trusted.overlay.opaque"), b"y");
    }
    if name.starts_with(AUFS_PREFIX) {
        return Ok(());
    }
    let hidden = &name[WHITEOUT_PREFIX.len()..];
    if matches!(hidden, b"" | b"." | b"..") {
        return Err(invalid("a whiteout that names no file"));
    }
    let hidden = OsStr::from_bytes(hidden);
    remove_existing(parent, hidden)?;
    Ok(rustix::fs::mknodat(parent, hidden, FileType::CharacterDevice, Mode::empty(), rustix::fs::makedev(0, 0))?)
}

/// Sets owner, then mode (a change of owner clears set-user-id), then extended attributes, then time.
fn apply(parent: &OwnedFd, name: &OsStr, kind: tar::EntryType, attributes: &Attributes) -> io::Result<()> {
    let nofollow = AtFlags::SYMLINK_NOFOLLOW;
    let owner = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
    rustix::fs::chownat(parent, name, Some(owner.0), Some(owner.1), nofollow)?;
    if kind != tar::EntryType::Symlink {
        rustix::fs::chmodat(parent, name, Mode::from_raw_mode(attributes.mode), AtFlags::empty())?;
    }
    let file = rustix::fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    for (key, value) in &attributes.xattrs {
        set_xattr(&file, key, value)?;
    }
    if kind != tar::EntryType::Directory {
        rustix::fs::utimensat(parent, name, &times(attributes.mtime), nofollow)?;
    }
    Ok(())
}

/// Sets an extended attribute. Skips one that the file system does not support, as every other unpacker does.
fn set_xattr(file: &impl AsFd, name: &OsStr, value: &[u8]) -> io::Result<()> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    match xattr::set_deref(path, name, value) {
        Err(error) if error.raw_os_error() == Some(libc::ENOTSUP) => Ok(()),
        result => result,
    }
}

fn times(mtime: i64) -> Timestamps {
    let stamp = Timespec { tv_sec: mtime, tv_nsec: 0 };
    Timestamps { last_access: stamp, last_modification: stamp }
}

#[cfg(test)]
mod tests;
