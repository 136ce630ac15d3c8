//! Tokens of other issuers: OpenID Connect by an AuthenticationConfiguration.
//!
//! An issuer is identified by its URL; its keys are fetched from the URL in its discovery document, cached, and fetched
//! again when a token names an unknown key. Everything else is pure: the validation of tokens (`claims.rs`) and of
//! signatures (`keys.rs`).
//!
//! Must never accept a token without a signature, nor one for another audience.

mod claims;
pub(crate) mod configuration;
mod environments;
pub(crate) mod keys;

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use corten_meta::Value;
use corten_meta::quote::quote;
use tokio::sync::Mutex;

use super::token::Authenticated;
use crate::config::{Config, RemoteServer};
use crate::error::Error;
use crate::metrics::Metrics;
use crate::outbound::Caller;
use configuration::{Anonymous, Configuration, Issuer};
use keys::Keys;

/// The timeout of a request to an issuer.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);
/// The minimum time between two fetches of keys, however many unknown tokens come.
const FETCH_PAUSE: Duration = Duration::from_secs(10);

/// All configured issuers, and the paths that allow anonymous requests.
pub struct Issuers {
    known: Vec<Known>,
    pub anonymous: Anonymous,
}

/// An issuer and its cached keys.
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
        let configuration = match &config.authentication_configuration {
            None => Configuration::default(),
            Some(file) => configuration::parse(&file.borrow(), &config.issuer)
                .map_err(|e| Error::Config(format!("AuthenticationConfiguration: {e}")))?,
        };
        let known = configuration.issuers.into_iter().map(|issuer| {
            let roots = issuer.certificate_authority.clone();
            let roots = if roots.is_empty() { config.trusted_roots.clone() } else { roots };
            Known { issuer, roots, keys: Mutex::default() }
        });
        Ok(Issuers { known: known.collect(), anonymous: configuration.anonymous })
    }

    /// Returns the user of a token; `None` if no configured issuer claims to have issued it.
    pub async fn authenticate(&self, metrics: &Metrics, token: &str) -> Option<Result<Authenticated, String>> {
        if self.known.is_empty() {
            return None;
        }
        let (message, signature) = token.rsplit_once('.')?;
        let (header, payload) = message.split_once('.')?;
        let json = |part: &str| serde_json::from_slice::<Value>(&BASE64URL.decode(part).ok()?).ok();
        let header = json(header)?;
        let claims = json(payload)?;
        let known = self.known.iter().find(|known| claims["iss"] == known.issuer.url.as_str())?;
        let signature = BASE64URL.decode(signature).ok()?;
        let began = Instant::now();
        let result = known.check(metrics, &header, &claims, message, &signature).await;
        metrics.verified_token(&known.issuer.url, result.is_ok(), began.elapsed());
        Some(result)
    }
}

impl Known {
    async fn check(
        &self,
        metrics: &Metrics,
        header: &Value,
        claims: &Value,
        message: &str,
        signature: &[u8],
    ) -> Result<Authenticated, String> {
        let string = |key: &str| header[key].as_str().unwrap_or_default();
        let algorithm = string("alg");
        let id = string("kid");
        let mut keys = self.keys(metrics, None).await?;
        if !keys.verify(algorithm, id, message.as_bytes(), signature) {
            // The issuer may have rotated its keys.
            keys = self.keys(metrics, Some(&keys)).await?;
            if !keys.verify(algorithm, id, message.as_bytes(), signature) {
                return Err("failed to verify signature: no keys matches jwk keyid".to_owned());
            }
        }
        claims::check_times(claims, jiff::Timestamp::now().as_second())?;
        let user = claims::user(&self.issuer, claims)?;
        Ok(Authenticated { user: user.authenticated(), audiences: Vec::new() })
    }

    /// Returns the keys of the issuer; fetches them again if the cached ones are those that did not verify the token.
    async fn keys(&self, metrics: &Metrics, unmatched: Option<&Arc<Keys>>) -> Result<Arc<Keys>, String> {
        let mut fetched = self.keys.lock().await;
        let stale = match (&fetched.at, unmatched) {
            (None, _) => true,
            (Some(at), Some(unmatched)) => Arc::ptr_eq(&fetched.keys, unmatched) && at.elapsed() >= FETCH_PAUSE,
            (Some(_), None) => false,
        };
        if stale {
            let fresh = self.fetch().await;
            fetched.at = Some(Instant::now());
            let key_set = fresh.as_ref().ok().map(Value::to_string);
            metrics.fetched_keys(&self.issuer.url, key_set.as_deref());
            match fresh {
                Ok(document) => fetched.keys = Arc::new(Keys::from_jwks(&document)),
                Err(e) if unmatched.is_none() => {
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

    /// Fetches the JSON Web Key Set.
    async fn fetch(&self) -> Result<Value, String> {
        let discovery = self.issuer.discovery_url();
        let document = self.get(&discovery).await?;
        let issuer_url = document["issuer"].as_str().unwrap_or_default();
        if issuer_url != self.issuer.url {
            return Err(format!(
                "oidc: issuer did not match the issuer returned by provider, expected {} got {issuer_url}",
                quote(&self.issuer.url),
                issuer_url = quote(issuer_url)
            ));
        }
        let at = document["jwks_uri"].as_str().ok_or("the discovery document has no jwks_uri")?;
        self.get(at).await
    }

    async fn get(&self, url: &str) -> Result<Value, String> {
        let server = RemoteServer { url: url.to_owned(), ca: self.roots.clone(), identity: None, token: None };
        let caller = Caller::new(&server).map_err(|e| e.to_string())?;
        let body = caller.get(FETCH_TIMEOUT).await?;
        serde_json::from_slice(&body).map_err(|e| format!("{url}: {e}"))
    }
}
