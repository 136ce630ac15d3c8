//! Authenticated encryption of the cluster's keys, with a key that is derived from a secret.

use anyhow::{Context, Result, anyhow};
use ring::rand::{SecureRandom, SystemRandom};
use ring::{aead, hkdf};

/// A seal: only a holder of its secret opens what it sealed.
pub struct Sealing(aead::LessSafeKey);

impl Sealing {
    /// Derives the key of a purpose from a secret.
    pub fn new(salt: &[u8], secret: &[u8], purpose: &str) -> Result<Sealing> {
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(secret);
        let info = [purpose.as_bytes()];
        let derived = secret.expand(&info, &aead::AES_256_GCM);
        let derived = derived.map_err(|_| anyhow!("no key can be derived from the secret"))?;
        Ok(Sealing(aead::LessSafeKey::new(aead::UnboundKey::from(derived))))
    }

    /// Seals a text under a name, which whoever opens it must give.
    pub fn seal(&self, name: &str, text: &[u8]) -> Result<Vec<u8>> {
        let mut nonce = [0; aead::NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| anyhow!("the system gives no random numbers"))?;
        let mut sealed = text.to_vec();
        let unique = aead::Nonce::assume_unique_for_key(nonce);
        let done = self.0.seal_in_place_append_tag(unique, aead::Aad::from(name.as_bytes()), &mut sealed);
        done.map_err(|_| anyhow!("the text is too long to be sealed"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// Opens a text that was sealed under a name.
    pub fn open(&self, name: &str, mut sealed: Vec<u8>) -> Result<Vec<u8>> {
        let mut text = match sealed.len() > aead::NONCE_LEN {
            true => sealed.split_off(aead::NONCE_LEN),
            false => return Err(anyhow!("the sealed text is too short")),
        };
        let nonce = aead::Nonce::try_assume_unique_for_key(&sealed).ok().context("the sealed text is damaged")?;
        let opened = self.0.open_in_place(nonce, aead::Aad::from(name.as_bytes()), &mut text);
        opened.map(|opened| opened.to_vec()).map_err(|_| anyhow!("the secret is another one, or the text is damaged"))
    }
}
