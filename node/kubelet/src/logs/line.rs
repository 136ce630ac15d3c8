//! One line of a container's log file: `<time> <stream> <P|F> <text>`. Pure.

use jiff::Timestamp;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Stdout,
    Stderr,
}

/// A parsed line; it borrows from the file's bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line<'a> {
    /// The timestamp as written, for `--timestamps`.
    pub stamp: &'a [u8],
    pub stream: Stream,
    /// Whether the line continues in the next entry.
    pub partial: bool,
    pub content: &'a [u8],
}

impl Line<'_> {
    pub fn time(&self) -> Option<Timestamp> {
        std::str::from_utf8(self.stamp).ok()?.parse().ok()
    }
}

/// Parses a line, with or without its newline; `None` if it is invalid.
pub fn parse(raw: &[u8]) -> Option<Line<'_>> {
    let raw = raw.strip_suffix(b"\n").unwrap_or(raw);
    let mut parts = raw.splitn(4, |byte| *byte == b' ');
    let stamp = parts.next()?;
    let stream = match parts.next()? {
        b"stdout" => Stream::Stdout,
        b"stderr" => Stream::Stderr,
        _ => return None,
    };
    let tags = parts.next()?;
    let partial = tags.split(|byte| *byte == b':').next()? == b"P";
    Some(Line { stamp, stream, partial, content: parts.next().unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_parsed() {
        let line = parse(b"2026-01-02T03:04:05.123456789Z stdout F hello world\n").unwrap();
        assert_eq!((line.stream, line.partial, line.content), (Stream::Stdout, false, b"hello world".as_slice()));
        assert_eq!(line.time().unwrap().subsec_nanosecond(), 123_456_789);
        assert!(parse(b"2026-01-02T03:04:05Z stderr P part").unwrap().partial);
        assert_eq!(parse(b"2026-01-02T03:04:05Z stdout F ").unwrap().content, b"");
        assert_eq!(parse(b"2026-01-02T03:04:05Z stdout F\n").unwrap().content, b"");
        assert_eq!(parse(b"nonsense"), None);
        assert_eq!(parse(b"2026-01-02T03:04:05Z both F x"), None);
    }
}
