//! JSON Web Tokens, verified with the issuer's keys. Only signatures with public keys are accepted.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use corten_routing::{ClaimHeader, Jwt};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey, VerificationAlgorithm};
use serde_json::Value;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::unknown_keys::UnknownKeys;

/// The difference of clocks that is forgiven, in seconds.
const LEEWAY: u64 = 60;
/// The longest token.
const MAX_TOKEN: usize = 16 * 1024;

#[derive(Debug)]
pub(crate) struct TokenVerifier {
    issuer: Option<Arc<str>>,
    audiences: Vec<Arc<str>>,
    keys: Vec<Key>,
    claim_headers: Vec<ClaimHeader>,
    /// The name of the set if its keys are fetched.
    key_set: Option<Arc<str>>,
    unknown_keys: Arc<UnknownKeys>,
}

#[derive(Debug)]
struct Key {
    id: Option<String>,
    material: Material,
}

#[derive(Debug)]
enum Material {
    Rsa(RsaPublicKeyComponents<Vec<u8>>),
    /// A point of the curve, uncompressed.
    P256(Vec<u8>),
    P384(Vec<u8>),
    Ed25519(Vec<u8>),
}

impl TokenVerifier {
    pub(crate) fn new(policy: &Jwt, unknown_keys: &Arc<UnknownKeys>) -> TokenVerifier {
        let set: Value = serde_json::from_slice(&policy.keys_json).unwrap_or_default();
        let keys = set.get("keys").and_then(Value::as_array).into_iter().flatten().filter_map(Key::parse).collect();
        TokenVerifier {
            issuer: policy.issuer.clone(),
            audiences: policy.audiences.clone(),
            keys,
            claim_headers: policy.claim_headers.clone(),
            key_set: policy.key_set.clone(),
            unknown_keys: Arc::clone(unknown_keys),
        }
    }

    /// Verifies the bearer token of a request, and sets the headers of its claims. Headers of that name that the client
    /// sent are removed.
    pub(crate) fn accept(&self, headers: &mut HeaderMap) -> bool {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let Some(claims) = self.claims(headers, now) else {
            return false;
        };
        for claim in &self.claim_headers {
            let Ok(name) = HeaderName::from_bytes(claim.header.as_bytes()) else {
                continue;
            };
            headers.remove(&name);
            let text = match claims.get(&claim.claim) {
                None => continue,
                Some(Value::String(text)) => text.clone(),
                Some(other) => other.to_string(),
            };
            if let Ok(value) = HeaderValue::from_str(&text) {
                headers.insert(name, value);
            }
        }
        true
    }

    fn claims(&self, headers: &HeaderMap, now: u64) -> Option<Value> {
        let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
        let (scheme, token) = value.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") || token.len() > MAX_TOKEN {
            return None;
        }
        let claims = self.signed_claims(token.trim())?;
        self.is_valid(&claims, now).then_some(claims)
    }

    /// Returns the claims of a token whose signature is valid.
    fn signed_claims(&self, token: &str) -> Option<Value> {
        let (message, signature) = token.rsplit_once('.')?;
        let (head, payload) = message.split_once('.')?;
        let head: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()?;
        let algorithm = head.get("alg")?.as_str()?;
        let id = head.get("kid").and_then(Value::as_str);
        let signature = URL_SAFE_NO_PAD.decode(signature).ok()?;
        self.report_unknown(id);
        let named = self.keys.iter().filter(|key| id.is_none() || key.id.is_none() || key.id.as_deref() == id);
        let mut named = named;
        named.find(|key| key.material.verify(algorithm, message.as_bytes(), &signature))?;
        serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()
    }

    /// Reports a key that the set lacks, if the set is one that is fetched.
    fn report_unknown(&self, id: Option<&str>) {
        if let (Some(set), Some(_)) = (&self.key_set, id)
            && !self.keys.iter().any(|key| key.id.as_deref() == id)
        {
            self.unknown_keys.add(set);
        }
    }

    fn is_valid(&self, claims: &Value, now: u64) -> bool {
        let seconds = |name: &str| claims.get(name).and_then(Value::as_f64).map(|value| value as u64);
        let is_current = seconds("exp").is_none_or(|expires| now <= expires.saturating_add(LEEWAY))
            && seconds("nbf").is_none_or(|begins| now.saturating_add(LEEWAY) >= begins);
        let is_issuer =
            self.issuer.as_deref().is_none_or(|issuer| claims.get("iss").and_then(Value::as_str) == Some(issuer));
        let is_ours = |audience: &Value| self.audiences.iter().any(|ours| audience.as_str() == Some(&**ours));
        let is_audience = self.audiences.is_empty()
            || match claims.get("aud") {
                Some(Value::Array(audiences)) => audiences.iter().any(is_ours),
                Some(audience) => is_ours(audience),
                None => false,
            };
        is_current && is_issuer && is_audience
    }
}

