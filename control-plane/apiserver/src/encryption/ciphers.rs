//! Providers with local keys: AES-GCM, AES-CBC and secretbox, in upstream's storage format.
//!
//! A sealed value is the algorithm's prefix, the key's name and a colon, then nonce and ciphertext. AES-GCM
//! authenticates the storage key of the value, so that the value cannot be moved to another name. AES-CBC authenticates
//! nothing and is here to read and to migrate existing data.

use aes_gcm::aead::consts::{U12, U16};
use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::aes::cipher::{Block, BlockDecrypt, BlockEncrypt, BlockSizeUser};
use aes_gcm::aes::{Aes128, Aes192, Aes256};
use aes_gcm::{AesGcm, Nonce};
use bytes::Bytes;
use corten_meta::quote::quote;
use crypto_secretbox::XSalsa20Poly1305;
use ring::rand::{SecureRandom, SystemRandom};

use super::Opened;

const TOO_SHORT: &str = "the stored data was shorter than the required size";
const BLOCK: usize = 16;

/// The algorithm of a provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    AesGcm,
    AesCbc,
    Secretbox,
}

impl Algorithm {
    pub fn field(self) -> &'static str {
        match self {
            Algorithm::AesGcm => "aesgcm",
            Algorithm::AesCbc => "aescbc",
            Algorithm::Secretbox => "secretbox",
        }
    }

    pub fn key_sizes(self) -> &'static [usize] {
        if self == Algorithm::Secretbox { &[32] } else { &[16, 24, 32] }
    }

    fn no_key(self) -> &'static str {
        match self {
            Algorithm::Secretbox => "no matching key was found for the provided Secretbox transformer",
            _ => "no matching key was found for the provided AES transformer",
        }
    }

    fn cipher(self, key: &[u8]) -> Option<Box<dyn Cipher>> {
        Some(match (self, key.len()) {
            (Algorithm::AesGcm, 16) => Box::new(Gcm(AesGcm::<Aes128, U12>::new_from_slice(key).ok()?)),
            (Algorithm::AesGcm, 24) => Box::new(Gcm(AesGcm::<Aes192, U12>::new_from_slice(key).ok()?)),
            (Algorithm::AesGcm, _) => return aes_256_gcm(key),
            (Algorithm::AesCbc, 16) => Box::new(Cbc(Aes128::new_from_slice(key).ok()?)),
            (Algorithm::AesCbc, 24) => Box::new(Cbc(Aes192::new_from_slice(key).ok()?)),
            (Algorithm::AesCbc, _) => Box::new(Cbc(Aes256::new_from_slice(key).ok()?)),
            (Algorithm::Secretbox, _) => Box::new(Secretbox(XSalsa20Poly1305::new_from_slice(key).ok()?)),
        })
    }
}

/// Seals and opens with one key.
pub trait Cipher: Send + Sync {
    fn seal(&self, authenticated_data: &[u8], plain: &[u8]) -> Result<Vec<u8>, String>;
    fn open(&self, authenticated_data: &[u8], sealed: &[u8]) -> Result<Vec<u8>, String>;
}

/// Returns AES-256-GCM with this key, if its size is right.
pub fn aes_256_gcm(key: &[u8]) -> Option<Box<dyn Cipher>> {
    Some(Box::new(Gcm(AesGcm::<Aes256, U12>::new_from_slice(key).ok()?)))
}

/// Named keys of one algorithm. The first seals, all open.
pub struct Keys {
    algorithm: Algorithm,
    prefix: Vec<u8>,
    keys: Vec<(String, Box<dyn Cipher>)>,
}

impl Keys {
    pub fn new(algorithm: Algorithm, keys: Vec<(String, Vec<u8>)>) -> Result<Keys, String> {
        let cipher = |(name, key): (String, Vec<u8>)| {
            let cipher = algorithm.cipher(&key).ok_or_else(|| format!("key {} has a wrong length", quote(&name)))?;
            Ok((format!("{name}:"), cipher))
        };
        let keys = keys.into_iter().map(cipher).collect::<Result<Vec<_>, String>>()?;
        Ok(Keys { algorithm, prefix: format!("k8s:enc:{}:v1:", algorithm.field()).into_bytes(), keys })
    }

    /// Makes a provider of one key whose name is not stored.
    pub fn unnamed(algorithm: Algorithm, key: &[u8]) -> Result<Keys, String> {
        let mut keys = Keys::new(algorithm, vec![(String::new(), key.to_vec())])?;
        keys.keys.iter_mut().for_each(|(name, _)| name.clear());
        Ok(keys)
    }

    pub fn seal(&self, authenticated_data: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
        let (name, cipher) = self.keys.first().ok_or(self.algorithm.no_key())?;
        Ok([&self.prefix, name.as_bytes(), &cipher.seal(authenticated_data, plain)?].concat())
    }

