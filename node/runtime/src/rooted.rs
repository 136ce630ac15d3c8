//! Paths below a folder, resolved by the kernel as if the folder were the root.
//!
//! Used for every path of an untrusted source: names in image layers, mount targets in a container's file system. No
//! name and no symbolic link can lead outside of the folder.

use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// The number of links that the kernel follows in one path.
const MAX_LINKS: u8 = 40;

/// A folder that is the root of all paths given to it.
#[derive(Debug)]
pub(crate) struct Rooted(OwnedFd);

impl Rooted {
    pub fn open(folder: &Path) -> io::Result<Self> {
        Ok(Self(rustix::fs::open(folder, OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?))
    }

    pub fn descriptor(&self) -> &OwnedFd {
        &self.0
    }

    /// Opens the path as a location in the tree only (`O_PATH`).
    pub fn place(&self, path: &Path) -> io::Result<OwnedFd> {
        self.resolve(path, OFlags::PATH)
    }

    /// Opens a folder, creating missing folders on the way with the mode 0755.
    pub fn directory(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.resolve(path, OFlags::DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_directories(&relative(path), 0),
            opened => opened,
        }
    }

    /// Opens a folder like `directory`, and refuses a path with a symbolic link.
    pub fn plain_directory(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.resolve_by(path, OFlags::DIRECTORY, ResolveFlags::NO_SYMLINKS) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make_directories(&relative(path), 0),
            opened => opened,
        }
    }

    /// Opens the location of a folder, created if it is missing.
    pub fn directory_place(&self, path: &Path) -> io::Result<OwnedFd> {
        self.directory(path)?;
        self.place(path)
    }

    /// Opens the location of a file, created empty if it is missing.
    pub fn file_place(&self, path: &Path) -> io::Result<OwnedFd> {
        match self.place(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let path = relative(path);
        let name = path.file_name().ok_or_else(|| io::Error::from(Errno::ISDIR))?;
        let parent = self.directory(path.parent().unwrap_or(Path::new("")))?;
        match make_file(&parent, name) {
            Ok(()) => self.place(&path),
            // A link whose target does not exist: the target becomes the file.
            Err(Errno::EXIST) => {
                let target = rustix::fs::readlinkat(&parent, name, Vec::new())?;
                let target = Path::new(OsStr::from_bytes(target.as_bytes())).to_path_buf();
                let target = relative(&path.parent().unwrap_or(Path::new("")).join(target));
                let parent = self.directory(target.parent().unwrap_or(Path::new("")))?;
                let name = target.file_name().ok_or_else(|| io::Error::from(Errno::ISDIR))?;
                make_file(&parent, name)?;
                self.place(&path)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        self.resolve_by(path, flags, ResolveFlags::empty())
    }

    fn resolve_by(&self, path: &Path, flags: OFlags, further: ResolveFlags) -> io::Result<OwnedFd> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let inside = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | further;
        Ok(rustix::fs::openat2(&self.0, path, flags | OFlags::CLOEXEC, Mode::empty(), inside)?)
    }

    /// Makes the folders of a path. A link on the way whose target does not exist yet gets its target, below the root.
    fn make_directories(&self, path: &Path, depth: u8) -> io::Result<OwnedFd> {
        if depth > MAX_LINKS {
            return Err(Errno::LOOP.into());
        }
        let mut done = PathBuf::new();
        for component in path.components() {
            let parent = self.resolve(&done, OFlags::DIRECTORY)?;
            match rustix::fs::mkdirat(&parent, component.as_os_str(), Mode::from_raw_mode(0o755)) {
                Ok(()) => {}
                Err(Errno::EXIST) => {
                    if let Ok(target) = rustix::fs::readlinkat(&parent, component.as_os_str(), Vec::new()) {
                        let target = Path::new(OsStr::from_bytes(target.as_bytes())).to_path_buf();
                        self.make_directories(&relative(&done.join(target)), depth + 1)?;
                    }
                }
                Err(errno) => return Err(errno.into()),
            }
            done.push(component);
        }
        self.resolve(path, OFlags::DIRECTORY)
    }
}

/// Makes an empty file without opening it: another process may have put a pipe in its place.
fn make_file(folder: &OwnedFd, name: &OsStr) -> rustix::io::Result<()> {
    rustix::fs::mknodat(folder, name, FileType::RegularFile, Mode::from_raw_mode(0o644), 0)
}

/// Returns the path without its root, `.` and `..`: a leading `..` cannot climb, as in a chroot.
pub(crate) fn relative(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            _ => {}
        }
    }
    normal
}
