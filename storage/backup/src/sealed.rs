//! Sealed objects: compressed, then encrypted and authenticated together with their name.
//!
//! Each object has a random nonce of 96 bits under AES-256-GCM: four billion objects, which are four petabytes of
//! chunks, keep the chance of a repeated nonce below one in four billion.

use std::io::Read;

use bytes::Bytes;
use corten_backup::Keys;
use flate2::Compression;
use flate2::read::{DeflateDecoder, DeflateEncoder};
use ring::aead::{Aad, NONCE_LEN, Nonce};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::{Error, Result};

/// The first bytes of a sealed object.
const MAGIC: &[u8; 4] = b"cvb1";
/// The bytes of a sealed object beyond its plaintext, at most: magic, nonce, form and tag.
pub const OVERHEAD: usize = MAGIC.len() + NONCE_LEN + 1 + 16;
const PLAIN: u8 = 0;
const DEFLATED: u8 = 1;

/// The id of a chunk.
pub type ChunkId = [u8; 32];

/// Returns the id of a chunk: a hash under the repository's key, so that the place learns nothing of the content.
pub fn chunk_id(keys: &Keys, plaintext: &[u8]) -> ChunkId {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, &keys.ids);
    let tag = ring::hmac::sign(&key, plaintext);
    let mut id = ChunkId::default();
    id.copy_from_slice(tag.as_ref());
    id
}

/// Seals the content of an object.
pub fn seal(keys: &Keys, name: &str, plaintext: &[u8]) -> Result<Bytes> {
    let failed = |_| Error::Invalid(format!("{name} cannot be sealed"));
    let mut body = Vec::with_capacity(plaintext.len() + 1);
    body.push(DEFLATED);
    let deflated = DeflateEncoder::new(plaintext, Compression::fast()).read_to_end(&mut body);
    if deflated.is_err() || body.len() > plaintext.len() {
        body.clear();
        body.push(PLAIN);
        body.extend_from_slice(plaintext);
    }
    let mut nonce = [0; NONCE_LEN];
    SystemRandom::new().fill(&mut nonce).map_err(failed)?;
    let sealing =
        keys.body.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(name.as_bytes()), &mut body);
    sealing.map_err(failed)?;
    Ok([&MAGIC[..], &nonce, &body].concat().into())
}

/// Opens a sealed object with at most `most` bytes of plaintext.
pub fn open(keys: &Keys, name: &str, sealed: &[u8], most: usize) -> Result<Vec<u8>> {
    let rest = sealed.strip_prefix(MAGIC).ok_or_else(|| Error::damaged(name, "it is not an object of a repository"))?;
    let Some((nonce, body)) = rest.split_first_chunk::<NONCE_LEN>() else {
        return Err(Error::damaged(name, "it is cut off"));
    };
    let mut body = body.to_vec();
    let nonce = Nonce::assume_unique_for_key(*nonce);
    let opened = keys.body.open_in_place(nonce, Aad::from(name.as_bytes()), &mut body);
    let opened = opened.map_err(|_| Error::damaged(name, "it was changed, or belongs to another repository"))?;
    match opened.split_first() {
        Some((&PLAIN, plaintext)) if plaintext.len() <= most => Ok(plaintext.to_vec()),
        Some((&DEFLATED, deflated)) => {
            let mut plaintext = Vec::new();
            let inflated = DeflateDecoder::new(deflated).take(most as u64 + 1).read_to_end(&mut plaintext);
            inflated.map_err(|error| Error::damaged(name, error.to_string()))?;
            match plaintext.len() > most {
                true => Err(Error::damaged(name, format!("it has more than {most} bytes"))),
                false => Ok(plaintext),
            }
        }
        _ => Err(Error::damaged(name, "its form is not known")),
    }
}
