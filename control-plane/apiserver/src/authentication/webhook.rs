//! The token webhook: a configured server authenticates tokens by TokenReview, and its answers are cached.
//!
//! It is asked last, after the authenticators of this server. A call without an answer does not authenticate.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use corten_access::User;
use corten_meta::Value;
use serde_json::json;

use crate::config::RemoteServer;
use crate::error::Error;
use crate::outbound::Caller;

/// The lifetime and the maximum number of cached answers.
const CACHE_LIFETIME: Duration = Duration::from_secs(120);
const MAX_CACHED: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(30);

/// The hash of a token: the cache must not contain credentials.
type Digest = Vec<u8>;

/// A cached answer, and its time.
type Cached = (Instant, Result<User, String>);

/// The server that reviews tokens.
pub struct TokenWebhook {
    caller: Caller,
    cached: Mutex<HashMap<Digest, Cached>>,
}

impl TokenWebhook {
    pub fn new(server: &RemoteServer) -> Result<TokenWebhook, Error> {
        Ok(TokenWebhook { caller: Caller::new(server)?, cached: Mutex::default() })
    }

    /// Returns the user of a token, from the server's TokenReview.
    pub async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<User, String> {
        let key = format!("{token}\n{}", audiences.join("\n"));
        let digest = ring::digest::digest(&ring::digest::SHA256, key.as_bytes()).as_ref().to_vec();
        if let Some(known) = self.known(&digest) {
            return known;
        }
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
                             "spec": { "token": token, "audiences": audiences } });
        // The error of an unreachable server does not depend on the token, and is not cached.
        let answer = self.caller.ask(review.to_string().into(), TIMEOUT).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|e| e.to_string())?;
        let verdict = verdict(&answer["status"], audiences);
        self.keep(digest, verdict.clone());
        verdict
    }

    fn known(&self, digest: &Digest) -> Option<Result<User, String>> {
        let cached = self.cached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        cached.get(digest).filter(|(at, _)| at.elapsed() < CACHE_LIFETIME).map(|(_, verdict)| verdict.clone())
    }

    fn keep(&self, digest: Digest, verdict: Result<User, String>) {
        let mut cached = self.cached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if cached.len() >= MAX_CACHED {
            cached.retain(|_, (at, _)| at.elapsed() < CACHE_LIFETIME);
        }
        if cached.len() < MAX_CACHED {
            cached.insert(digest, (Instant::now(), verdict));
        }
    }
}

/// Reads the status of a review.
pub(crate) fn verdict(status: &Value, audiences: &[String]) -> Result<User, String> {
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    if status["authenticated"] != true {
        let why = status["error"].as_str().filter(|e| !e.is_empty());
        return Err(why.unwrap_or("the webhook does not know the token").to_owned());
    }
    // A server that knows audiences returns those that the token is valid for.
    let good_for = list(&status["audiences"]);
    if !good_for.is_empty() && !audiences.iter().any(|audience| good_for.contains(audience)) {
        return Err("the webhook knows the token for other audiences".to_owned());
    }
    let user = &status["user"];
    let string = |key: &str| user[key].as_str().unwrap_or_default().to_owned();
    if string("username").is_empty() {
        return Err("the webhook names no user".to_owned());
    }
    let extra = user["extra"].as_object().into_iter().flatten().map(|(key, values)| (key.clone(), list(values)));
    let extra = extra.collect();
    Ok(User { name: string("username"), uid: string("uid"), groups: list(&user["groups"]), extra }.authenticated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_status_of_a_review_is_decoded() {
        let audiences = ["api".to_owned()];
        let good = json!({ "authenticated": true, "user": { "username": "jane", "groups": ["dev"], "extra": { "k": ["v"] } } });
        let jane = verdict(&good, &audiences).unwrap();
        assert_eq!((jane.name.as_str(), jane.is_in("dev"), jane.extra.len()), ("jane", true, 1));
        for status in [
            json!({}),
            json!({ "authenticated": false, "user": { "username": "jane" } }),
            json!({ "authenticated": true, "user": {} }),
            json!({ "authenticated": true, "audiences": ["other"], "user": { "username": "jane" } }),
        ] {
            assert!(verdict(&status, &audiences).is_err(), "{status}");
        }
    }
}
