//! The storage format of KMS version 2: the encrypted data, and the encrypted source of its key.
//!
//! The source is a seed: each value has a key of its own, derived from the seed and 32 random bytes that precede the
//! value, so that no key is used too often. Values whose source is the key itself are readable, too.

use std::collections::BTreeMap;

use corten_meta::quote::quote;
use prost::Message;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};

use super::ciphers::{Cipher, aes_256_gcm, random};

/// The source is the key itself.
const AES_GCM_KEY: i32 = 0;
/// The source is a seed of keys.
pub const SEED: i32 = 1;
/// The length of seeds, keys, and derivation inputs.
const SIZE: usize = 32;
/// The maximum length of a key id, and of an encrypted source.
const MAX_SMALL: usize = 1024;
const MAX_ANNOTATIONS: usize = 32 * 1024;

/// The stored message, with upstream's field numbers.
#[derive(Clone, PartialEq, Message)]
pub struct EncryptedObject {
    #[prost(bytes = "vec", tag = "1")]
    pub data: Vec<u8>,
    #[prost(string, tag = "2")]
    pub key_id: String,
    #[prost(bytes = "vec", tag = "3")]
    pub source: Vec<u8>,
    #[prost(btree_map = "string, bytes", tag = "4")]
    pub annotations: BTreeMap<String, Vec<u8>>,
    #[prost(int32, tag = "5")]
    pub source_type: i32,
}

impl EncryptedObject {
    pub fn read(bytes: &[u8]) -> Result<EncryptedObject, String> {
        let object = EncryptedObject::decode(bytes).map_err(|e| e.to_string())?;
        if object.data.is_empty() {
            return Err("encrypted data is empty".to_owned());
        }
        object.check()?;
        Ok(object)
    }

    /// Checks that a plugin's answer may be stored.
    pub fn check(&self) -> Result<(), String> {
        if ![AES_GCM_KEY, SEED].contains(&self.source_type) {
            return Err(format!("unknown encryptedDEKSourceType: {}", self.source_type));
        }
        for (what, size) in [("encrypted DEK source", self.source.len()), ("keyID", self.key_id.len())] {
            match size {
                0 => return Err(format!("{what} is empty")),
                size if size > MAX_SMALL => {
                    return Err(format!("{what} is {size} bytes, which exceeds the max size of {MAX_SMALL}"));
                }
                _ => {}
            }
        }
        for key in self.annotations.keys() {
            if !key.contains('.') || !corten_meta::names::dns1123_subdomain(key).is_empty() {
                return Err(format!(
                    "annotations: Invalid value: {}: should be a domain with at least two segments",
                    quote(key)
                ));
            }
        }
        let size: usize = self.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
        if size > MAX_ANNOTATIONS {
            return Err(format!(
                "total size of annotations is {size}, which exceeds the max size of {MAX_ANNOTATIONS}"
            ));
        }
        Ok(())
    }

    /// Returns the cache key of the source: all fields except the data.
    pub fn source_key(&self) -> Vec<u8> {
        EncryptedObject { data: Vec::new(), ..self.clone() }.encode_to_vec()
    }
}

/// A decrypted source.
pub enum Source {
    Seed(Prk),
    Key(Box<dyn Cipher>),
}

impl Source {
    /// Generates a seed, and returns it with its bytes for the plugin to encrypt.
    pub fn generate() -> Result<(Source, [u8; SIZE]), String> {
        let seed = random::<SIZE>()?;
        Ok((Source::Seed(Prk::new_less_safe(HKDF_SHA256, &seed)), seed))
    }

    pub fn new(source_type: i32, plain: &[u8]) -> Result<Source, String> {
        if source_type == SEED {
            if plain.len() < SIZE {
                return Err(format!("invalid seed length {} used for key generation", plain.len()));
            }
            return Ok(Source::Seed(Prk::new_less_safe(HKDF_SHA256, plain)));
        }
        let cipher = aes_256_gcm(plain).ok_or_else(|| format!("invalid key size {}", plain.len()))?;
        Ok(Source::Key(cipher))
    }

    pub fn seal(&self, authenticated_data: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            // A key without a seed belongs to another server, which counts its uses: it only decrypts here.
            Source::Key(_) => Err("a data encryption key of another server is not written with".to_owned()),
            Source::Seed(seed) => {
                let info = random::<SIZE>()?;
                Ok([&info[..], &derived(seed, &info)?.seal(authenticated_data, plain)?].concat())
            }
        }
    }

    pub fn open(&self, authenticated_data: &[u8], sealed: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Source::Key(cipher) => cipher.open(authenticated_data, sealed),
            Source::Seed(seed) => {
                let too_short = "the stored data was shorter than the required size";
                let (info, rest) = sealed.split_first_chunk::<SIZE>().ok_or(too_short)?;
                derived(seed, info)?.open(authenticated_data, rest)
            }
        }
    }
}

struct KeyLength;

impl KeyType for KeyLength {
    fn len(&self) -> usize {
        SIZE
    }
}

/// Derives the key of a value from a seed and the value's random bytes.
fn derived(seed: &Prk, info: &[u8; SIZE]) -> Result<Box<dyn Cipher>, String> {
    let mut key = [0; SIZE];
    let info = [&info[..]];
    let expanded = seed.expand(&info, KeyLength).and_then(|okm| okm.fill(&mut key));
    expanded.map_err(|_| "failed to derive a key from the seed".to_owned())?;
    aes_256_gcm(&key).ok_or_else(|| "failed to derive a key from the seed".to_owned())
}
