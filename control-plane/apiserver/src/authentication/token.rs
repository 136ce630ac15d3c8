//! ServiceAccount tokens: issues and verifies them.
//!
//! A token is valid only while the objects that it is bound to exist: its ServiceAccount always, its Pod, Secret or
//! Node if it names one. Every request checks that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use corten_access::User;
use corten_meta::Value;
use corten_meta::quote::{quote, quote_list};
use serde_json::json;

use super::keys::Key;
use super::legacy_token;
use crate::config::Config;
use crate::error::Error;

/// The reason for refusing a string that is no token.
pub const NOT_A_TOKEN: &str = "not a token";

/// The claims of a new token.
pub struct Claims<'a> {
    pub namespace: &'a str,
    pub service_account: &'a str,
    pub service_account_uid: &'a str,
    pub audiences: &'a [String],
    pub lifetime_seconds: i64,
    /// Kind (`pod`, `secret`, `node`), name and uid of the object that the token is bound to.
    pub bound: Option<(&'static str, String, String)>,
    /// Name and uid of a bound pod's node.
    pub node: Option<(String, String)>,
    pub now: jiff::Timestamp,
}

/// A user, and the audiences that the token was accepted for.
pub struct Authenticated {
    pub user: User,
    pub audiences: Vec<String>,
}

/// The issuer and verifier of tokens.
pub struct Tokens {
    keys: ArcSwap<Vec<Key>>,
    issuer: String,
    verified: Mutex<HashMap<[u8; 32], Arc<Value>>>,
}

fn parse(pems: &[String]) -> Result<Vec<Key>, Error> {
    pems.iter().map(|pem| Key::from_pem(pem)).collect()
}

/// The maximum number of tokens whose verified claims are cached.
const MOST_VERIFIED: usize = 4096;

impl Tokens {
    pub fn new(config: &Config) -> Result<Tokens, Error> {
        let keys = ArcSwap::from_pointee(parse(&config.service_account_keys)?);
        Ok(Tokens { keys, issuer: config.issuer.clone(), verified: Mutex::default() })
    }

    /// Replaces the keys. Tokens of a key that is gone are refused from now on.
    pub fn replace_keys(&self, pems: &[String]) -> Result<(), Error> {
        self.keys.store(Arc::new(parse(pems)?));
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).clear();
        Ok(())
    }

    /// Signs a token.
    pub fn issue(&self, claims: &Claims<'_>) -> Result<String, Error> {
        let keys = self.keys.load();
        let key = keys.first().ok_or_else(|| Error::Key("no ServiceAccount signing key".to_owned()))?;
        let now = claims.now.as_second();
        let mut private = json!({
            "namespace": claims.namespace,
            "serviceaccount": { "name": claims.service_account, "uid": claims.service_account_uid },
        });
        if let Some((kind, name, uid)) = &claims.bound {
            private[*kind] = json!({ "name": name, "uid": uid });
        }
        if let Some((name, uid)) = &claims.node {
            private["node"] = json!({ "name": name, "uid": uid });
        }
        let payload = json!({
            "aud": claims.audiences,
            "exp": now + claims.lifetime_seconds,
            "iat": now,
            "iss": self.issuer,
            "jti": uuid::Uuid::new_v4().to_string(),
            "kubernetes.io": private,
            "nbf": now,
            "sub": format!("system:serviceaccount:{}:{}", claims.namespace, claims.service_account),
        });
        let header = json!({ "alg": key.algorithm(), "kid": key.id });
        let message = format!("{}.{}", BASE64URL.encode(header.to_string()), BASE64URL.encode(payload.to_string()));
        let signature = key.sign(message.as_bytes())?;
        Ok(format!("{message}.{}", BASE64URL.encode(signature)))
    }

    /// Returns the claims of a token with a valid signature. A signature stays valid, so it is verified once; every
    /// request checks the time and the bound objects, which can change.
    pub(super) fn claims(&self, token: &str) -> Result<Arc<Value>, String> {
        let mut digest = [0; 32];
        digest.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, token.as_bytes()).as_ref());
        let verified = || self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(claims) = verified().get(&digest) {
            return Ok(Arc::clone(claims));
        }
        let keys = self.keys.load_full();
        let claims = Arc::new(self.verify(token, &keys)?);
        let mut verified = verified();
        // The key may have been replaced since: what it verified must not outlive it.
        if !Arc::ptr_eq(&keys, &self.keys.load()) {
            return Ok(claims);
        }
        if verified.len() >= MOST_VERIFIED {
            verified.clear();
        }
        verified.insert(digest, Arc::clone(&claims));
        Ok(claims)
    }

    fn verify(&self, token: &str, keys: &[Key]) -> Result<Value, String> {
        // A token may contain line breaks, as if it were wrapped.
        let token: String = token.split_whitespace().collect();
        let malformed = || NOT_A_TOKEN.to_owned();
        let (message, signature) = token.rsplit_once('.').ok_or_else(malformed)?;
        let (header, payload) = message.split_once('.').ok_or_else(malformed)?;
        let json = |part: &str| -> Result<Value, String> {
            let bytes = BASE64URL.decode(part).map_err(|_| malformed())?;
            serde_json::from_slice(&bytes).map_err(|_| malformed())
        };
        let header = json(header)?;
        let signature = BASE64URL.decode(signature).map_err(|_| malformed())?;
        let algorithm = header["alg"].as_str().unwrap_or_default();
        let id = header["kid"].as_str().unwrap_or_default();
        let known = keys.iter().filter(|key| id.is_empty() || key.id == id);
        if !known.into_iter().any(|key| key.verify(algorithm, message.as_bytes(), &signature)) {
            return Err("go-jose/go-jose: error in cryptographic primitive".to_owned());
        }
        let claims = json(payload)?;
        let issuer = claims["iss"].as_str().unwrap_or_default();
        if issuer != self.issuer && issuer != legacy_token::ISSUER {
            return Err(format!("token issuer {} is invalid", quote(issuer)));
        }
        Ok(claims)
    }

    /// Returns the document of `/openid/v1/jwks`.
    pub fn jwks(&self) -> Value {
        json!({ "keys": self.keys.load().iter().map(Key::jwk).collect::<Vec<_>>() })
    }

    /// Returns the document of `/.well-known/openid-configuration`.
    pub fn openid_configuration(&self, jwks_uri: &str) -> Value {
        let keys = self.keys.load();
        let algorithms: std::collections::BTreeSet<&str> = keys.iter().map(Key::algorithm).collect();
        json!({
            "issuer": self.issuer,
            "jwks_uri": jwks_uri,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
        })
    }
}

pub(super) fn check_times(claims: &Value, now: i64) -> Result<(), String> {
    if claims["exp"].as_i64().unwrap_or(0) <= now {
        return Err("service account token has expired".to_owned());
    }
    if claims["nbf"].as_i64().unwrap_or(0) > now + 10 {
        return Err("service account token is not valid yet".to_owned());
    }
    Ok(())
}

pub(super) fn check_audiences(claims: &Value, wanted: &[String]) -> Result<Vec<String>, String> {
    let carried: Vec<&str> = match &claims["aud"] {
        Value::String(one) => vec![one],
        Value::Array(many) => many.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let accepted: Vec<String> = wanted.iter().filter(|a| carried.contains(&a.as_str())).cloned().collect();
    match accepted.is_empty() {
        true => {
            let carried = quote_list(&carried);
            let wanted = quote_list(wanted);
            Err(format!("token audiences {carried} is invalid for the target audiences {wanted}"))
        }
        false => Ok(accepted),
    }
}
