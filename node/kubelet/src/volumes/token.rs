//! Service account tokens of pods: requested by TokenRequest, bound to the pod, and renewed after 80 % of their
//! lifetime or after a day.
//!
//! Tokens are in memory only, and are forgotten with their pod.

use std::collections::HashMap;
use std::sync::Mutex;

use corten_api::Typed;
use corten_api::k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use corten_api::k8s_openapi::api::core::v1::{Pod, ServiceAccount, ServiceAccountTokenProjection};
use jiff::{SignedDuration, Timestamp};

use super::Context;
use crate::error::{Error, Result};
use crate::pod::spec;

const DEFAULT_SECONDS: i64 = 3600;
const OLDEST: SignedDuration = SignedDuration::from_hours(24);

/// A token and the time of its renewal.
#[derive(Clone, Debug)]
pub struct Token {
    pub text: String,
    pub expires: Timestamp,
    pub refresh_at: Timestamp,
}

/// The parameters of a token; two volumes of one pod with the same parameters share it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Request {
    pod_uid: String,
    audience: String,
    seconds: i64,
}

/// The tokens of all pods of the node.
#[derive(Default)]
pub struct Tokens {
    known: Mutex<HashMap<Request, Token>>,
}

impl Tokens {
    /// Returns the token of a projection: the cached one until its renewal, else a new one.
    pub async fn get(&self, context: &Context<'_>, source: &ServiceAccountTokenProjection) -> Result<Token> {
        let request = Request {
            pod_uid: spec::uid(context.pod).to_owned(),
            audience: source.audience.clone().unwrap_or_default(),
            seconds: source.expiration_seconds.unwrap_or(DEFAULT_SECONDS),
        };
        if let Some(token) = self.lock().get(&request).filter(|token| token.refresh_at > context.now) {
            return Ok(token.clone());
        }
        let token = request_token(context, &request).await?;
        self.lock().insert(request, token.clone());
        Ok(token)
    }

    /// Forgets the tokens of a deleted pod.
    pub fn forget(&self, pod_uid: &str) {
        self.lock().retain(|request, _| request.pod_uid != pod_uid);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Request, Token>> {
        self.known.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

async fn request_token(context: &Context<'_>, request: &Request) -> Result<Token> {
    let account = spec::spec(context.pod).service_account_name.as_deref().filter(|name| !name.is_empty());
    let body = TokenRequest {
        spec: Some(TokenRequestSpec {
            audiences: Some(vec![request.audience.clone()]).filter(|_| !request.audience.is_empty()),
            expiration_seconds: Some(request.seconds),
            bound_object_ref: Some(bound_to(context.pod)),
        }),
        ..TokenRequest::default()
    };
    let answer = context
        .client
        .of::<ServiceAccount>()
        .create_subresource(spec::namespace(context.pod), account.unwrap_or("default"), "token", &body.to_value())
        .await?;
    let answer = TokenRequest::from_value(answer).map_err(|error| Error::pod(format!("read a token: {error}")))?;
    let status = answer.status.unwrap_or_default();
    match (status.token, status.expiration_timestamp) {
        (Some(text), Some(expires)) => {
            Ok(Token { refresh_at: refresh_at(context.now, expires.0), expires: expires.0, text })
        }
        _ => Err(Error::pod("the API server answered a token request without a token")),
    }
}

fn bound_to(pod: &Pod) -> BoundObjectReference {
    BoundObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Pod".into()),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
    }
}

/// Returns the time of the renewal: after 80 % of the token's lifetime, but within a day.
fn refresh_at(now: Timestamp, expires: Timestamp) -> Timestamp {
    let life = expires.duration_since(now);
    let wait = (life / 5 * 4).min(OLDEST).max(SignedDuration::from_secs(1));
    now.checked_add(wait).unwrap_or(expires)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_before_they_expire() {
        let now = Timestamp::from_second(1_000_000).unwrap();
        for (life, wait) in [(3600, 2880), (600, 480), (365 * 24 * 3600, 24 * 3600), (0, 1)] {
            let expires = now + SignedDuration::from_secs(life);
            assert_eq!(refresh_at(now, expires).duration_since(now).as_secs(), wait, "{life}");
        }
    }
}
