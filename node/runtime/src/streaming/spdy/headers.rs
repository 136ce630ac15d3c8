//! Header blocks: names and values, compressed with a dictionary and with the previous blocks.
//!
//! Each direction of a connection is one zlib stream, so blocks must be coded in their order.

use std::collections::BTreeMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// The most bytes that one block may decompress to.
const MAX_BLOCK: usize = 256 << 10;

/// Headers by name. Names are lower-case; several values of a name are joined by zero bytes.
pub(crate) type Headers = BTreeMap<String, String>;

/// The error of a malformed block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a malformed header block")]
pub(crate) struct MalformedBlock;

/// A decoder of the blocks of one direction.
pub(crate) struct Decoder(Decompress);

impl Decoder {
    pub fn new() -> Self {
        Self(Decompress::new(true))
    }

    pub fn decode(&mut self, block: &[u8]) -> Result<Headers, MalformedBlock> {
        let mut plain = Vec::with_capacity(4 << 10);
        let mut taken = 0;
        loop {
            let read = self.0.total_in();
            let written = plain.len();
            let outcome = self.0.decompress_vec(&block[taken..], &mut plain, FlushDecompress::Sync);
            taken += (self.0.total_in() - read) as usize;
            match outcome {
                Ok(Status::StreamEnd) => break,
                Ok(_) => {}
                // The first block names the dictionary and waits for it.
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0.set_dictionary(&super::dictionary::bytes()).map_err(|_| MalformedBlock)?;
                    continue;
                }
                Err(_) => return Err(MalformedBlock),
            }
            if plain.len() > MAX_BLOCK {
                return Err(MalformedBlock);
            }
            if plain.len() == plain.capacity() {
                plain.reserve(plain.len());
            } else if taken == block.len() || plain.len() == written {
                break;
            }
        }
        parse(Bytes::from(plain))
    }
}

fn parse(mut block: Bytes) -> Result<Headers, MalformedBlock> {
    let number = |block: &mut Bytes| {
        if block.len() < 4 { Err(MalformedBlock) } else { Ok(block.get_u32() as usize) }
    };
    let mut headers = Headers::new();
    for _ in 0..number(&mut block)? {
        let string = |block: &mut Bytes| {
            let length = number(block)?;
            if block.len() < length {
                return Err(MalformedBlock);
            }
            Ok(String::from_utf8_lossy(&block.split_to(length)).into_owned())
        };
        let name = string(&mut block)?.to_ascii_lowercase();
        headers.insert(name, string(&mut block)?);
    }
    Ok(headers)
}

/// An encoder of the blocks of one direction.
pub(crate) struct Encoder(Compress);

impl Encoder {
    pub fn new() -> Self {
        let mut compress = Compress::new(Compression::fast(), true);
        compress.set_dictionary(&super::dictionary::bytes()).expect("a fresh stream takes a dictionary");
        Self(compress)
    }

    pub fn encode(&mut self, headers: &Headers) -> Bytes {
        let mut plain = BytesMut::new();
        plain.put_u32(headers.len() as u32);
        for (name, value) in headers {
            for string in [name, value] {
                plain.put_u32(string.len() as u32);
                plain.put_slice(string.as_bytes());
            }
        }
        let mut block = Vec::with_capacity(plain.len() + 128);
        let mut taken = 0;
        loop {
            let before = self.0.total_in();
            let outcome = self.0.compress_vec(&plain[taken..], &mut block, FlushCompress::Sync);
            taken += (self.0.total_in() - before) as usize;
            if outcome.is_err() || (taken == plain.len() && block.len() < block.capacity()) {
                return Bytes::from(block);
            }
            block.reserve(block.capacity());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_decoded_in_their_order() {
        let mut encoder = Encoder::new();
        let mut decoder = Decoder::new();
        let headers = |pairs: &[(&str, &str)]| {
            pairs.iter().map(|(name, value)| ((*name).to_string(), (*value).to_string())).collect::<Headers>()
        };
        let long = "x".repeat(50_000);
        for wanted in [
            headers(&[("streamtype", "error"), ("port", "80"), ("requestid", "0")]),
            headers(&[]),
            headers(&[("streamtype", "data"), ("port", "80"), ("requestid", "0")]),
            headers(&[("long", &long)]),
        ] {
            let block = encoder.encode(&wanted);
            assert_eq!(decoder.decode(&block).expect("a block"), wanted);
        }
    }

    #[test]
    fn the_first_block_names_the_dictionary() {
        let block = Encoder::new().encode(&Headers::new());
        assert_eq!(block[2..6], [0xe3, 0xc6, 0xa7, 0xc2]);
    }

    #[test]
    fn malformed_blocks_are_refused() {
        for block in [&b"not zlib at all"[..], &[0x78, 0xbb, 1, 2, 3, 4, 5]] {
            assert!(Decoder::new().decode(block).is_err());
        }
        assert!(parse(Bytes::from_static(&[0, 0, 0, 1, 0, 0, 0, 9, b'x'])).is_err());
    }
}
