//! The digest of a blob, a configuration or a layer.
//!
//! Digests come from manifests and configurations, which an attacker may have written, and become names of files. A
//! value of this type is always a whole SHA-256 digest, checked where it was parsed: it can never be another path.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::Error;

const PREFIX: &str = "sha256:";
const BYTES: usize = 32;

/// A SHA-256 digest, written `sha256:` and 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; BYTES]);

impl Digest {
    /// Returns the digest of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// Returns the digest of everything that was hashed.
    pub(crate) fn finish(hasher: Sha256) -> Self {
        Self(hasher.finalize().into())
    }

    /// Returns the 64 digits alone, which name files.
    pub fn hex(&self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(string: &str) -> Result<Self, Error> {
        let digits = string.strip_prefix(PREFIX).unwrap_or_default().as_bytes();
        let invalid = || Error::Image(format!("invalid digest {:?}", shortened(string)));
        if digits.len() != 2 * BYTES {
            return Err(invalid());
        }
        let mut bytes = [0; BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let high = value(pair[0]).ok_or_else(invalid)?;
            let low = value(pair[1]).ok_or_else(invalid)?;
            *byte = high << 4 | low;
        }
        Ok(Self(bytes))
    }
}

/// Returns the value of a lower-case hexadecimal digit.
fn value(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

/// Returns the start of a string for an error message.
pub(super) fn shortened(string: &str) -> String {
    const SHOWN: usize = 512;
    match string.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &string[..end]),
        None => string.to_owned(),
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let string = std::borrow::Cow::<str>::deserialize(deserializer)?;
        string.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_is_read_as_it_is_written() {
        let digest = Digest::of(b"content");
        assert_eq!(digest.to_string().parse::<Digest>().expect("a digest"), digest);
        assert_eq!(digest.to_string(), format!("sha256:{:x}", Sha256::digest(b"content")));
        let json = serde_json::to_string(&digest).expect("JSON");
        assert_eq!(serde_json::from_str::<Digest>(&json).expect("a digest"), digest);
    }

    #[test]
    fn nothing_else_is_a_digest() {
        let digits = "0a".repeat(32);
        for string in [
            "",
            "sha256:",
            "/etc",
            "/proc/1/root",
            "../../secret",
            &digits,
            &format!("sha256:{}", &digits[1..]),
            &format!("sha256:{digits}0"),
            &format!("sha256:{}", digits.to_uppercase()),
            &format!("sha512:{digits}"),
            &format!("sha256:sha256:{digits}"),
            &format!("sha256:{}/../{}", &digits[..30], &digits[..30]),
            // A multi-byte character, also across the byte where a name was once cut.
            &format!("{}é", "0".repeat(23)),
            &format!("sha256:{}é{}", "0".repeat(23), "0".repeat(39)),
            &"é".repeat(4096),
        ] {
            assert!(string.parse::<Digest>().is_err(), "{string:?}");
        }
    }
}
