//! One-time codes: a link holds a code, never a token, so that the history of a browser is worth nothing.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};

/// The time that a code may be used.
const LIFETIME: Duration = Duration::from_secs(120);

/// The most codes that wait at a time; a new one replaces the oldest.
const MOST: usize = 16;

/// Codes that wait for their one use. Only their digests are kept, so that no comparison shows how much of a guess was right.
#[derive(Default)]
pub struct Codes {
    waiting: Mutex<HashMap<[u8; 32], Waiting>>,
}

struct Waiting {
    token: String,
    made: Instant,
}

impl Codes {
    /// Returns a new code for a token; `None` if the system has no randomness.
    pub fn issue(&self, token: String, now: Instant) -> Option<String> {
        let mut random = [0; 32];
        SystemRandom::new().fill(&mut random).ok()?;
        let code = URL_SAFE_NO_PAD.encode(random);
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.retain(|_, one| now.duration_since(one.made) < LIFETIME);
        if waiting.len() >= MOST {
            let oldest = waiting.iter().min_by_key(|(_, one)| one.made).map(|(key, _)| *key);
            oldest.and_then(|key| waiting.remove(&key));
        }
        waiting.insert(key(&code), Waiting { token, made: now });
        Some(code)
    }

    /// Returns the token of a code, once.
    pub fn redeem(&self, code: &str, now: Instant) -> Option<String> {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let found = waiting.remove(&key(code))?;
        (now.duration_since(found.made) < LIFETIME).then_some(found.token)
    }
}

fn key(code: &str) -> [u8; 32] {
    let digest = digest(&SHA256, code.as_bytes());
    let mut key = [0; 32];
    key.copy_from_slice(digest.as_ref());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_good_once_and_for_a_while() {
        let codes = Codes::default();
        let now = Instant::now();
        let code = codes.issue("secret".into(), now).unwrap();
        assert_eq!(codes.redeem("other", now), None);
        assert_eq!(codes.redeem(&code, now), Some("secret".into()));
        assert_eq!(codes.redeem(&code, now), None, "a second time");
        let late = codes.issue("secret".into(), now).unwrap();
        assert_eq!(codes.redeem(&late, now + LIFETIME), None, "too late");
    }

    #[test]
    fn only_the_newest_codes_wait() {
        let codes = Codes::default();
        let start = Instant::now();
        let at = |n: usize| start + Duration::from_millis(n as u64);
        let all: Vec<String> = (0..=MOST).map(|n| codes.issue(n.to_string(), at(n)).unwrap()).collect();
        assert_eq!(codes.redeem(&all[0], at(MOST)), None);
        assert_eq!(codes.redeem(&all[1], at(MOST)), Some("1".into()));
        assert_eq!(codes.redeem(&all[MOST], at(MOST)), Some(MOST.to_string()));
    }
}
