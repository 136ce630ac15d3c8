//! Opens files of `/proc` for writing: labels of this process, settings of its namespaces.
//!
//! In a container's root, any file system may be mounted at `/proc`, and a label that is written to another file
//! confines nothing. So the file must be one of a real procfs, with no mount and no magic link on the way.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, PROC_SUPER_MAGIC, ResolveFlags};

/// Opens a file below `/proc` for writing.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let proc = rustix::fs::open("/proc", flags, Mode::empty())?;
    if rustix::fs::fstatfs(&proc)?.f_type != PROC_SUPER_MAGIC {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "/proc is not a procfs"));
    }
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    Ok(File::from(rustix::fs::openat2(&proc, path, flags, Mode::empty(), resolve)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_procfs_are_opened() {
        assert!(open(Path::new("thread-self/oom_score_adj")).is_ok());
        for outside in ["self/root/tmp/x", "self/cwd/x", "../tmp/x", "/tmp/x", "self/fd/0"] {
            assert!(open(Path::new(outside)).is_err(), "{outside}");
        }
    }
}
