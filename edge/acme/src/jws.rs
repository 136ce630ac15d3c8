//! Signed requests: an account's key, JSON Web Signatures by ES256, and the binding to an account elsewhere by HS256.

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use ring::{digest, hmac};
use serde_json::{Value, json};

use crate::Error;

/// The length of a coordinate of a point of P-256.
const COORDINATE: usize = 32;

/// The key of an account, on the curve P-256.
pub struct AccountKey {
    pair: EcdsaKeyPair,
    pem: String,
    random: SystemRandom,
}

/// The signer of a request as its header names it.
pub enum Signer<'a> {
    /// The key itself, before there is an account.
    Key,
    /// The URL of the account.
    Account(&'a str),
}

/// The credentials by which an authority binds a new account to a customer (RFC 8555, section 7.3.4).
#[derive(Clone)]
pub struct ExternalBinding {
    pub key_id: String,
    pub hmac_key: Vec<u8>,
}

/// Encodes bytes as base64url without padding.
pub fn encode(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// Decodes base64url; padding is allowed, because authorities print keys with it.
pub fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64_URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('=')).ok()
}

impl AccountKey {
    /// Makes a new key.
    pub fn generate() -> Result<AccountKey, Error> {
        let pair = rcgen::KeyPair::generate().map_err(|error| Error::Cryptography(error.to_string()))?;
        AccountKey::from_pem(&pair.serialize_pem())
    }

    /// Reads a key.
    pub fn from_pem(pem: &str) -> Result<AccountKey, Error> {
        let parsed = rcgen::KeyPair::from_pem(pem).map_err(|error| Error::Cryptography(error.to_string()))?;
        let random = SystemRandom::new();
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &parsed.serialize_der(), &random)
            .map_err(|error| Error::Cryptography(error.to_string()))?;
        Ok(AccountKey { pair, pem: pem.to_owned(), random })
    }

    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the public key as a JSON Web Key, its members in the order that the thumbprint needs.
    pub fn jwk(&self) -> Value {
        // An uncompressed point: the byte 4 and two coordinates.
        let point = self.pair.public_key().as_ref();
        let x = point.get(1..=COORDINATE).unwrap_or_default();
        let y = point.get(COORDINATE + 1..).unwrap_or_default();
        json!({"crv": "P-256", "kty": "EC", "x": encode(x), "y": encode(y)})
    }

    /// Returns the thumbprint of the key (RFC 7638).
    pub fn thumbprint(&self) -> String {
        let jwk = self.jwk();
        let text = format!(
            r#"{{"crv":"P-256","kty":"EC","x":{},"y":{}}}"#,
            jwk["x"], // Values print as JSON strings.
            jwk["y"]
        );
        encode(digest::digest(&digest::SHA256, text.as_bytes()))
    }

    /// Returns the answer to a challenge's token.
    pub fn key_authorization(&self, token: &str) -> String {
        format!("{token}.{}", self.thumbprint())
    }

    /// Signs a request to a URL. An empty payload is a request to read (POST-as-GET).
    pub fn sign(&self, url: &str, nonce: &str, signer: &Signer<'_>, payload: Option<&Value>) -> Result<Value, Error> {
        let mut header = json!({"alg": "ES256", "nonce": nonce, "url": url});
        match signer {
            Signer::Key => header["jwk"] = self.jwk(),
            Signer::Account(account) => header["kid"] = json!(account),
        }
        let protected = encode(header.to_string());
        let payload = payload.map(|payload| encode(payload.to_string())).unwrap_or_default();
        let signed = self.pair.sign(&self.random, format!("{protected}.{payload}").as_bytes());
        let signature = signed.map_err(|error| Error::Cryptography(error.to_string()))?;
        Ok(json!({"protected": protected, "payload": payload, "signature": encode(signature)}))
    }
}

impl ExternalBinding {
    /// Signs the key of a new account with the customer's key.
    pub fn sign(&self, url: &str, key: &AccountKey) -> Value {
        let protected = encode(json!({"alg": "HS256", "kid": self.key_id, "url": url}).to_string());
        let payload = encode(key.jwk().to_string());
        let mac = hmac::Key::new(hmac::HMAC_SHA256, &self.hmac_key);
        let signature = hmac::sign(&mac, format!("{protected}.{payload}").as_bytes());
        json!({"protected": protected, "payload": payload, "signature": encode(signature)})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_signed_by_the_key_that_it_names() {
        let key = AccountKey::generate().expect("a key");
        let again = AccountKey::from_pem(key.pem()).expect("the same key");
        assert_eq!(again.thumbprint(), key.thumbprint());
        let signed = key.sign("https://a.test/new", "n1", &Signer::Key, Some(&json!({"a": 1}))).expect("a signature");
        let part = |name: &str| signed[name].as_str().unwrap_or_default().to_owned();
        let header: Value = serde_json::from_slice(&decode(&part("protected")).expect("base64")).expect("JSON");
        assert_eq!(header["jwk"], key.jwk());
        assert_eq!(header["nonce"], "n1");
        let public = ring::signature::UnparsedPublicKey::new(
            &ring::signature::ECDSA_P256_SHA256_FIXED,
            key.pair.public_key().as_ref(),
        );
        let message = format!("{}.{}", part("protected"), part("payload"));
        let signature = decode(&part("signature")).expect("base64");
        assert!(public.verify(message.as_bytes(), &signature).is_ok());
        assert!(public.verify(b"other", &signature).is_err());
    }

    #[test]
    fn keys_of_bindings_may_be_padded() {
        assert_eq!(decode("AQI="), Some(vec![1, 2]));
        assert_eq!(decode("AQI"), Some(vec![1, 2]));
        assert_eq!(decode("*"), None);
    }
}
