//! One image layer, from a tar stream to a directory that overlayfs can use as a lower layer.
//!
//! Whiteouts become overlayfs' own marks (a 0:0 character device, the opaque attribute). Every path
//! is resolved by the kernel below the layer's directory (`Rooted`): no name or link of an archive can
//! reach outside of it. Runs in a process of its own (`unpacker`), because an attacker may have made the layer.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use serde::{Deserialize, Serialize};

use super::digest::shortened;
use super::room::{Room, Roomy};
use super::tarball;
use crate::Error;
use crate::rooted::{Rooted, relative};

const WHITEOUT_PREFIX: &[u8] = b".wh.";
const OPAQUE_WHITEOUT: &[u8] = b".wh..wh..opq";
/// Names that aufs kept for itself, and that some layers still hold.
const AUFS_PREFIX: &[u8] = b".wh..wh.";
/// Attributes that a layer may carry into the file system.
const PAX_XATTR_PREFIX: &[u8] = b"SCHILY.xattr.";
/// Attributes by which overlayfs steers itself.
const OVERLAY_XATTRS: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];
/// The most bytes of one layer, packed or unpacked.
pub(super) const MAX_LAYER_BYTES: u64 = 64 << 30;

/// What a layer takes on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Size {
    /// The bytes of its regular files.
    pub bytes: u64,
    /// Its files of every kind; a name beside another for the same file counts too.
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
    /// Times of directories are set last, because every file put into one changes them.
    directory_times: Vec<(PathBuf, i64)>,
}

/// What the header of an entry says about the file's attributes.
struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    mtime: i64,
    xattrs: Vec<(OsString, Vec<u8>)>,
}

impl Unpacking {
    fn entry(&mut self, entry: &mut tar::Entry<'_, impl Read>) -> io::Result<()> {
        self.room.entry()?;
        self.size.inodes += 1;
        let path = relative(&entry.path()?);
        let Some(name) = path.file_name().map(OsStr::to_os_string) else {
            return Ok(()); // The root itself.
        };
        let parent_path = path.parent().unwrap_or(Path::new("")).to_path_buf();
        if name.as_bytes().starts_with(WHITEOUT_PREFIX) {
            return whiteout(&self.root.plain_directory(&parent_path)?, name.as_bytes());
        }
        let parent = self.root.directory(&parent_path)?;
        let attributes = attributes(entry)?;
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
            tar::EntryType::Regular | tar::EntryType::Continuous | tar::EntryType::GNUSparse => {
                self.require_room(entry.size())?;
                self.size.bytes += write_file(parent, name, Roomy { inner: entry, room: &mut self.room })?;
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
            // Global headers and unknown kinds carry no file.
            _ => return Ok(()),
        }
        apply(parent, name, kind, attributes)
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

    /// Sets the times of directories, deepest first. A time that cannot be set harms nobody.
    fn finish(&self) {
        for (path, mtime) in self.directory_times.iter().rev() {
            if let Ok(directory) = self.root.directory(path) {
                let _ = rustix::fs::futimens(&directory, &times(*mtime));
            }
        }
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
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
            // overlayfs' own marks come from whiteouts alone: a layer must not redirect names of layers below it.
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

fn write_file(parent: &OwnedFd, name: &OsStr, mut content: impl Read) -> io::Result<u64> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = std::fs::File::from(rustix::fs::openat(parent, name, flags, Mode::from_raw_mode(0o600))?);
    let written = io::copy(&mut content, &mut file)?;
    file.flush()?;
    Ok(written)
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

/// Turns a whiteout into overlayfs' mark: an opaque directory has an attribute, and a lower file is hidden by a
/// character device 0:0 of its name. `.` and `..` would name the directory itself and its parent.
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

/// Owner first, then mode (a change of owner clears set-user-id), then attributes, then time.
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

/// Attributes that the file system does not know are skipped, as every other unpacker does.
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
mod tests {
    use super::*;
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};

    fn is_root() -> bool {
        nix::unistd::geteuid().is_root()
    }

    fn header(kind: tar::EntryType, size: u64, mode: u32) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(mode);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_000_000_000);
        header
    }

    fn archive(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        build(&mut builder);
        builder.into_inner().expect("a finished archive")
    }

    fn file(builder: &mut tar::Builder<Vec<u8>>, path: &str, content: &[u8]) {
        let mut header = header(tar::EntryType::Regular, content.len() as u64, 0o4755);
        // Set the name by hand: the builder refuses the hostile names that this test is about.
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_cksum();
        builder.append(&header, content).expect("append");
    }

    fn link(builder: &mut tar::Builder<Vec<u8>>, kind: tar::EntryType, path: &str, target: &str) {
        let mut header = header(kind, 0, 0o777);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_cksum();
        builder.append(&header, io::empty()).expect("append");
    }

