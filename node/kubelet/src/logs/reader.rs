//! Reads one container's log as a stream of bytes for a client: the last lines, since a time, limited, and followed
//! while the container runs. A rotation in between loses nothing: the old file is read to its end before the new one is
//! opened.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};

use super::follow::LogWatcher;
use super::line::{self, Line};
use super::options::LogOptions;
use super::regular;

const CHUNK: usize = 64 * 1024;
const TAIL_BLOCK: u64 = 32 * 1024;

/// The output queue; while it is full, the reader waits for the client.
pub type Output = mpsc::Sender<Bytes>;

/// The client disconnected, or has all that it requested.
struct Enough;

/// Reads the log at `path`. Following ends when `running` becomes false and everything is read.
pub async fn read(
    path: &Path,
    options: &LogOptions,
    watcher: &LogWatcher,
    mut running: watch::Receiver<bool>,
    output: Output,
) -> io::Result<()> {
    let directory = path.parent().unwrap_or(path).to_path_buf();
    let grown = if options.follow { Some(watcher.follow(&directory)?) } else { None };
    let mut reader = LogReader::open(path, options)?;
    loop {
        // The state is read before the log, so that the last lines are read after the container's end.
        let was_running = *running.borrow_and_update();
        if reader.copy(&output).await?.is_err() {
            return Ok(());
        }
        let Some(grown) = grown.as_ref().filter(|_| was_running) else { return Ok(()) };
        if reader.switch_if_rotated()? {
            continue;
        }
        tokio::select! {
            () = grown.notified() => {}
            changed = running.changed() => if changed.is_err() { return Ok(()) },
            () = output.closed() => return Ok(()),
        }
    }
}

struct LogReader {
    path: PathBuf,
    file: File,
    /// Bytes of an incomplete line.
    pending: Vec<u8>,
    options: LogOptions,
    left: Option<u64>,
    /// Whether the last line was partial: its continuation gets no timestamp.
    within_line: bool,
}

impl LogReader {
    fn open(path: &Path, options: &LogOptions) -> io::Result<LogReader> {
        let mut file = regular::open(path)?;
        if let Some(lines) = options.tail_lines {
            let start = tail_offset(&mut file, lines)?;
            file.seek(SeekFrom::Start(start))?;
        }
        Ok(LogReader {
            path: path.to_path_buf(),
            file,
            pending: Vec::new(),
            options: options.clone(),
            left: options.limit_bytes,
            within_line: false,
        })
    }

    /// Copies everything up to the end of the file.
    async fn copy(&mut self, output: &Output) -> io::Result<Result<(), Enough>> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let count = self.file.read(&mut buffer)?;
            if count == 0 {
                return Ok(Ok(()));
            }
            self.pending.extend_from_slice(&buffer[..count]);
            let text = self.take_lines();
            if !text.is_empty() && output.send(text.into()).await.is_err() {
                return Ok(Err(Enough));
            }
            if self.left == Some(0) {
                return Ok(Err(Enough));
            }
        }
    }

    /// Takes the complete lines from the pending bytes.
    fn take_lines(&mut self) -> Vec<u8> {
        let Some(end) = self.pending.iter().rposition(|byte| *byte == b'\n') else { return Vec::new() };
        let rest = self.pending.split_off(end + 1);
        let lines = std::mem::replace(&mut self.pending, rest);
        let mut text = Vec::with_capacity(lines.len());
        for raw in lines.split_inclusive(|byte| *byte == b'\n') {
            if let Some(parsed) = line::parse(raw) {
                self.append(&parsed, &mut text);
            }
        }
        if let Some(left) = &mut self.left {
            text.truncate(usize::try_from(*left).unwrap_or(usize::MAX));
            *left -= text.len() as u64;
        }
        text
    }

    fn append(&mut self, parsed: &Line<'_>, text: &mut Vec<u8>) {
        let wanted = self.options.stream.is_none_or(|stream| stream == parsed.stream);
        let recent = self.options.since.is_none_or(|since| parsed.time().is_none_or(|time| time >= since));
        if !wanted || !recent {
            return;
        }
        if self.options.timestamps && !self.within_line {
            text.extend_from_slice(parsed.stamp);
            text.push(b' ');
        }
        text.extend_from_slice(parsed.content);
        if !parsed.partial {
            text.push(b'\n');
        }
        self.within_line = parsed.partial;
    }

    /// Reopens the file if another one has its name now.
    fn switch_if_rotated(&mut self) -> io::Result<bool> {
        let Ok(there) = std::fs::metadata(&self.path) else { return Ok(false) };
        let open = self.file.metadata()?;
        if there.ino() == open.ino() && there.len() >= open.len() {
            return Ok(false);
        }
        self.file = regular::open(&self.path)?;
        self.pending.clear();
        Ok(true)
    }
}

