//! Tokens that a configured server judges: a TokenReview is posted, its answer is kept for a while.
//!
//! Asked last, after all that this server can judge itself. An answer that does not come is no authentication.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use corten_meta::Value;
use serde_json::json;

use crate::config::RemoteServer;
use crate::error::Error;
use crate::outbound::Caller;
use crate::user::User;

/// How long an answer counts, and how many are kept.
const KEPT_FOR: Duration = Duration::from_secs(120);
const MAX_KEPT: usize = 4096;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A token is kept as its hash: a dump of memory must not be a bag of credentials.
type Digest = Vec<u8>;

/// A verdict, and until when it counts.
type Kept = (Instant, Result<User, String>);

/// The server that reviews tokens.
pub struct TokenWebhook {
    caller: Caller,
    kept: Mutex<HashMap<Digest, Kept>>,
}

impl TokenWebhook {
    pub fn new(server: &RemoteServer) -> Result<TokenWebhook, Error> {
        Ok(TokenWebhook { caller: Caller::new(server)?, kept: Mutex::default() })
    }

    /// Whose token this is, in the words of the server.
    pub async fn authenticate(&self, token: &str, audiences: &[String]) -> Result<User, String> {
        let asked = format!("{token}\n{}", audiences.join("\n"));
        let digest = ring::digest::digest(&ring::digest::SHA256, asked.as_bytes()).as_ref().to_vec();
        if let Some(known) = self.known(&digest) {
            return known;
        }
        let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "metadata": {},
                             "spec": { "token": token, "audiences": audiences } });
        // That a server cannot be reached says nothing about the token, and is not kept.
        let answer = self.caller.ask(review.to_string().into(), TIMEOUT).await?;
        let answer: Value = serde_json::from_slice(&answer).map_err(|e| e.to_string())?;
        let verdict = verdict(&answer["status"], audiences);
        self.keep(digest, verdict.clone());
        verdict
    }

    fn known(&self, digest: &Digest) -> Option<Result<User, String>> {
        let kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        kept.get(digest).filter(|(at, _)| at.elapsed() < KEPT_FOR).map(|(_, verdict)| verdict.clone())
    }

    fn keep(&self, digest: Digest, verdict: Result<User, String>) {
        let mut kept = self.kept.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if kept.len() >= MAX_KEPT {
            kept.retain(|_, (at, _)| at.elapsed() < KEPT_FOR);
        }
        if kept.len() < MAX_KEPT {
            kept.insert(digest, (Instant::now(), verdict));
        }
    }
}

/// What the status of a review says.
pub(crate) fn verdict(status: &Value, audiences: &[String]) -> Result<User, String> {
    let list = |value: &Value| -> Vec<String> {
        value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    if status["authenticated"] != true {
        let why = status["error"].as_str().filter(|e| !e.is_empty());
        return Err(why.unwrap_or("the webhook does not know the token").to_owned());
    }
    // A server that knows of audiences says for which of them the token is good.
    let good_for = list(&status["audiences"]);
    if !good_for.is_empty() && !audiences.iter().any(|audience| good_for.contains(audience)) {
        return Err("the webhook knows the token for other audiences".to_owned());
    }
    let user = &status["user"];
    let text = |key: &str| user[key].as_str().unwrap_or_default().to_owned();
    if text("username").is_empty() {
        return Err("the webhook names no user".to_owned());
    }
    let extra = user["extra"].as_object().into_iter().flatten().map(|(key, values)| (key.clone(), list(values)));
    let extra = extra.collect();
    Ok(User { name: text("username"), uid: text("uid"), groups: list(&user["groups"]), extra }.authenticated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_is_read() {
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