    #[test]
    fn a_layer_keeps_modes_links_and_turns_whiteouts_into_overlay_marks() {
        if !is_root() {
            eprintln!("skipped: unpacking a layer makes device nodes, which needs root");
            return;
        }
        let layer = archive(|builder| {
            file(builder, "bin/tool", b"tool");
            link(builder, tar::EntryType::Link, "bin/alias", "bin/tool");
            link(builder, tar::EntryType::Symlink, "sh", "bin/tool");
            file(builder, "etc/.wh.gone", b"");
            file(builder, "var/.wh..wh..opq", b"");
        });
        let directory = tempfile::tempdir().expect("a temporary directory");
        let size = unpack(layer.as_slice(), directory.path()).expect("unpack");
        let metadata = |path: &str| std::fs::symlink_metadata(directory.path().join(path)).expect(path);
        assert_eq!(size, Size { bytes: 4, inodes: 5 });
        assert_eq!(metadata("bin/tool").permissions().mode() & 0o7777, 0o4755);
        assert_eq!(metadata("bin/tool").mtime(), 1_000_000_000);
        assert_eq!(metadata("bin/tool").ino(), metadata("bin/alias").ino());
        assert!(metadata("sh").file_type().is_symlink());
        assert!(metadata("etc/gone").file_type().is_char_device() && metadata("etc/gone").rdev() == 0);
        let opaque = xattr::get(directory.path().join("var"), "trusted.overlay.opaque").expect("read the attribute");
        assert_eq!(opaque.as_deref(), Some(b"y".as_slice()));
    }

    #[test]
    fn a_layer_cannot_steer_overlayfs() {
        if !is_root() {
            eprintln!("skipped: setting trusted attributes needs root");
            return;
        }
        let layer = archive(|builder| {
            let attributes =
                [("SCHILY.xattr.trusted.overlay.redirect", b"/etc".as_slice()), ("SCHILY.xattr.user.note", b"kept")];
            builder.append_pax_extensions(attributes).expect("extensions");
            file(builder, "innocent", b"x");
        });
        let directory = tempfile::tempdir().expect("a temporary directory");
        unpack(layer.as_slice(), directory.path()).expect("unpack");
        let read = |name: &str| xattr::get(directory.path().join("innocent"), name).ok().flatten();
        assert_eq!(read("trusted.overlay.redirect"), None);
        assert!(read("user.note").is_none_or(|value| value == b"kept"), "where the file system takes it at all");
    }

    #[test]
    fn no_name_and_no_link_reaches_outside_of_the_layer() {
        if !is_root() {
            eprintln!("skipped: unpacking a layer changes owners, which needs root");
            return;
        }
        let outside = tempfile::tempdir().expect("a temporary directory");
        let inside = tempfile::tempdir().expect("a temporary directory");
        let target = outside.path().to_str().expect("a readable path");
        let layer = archive(|builder| {
            link(builder, tar::EntryType::Symlink, "way-out", target);
            file(builder, "way-out/through-a-link", b"x");
            file(builder, "../../climbed", b"x");
            file(builder, "/absolute", b"x");
        });
        unpack(layer.as_slice(), inside.path()).expect("unpack");
        assert_eq!(std::fs::read_dir(outside.path()).expect("list").count(), 0);
        assert!(inside.path().join("climbed").exists() && inside.path().join("absolute").exists());
    }

    #[test]
    fn whiteouts_hide_only_names_of_their_own_directory() {
        if !is_root() {
            eprintln!("skipped: unpacking a layer makes device nodes, which needs root");
            return;
        }
        let outside = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(outside.path().join("kept"), "x").expect("a file");
        let inside = tempfile::tempdir().expect("a temporary directory");
        let target = outside.path().to_str().expect("a readable path");
        for (name, refused) in [
            (".wh.", true),
            (".wh..", true),
            (".wh...", true),
            ("a/.wh..", true),
            ("a/.wh...", true),
            ("link/.wh.kept", true),
            ("link/.wh..wh..opq", true),
            ("inner/.wh.file", true),
            (".wh..wh.plnk", false),
            ("a/.wh.gone", false),
            ("../../a/.wh.gone", false),
        ] {
            let directory = inside.path().join(name.replace('/', "_"));
            std::fs::create_dir(&directory).expect("a directory");
            let layer = archive(|builder| {
                file(builder, "a/file", b"x");
                link(builder, tar::EntryType::Symlink, "link", target);
                link(builder, tar::EntryType::Symlink, "inner", "a");
                file(builder, name, b"");
            });
            let unpacked = unpack(layer.as_slice(), &directory);
            assert_eq!(unpacked.is_err(), refused, "{name}: {unpacked:?}");
            assert!(directory.join("a/file").exists(), "{name}");
            assert!(outside.path().join("kept").exists(), "{name}");
        }
    }

    #[test]
    fn a_sparse_file_that_claims_an_exbibyte_is_refused() {
        if !is_root() {
            eprintln!("skipped: unpacking a layer changes owners, which needs root");
            return;
        }
        // A sparse file of an exbibyte: two blocks in the archive.
        let mut sparse = header(tar::EntryType::GNUSparse, 0, 0o644);
        sparse.as_old_mut().name[..6].copy_from_slice(b"sparse");
        let gnu = sparse.as_gnu_mut().expect("a GNU header");
        gnu.realsize = *b"\x80\0\0\0\x10\0\0\0\0\0\0\0";
        gnu.sparse[0].offset = gnu.realsize;
        gnu.sparse[0].numbytes = *b"00000000000\0";
        sparse.set_cksum();
        let layer = archive(|builder| builder.append(&sparse, io::empty()).expect("append"));
        let directory = tempfile::tempdir().expect("a temporary directory");
        let error = unpack(layer.as_slice(), directory.path()).expect_err("too large").to_string();
        assert!(error.contains("larger than a layer may be"), "{error}");
    }
}