/// Returns the offset of the last `lines` lines. The parts of one line count as one.
fn tail_offset(file: &mut File, lines: u64) -> io::Result<u64> {
    let length = file.metadata()?.len();
    if lines == 0 {
        return Ok(length);
    }
    let mut found = 0;
    let mut end = length;
    let mut tail: Vec<u8> = Vec::new();
    while end > 0 {
        let start = end.saturating_sub(TAIL_BLOCK);
        let mut block = vec![0; usize::try_from(end - start).unwrap_or(0)];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut block)?;
        block.extend_from_slice(&tail);
        // Only complete lines are counted: a block may begin within one.
        let first_full =
            if start == 0 { Some(0) } else { block.iter().position(|byte| *byte == b'\n').map(|at| at + 1) };
        let Some(first_full) = first_full else {
            tail = block;
            end = start;
            continue;
        };
        let mut at = block.len();
        for raw in block[first_full..].split_inclusive(|byte| *byte == b'\n').rev() {
            let begins_new = line::parse(raw).is_none_or(|parsed| !parsed.partial);
            if begins_new && found == lines {
                return Ok(start + at as u64);
            }
            at -= raw.len();
            found += u64::from(begins_new);
        }
        tail = block[..first_full].to_vec();
        end = start;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    const LOG: &str = "2026-01-01T00:00:01Z stdout F one\n\
        2026-01-01T00:00:02Z stderr F two\n\
        2026-01-01T00:00:03Z stdout P thr\n\
        2026-01-01T00:00:03Z stdout F ee\n\
        2026-01-01T00:00:04Z stdout F four\n";

    async fn output(options: LogOptions) -> String {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        std::fs::write(&path, LOG).unwrap();
        let watcher = LogWatcher::new().unwrap();
        let (_state, running) = watch::channel(false);
        let (sender, mut receiver) = mpsc::channel(16);
        read(&path, &options, &watcher, running, sender).await.unwrap();
        let mut text = Vec::new();
        while let Some(chunk) = receiver.recv().await {
            text.extend_from_slice(&chunk);
        }
        String::from_utf8(text).unwrap()
    }

    #[tokio::test]
    async fn options_choose_what_is_shown() {
        let all = LogOptions::default();
        assert_eq!(output(all.clone()).await, "one\ntwo\nthree\nfour\n");
        assert_eq!(output(LogOptions { tail_lines: Some(2), ..all.clone() }).await, "three\nfour\n");
        assert_eq!(output(LogOptions { tail_lines: Some(0), ..all.clone() }).await, "");
        assert_eq!(output(LogOptions { tail_lines: Some(99), ..all.clone() }).await, "one\ntwo\nthree\nfour\n");
        assert_eq!(output(LogOptions { limit_bytes: Some(6), ..all.clone() }).await, "one\ntw");
        let since = Some("2026-01-01T00:00:03Z".parse().unwrap());
        assert_eq!(output(LogOptions { since, ..all.clone() }).await, "three\nfour\n");
        assert_eq!(output(LogOptions { stream: Some(line::Stream::Stderr), ..all.clone() }).await, "two\n");
        let stamped = output(LogOptions { timestamps: true, tail_lines: Some(2), ..all }).await;
        assert_eq!(stamped, "2026-01-01T00:00:03Z three\n2026-01-01T00:00:04Z four\n");
    }

    #[test]
    fn tails_are_found_across_blocks() {
        let mut file = tempfile::tempfile().unwrap();
        let mut offsets = Vec::new();
        let mut length = 0;
        for number in 0..3000 {
            offsets.push(length);
            let line = format!("2026-01-01T00:00:01Z stdout F line {number}\n");
            length += line.len() as u64;
            file.write_all(line.as_bytes()).unwrap();
        }
        for lines in [1, 10, 2999, 3000] {
            assert_eq!(tail_offset(&mut file, lines).unwrap(), offsets[3000 - usize::try_from(lines).unwrap()]);
        }
        assert_eq!(tail_offset(&mut file, 5000).unwrap(), 0);
    }

    #[tokio::test]
    async fn following_survives_rotation_and_ends_with_the_container() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("0.log");
        let mut file = File::create(&path).unwrap();
        let watcher = LogWatcher::new().unwrap();
        let (state, running) = watch::channel(true);
        let (sender, mut receiver) = mpsc::channel(16);
        let options = LogOptions { follow: true, ..LogOptions::default() };
        let followed = path.clone();
        let task = tokio::spawn(async move { read(&followed, &options, &watcher, running, sender).await });
        let mut next = async |expected: &str| {
            let chunk = tokio::time::timeout(Duration::from_secs(300), receiver.recv()).await.expect("in time");
            assert_eq!(chunk.as_deref(), Some(expected.as_bytes()));
        };
        file.write_all(b"2026-01-01T00:00:01Z stdout F one\n").unwrap();
        next("one\n").await;
        file.write_all(b"2026-01-01T00:00:01Z stdout F half").unwrap();
        file.write_all(b" two\n").unwrap();
        next("half two\n").await;
        std::fs::rename(&path, directory.path().join("0.log.1")).unwrap();
        let mut file = File::create(&path).unwrap();
        file.write_all(b"2026-01-01T00:00:02Z stdout F three\n").unwrap();
        next("three\n").await;
        file.write_all(b"2026-01-01T00:00:03Z stdout F last\n").unwrap();
        state.send_replace(false);
        next("last\n").await;
        task.await.unwrap().unwrap();
    }
}
