//! Accepts clients that send the socket's path as the authority of their requests.
//!
//! gRPC for Go does so if it gets a path and a dial function, as most device plugins do: `%2Fvar%2Flib%2F…`. No host is
//! written so, and our HTTP library resets such streams before a handler sees them. In the incoming bytes, the percent
//! signs of the authority become hyphens, which take as many bits; nothing else changes.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The length of the preface that every client sends before any frame.
const PREFACE: usize = 24;
const FRAME_HEADER: usize = 9;
const HEADERS: u8 = 1;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The index of `:authority` in HPACK's static table.
const AUTHORITY: usize = 1;
/// The Huffman codes of HPACK, sorted by length: the number of bits, and the last code of that length.
const CODES: [(usize, u32); 10] = [
    (5, 0x9),
    (6, 0x2d),
    (7, 0x7b),
    (8, 0xfd),
    (10, 0x3fc),
    (11, 0x7fc),
    (12, 0xffb),
    (13, 0x1ffd),
    (14, 0x3ffd),
    (15, 0x7ffe),
];
/// The code of `%`, of six bits; that of `-` is the next.
const PERCENT: u32 = 0x15;

/// A connection whose incoming authorities are valid hosts.
pub struct Rewritten<S> {
    inner: S,
    incoming: BytesMut,
    /// The number of bytes at the start of `incoming` that pass unchanged.
    passing: usize,
    has_ended: bool,
}

impl<S> Rewritten<S> {
    pub fn new(inner: S) -> Rewritten<S> {
        Rewritten { inner, incoming: BytesMut::new(), passing: PREFACE, has_ended: false }
    }

