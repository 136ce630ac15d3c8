//! The public keys of an issuer, which verify signatures. Pure.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use corten_meta::Value;
use ring::signature::{self, RsaPublicKeyComponents, UnparsedPublicKey};

/// The keys of a JSON Web Key Set that can verify signatures.
#[derive(Default)]
pub struct Keys(Vec<Key>);

struct Key {
    id: String,
    algorithm: String,
    material: Material,
}

enum Material {
    Rsa {
        n: Vec<u8>,
        e: Vec<u8>,
    },
    /// An uncompressed point, and its curve.
    Ec {
        point: Vec<u8>,
        curve: String,
    },
}

impl Keys {
    /// Reads the keys of a JSON Web Key Set, without keys of other kinds or for other uses.
    pub fn from_jwks(document: &Value) -> Keys {
        let keys = document["keys"].as_array().into_iter().flatten();
        Keys(keys.filter(|key| key["use"].as_str().is_none_or(|r#use| r#use == "sig")).filter_map(read).collect())
    }

    /// Reports whether a key of this id (any, if the token names none) made the signature with the token's algorithm.
    pub fn verify(&self, algorithm: &str, id: &str, message: &[u8], signed: &[u8]) -> bool {
        let fits =
            |key: &&Key| (id.is_empty() || key.id == id) && (key.algorithm.is_empty() || key.algorithm == algorithm);
        self.0.iter().filter(fits).any(|key| key.material.verify(algorithm, message, signed))
    }
}

fn read(key: &Value) -> Option<Key> {
    let bytes = |field: &str| BASE64URL.decode(key[field].as_str()?).ok();
    let string = |field: &str| key[field].as_str().unwrap_or_default().to_owned();
    let material = match key["kty"].as_str()? {
        "RSA" => Material::Rsa { n: bytes("n")?, e: bytes("e")? },
        "EC" => Material::Ec { point: [vec![4], bytes("x")?, bytes("y")?].concat(), curve: string("crv") },
        _ => return None,
    };
    Some(Key { id: string("kid"), algorithm: string("alg"), material })
}

impl Material {
    fn verify(&self, algorithm: &str, message: &[u8], signed: &[u8]) -> bool {
        match self {
            Material::Rsa { n, e } => {
                let how = match algorithm {
                    "RS256" => &signature::RSA_PKCS1_2048_8192_SHA256,
                    "RS384" => &signature::RSA_PKCS1_2048_8192_SHA384,
                    "RS512" => &signature::RSA_PKCS1_2048_8192_SHA512,
                    "PS256" => &signature::RSA_PSS_2048_8192_SHA256,
                    "PS384" => &signature::RSA_PSS_2048_8192_SHA384,
                    "PS512" => &signature::RSA_PSS_2048_8192_SHA512,
                    _ => return false,
                };
                RsaPublicKeyComponents { n, e }.verify(how, message, signed).is_ok()
            }
            Material::Ec { point, curve } => {
                let how: &dyn signature::VerificationAlgorithm = match (algorithm, curve.as_str()) {
                    ("ES256", "P-256") => &signature::ECDSA_P256_SHA256_FIXED,
                    ("ES384", "P-384") => &signature::ECDSA_P384_SHA384_FIXED,
                    _ => return false,
                };
                UnparsedPublicKey::new(how, point).verify(message, signed).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::authentication::keys::Key as Pair;
    use serde_json::json;

    #[test]
    fn only_a_key_of_the_set_verifies() {
        let pair = |()| Pair::from_pem(&rcgen::KeyPair::generate().unwrap().serialize_pem()).unwrap();
        let known = pair(());
        let other = pair(());
        let keys = Keys::from_jwks(&json!({ "keys": [known.jwk(), { "kty": "oct", "k": "AA" }] }));
        let signed = known.sign(b"m").unwrap();
        assert!(keys.verify("ES256", &known.id, b"m", &signed));
        assert!(keys.verify("ES256", "", b"m", &signed));
        for (algorithm, id, message, signature) in [
            ("ES256", known.id.as_str(), b"n", &signed),
            ("ES256", other.id.as_str(), b"m", &signed),
            ("none", known.id.as_str(), b"m", &Vec::new()),
            ("HS256", known.id.as_str(), b"m", &signed),
            ("ES256", known.id.as_str(), b"m", &other.sign(b"m").unwrap()),
        ] {
            assert!(!keys.verify(algorithm, id, message, signature), "{algorithm} {id}");
        }
    }
}
