//! Authentication and authorization of the kubelet's API: by client certificate, by bearer token (TokenReview), or as
//! the anonymous user if that is allowed; then by SubjectAccessReview for the matching subresource of this Node.
//! Decisions are cached for a time, so that a scraper causes few requests to the API server.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec};
use corten_api::k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use http::{HeaderMap, Method, header};
use sha2::{Digest, Sha256};

use super::State;
use super::authorize::{User, subresources, verb};

/// The common name in the API server's client certificate.
const API_SERVER: &str = "kube-apiserver-kubelet-client";
const ADMINISTRATORS: &str = "system:masters";
/// The user of requests without a credential.
pub const ANONYMOUS: &str = "system:anonymous";
/// The largest number of cached decisions.
const MOST_ANSWERS: usize = 1024;

/// Decisions that expire.
struct Answers<K, V>(Mutex<HashMap<K, (Instant, V)>>);

impl<K, V> Default for Answers<K, V> {
    fn default() -> Self {
        Answers(Mutex::default())
    }
}

impl<K: Eq + Hash, V: Clone> Answers<K, V> {
    fn get(&self, key: &K, now: Instant) -> Option<V> {
        let answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        answers.get(key).filter(|(until, _)| *until > now).map(|(_, answer)| answer.clone())
    }

    fn keep(&self, key: K, answer: V, now: Instant, time: Duration) {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if answers.len() >= MOST_ANSWERS {
            answers.retain(|_, (until, _)| *until > now);
        }
        if answers.len() < MOST_ANSWERS {
            answers.insert(key, (now + time, answer));
        }
    }
}

/// The cached reviews of tokens and users.
#[derive(Default)]
pub struct Access {
    tokens: Answers<[u8; 32], Option<User>>,
    reviews: Answers<(User, &'static str, &'static str), bool>,
}

impl Access {
    /// Returns the user of a request: that of the certificate if there is one, else that of the token.
    pub async fn authenticate(&self, state: &State, certificate: Option<&User>, headers: &HeaderMap) -> Option<User> {
        if let Some(user) = certificate {
            return Some(user.clone());
        }
        let access = &state.services.config.access;
        if access.webhook
            && let Some(token) = bearer(headers)
        {
            // A token that the API server does not know is refused; its user is not anonymous.
            return self.of_token(state, token).await;
        }
        access.anonymous.then(|| User { name: ANONYMOUS.into(), groups: vec!["system:unauthenticated".into()] })
    }

    async fn of_token(&self, state: &State, token: &str) -> Option<User> {
        let key = <[u8; 32]>::from(Sha256::digest(token));
        let now = Instant::now();
        if let Some(known) = self.tokens.get(&key, now) {
            return known;
        }
        let spec = TokenReviewSpec { token: token.to_owned(), ..TokenReviewSpec::default() };
        let review = state.services.api.client.create(&TokenReview { spec, ..TokenReview::default() }).await.ok()?;
        let status = review.status.unwrap_or_default();
        let user = status
            .user
            .filter(|_| status.authenticated == Some(true))
            .map(|user| User { name: user.username.unwrap_or_default(), groups: user.groups.unwrap_or_default() });
        self.tokens.keep(key, user.clone(), now, state.services.config.access.token_ttl);
        user
    }

    /// Returns `Ok` if the user is allowed, otherwise the reason. One of the path's subresources is enough.
    pub async fn authorize(&self, state: &State, user: &User, method: &Method, path: &str) -> Result<(), String> {
        let trusted = user.name == API_SERVER || user.groups.iter().any(|group| group == ADMINISTRATORS);
        if trusted || state.services.config.access.always_allow {
            return Ok(());
        }
        let verb = verb(method);
        let subresources = subresources(path);
        let mut failure = String::new();
        for subresource in &subresources {
            match self.may(state, user, verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => failure = format!(": {error}"),
            }
        }
        let tried = subresources.join(" ");
        Err(format!("Forbidden (user={}, verb={verb}, resource=nodes, subresource(s)=[{tried}]){failure}", user.name))
    }

    async fn may(
        &self,
        state: &State,
        user: &User,
        verb: &'static str,
        subresource: &'static str,
    ) -> Result<bool, corten_client::Error> {
        let key = (user.clone(), verb, subresource);
        let now = Instant::now();
        if let Some(known) = self.reviews.get(&key, now) {
            return Ok(known);
        }
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: Some(user.name.clone()),
                groups: Some(user.groups.clone()),
                resource_attributes: Some(ResourceAttributes {
                    verb: Some(verb.to_owned()),
                    version: Some("v1".into()),
                    resource: Some("nodes".into()),
                    subresource: Some(subresource.to_owned()),
                    name: Some(state.services.config.node_name.clone()),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        let answer = state.services.api.client.create(&review).await?;
        let allowed = answer.status.as_ref().is_some_and(|status| status.allowed);
        let access = &state.services.config.access;
        let time = if allowed { access.allowed_ttl } else { access.denied_ttl };
        self.reviews.keep(key, allowed, now, time);
        Ok(allowed)
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    Some(token.trim()).filter(|token| scheme.eq_ignore_ascii_case("bearer") && !token.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_expire_and_are_bounded() {
        let answers: Answers<usize, bool> = Answers::default();
        let now = Instant::now();
        answers.keep(1, true, now, Duration::from_secs(10));
        assert_eq!(answers.get(&1, now), Some(true));
        assert_eq!(answers.get(&1, now + Duration::from_secs(10)), None);
        for key in 0..MOST_ANSWERS + 10 {
            answers.keep(key, true, now, Duration::from_secs(10));
        }
        assert_eq!(answers.0.lock().unwrap().len(), MOST_ANSWERS);
    }

    #[test]
    fn a_bearer_token_is_taken_from_its_header() {
        let mut headers = HeaderMap::new();
        assert_eq!(bearer(&headers), None);
        headers.insert(header::AUTHORIZATION, "bearer abc".parse().unwrap());
        assert_eq!(bearer(&headers), Some("abc"));
        headers.insert(header::AUTHORIZATION, "Basic abc".parse().unwrap());
        assert_eq!(bearer(&headers), None);
    }
}
