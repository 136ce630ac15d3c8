//! Reads a file that an untrusted party wrote: an image, a container, or a writer to a folder of the node.
//!
//! The path may lead to a pipe that never answers, a device, a link to anywhere or a file without end. The file is
//! found by descriptor, checked before it is opened, and read up to a limit; everything else is an error.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};

/// Reads a regular file below a folder. Needs the node's `/proc`.
pub(crate) fn read(folder: &impl AsFd, path: &Path, resolve: ResolveFlags, limit: u64) -> io::Result<Vec<u8>> {
    let resolve = resolve | ResolveFlags::NO_MAGICLINKS;
    let place = rustix::fs::openat2(folder, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), resolve)?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&place)?.st_mode);
    if kind != FileType::RegularFile {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let found = format!("/proc/self/fd/{}", place.as_raw_fd());
    let file = File::from(rustix::fs::open(found, flags, Mode::empty())?);
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {limit} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("good"), "text").expect("a file");
        std::fs::write(path("large"), "too much").expect("a file");
        nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        std::os::unix::fs::symlink("/dev/zero", path("endless")).expect("a link");
        std::os::unix::fs::symlink("good", path("link")).expect("a link");
        let root = File::open(folder.path()).expect("the folder");
        let strict = |name: &str| {
            let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
            read(&root, Path::new(name), resolve, 4).map_err(|error| error.kind())
        };
        assert_eq!(strict("good"), Ok(b"text".to_vec()));
        assert_eq!(strict("large"), Err(io::ErrorKind::FileTooLarge));
        assert_eq!(strict("pipe"), Err(io::ErrorKind::InvalidInput));
        assert_eq!(strict("."), Err(io::ErrorKind::InvalidInput));
        for outside in ["endless", "link", "../etc/passwd", "/etc/passwd", "missing"] {
            assert!(strict(outside).is_err(), "{outside}");
        }
        let devices = File::open("/dev").expect("/dev");
        assert!(read(&devices, Path::new("zero"), ResolveFlags::BENEATH, 4).is_err());
    }
}
