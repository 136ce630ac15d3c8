//! The log of a process in a file of bounded size.
//!
//! A full file is copied to one with the extension `1` and emptied, and goes on. It stays the same file, so that programs
//! which follow it, and this process's own standard error if it is the same file, go on too. Both together never hold more
//! than twice the size.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use clap::Args;
use tracing_subscriber::fmt::MakeWriter;

use crate::private;

/// The flags of the log.
#[derive(Debug, Clone, Args)]
pub struct LogOptions {
    /// The log level: error, warn, info, debug, trace, or a filter such as `info,corten_kubelet=debug`.
    #[arg(long, global = true, default_value = "info", value_name = "FILTER")]
    pub log: String,
    /// The file of the log; defaults to standard error, which systemd's journal takes.
    #[arg(long, global = true, value_name = "FILE")]
    pub log_file: Option<PathBuf>,
    /// The size at which the log file is rotated; one rotated file is kept.
    #[arg(long, global = true, default_value_t = 50, value_name = "MEGABYTES", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub log_file_max_size: u64,
}

impl LogOptions {
    /// Returns the size at which the log file is rotated.
    pub fn bytes(&self) -> u64 {
        self.log_file_max_size << 20
    }
}

/// A log file, which all threads write to.
#[derive(Clone)]
pub struct LogFile(Arc<Mutex<Rotated>>);

struct Rotated {
    file: File,
    path: PathBuf,
    most: u64,
    size: u64,
}

impl LogFile {
    /// Opens a log file for appending.
    pub fn open(path: &Path, most: u64) -> Result<LogFile> {
        let file = private::append(path)?;
        let size = file.metadata()?.len();
        Ok(LogFile(Arc::new(Mutex::new(Rotated { file, path: path.to_owned(), most, size }))))
    }
}

impl<'a> MakeWriter<'a> for LogFile {
    type Writer = LogFile;

    fn make_writer(&'a self) -> LogFile {
        self.clone()
    }
}

impl Write for LogFile {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut rotated = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        rotated.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Rotated {
    /// Appends a whole line; a full file is rotated first.
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.size + bytes.len() as u64 > self.most {
            self.rotate()?;
        }
        self.file.write_all(bytes)?;
        self.size += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn rotate(&mut self) -> std::io::Result<()> {
        let mut name = self.path.clone().into_os_string();
        name.push(".1");
        // The copy has the mode of the file. Without room for it the old lines are lost, and not the new ones.
        if std::fs::copy(&self.path, &name).is_err() {
            let _ = std::fs::remove_file(&name);
        }
        self.file.set_len(0)?;
        self.size = 0;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_log_file_is_bounded_and_stays_the_same_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("corten.log");
        let mut log = LogFile::open(&path, 100).unwrap();
        let mut error = private::append(&path).unwrap();
        for number in 0..50 {
            log.write_all(format!("line {number:>3}\n").as_bytes()).unwrap();
        }
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!(lines(&path) + lines(&dir.path().join("corten.log.1")), 17, "eleven lines are rotated");
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("line  49\n"));
        // Another writer that has the file open goes on at its end.
        error.write_all(b"panic\n").unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().ends_with("line  49\npanic\n"));
        let mode = std::fs::metadata(dir.path().join("corten.log.1")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
