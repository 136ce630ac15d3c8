//! The container's log file, in the format that the kubelet reads: `<time> <stream> <F or P> <text>`.
//!
//! A line that ends is full (F). A piece of a line is partial (P): of a line longer than the limit, or the last one of
//! a stream that ended without a line break.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The longest piece of a line in one entry.
const MAX_LINE: usize = 16 << 10;

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    fn name(self) -> &'static str {
        match self {
            Self::Stdout => "stdout",
            Self::Stderr => "stderr",
        }
    }
}

/// A writer of both streams of a container to one file.
#[derive(Debug)]
pub(crate) struct Log {
    path: Option<PathBuf>,
    file: Option<File>,
    /// The beginnings of lines that have not ended, by stream.
    unfinished: [Vec<u8>; 2],
}

impl Log {
    /// Opens the log; without a path, output is dropped.
    pub fn open(path: Option<&Path>) -> io::Result<Self> {
        let file = path.map(open).transpose()?;
        Ok(Self { path: path.map(Path::to_path_buf), file, unfinished: [Vec::new(), Vec::new()] })
    }

    /// Opens the log again by its name, after a rotation.
    pub fn reopen(&mut self) -> io::Result<()> {
        self.file = self.path.as_deref().map(open).transpose()?;
        Ok(())
    }

    /// Writes output. `now` is the time since 1970 in nanoseconds.
    pub fn write(&mut self, stream: Stream, output: &[u8], now: i64) {
        let Some(file) = &mut self.file else { return };
        let unfinished = &mut self.unfinished[stream as usize];
        unfinished.extend_from_slice(output);
        let (entries, rest) = entries(unfinished, stream, now);
        unfinished.drain(..rest);
        // A full disk must not stop the container; the kubelet's eviction frees it.
        let _ = file.write_all(&entries);
    }

    /// Writes the unfinished line of a stream that has ended.
    pub fn finish(&mut self, stream: Stream, now: i64) {
        let rest = std::mem::take(&mut self.unfinished[stream as usize]);
        if let (Some(file), false) = (&mut self.file, rest.is_empty()) {
            let mut buffer = Vec::new();
            entry(&mut buffer, stream, 'P', &rest, now);
            let _ = file.write_all(&buffer);
        }
    }
}

fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    // A pod may have the folder of all logs mounted, and a link or a pipe there must not lead elsewhere or block.
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = OpenOptions::new().create(true).append(true).mode(0o640).custom_flags(flags).open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(io::ErrorKind::InvalidInput, "the log is not a regular file")),
    }
}

/// Returns the log entries of the output, and how many bytes of it they took. Pure.
fn entries(output: &[u8], stream: Stream, now: i64) -> (Vec<u8>, usize) {
    let mut buffer = Vec::with_capacity(output.len() + 64);
    let mut taken = 0;
    loop {
        let rest = &output[taken..];
        match rest.iter().take(MAX_LINE + 1).position(|byte| *byte == b'\n') {
            Some(end) => {
                entry(&mut buffer, stream, 'F', &rest[..end], now);
                taken += end + 1;
            }
            None if rest.len() > MAX_LINE => {
                entry(&mut buffer, stream, 'P', &rest[..MAX_LINE], now);
                taken += MAX_LINE;
            }
            None => return (buffer, taken),
        }
    }
}

fn entry(buffer: &mut Vec<u8>, stream: Stream, tag: char, line: &[u8], now: i64) {
    buffer.extend_from_slice(timestamp(now).as_bytes());
    buffer.extend_from_slice(format!(" {} {tag} ", stream.name()).as_bytes());
    buffer.extend_from_slice(line);
    buffer.push(b'\n');
}

/// Formats a time as RFC 3339 in UTC with nanoseconds. The shim carries no time zones.
fn timestamp(nanoseconds: i64) -> String {
    let seconds = nanoseconds.div_euclid(1_000_000_000);
    let fraction = nanoseconds.rem_euclid(1_000_000_000);
    let days = seconds.div_euclid(86_400);
    let second = seconds.rem_euclid(86_400);
    // Days to a date in the proleptic Gregorian calendar, by eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let hour = second / 3600;
    let minute = second % 3600 / 60;
    let second = second % 60;
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{fraction:09}Z")
}

/// Returns the nanoseconds since 1970.
pub(crate) fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_rfc3339() {
        for (nanoseconds, expected) in [
            (0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400_000_000_001, "2000-02-29T00:00:00.000000001Z"),
            (1_792_000_000_123_456_789, "2026-10-14T17:46:40.123456789Z"),
            (-1, "1969-12-31T23:59:59.999999999Z"),
        ] {
            assert_eq!(timestamp(nanoseconds), expected);
        }
    }

    #[test]
    fn lines_are_full_and_pieces_are_partial() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("pod/0.log");
        let mut log = Log::open(Some(&path)).expect("open");
        log.write(Stream::Stdout, b"one\ntw", 0);
        log.write(Stream::Stderr, b"oops\n", 0);
        log.write(Stream::Stdout, b"o\n", 0);
        log.write(Stream::Stdout, &[b'x'; MAX_LINE + 5], 0);
        log.finish(Stream::Stdout, 0);
        let content = std::fs::read_to_string(&path).expect("read");
        let shown: Vec<_> = content.lines().map(|line| &line[31..]).collect();
        let long = format!("stdout P {}", "x".repeat(MAX_LINE));
        assert_eq!(shown, ["stdout F one", "stderr F oops", "stdout F two", &long, "stdout P xxxxx"]);
    }

    #[test]
    fn a_log_is_a_regular_file() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| folder.path().join(name);
        std::os::unix::fs::symlink(path("elsewhere"), path("link.log")).expect("a link");
        nix::unistd::mkfifo(&path("pipe.log"), nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        for name in ["link.log", "pipe.log"] {
            assert!(Log::open(Some(&path(name))).is_err(), "{name}");
        }
        assert!(!path("elsewhere").exists());
    }

    #[test]
    fn a_rotated_log_is_opened_again() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let path = folder.path().join("0.log");
        let mut log = Log::open(Some(&path)).expect("open");
        log.write(Stream::Stdout, b"old\n", 0);
        std::fs::rename(&path, folder.path().join("0.log.1")).expect("rotate");
        log.reopen().expect("reopen");
        log.write(Stream::Stdout, b"new\n", 0);
        assert!(std::fs::read_to_string(&path).expect("read").ends_with("stdout F new\n"));
    }
}
