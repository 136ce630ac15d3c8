//! Basic authentication against the lines of an htpasswd file.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corten_routing::BasicAuth;
use http::{HeaderMap, HeaderValue, header};

use super::md5;

/// The most credentials that are remembered as valid.
const MAX_REMEMBERED: usize = 1024;
/// The characters of hashes of `htpasswd`, in the order of their values.
const CHARACTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

#[derive(Debug)]
pub(crate) struct Users {
    users: BTreeMap<String, String>,
    challenge: HeaderValue,
    /// Digests of credentials that were verified: a hash of a password takes long on purpose.
    remembered: Mutex<HashSet<[u8; 32]>>,
}

impl Users {
    pub(crate) fn new(policy: &BasicAuth) -> Users {
        let realm: String = policy.realm.chars().filter(|c| !matches!(c, '"' | '\\')).collect();
        let challenge = HeaderValue::from_str(&format!("Basic realm=\"{realm}\", charset=\"UTF-8\""));
        Users {
            users: policy.users.clone(),
            challenge: challenge.unwrap_or_else(|_| HeaderValue::from_static("Basic")),
            remembered: Mutex::default(),
        }
    }

    /// Returns the challenge for clients without valid credentials.
    pub(crate) fn challenge(&self) -> HeaderValue {
        self.challenge.clone()
    }

    /// Reports whether a request has the name and password of a user.
    pub(crate) fn accept(&self, headers: &HeaderMap) -> bool {
        let Some(value) = headers.get(header::AUTHORIZATION) else {
            return false;
        };
        let mut digest = [0; 32];
        digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, value.as_bytes()).as_ref());
        let remembered = || self.remembered.lock().unwrap_or_else(PoisonError::into_inner);
        if remembered().contains(&digest) {
            return true;
        }
        let is_valid = self.verify(value).is_some();
        if is_valid {
            let mut remembered = remembered();
            if remembered.len() >= MAX_REMEMBERED {
                remembered.clear();
            }
            remembered.insert(digest);
        }
        is_valid
    }

    fn verify(&self, value: &HeaderValue) -> Option<()> {
        let (scheme, encoded) = value.to_str().ok()?.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("basic") {
            return None;
        }
        let decoded = String::from_utf8(STANDARD.decode(encoded.trim()).ok()?).ok()?;
        let (user, password) = decoded.split_once(':')?;
        let hash = self.users.get(user)?;
        is_password(password, hash).then_some(())
    }
}

/// Reports whether a password has a hash of `htpasswd`.
fn is_password(password: &str, hash: &str) -> bool {
    let computed = if hash.starts_with("{SHA}") {
        let digest = ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, password.as_bytes());
        format!("{{SHA}}{}", STANDARD.encode(digest))
    } else if let Some(salted) = hash.strip_prefix("$apr1$") {
        let salt = salted.split('$').next().unwrap_or_default();
        format!("$apr1${salt}${}", apr1(password.as_bytes(), salt.as_bytes()))
    } else {
        return false;
    };
    // Compares digests, so that the time does not show where the hashes differ.
    let digest = |text: &str| ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest(&computed).as_ref() == digest(hash).as_ref()
}

/// Returns the hash of a password by Apache's variant of MD5-crypt.
fn apr1(password: &[u8], salt: &[u8]) -> String {
    let salt = salt.get(..8).unwrap_or(salt);
    let inner = md5::digest(&[password, salt, password].concat());
    let mut first = [password, b"$apr1$", salt].concat();
    first.extend(inner.iter().cycle().take(password.len()));
    let mut length = password.len();
    while length > 0 {
        first.push(if length & 1 == 1 { 0 } else { password.first().copied().unwrap_or(0) });
        length >>= 1;
    }
    let mut digest = md5::digest(&first);
    for round in 0..1000 {
        let mut bytes = Vec::with_capacity(64);
        bytes.extend_from_slice(if round % 2 == 1 { password } else { &digest });
        if round % 3 != 0 {
            bytes.extend_from_slice(salt);
        }
        if round % 7 != 0 {
            bytes.extend_from_slice(password);
        }
        bytes.extend_from_slice(if round % 2 == 1 { &digest } else { password });
        digest = md5::digest(&bytes);
    }
    encode(&digest)
}

fn encode(digest: &[u8; 16]) -> String {
    let mut text = String::new();
    let mut push = |mut value: u32, count: usize| {
        for _ in 0..count {
            text.push(char::from(CHARACTERS[(value & 63) as usize]));
            value >>= 6;
        }
    };
    for index in 0..5 {
        let third = if index == 4 { 5 } else { index + 12 };
        let bytes = [digest[index], digest[index + 6], digest[third]].map(u32::from);
        push(bytes[0] << 16 | bytes[1] << 8 | bytes[2], 4);
    }
    push(u32::from(digest[11]), 2);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_verified_as_htpasswd_writes_them() {
        for (password, hash, expected) in [
            ("myPassword", "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/", true),
            ("other", "$apr1$r31.....$HqJZimcKQFAMYayBlzkrA/", false),
            ("password", "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", true),
            ("passwort", "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", false),
            ("plain", "plain", false),
            ("", "", false),
        ] {
            assert_eq!(is_password(password, hash), expected, "{password} {hash}");
        }
    }

    #[test]
    fn a_request_needs_valid_credentials() {
        let users = Users::new(&BasicAuth {
            realm: "a \"realm\"".into(),
            users: [("user".to_owned(), "{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=".to_owned())].into(),
        });
        assert_eq!(users.challenge(), "Basic realm=\"a realm\", charset=\"UTF-8\"");
        let accepted = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            users.accept(&headers)
        };
        let basic = |text: &str| format!("Basic {}", STANDARD.encode(text));
        assert!(accepted(&basic("user:password")));
        assert!(accepted(&basic("user:password")), "remembered");
        for invalid in
            [basic("user:wrong"), basic("other:password"), basic("user"), "Bearer x".into(), "Basic %".into()]
        {
            assert!(!accepted(&invalid), "{invalid}");
        }
        assert!(!users.accept(&HeaderMap::new()));
    }
}
