//! Authentication: client certificate, bearer token, in-process identity, then impersonation.
//!
//! An invalid credential is always 401; it never falls through to anonymous. A client without a credential is
//! `system:anonymous`, whose permissions RBAC decides: by default, health and version.

mod bootstrap_token;
mod bound_objects;
mod certificate;
pub mod front_proxy;
pub mod keys;
mod legacy_token;
pub mod oidc;
pub mod revocation;
pub mod token;
pub mod webhook;
pub mod websocket_token;

use std::borrow::Cow;
use std::sync::Arc;

use arc_swap::ArcSwap;
use corten_access::User;
use corten_meta::quote::quote_list;
use corten_meta::{Status, Value};
use tokio_util::sync::CancellationToken;

pub use certificate::{expiry_of_certificate, user_of_certificate};
pub use legacy_token::today;
pub use revocation::REVOKED_NODES;

use crate::config::Config;
use crate::context::Context;
use crate::error::Error;
use crate::metrics::{AUTHENTICATION_CONFIGURATION, LEGACY_TOKENS, Metrics, VALID_TOKENS};
use crate::peer::{Identity, Peer};
use crate::registry::Registry;
use oidc::Issuers;
use token::{Authenticated, Tokens};
use webhook::TokenWebhook;

/// The authenticators of requests.
pub struct Authentication {
    registry: Arc<Registry>,
    metrics: Arc<Metrics>,
    pub tokens: Tokens,
    issuers: ArcSwap<Issuers>,
    webhook: Option<TokenWebhook>,
    config: Config,
}

impl Authentication {
    pub fn new(config: &Config, registry: Arc<Registry>, metrics: Arc<Metrics>) -> Result<Authentication, Error> {
        Ok(Authentication {
            tokens: Tokens::new(config)?,
            issuers: ArcSwap::from_pointee(Issuers::new(config)?),
            webhook: config.token_webhook.as_ref().map(TokenWebhook::new).transpose()?,
            config: config.clone(),
            registry,
            metrics,
        })
    }

    /// Returns the user of a request.
    pub async fn authenticate(&self, context: &Context, peer: &Peer) -> Result<User, Status> {
        let headers = &context.headers;
        if let Identity::InProcess(user) = &peer.identity {
            return Ok(user.clone());
        }
        // The token is read first, even if a certificate identifies the client: the client gets a warning about a
        // malformed one.
        let presented = presented_token(context);
        if let Identity::Certificate(user) = &peer.identity {
            // A connection may outlive its certificate.
            return match peer.expires {
                Some(expires) if expires <= context.now => Err(Status::unauthorized()),
                _ => Ok(user.clone()),
            };
        }
        if let Identity::Revoked = &peer.identity {
            return Err(Status::unauthorized());
        }
        if let Identity::FrontProxy(own) = &peer.identity
            && let Some(user) = front_proxy::user_of_headers(headers).or_else(|| own.clone())
        {
            return Ok(user);
        }
        let mut is_refused = false;
        for token in [Ok(presented.map(Cow::Borrowed)), websocket_token::named(headers).map(|t| t.map(Cow::Owned))] {
            let authenticated = match token {
                Ok(None) => continue,
                Ok(Some(token)) => self.authenticate_token(&token, &self.config.audiences).await,
                Err(reason) => Err(reason.to_owned()),
            };
            match authenticated {
                Ok(authenticated) => {
                    peer.slot.iter().for_each(|slot| slot.authenticated());
                    return Ok(authenticated.user);
                }
                Err(reason) => tracing::debug!(reason, "a bearer token was refused"),
            }
            is_refused = true;
        }
        match !is_refused && self.allows_anonymous(&context.info.path) {
            true => Ok(User::anonymous()),
            false => Err(Status::unauthorized()),
        }
    }

    /// Reports whether a request without a credential may access a path.
    pub fn allows_anonymous(&self, path: &str) -> bool {
        self.issuers.load().anonymous.is_allowed(path)
    }

