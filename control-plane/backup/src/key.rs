//! The secrets that seal a backup, and the keys that are derived from them.
//!
//! A passphrase goes through Argon2id, so that guessing costs memory and time. A key file is random already and goes
//! through HKDF alone. Either way each file has a salt of its own, so that no two files share a key.

use ring::{aead, hkdf};
use serde::{Deserialize, Serialize};

use crate::{Error, Fault};

/// The bytes of a file's salt.
pub const SALT_BYTES: usize = 32;
/// The bytes by which a reader notices a wrong secret before it reads the body.
pub const CHECK_BYTES: usize = 32;
/// The shortest passphrase. Argon2 slows guessing down; it cannot save a word of a few characters.
const LEAST_PASSPHRASE: usize = 8;
const MOST_PASSPHRASE: usize = 64 << 10;
const LEAST_KEY_FILE: usize = 32;
const MOST_KEY_FILE: usize = 64 << 10;
/// The costs that a header may ask for: it is not authenticated before they are paid.
const MOST_MEMORY_KIB: u32 = 1 << 20;
const MOST_PASSES: u32 = 16;
const MOST_LANES: u32 = 16;

/// A secret that seals backups.
#[derive(Clone)]
pub enum Secret {
    Passphrase(String),
    KeyFile(Vec<u8>),
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Secret({})", self.name())
    }
}

impl Secret {
    /// Takes a passphrase, without the line break at its end.
    pub fn passphrase(text: &str) -> Result<Secret, Error> {
        let text = text.trim_end_matches(['\n', '\r']);
        if text.len() < LEAST_PASSPHRASE || text.len() > MOST_PASSPHRASE {
            let sentence = format!("a passphrase has {LEAST_PASSPHRASE} to {MOST_PASSPHRASE} bytes");
            return Err(Error::Secret(sentence));
        }
        Ok(Secret::Passphrase(text.to_owned()))
    }

    /// Takes the content of a key file.
    pub fn key_file(bytes: Vec<u8>) -> Result<Secret, Error> {
        if bytes.len() < LEAST_KEY_FILE || bytes.len() > MOST_KEY_FILE {
            let sentence = format!("a key file has {LEAST_KEY_FILE} to {MOST_KEY_FILE} random bytes");
            return Err(Error::Secret(sentence));
        }
        Ok(Secret::KeyFile(bytes))
    }

    /// Returns the name of the kind.
    pub fn name(&self) -> &'static str {
        match self {
            Secret::Passphrase(_) => "passphrase",
            Secret::KeyFile(_) => "key file",
        }
    }

    /// Returns the derivation of new files.
    pub fn derivation(&self) -> Derivation {
        match self {
            Secret::Passphrase(_) => Derivation::Argon2id { memory_kib: 64 << 10, passes: 3, lanes: 1 },
            Secret::KeyFile(_) => Derivation::KeyFile,
        }
    }

    /// Derives the keys of a file. `header` is bound to them: a changed header gives other keys.
    pub fn keys(&self, derivation: &Derivation, salt: &[u8], header: &[u8]) -> Result<Keys, Fault> {
        let master = match (self, derivation) {
            (Secret::Passphrase(text), Derivation::Argon2id { memory_kib, passes, lanes }) => {
                argon2id(text.as_bytes(), salt, *memory_kib, *passes, *lanes)?
            }
            (Secret::KeyFile(bytes), Derivation::KeyFile) => {
                expand(&hkdf::Salt::new(hkdf::HKDF_SHA256, salt).extract(bytes), b"corten backup key file")?
            }
            (given, wanted) => return Err(Fault::OtherSecret { wanted: wanted.name(), given: given.kind() }),
        };
        let secret = hkdf::Salt::new(hkdf::HKDF_SHA256, header).extract(&master);
        let body = expand(&secret, b"corten backup body")?;
        let check = expand(&secret, b"corten backup check")?;
        let ids = expand(&secret, b"corten backup ids")?;
        let body = aead::UnboundKey::new(&aead::AES_256_GCM, &body).map_err(|_| underivable())?;
        Ok(Keys { body: aead::LessSafeKey::new(body), check, ids })
    }

    fn kind(&self) -> &'static str {
        self.derivation().name()
    }
}