    /// Opens a value; `None` if another algorithm sealed it.
    pub fn open(&self, authenticated_data: &[u8], value: &Bytes) -> Option<Result<Opened, String>> {
        let rest = value.strip_prefix(self.prefix.as_slice())?;
        let mut failed = self.algorithm.no_key().to_owned();
        for (at, (name, cipher)) in self.keys.iter().enumerate() {
            let Some(sealed) = rest.strip_prefix(name.as_bytes()) else { continue };
            match cipher.open(authenticated_data, sealed) {
                Ok(plain) => return Some(Ok(Opened { plain: plain.into(), stale: at > 0 })),
                Err(why) => failed = why,
            }
        }
        Some(Err(failed))
    }
}

/// Returns random bytes.
pub fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| "unable to read sufficient random bytes".to_owned())?;
    Ok(bytes)
}

struct Gcm<A>(A);

impl<A: AeadInPlace<NonceSize = U12> + Send + Sync> Cipher for Gcm<A> {
    fn seal(&self, authenticated_data: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
        let nonce = random::<12>()?;
        let mut sealed = plain.to_vec();
        let done = self.0.encrypt_in_place(Nonce::from_slice(&nonce), authenticated_data, &mut sealed);
        done.map_err(|_| "the value cannot be sealed".to_owned())?;
        Ok([&nonce[..], &sealed].concat())
    }

    fn open(&self, authenticated_data: &[u8], sealed: &[u8]) -> Result<Vec<u8>, String> {
        let (nonce, rest) = sealed.split_first_chunk::<12>().ok_or(TOO_SHORT)?;
        let mut plain = rest.to_vec();
        let done = self.0.decrypt_in_place(Nonce::from_slice(nonce), authenticated_data, &mut plain);
        done.map_err(|_| "cipher: message authentication failed".to_owned())?;
        Ok(plain)
    }
}

struct Secretbox(XSalsa20Poly1305);

impl Cipher for Secretbox {
    fn seal(&self, _authenticated_data: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
        let nonce = random::<24>()?;
        // The tag precedes the ciphertext, as in NaCl.
        let mut sealed = plain.to_vec();
        let tag = self.0.encrypt_in_place_detached((&nonce).into(), b"", &mut sealed);
        let tag = tag.map_err(|_| "the value cannot be sealed".to_owned())?;
        Ok([&nonce[..], &tag[..], &sealed].concat())
    }

    fn open(&self, _authenticated_data: &[u8], sealed: &[u8]) -> Result<Vec<u8>, String> {
        let (nonce, rest) = sealed.split_first_chunk::<24>().ok_or(TOO_SHORT)?;
        let (tag, rest) = rest.split_first_chunk::<16>().ok_or(TOO_SHORT)?;
        let mut plain = rest.to_vec();
        let done = self.0.decrypt_in_place_detached(nonce.into(), b"", &mut plain, tag.into());
        done.map_err(|_| "the stored data cannot be opened with this key".to_owned())?;
        Ok(plain)
    }
}

struct Cbc<C>(C);

impl<C> Cipher for Cbc<C>
where
    C: BlockEncrypt + BlockDecrypt + BlockSizeUser<BlockSize = U16> + Send + Sync,
{
    fn seal(&self, _authenticated_data: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
        let vector = random::<BLOCK>()?;
        let padding = BLOCK - plain.len() % BLOCK;
        let mut sealed = [&vector[..], plain, &vec![padding as u8; padding]].concat();
        for at in (BLOCK..sealed.len()).step_by(BLOCK) {
            let (before, block) = sealed[at - BLOCK..at + BLOCK].split_at_mut(BLOCK);
            block.iter_mut().zip(before).for_each(|(byte, previous)| *byte ^= *previous);
            self.0.encrypt_block(Block::<C>::from_mut_slice(block));
        }
        Ok(sealed)
    }

    fn open(&self, _authenticated_data: &[u8], sealed: &[u8]) -> Result<Vec<u8>, String> {
        if sealed.len() < BLOCK {
            return Err(TOO_SHORT.to_owned());
        }
        if !sealed.len().is_multiple_of(BLOCK) {
            return Err("the stored data is not a multiple of the block size".to_owned());
        }
        let mut plain = sealed[BLOCK..].to_vec();
        for (block, previous) in plain.chunks_exact_mut(BLOCK).zip(sealed.chunks_exact(BLOCK)) {
            self.0.decrypt_block(Block::<C>::from_mut_slice(block));
            block.iter_mut().zip(previous).for_each(|(byte, previous)| *byte ^= previous);
        }
        let padding = usize::from(plain.last().copied().unwrap_or_default());
        if padding == 0 || padding > plain.len() {
            return Err("invalid PKCS7 data (empty or not padded)".to_owned());
        }
        let end = plain.len() - padding;
        if plain[end..].iter().any(|byte| usize::from(*byte) != padding) {
            return Err("invalid padding on input".to_owned());
        }
        plain.truncate(end);
        Ok(plain)
    }
}