    /// Rewrites the incoming bytes; returns how many of them can pass now.
    fn ready(&mut self) -> usize {
        while self.passing < self.incoming.len() {
            let frame = &mut self.incoming[self.passing..];
            if frame.len() < FRAME_HEADER {
                break;
            }
            let length = usize::from(frame[0]) << 16 | usize::from(frame[1]) << 8 | usize::from(frame[2]);
            let kind = frame[3];
            let flags = frame[4];
            if kind == HEADERS {
                let Some(payload) = frame.get_mut(FRAME_HEADER..FRAME_HEADER + length) else { break };
                rewrite(payload, flags);
            }
            self.passing += FRAME_HEADER + length;
        }
        if self.has_ended { self.incoming.len() } else { self.passing.min(self.incoming.len()) }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Rewritten<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            let length = self.ready().min(out.remaining());
            if length > 0 || self.has_ended {
                out.put_slice(&self.incoming[..length]);
                self.incoming.advance(length);
                self.passing = self.passing.saturating_sub(length);
                return Poll::Ready(Ok(()));
            }
            let mut space = [0; 4096];
            let mut read = ReadBuf::new(&mut space);
            ready!(Pin::new(&mut self.inner).poll_read(cx, &mut read))?;
            self.has_ended = read.filled().is_empty();
            self.incoming.extend_from_slice(read.filled());
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Rewritten<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Rewrites the authority in the payload of a HEADERS frame. The library handles malformed frames.
fn rewrite(payload: &mut [u8], flags: u8) {
    let padding = if flags & PADDED != 0 { payload.first().map_or(0, |length| usize::from(*length)) } else { 0 };
    let start = usize::from(flags & PADDED != 0) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = payload.len().saturating_sub(padding);
    let Some(block) = payload.get_mut(start..end) else { return };
    let mut at = 0;
    while let Some(next) = field(block, at) {
        at = next;
    }
}

/// Rewrites one field of a header block if it is the authority; returns the start of the next.
fn field(block: &mut [u8], at: usize) -> Option<usize> {
    let first = *block.get(at)?;
    let prefix = match first {
        0x80.. => return integer(block, at, 7).map(|(_, next)| next),
        0x40..0x80 => 6,
        0x20..0x40 => return integer(block, at, 5).map(|(_, next)| next),
        0..0x20 => 4,
    };
    let (name, mut at) = integer(block, at, prefix)?;
    if name == 0 {
        let (length, start) = integer(block, at, 7)?;
        at = start.checked_add(length)?;
    }
    let is_coded = *block.get(at)? & 0x80 != 0;
    let (length, start) = integer(block, at, 7)?;
    let end = start.checked_add(length)?;
    let value = block.get_mut(start..end)?;
    match (name, is_coded) {
        (AUTHORITY, true) => rewrite_coded(value),
        (AUTHORITY, false) => value.iter_mut().filter(|byte| **byte == b'%').for_each(|byte| *byte = b'-'),
        _ => {}
    }
    Some(end)
}

/// Reads an integer that begins in the low bits of a byte; returns it and its end.
fn integer(block: &[u8], at: usize, prefix: u32) -> Option<(usize, usize)> {
    let mask = (1 << prefix) - 1;
    let mut value = usize::from(*block.get(at)?) & mask;
    if value < mask {
        return Some((value, at + 1));
    }
    for (place, byte) in block.get(at + 1..)?.iter().take(4).enumerate() {
        value += usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Some((value, at + 2 + place));
        }
    }
    None
}

/// Replaces the codes of `%` in a Huffman-coded string.
fn rewrite_coded(text: &mut [u8]) {
    let mut at = 0;
    while let Some((length, code)) = code_at(text, at) {
        if (length, code) == (6, PERCENT) {
            // The last two bits are 01, and become 10.
            for (bit, is_set) in [(at + 4, true), (at + 5, false)] {
                let mask = 0x80 >> (bit % 8);
                text[bit / 8] = if is_set { text[bit / 8] | mask } else { text[bit / 8] & !mask };
            }
        }
        at += length;
    }
}

/// Returns the length and the code that begins at a bit. The padding is the prefix of a code that is longer than any of
/// ours.
fn code_at(text: &[u8], at: usize) -> Option<(usize, u32)> {
    let bit = |at: usize| text.get(at / 8).map(|byte| u32::from(byte >> (7 - at % 8) & 1));
    let code = |length: usize| (0..length).try_fold(0, |code, place| Some(code << 1 | bit(at + place)?));
    CODES.into_iter().find_map(|(length, last)| code(length).filter(|code| *code <= last).map(|code| (length, code)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::AsyncReadExt;

    /// The codes of each length, from the first one on.
    const CODES_BY_LENGTH: [(usize, u32, &str); 3] =
        [(5, 0, "012aceiost"), (6, 0x14, " %-./3456789=A_bdfghlmnpru"), (7, 0x5c, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz")];

    fn coded(text: &str) -> Vec<u8> {
        let mut bits = String::new();
        for character in text.chars() {
            let found = CODES_BY_LENGTH
                .iter()
                .find_map(|(length, first, all)| Some((*length, first + all.find(character)? as u32)));
            let (length, code) = found.unwrap();
            bits.push_str(&format!("{code:0length$b}"));
        }
        bits.push_str(&"1".repeat((8 - bits.len() % 8) % 8));
        (0..bits.len()).step_by(8).map(|at| u8::from_str_radix(&bits[at..at + 8], 2).unwrap()).collect()
    }

    /// Returns a request as gRPC for Go begins it: an indexed field, the authority, and a field with a literal name.
    fn request(value: &[u8], flag: u8) -> Vec<u8> {
        let mut block = vec![0x83, 0x41, u8::try_from(value.len()).unwrap() | flag];
        block.extend_from_slice(value);
        block.extend_from_slice(b"\x40\x01x\x03%2F");
        let mut frames = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
        frames.extend_from_slice(&[0, 0, u8::try_from(block.len()).unwrap(), HEADERS, 0x4, 0, 0, 0, 1]);
        frames.extend_from_slice(&block);
        frames.extend_from_slice(b"\0\0\x03\0\x01\0\0\0\x01%2F");
        frames
    }

    #[tokio::test]
    async fn the_path_of_a_socket_becomes_a_host() {
        let path = "%2Fvar%2Flib%2Fkubelet%2Fdevice-plugins%2Fkubelet.sock";
        let host = path.replace('%', "-");
        for (sent, expected) in [
            (request(path.as_bytes(), 0), request(host.as_bytes(), 0)),
            (request(&coded(path), 0x80), request(&coded(&host), 0x80)),
            (request(&coded("localhost"), 0x80), request(&coded("localhost"), 0x80)),
        ] {
            let mut heard = Vec::new();
            Rewritten::new(sent.as_slice()).read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, expected);
            // The result is the same for every split into pieces.
            let (mut near, far) = tokio::io::duplex(3);
            let writing = async {
                tokio::io::AsyncWriteExt::write_all(&mut near, &sent).await.unwrap();
                drop(near);
            };
            let mut heard = Vec::new();
            let mut rewritten = Rewritten::new(far);
            let (_, read) = tokio::join!(writing, rewritten.read_to_end(&mut heard));
            read.unwrap();
            assert_eq!(heard, expected);
        }
    }

    #[tokio::test]
    async fn malformed_frames_pass_unchanged() {
        for sent in [&b"PRI"[..], b"", &request(b"%", 0)[..40], &[0xff; 200]] {
            let mut heard = Vec::new();
            Rewritten::new(sent).read_to_end(&mut heard).await.unwrap();
            assert_eq!(heard, sent);
        }
    }
}
