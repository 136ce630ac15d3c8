//! Keys that rotate by an overlap: those of ServiceAccount tokens, and those that encrypt Secrets.
//!
//! A file holds one key, or two while a rotation is under way. The first is used, all are accepted. The order says how far
//! the rotation is: a new key is accepted before it is used, and the old one is removed after it is no longer needed. Each
//! step replaces the file as a whole, so a rotation that was interrupted goes on from the step that it had reached.

use anyhow::{Context, Result, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use corten_apiserver::EncryptionKey;
use rcgen::KeyPair;

/// The comment before a PEM key that is not the first of its cluster.
const NUMBER: &str = "# key ";

/// How far a rotation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is one key.
    Single,
    /// The new key is accepted, the old one is used.
    Accepted,
    /// The new key is used, the old one is accepted.
    Used,
}

/// The keys of one purpose, the one in use first. Later keys have higher numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRing {
    keys: Vec<NumberedKey>,
}

#[derive(Clone, PartialEq, Eq)]
struct NumberedKey {
    number: u32,
    text: String,
}

impl std::fmt::Debug for NumberedKey {
    /// Hides the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "key {}", self.number)
    }
}

impl KeyRing {
    /// Returns the keys of a new cluster.
    #[cfg(test)]
    fn first(text: String) -> KeyRing {
        KeyRing { keys: vec![NumberedKey { number: 1, text }] }
    }

    pub fn stage(&self) -> Stage {
        match self.keys.as_slice() {
            [first, second, ..] if first.number < second.number => Stage::Accepted,
            [_, _, ..] => Stage::Used,
            _ => Stage::Single,
        }
    }

    /// Returns the ring after the next step of a rotation; `make` makes a key.
    pub fn next(&self, make: impl FnOnce() -> Result<String>) -> Result<KeyRing> {
        let mut keys = self.keys.clone();
        match self.stage() {
            Stage::Single => {
                let number = keys.iter().map(|key| key.number).max().unwrap_or(0) + 1;
                keys.push(NumberedKey { number, text: make()? });
            }
            Stage::Accepted => keys.sort_by_key(|key| std::cmp::Reverse(key.number)),
            Stage::Used => keys.truncate(1),
        }
        Ok(KeyRing { keys })
    }

    /// Returns the keys, the one in use first.
    pub fn texts(&self) -> Vec<String> {
        self.keys.iter().map(|key| key.text.clone()).collect()
    }
}

/// Makes a key of ServiceAccount tokens.
pub fn make_service_account_key() -> Result<String> {
    Ok(KeyPair::generate()?.serialize_pem())
}

/// Makes a key that encrypts Secrets.
pub fn make_encryption_key() -> Result<String> {
    let mut key = [0u8; 32];
    ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut key)
        .map_err(|_| anyhow::anyhow!("the system gives no random numbers"))?;
    Ok(STANDARD.encode(key))
}

/// Reads a file of PEM keys, each but the first of the cluster after a comment with its number.
pub fn parse_pem(file: &str) -> Result<KeyRing> {
    let mut keys = Vec::new();
    let mut number = 1;
    let mut text = String::new();
    for line in file.lines() {
        if let Some(comment) = line.strip_prefix(NUMBER) {
            number = comment.trim().parse().context("the number of a key is damaged")?;
            continue;
        }
        if line.trim().is_empty() {
            continue;
        }
        text.push_str(line.trim_end());
        text.push('\n');
        if line.starts_with("-----END") {
            keys.push(NumberedKey { number, text: std::mem::take(&mut text) });
            number = 1;
        }
    }
    ensure!(text.is_empty() && !keys.is_empty(), "it holds no key");
    Ok(KeyRing { keys })
}

/// Writes a file of PEM keys.
pub fn encode_pem(ring: &KeyRing) -> String {
    let block = |key: &NumberedKey| match key.number {
        1 => key.text.clone(),
        number => format!("{NUMBER}{number}\n{}", key.text),
    };
    ring.keys.iter().map(block).collect()
}

/// Reads a file of keys in base64, one a line, each but the first of the cluster after its number and a colon.
pub fn parse_lines(file: &str) -> Result<KeyRing> {
    let key = |line: &str| {
        let (number, text) = match line.split_once(':') {
            Some((number, text)) => (number.trim().parse().context("the number of a key is damaged")?, text),
            None => (1, line),
        };
        Ok(NumberedKey { number, text: text.trim().to_owned() })
    };
    let lines = file.lines().filter(|line| !line.trim().is_empty());
    let keys = lines.map(key).collect::<Result<Vec<_>>>()?;
    ensure!(!keys.is_empty(), "it holds no key");
    let ring = KeyRing { keys };
    encryption_keys(&ring)?;
    Ok(ring)
}

/// Writes a file of keys in base64.
pub fn encode_lines(ring: &KeyRing) -> String {
    let line = |key: &NumberedKey| match key.number {
        1 => key.text.clone(),
        number => format!("{number}:{}", key.text),
    };
    ring.keys.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// Returns the keys as the API server takes them.
pub fn encryption_keys(ring: &KeyRing) -> Result<Vec<EncryptionKey>> {
    let key = |key: &NumberedKey| {
        let bytes = STANDARD.decode(&key.text).ok().and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
        let bytes = bytes.context("it does not hold 32 bytes")?;
        Ok(match key.number {
            1 => EncryptionKey::first(bytes),
            number => EncryptionKey { name: format!("{}-{number}", EncryptionKey::FIRST), key: bytes },
        })
    };
    ring.keys.iter().map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_key_is_accepted_then_used_then_alone() {
        let mut ring = KeyRing::first("a".to_owned());
        let mut seen = Vec::new();
        for made in ["b", "unused", "unused", "c", "unused", "unused"] {
            ring = ring.next(|| Ok(made.to_owned())).unwrap();
            seen.push(format!("{:?} {}", ring.stage(), ring.texts().join(" ")));
        }
        assert_eq!(seen, ["Accepted a b", "Used b a", "Single b", "Accepted b c", "Used c b", "Single c"]);
    }

    #[test]
    fn files_keep_keys_order_and_numbers() {
        let pem = make_service_account_key().unwrap();
        let mut ring = parse_pem(&pem).unwrap();
        let mut lines = parse_lines(&make_encryption_key().unwrap()).unwrap();
        for _ in 0..6 {
            assert_eq!(parse_pem(&encode_pem(&ring)).unwrap(), ring);
            assert_eq!(parse_lines(&encode_lines(&lines)).unwrap(), lines);
            ring = ring.next(make_service_account_key).unwrap();
            lines = lines.next(make_encryption_key).unwrap();
        }
        let names: Vec<String> = encryption_keys(&lines).unwrap().into_iter().map(|key| key.name).collect();
        assert_eq!(names, ["corten-3"]);
        for bad in ["", "nonsense", "x:AAAA", "AAAA"] {
            assert!(parse_lines(bad).is_err(), "{bad}");
        }
        for bad in ["", "-----BEGIN PRIVATE KEY-----\nx\n", "# key x\n"] {
            assert!(parse_pem(bad).is_err(), "{bad}");
        }
    }
}
