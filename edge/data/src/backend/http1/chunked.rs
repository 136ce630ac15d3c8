//! The chunked coding of a response.
//!
//! Strict: a size is hexadecimal digits, every line ends with CR LF, and nothing is read that a stricter reader would
//! read differently.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use super::Invalid;
use super::decode::{Piece, headers};

/// The most bytes of a chunk's size with its extensions.
const MAX_LINE: usize = 4096;
/// The most bytes of trailers.
const MAX_TRAILERS: usize = 64 * 1024;

/// The position in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Chunked {
    /// Before the line with a chunk's size.
    Size,
    /// In a chunk, with the bytes that are left of it.
    Data(u64),
    /// Before the end of a chunk's last line.
    DataEnd,
    /// After the last chunk.
    Trailers,
    End,
}

impl Chunked {
    /// Takes the next piece of the body from bytes that were read; `None` if it needs more of them.
    pub(super) fn next(&mut self, read: &mut BytesMut) -> Result<Option<Piece>, Invalid> {
        loop {
            match self {
                Chunked::Size => {
                    let Some(size) = take_size(read)? else { return Ok(None) };
                    *self = if size == 0 { Chunked::Trailers } else { Chunked::Data(size) };
                }
                Chunked::Data(left) => {
                    let Some(data) = take(read, left) else { return Ok(None) };
                    if *left == 0 {
                        *self = Chunked::DataEnd;
                    }
                    return Ok(Some(Piece::Data(data)));
                }
                Chunked::DataEnd => {
                    if read.len() < 2 {
                        return Ok(None);
                    }
                    if *read.split_to(2) != *b"\r\n" {
                        return Err(Invalid);
                    }
                    *self = Chunked::Size;
                }
                Chunked::Trailers => {
                    let Some(trailers) = take_trailers(read)? else { return Ok(None) };
                    *self = Chunked::End;
                    if !trailers.is_empty() {
                        return Ok(Some(Piece::Trailers(trailers)));
                    }
                }
                Chunked::End => return Ok(Some(Piece::End)),
            }
        }
    }
}

/// Takes at most `left` bytes, and subtracts them; `None` if there are none.
pub(super) fn take(read: &mut BytesMut, left: &mut u64) -> Option<Bytes> {
    let length = usize::try_from(*left).unwrap_or(usize::MAX).min(read.len());
    if length == 0 {
        return None;
    }
    *left -= length as u64;
    Some(read.split_to(length).freeze())
}

/// Takes the line of a chunk's size. Its extensions mean nothing to us.
fn take_size(read: &mut BytesMut) -> Result<Option<u64>, Invalid> {
    let Some(end) = read.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
        return if read.len() < MAX_LINE { Ok(None) } else { Err(Invalid) };
    };
    let line = read.split_to(end + 1);
    let line = line.strip_suffix(b"\r\n").ok_or(Invalid)?;
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii_end();
    let is_size = (1..=16).contains(&digits.len()) && digits.iter().all(u8::is_ascii_hexdigit);
    if !is_size || line.contains(&b'\r') {
        return Err(Invalid);
    }
    let digits = std::str::from_utf8(digits).map_err(|_| Invalid)?;
    u64::from_str_radix(digits, 16).map(Some).map_err(|_| Invalid)
}

fn take_trailers(read: &mut BytesMut) -> Result<Option<HeaderMap>, Invalid> {
    if read.starts_with(b"\r\n") {
        drop(read.split_to(2));
        return Ok(Some(HeaderMap::new()));
    }
    let Some(end) = read.windows(4).take(MAX_TRAILERS).position(|window| window == b"\r\n\r\n") else {
        return if read.len() < MAX_TRAILERS { Ok(None) } else { Err(Invalid) };
    };
    headers(&read.split_to(end + 4).freeze()).map(Some)
}
