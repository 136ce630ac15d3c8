//! Encryption at rest, at the boundary to the store.
//!
//! Values of the chosen prefixes are sealed with AES-256-GCM, the key of the entry being authenticated with
//! them, so that a sealed value cannot be moved to another name. Values that were stored in the clear are
//! still read, and sealed with their next write. The plain form lives only in the cache.

use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};

use crate::error::Error;

/// Marks a sealed value; no JSON object begins like it.
const MAGIC: &[u8] = b"k8s:enc:aesgcm:v1:";

/// The prefixes whose values are sealed when there is a key.
const SEALED_PREFIXES: &[&str] = &["/registry/secrets/"];

/// Seals on the way to the store and opens on the way back.
pub struct Transformer {
    key: Option<LessSafeKey>,
    random: SystemRandom,
}

impl Transformer {
    pub fn new(key: Option<&[u8; 32]>) -> Result<Transformer, Error> {
        let key = match key {
            None => None,
            Some(key) => {
                let unbound = UnboundKey::new(&AES_256_GCM, key)
                    .map_err(|_| Error::Key("the encryption key is not an AES-256 key".to_owned()))?;
                Some(LessSafeKey::new(unbound))
            }
        };
        Ok(Transformer { key, random: SystemRandom::new() })
    }

    /// The value as it is stored.
    pub fn encrypt(&self, entry_key: &[u8], value: Bytes) -> Result<Bytes, String> {
        let Some(key) = self.key.as_ref().filter(|_| is_sealed(entry_key)) else { return Ok(value) };
        let mut nonce = [0; NONCE_LEN];
        self.random.fill(&mut nonce).map_err(|_| "no randomness for a nonce".to_owned())?;
        let mut sealed = value.to_vec();
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(entry_key), &mut sealed)
            .map_err(|_| "the value cannot be sealed".to_owned())?;
        Ok([MAGIC, &nonce, &sealed].concat().into())
    }

    /// The value as it is read.
    pub fn decrypt(&self, entry_key: &[u8], value: &Bytes) -> Result<Bytes, String> {
        let Some(rest) = value.strip_prefix(MAGIC) else { return Ok(value.clone()) };
        let Some(key) = &self.key else { return Err("it is encrypted and there is no key".to_owned()) };
        let Some((nonce, sealed)) = rest.split_first_chunk::<NONCE_LEN>() else {
            return Err("its sealed form is too short".to_owned());
        };
        let mut buffer = sealed.to_vec();
        let plain = key
            .open_in_place(Nonce::assume_unique_for_key(*nonce), Aad::from(entry_key), &mut buffer)
            .map_err(|_| "it cannot be decrypted with this key".to_owned())?
            .len();
        buffer.truncate(plain);
        Ok(buffer.into())
    }
}

fn is_sealed(entry_key: &[u8]) -> bool {
    SEALED_PREFIXES.iter().any(|prefix| entry_key.starts_with(prefix.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_values_open_only_in_their_place() {
        let transformer = Transformer::new(Some(&[7; 32])).unwrap();
        let plain = Bytes::from_static(b"{\"kind\":\"Secret\"}");
        let key = b"/registry/secrets/default/a";
        let sealed = transformer.encrypt(key, plain.clone()).unwrap();
        assert!(!sealed.windows(6).any(|w| w == b"Secret"));
        assert_eq!(transformer.decrypt(key, &sealed).unwrap(), plain);
        assert!(transformer.decrypt(b"/registry/secrets/default/b", &sealed).is_err());
        assert!(Transformer::new(None).unwrap().decrypt(key, &sealed).is_err());
        assert_eq!(transformer.encrypt(b"/registry/pods/a/b", plain.clone()).unwrap(), plain);
        assert_eq!(transformer.decrypt(key, &plain).unwrap(), plain);
    }
}