/// The way from a secret to the key of one file, as its header has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum Derivation {
    Argon2id { memory_kib: u32, passes: u32, lanes: u32 },
    KeyFile,
}

impl Derivation {
    fn name(&self) -> &'static str {
        match self {
            Derivation::Argon2id { .. } => "a passphrase",
            Derivation::KeyFile => "a key file",
        }
    }
}

/// The keys of one file, or of a repository of volume backups.
pub struct Keys {
    pub body: aead::LessSafeKey,
    pub check: [u8; CHECK_BYTES],
    /// The key of content ids, for a repository.
    pub ids: [u8; 32],
}

fn argon2id(passphrase: &[u8], salt: &[u8], memory_kib: u32, passes: u32, lanes: u32) -> Result<[u8; 32], Fault> {
    if memory_kib > MOST_MEMORY_KIB || passes > MOST_PASSES || lanes > MOST_LANES {
        return Err(Fault::TooLarge("the cost of its passphrase".to_owned()));
    }
    let invalid = |error: argon2::Error| Fault::Damaged(format!("the cost of its passphrase is invalid: {error}"));
    let params = argon2::Params::new(memory_kib, passes, lanes, Some(32)).map_err(invalid)?;
    let argon2 = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
    let mut master = [0; 32];
    argon2.hash_password_into(passphrase, salt, &mut master).map_err(invalid)?;
    Ok(master)
}

fn expand(secret: &hkdf::Prk, label: &[u8]) -> Result<[u8; 32], Fault> {
    let mut bytes = [0; 32];
    let label = [label];
    let derived = secret.expand(&label, hkdf::HKDF_SHA256).map_err(|_| underivable())?;
    derived.fill(&mut bytes).map_err(|_| underivable())?;
    Ok(bytes)
}

fn underivable() -> Fault {
    Fault::Damaged("no key can be derived".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_depend_on_secret_salt_and_header() {
        let secret = Secret::key_file(vec![7; 32]).unwrap();
        let check = |secret: &Secret, salt: &[u8], header: &[u8]| {
            secret.keys(&Derivation::KeyFile, salt, header).map(|keys| keys.check)
        };
        let first = check(&secret, b"salt", b"header").unwrap();
        assert_eq!(check(&secret, b"salt", b"header").unwrap(), first);
        assert_ne!(check(&secret, b"other", b"header").unwrap(), first);
        assert_ne!(check(&secret, b"salt", b"other").unwrap(), first);
        let other = Secret::key_file(vec![8; 32]).unwrap();
        assert_ne!(check(&other, b"salt", b"header").unwrap(), first);
        let passphrase = Secret::passphrase("correct horse").unwrap();
        let refused = check(&passphrase, b"salt", b"header").unwrap_err();
        assert_eq!(refused.to_string(), "it was sealed for a key file, and a passphrase was given");
    }

    #[test]
    fn a_passphrase_derives_the_same_key_each_time_and_its_cost_is_bounded() {
        let secret = Secret::passphrase("correct horse\n").unwrap();
        let cheap = Derivation::Argon2id { memory_kib: 8, passes: 1, lanes: 1 };
        let check = |derivation: &Derivation| secret.keys(derivation, &[1; 32], b"h").map(|keys| keys.check);
        assert_eq!(check(&cheap).unwrap(), check(&cheap).unwrap());
        let costly = Derivation::Argon2id { memory_kib: u32::MAX, passes: 1, lanes: 1 };
        assert!(matches!(check(&costly), Err(Fault::TooLarge(_))));
        let nonsense = Derivation::Argon2id { memory_kib: 0, passes: 0, lanes: 0 };
        assert!(matches!(check(&nonsense), Err(Fault::Damaged(_))));
    }

    #[test]
    fn secrets_have_a_least_length_and_are_never_shown() {
        assert!(Secret::passphrase("short\n").is_err());
        assert!(Secret::key_file(vec![0; 31]).is_err());
        let secret = Secret::passphrase("correct horse").unwrap();
        assert_eq!(format!("{secret:?}"), "Secret(passphrase)");
    }
}
