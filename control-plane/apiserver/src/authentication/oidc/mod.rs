//! Tokens of other issuers: OpenID Connect by an AuthenticationConfiguration.
//!
//! An issuer is known by its URL; its keys are fetched from where its discovery document says, kept, and fetched again
//! when a token names a key that is not among them. Everything else is pure: which tokens are good (`claims.rs`), and
//! whether a signature is (`keys.rs`).
//!
//! Must never accept a token without a signature, nor one for another audience.

mod claims;
mod configuration;
mod keys;

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use corten_meta::Value;
use tokio::sync::Mutex;

use super::token::Authenticated;
use crate::config::{Config, RemoteServer};
use crate::error::Error;
use crate::outbound::Caller;
use configuration::Issuer;
use keys::Keys;

/// How long an issuer may take to answer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// How often keys are fetched at most, however many strange tokens come.
const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// All configured issuers.
pub struct Issuers(Vec<Known>);

/// An issuer and the keys it was last seen with.
struct Known {
    issuer: Issuer,
    roots: String,
    keys: Mutex<Fetched>,
}

#[derive(Default)]
struct Fetched {
    keys: Arc<Keys>,
    at: Option<Instant>,
}

impl Issuers {
    pub fn new(config: &Config) -> Result<Issuers, Error> {
        let Some(text) = &config.authentication_configuration else { return Ok(Issuers(Vec::new())) };
        let issuers =
            configuration::parse(text).map_err(|e| Error::Config(format!("AuthenticationConfiguration: {e}")))?;
        let known = issuers.into_iter().map(|issuer| {
            let roots = issuer.certificate_authority.clone();
            let roots = if roots.is_empty() { config.trusted_roots.clone() } else { roots };
            Known { issuer, roots, keys: Mutex::default() }
        });
        Ok(Issuers(known.collect()))
    }

    /// Whose token this is; `None` if no configured issuer claims to have made it.
    pub async fn authenticate(&self, token: &str) -> Option<Result<Authenticated, String>> {
        if self.0.is_empty() {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (header, payload) = message.split_once('.')?;
        let json = |part: &str| serde_json::from_slice::<Value>(&BASE64URL.decode(part).ok()?).ok();
        let (header, claims) = (json(header)?, json(payload)?);
        let known = self.0.iter().find(|known| claims["iss"] == known.issuer.url.as_str())?;
        let signature = BASE64URL.decode(signature).ok()?;
        Some(known.check(&header, &claims, message, &signature).await)
    }
}

impl Known {
    async fn check(
        &self,
        header: &Value,
        claims: &Value,
        message: &str,
        signature: &[u8],
    ) -> Result<Authenticated, String> {
        let text = |key: &str| header[key].as_str().unwrap_or_default();
        let (algorithm, id) = (text("alg"), text("kid"));
        let mut keys = self.keys(None).await?;
        if !keys.verify(algorithm, id, message.as_bytes(), signature) {
            // The issuer may have changed its keys since.
            keys = self.keys(Some(&keys)).await?;
            if !keys.verify(algorithm, id, message.as_bytes(), signature) {
                return Err("failed to verify signature: no keys matches jwk keyid".to_owned());
            }
        }
        claims::check_times(claims, jiff::Timestamp::now().as_second())?;
        let user = claims::user(&self.issuer, claims)?;
        Ok(Authenticated { user: user.authenticated(), audiences: Vec::new() })
    }

    /// The keys of the issuer; anew if they are still those that did not help.
    async fn keys(&self, useless: Option<&Arc<Keys>>) -> Result<Arc<Keys>, String> {
        let mut fetched = self.keys.lock().await;
        let stale = match (&fetched.at, useless) {
            (None, _) => true,
            (Some(at), Some(useless)) => Arc::ptr_eq(&fetched.keys, useless) && at.elapsed() >= FETCH_PAUSE,
            (Some(_), None) => false,
        };
        if stale {
            let fresh = self.fetch().await;
            fetched.at = Some(Instant::now());
            match fresh {
                Ok(keys) => fetched.keys = Arc::new(keys),
                Err(e) if useless.is_none() => {
                    fetched.at = None;
                    return Err(e);
                }
                Err(e) => {
                    tracing::warn!(issuer = self.issuer.url, error = e, "the keys of an issuer could not be fetched")
                }
            }
        }
        Ok(Arc::clone(&fetched.keys))
    }

    async fn fetch(&self) -> Result<Keys, String> {
        let discovery = self.issuer.discovery_url();
        let document = self.get(&discovery).await?;
        let said = document["issuer"].as_str().unwrap_or_default();
        if said != self.issuer.url {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {:?} got {said:?}",
                self.issuer.url
            ));
        }
        let at = document["jwks_uri"].as_str().ok_or("the discovery document has no jwks_uri")?;
        Ok(Keys::from_jwks(&self.get(at).await?))
    }

    async fn get(&self, url: &str) -> Result<Value, String> {
        let server = RemoteServer { url: url.to_owned(), ca: self.roots.clone(), identity: None, token: None };
        let caller = Caller::new(&server).map_err(|e| e.to_string())?;
        let body = caller.get(FETCH_TIMEOUT).await?;
        serde_json::from_slice(&body).map_err(|e| format!("{url}: {e}"))
    }
}