    /// Returns the user of a bearer token, and those of these audiences that the token is valid for.
    pub async fn authenticate_token(&self, token: &str, audiences: &[String]) -> Result<Authenticated, String> {
        if let Some(result) = bootstrap_token::authenticate(&self.registry, token) {
            return result.map(|user| Authenticated { user, audiences: audiences.to_vec() });
        }
        if let Some(result) = self.issuers.load_full().authenticate(&self.metrics, token).await {
            return result.map(|found| Authenticated { audiences: audiences.to_vec(), ..found });
        }
        let claims = match (self.tokens.claims(token), &self.webhook) {
            (Ok(claims), _) => claims,
            (Err(_), Some(webhook)) => {
                let user = webhook.authenticate(token, audiences).await?;
                return Ok(Authenticated { user, audiences: audiences.to_vec() });
            }
            (Err(e), None) => return Err(e),
        };
        if claims["iss"] == legacy_token::ISSUER {
            // A token without audiences is for the API server.
            let own = audiences.iter().filter(|audience| self.config.audiences.contains(audience));
            let accepted: Vec<String> = own.cloned().collect();
            if accepted.is_empty() {
                let own = quote_list(&self.config.audiences);
                let requested = quote_list(audiences);
                return Err(format!("token audiences {own} is invalid for the target audiences {requested}"));
            }
            let user = legacy_token::authenticate(&self.registry, token, &claims).await?;
            self.metrics.add(&LEGACY_TOKENS, &[]);
            return Ok(Authenticated { user, audiences: accepted });
        }
        token::check_times(&claims, jiff::Timestamp::now().as_second())?;
        let accepted = token::check_audiences(&claims, audiences)?;
        let user = bound_objects::check_bindings(&self.registry, &claims).await?;
        if let Some(secret) = claims.pointer("/kubernetes.io/secret/name").and_then(Value::as_str) {
            let namespace = claims.pointer("/kubernetes.io/namespace").and_then(Value::as_str).unwrap_or_default();
            legacy_token::used(&self.registry, namespace, secret).await?;
        }
        self.metrics.add(&VALID_TOKENS, &[]);
        Ok(Authenticated { user, audiences: accepted })
    }

    /// Applies changes of the configuration until shutdown; an invalid one changes nothing.
    pub async fn run(&self, shutdown: &CancellationToken) {
        let Some(mut configuration) = self.config.authentication_configuration.clone() else { return };
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return,
                changed = configuration.changed() => if changed.is_err() { return },
            }
            let config_file = configuration.borrow_and_update().clone();
            let read = Issuers::new(&self.config);
            self.metrics.reloaded(&AUTHENTICATION_CONFIGURATION, &config_file, read.is_ok());
            match read {
                Ok(issuers) => {
                    self.issuers.store(Arc::new(issuers));
                    tracing::info!("the authentication configuration was read again");
                }
                Err(e) => tracing::error!(error = %e, "the new authentication configuration is not used"),
            }
        }
    }
}

/// Returns the bearer token of a request. With two blanks before it there is none, and the client gets a warning.
fn presented_token(context: &Context) -> Option<&str> {
    let header = context.headers.get(http::header::AUTHORIZATION)?;
    // A header that is not UTF-8 is an unknown token.
    let token = bearer_token(std::str::from_utf8(header.as_bytes()).unwrap_or("Bearer ?"))?;
    if token.is_empty() {
        context.warn("the provided Authorization header contains extra space before the bearer token, and is ignored");
        return None;
    }
    Some(token)
}

/// Returns the value of a header that identifies a user. It keeps every byte: without one, it would identify another
/// user.
pub fn header_string(value: &http::HeaderValue) -> String {
    corten_meta::codec::characters(value.as_bytes()).into_owned()
}

/// Returns the token of an Authorization header: its second word, also if that is empty.
pub fn bearer_token(header: &str) -> Option<&str> {
    let (scheme, rest) = header.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| rest.split(' ').next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::bearer_token;

    #[test]
    fn the_second_word_is_the_token() {
        for (header, token) in [
            ("Bearer t", Some("t")),
            (" bEARER t x ", Some("t")),
            ("Bearer  t", Some("")),
            ("Bearer\tt", None),
            ("Bearer ", None),
            ("Basic t", None),
        ] {
            assert_eq!(bearer_token(header), token, "{header:?}");
        }
    }
}
