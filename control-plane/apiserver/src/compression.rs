//! gzip for clients that accept it: quick rather than good, and big lists piece by piece.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, header};

/// Responses of at least this size are compressed for clients that accept it.
pub const THRESHOLD: usize = 128 * 1024;
/// The gzip level. The second of this library is as small as upstream's first: its own first is half as large again, for
/// three quarters of the time.
const LEVEL: u32 = 2;
/// The size at which compressed pieces are sent.
const PIECE: usize = 16 * 1024;

/// Returns whether the client accepts gzip. Upstream compares the word alone and ignores weights.
pub fn accepts_gzip(headers: &HeaderMap) -> bool {
    let value = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(',').any(|word| word.trim() == "gzip")
}

/// Returns whether the client accepts gzip with a weight above zero.
pub fn prefers_gzip(headers: &HeaderMap) -> bool {
    let value = headers.get(header::ACCEPT_ENCODING).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let weight = |parameter: &str| parameter.trim().strip_prefix("q=").map_or(0.0, |q| q.parse().unwrap_or(0.0));
    value.split(',').any(|word| {
        let (name, parameter) = word.split_once(';').map_or((word, None), |(name, rest)| (name, Some(rest)));
        name.trim().eq_ignore_ascii_case("gzip") && parameter.is_none_or(|parameter| weight(parameter) > 0.0)
    })
}

/// Compresses all bytes at once.
pub fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(bytes.len() / 6), Compression::new(LEVEL));
    // Writing into a vector cannot fail.
    let _ = encoder.write_all(bytes);
    encoder.finish().unwrap_or_default()
}

/// Decompresses the output of `gzip`.
pub fn gunzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let _ = flate2::read::GzDecoder::new(bytes).read_to_end(&mut out);
    out
}

/// Compresses pieces as they come. Only one piece is in memory at any time.
pub fn gzip_pieces(mut pieces: impl Iterator<Item = Bytes> + Send + 'static) -> impl Iterator<Item = Bytes> + Send {
    let mut encoder = Some(GzEncoder::new(Vec::new(), Compression::new(LEVEL)));
    std::iter::from_fn(move || {
        let open = encoder.as_mut()?;
        for piece in pieces.by_ref() {
            let _ = open.write_all(&piece);
            if open.get_ref().len() >= PIECE {
                return Some(std::mem::take(open.get_mut()).into());
            }
        }
        encoder.take().and_then(|open| open.finish().ok()).map(Bytes::from)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_a_word_of_its_own_or_has_a_weight() {
        for (value, accepted, preferred) in [
            ("", false, false),
            ("gzip", true, true),
            ("deflate, gzip", true, true),
            ("GZIP", false, true),
            ("gzip;q=0.5", false, true),
            ("gzip;q=0", false, false),
            ("gzip;q=x", false, false),
            ("gzip;q=0, gzip", true, true),
            ("*", false, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!((accepts_gzip(&headers), prefers_gzip(&headers)), (accepted, preferred), "{value:?}");
        }
    }

    #[test]
    fn pieces_and_the_whole_unpack_to_the_same() {
        let text: Vec<u8> = (0..200_000u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
        for size in [1000, 65_536, text.len()] {
            let pieces: Vec<Bytes> = text.chunks(size).map(Bytes::copy_from_slice).collect();
            let packed: Vec<u8> = gzip_pieces(pieces.into_iter()).flatten().collect();
            assert!(gunzip(&packed) == text, "in pieces of {size}");
        }
        assert!(gunzip(&gzip(&text)) == text);
        let nothing: Vec<u8> = gzip_pieces(std::iter::empty()).flatten().collect();
        assert_eq!(gunzip(&nothing), b"");
    }
}
