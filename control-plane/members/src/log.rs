//! The log of an etcd process, which never grows beyond two files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The size at which the log is moved aside; the one before it is deleted.
const MOST_BYTES: u64 = 8 << 20;

/// A log file and its size.
pub struct Log {
    path: PathBuf,
    file: File,
    size: u64,
    most: u64,
}

impl Log {
    /// Opens the log for appending.
    pub fn open(path: &Path) -> io::Result<Log> {
        Log::with_limit(path, MOST_BYTES)
    }

    fn with_limit(path: &Path, most: u64) -> io::Result<Log> {
        let file = append(path)?;
        let size = file.metadata()?.len();
        Ok(Log { path: path.to_owned(), file, size, most })
    }

    /// Appends bytes; moves a log that would become too large aside first.
    pub fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let length = bytes.len() as u64;
        if self.size > 0 && self.size + length > self.most {
            std::fs::rename(&self.path, self.path.with_extension("log.1"))?;
            self.file = append(&self.path)?;
            self.size = 0;
        }
        self.file.write_all(bytes)?;
        self.size += length;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_two_files_at_most() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("etcd.log");
        let mut log = Log::with_limit(&path, 10).unwrap();
        for line in ["first\n", "second\n", "third\n"] {
            log.write(line.as_bytes()).unwrap();
        }
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        assert_eq!(read(&path), "third\n");
        assert_eq!(read(&folder.path().join("etcd.log.1")), "second\n");
        drop(log);
        let mut log = Log::with_limit(&path, 10).unwrap();
        log.write(b"fourth\n").unwrap();
        assert_eq!(read(&folder.path().join("etcd.log.1")), "third\n", "the size is known after a restart");
    }
}