impl Key {
    fn parse(key: &Value) -> Option<Key> {
        let text = |name: &str| key.get(name).and_then(Value::as_str);
        let bytes = |name: &str| URL_SAFE_NO_PAD.decode(text(name)?.trim_end_matches('=')).ok();
        if text("use").is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let point = || Some([vec![4], bytes("x")?, bytes("y")?].concat());
        let material = match (text("kty")?, text("crv")) {
            ("RSA", _) => Material::Rsa(RsaPublicKeyComponents { n: bytes("n")?, e: bytes("e")? }),
            ("EC", Some("P-256")) => Material::P256(point()?),
            ("EC", Some("P-384")) => Material::P384(point()?),
            ("OKP", Some("Ed25519")) => Material::Ed25519(bytes("x")?),
            _ => return None,
        };
        Some(Key { id: text("kid").map(str::to_owned), material })
    }
}

impl Material {
    /// Reports whether a signature by an algorithm of this kind of key is valid.
    fn verify(&self, algorithm: &str, message: &[u8], signed: &[u8]) -> bool {
        let unparsed = |algorithm: &'static dyn VerificationAlgorithm, key: &[u8]| {
            UnparsedPublicKey::new(algorithm, key).verify(message, signed).is_ok()
        };
        match (self, algorithm) {
            (Material::Rsa(key), algorithm) => {
                let parameters = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                key.verify(parameters, message, signed).is_ok()
            }
            (Material::P256(key), "ES256") => unparsed(&signature::ECDSA_P256_SHA256_FIXED, key),
            (Material::P384(key), "ES384") => unparsed(&signature::ECDSA_P384_SHA384_FIXED, key),
            (Material::Ed25519(key), "EdDSA") => unparsed(&signature::ED25519, key),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ring::signature::{Ed25519KeyPair, KeyPair};
    use serde_json::json;

    const NOW: u64 = 1_800_000_000;

    fn pair() -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
    }

    fn verifier() -> TokenVerifier {
        let x = URL_SAFE_NO_PAD.encode(pair().public_key().as_ref());
        let keys = json!({"keys": [{"kty": "oct", "k": "AA"}, {"kty": "OKP", "crv": "Ed25519", "kid": "1", "x": x}]});
        let policy = Jwt {
            issuer: Some("issuer".into()),
            audiences: vec!["us".into()],
            keys_json: keys.to_string().into_bytes().into(),
            key_set: Some("set".into()),
            claim_headers: vec![ClaimHeader { claim: "sub".to_owned(), header: "x-user".to_owned() }],
        };
        TokenVerifier::new(&policy, &Arc::default())
    }

    fn token(head: &Value, claims: &Value) -> String {
        let message =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(head.to_string()), URL_SAFE_NO_PAD.encode(claims.to_string()));
        let signature = pair().sign(message.as_bytes());
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature))
    }

    fn is_accepted(token: &str) -> bool {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
        verifier().claims(&headers, NOW).is_some()
    }

    #[test]
    fn tokens_need_signature_issuer_audience_and_time() {
        let head = json!({"alg": "EdDSA", "kid": "1"});
        let claims = json!({"iss": "issuer", "aud": ["us"], "exp": NOW + 10, "sub": "user"});
        let valid = token(&head, &claims);
        assert!(is_accepted(&valid));
        let with = |name: &str, value: Value| {
            let mut changed = claims.clone();
            changed[name] = value;
            token(&head, &changed)
        };
        assert!(is_accepted(&with("aud", json!("us"))));
        let none =
            format!("{}.{}.", URL_SAFE_NO_PAD.encode(r#"{"alg":"none"}"#), URL_SAFE_NO_PAD.encode(claims.to_string()));
        for invalid in [
            with("iss", json!("other")),
            with("aud", json!("them")),
            with("aud", json!(null)),
            with("exp", json!(NOW - 61)),
            with("nbf", json!(NOW + 61)),
            token(&json!({"alg": "HS256"}), &claims),
            token(&json!({"alg": "EdDSA", "kid": "2"}), &claims),
            none,
            valid.replace('.', ""),
            format!("{valid}x"),
            String::new(),
        ] {
            assert!(!is_accepted(&invalid), "{invalid}");
        }
    }

    #[test]
    fn a_claim_replaces_the_header_of_the_client() {
        let far = u64::MAX / 2;
        let token = token(&json!({"alg": "EdDSA"}), &json!({"iss": "issuer", "aud": "us", "exp": far, "sub": "user"}));
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, format!("bearer {token}").parse().unwrap());
        headers.insert("x-user", "root".parse().unwrap());
        assert!(verifier().accept(&mut headers));
        assert_eq!(headers["x-user"], "user");
    }
    #[tokio::test]
    async fn a_key_that_the_set_lacks_is_reported() {
        let verifier = verifier();
        let claims = json!({"iss": "issuer", "aud": "us", "exp": u64::MAX / 2});
        for head in [json!({"alg": "EdDSA"}), json!({"alg": "EdDSA", "kid": "1"}), json!({"alg": "EdDSA", "kid": "2"})]
        {
            assert!(verifier.unknown_keys.is_empty(), "{head}");
            verifier.signed_claims(&token(&head, &claims));
        }
        assert_eq!(verifier.unknown_keys.take().await, ["set".into()].into());
        assert!(verifier.unknown_keys.is_empty());
    }
}
