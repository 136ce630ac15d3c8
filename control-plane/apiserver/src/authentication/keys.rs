//! The keys of ServiceAccount tokens: they sign and verify tokens, and are published as JWKS.
//!
//! ES256 and RS256 on `ring`. Private keys never leave this file.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64URL;
use ring::rand::SystemRandom;
use ring::signature::{self, EcdsaKeyPair, KeyPair, RsaKeyPair};
use rustls_pki_types::PrivateKeyDer;
use rustls_pki_types::pem::PemObject;
use serde_json::{Value, json};

use crate::error::Error;

/// The DER of a P-256 SubjectPublicKeyInfo up to the point.
const P256_SPKI: &[u8] = &[
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The DER of the rsaEncryption AlgorithmIdentifier.
const RSA_ALGORITHM: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

enum Pair {
    Ecdsa(EcdsaKeyPair),
    Rsa(RsaKeyPair),
}

pub struct Key {
    pair: Pair,
    /// The key id: the hash of the public key, as upstream computes it.
    pub id: String,
}

impl Key {
    /// Reads a PKCS#8 (ECDSA P-256 or RSA) or PKCS#1 private key.
    pub fn from_pem(pem: &str) -> Result<Key, Error> {
        let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(|e| Error::Key(e.to_string()))?;
        let pair = match &der {
            PrivateKeyDer::Pkcs8(der) => {
                let der = der.secret_pkcs8_der();
                let random = SystemRandom::new();
                match EcdsaKeyPair::from_pkcs8(&signature::ECDSA_P256_SHA256_FIXED_SIGNING, der, &random) {
                    Ok(pair) => Pair::Ecdsa(pair),
                    Err(_) => Pair::Rsa(RsaKeyPair::from_pkcs8(der).map_err(|e| Error::Key(e.to_string()))?),
                }
            }
            PrivateKeyDer::Pkcs1(der) => {
                Pair::Rsa(RsaKeyPair::from_der(der.secret_pkcs1_der()).map_err(|e| Error::Key(e.to_string()))?)
            }
            _ => return Err(Error::Key("a ServiceAccount key must be PKCS#8 or PKCS#1".to_owned())),
        };
        let id = BASE64URL.encode(ring::digest::digest(&ring::digest::SHA256, &spki(&pair)));
        Ok(Key { pair, id })
    }

    /// Returns the `alg` of the key's signatures.
    pub fn algorithm(&self) -> &'static str {
        match self.pair {
            Pair::Ecdsa(_) => "ES256",
            Pair::Rsa(_) => "RS256",
        }
    }

    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let random = SystemRandom::new();
        let failed = |_| Error::Key("signing failed".to_owned());
        match &self.pair {
            Pair::Ecdsa(pair) => Ok(pair.sign(&random, message).map_err(failed)?.as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut out = vec![0; pair.public().modulus_len()];
                pair.sign(&signature::RSA_PKCS1_SHA256, &random, message, &mut out).map_err(failed)?;
                Ok(out)
            }
        }
    }

    pub fn verify(&self, algorithm: &str, message: &[u8], signed: &[u8]) -> bool {
        if algorithm != self.algorithm() {
            return false;
        }
        match &self.pair {
            Pair::Ecdsa(pair) => {
                let key = signature::UnparsedPublicKey::new(&signature::ECDSA_P256_SHA256_FIXED, pair.public_key());
                key.verify(message, signed).is_ok()
            }
            Pair::Rsa(pair) => {
                let key = signature::UnparsedPublicKey::new(&signature::RSA_PKCS1_2048_8192_SHA256, pair.public_key());
                key.verify(message, signed).is_ok()
            }
        }
    }

    /// Returns the public key as a JSON Web Key.
    pub fn jwk(&self) -> Value {
        match &self.pair {
            Pair::Ecdsa(pair) => {
                let point = pair.public_key().as_ref();
                let half = |range: std::ops::Range<usize>| BASE64URL.encode(point.get(range).unwrap_or_default());
                json!({ "use": "sig", "kty": "EC", "kid": self.id, "crv": "P-256", "alg": "ES256",
                        "x": half(1..33), "y": half(33..65) })
            }
            Pair::Rsa(pair) => {
                let components = signature::RsaPublicKeyComponents::<Vec<u8>>::from(pair.public());
                json!({ "use": "sig", "kty": "RSA", "kid": self.id, "alg": "RS256",
                        "n": BASE64URL.encode(components.n), "e": BASE64URL.encode(components.e) })
            }
        }
    }
}

fn spki(pair: &Pair) -> Vec<u8> {
    match pair {
        Pair::Ecdsa(pair) => [P256_SPKI, pair.public_key().as_ref()].concat(),
        Pair::Rsa(pair) => {
            let bits = [&[0u8], pair.public_key().as_ref()].concat();
            der(0x30, &[RSA_ALGORITHM, &der(0x03, &bits)].concat())
        }
    }
}

/// Encodes a DER element.
fn der(tag: u8, content: &[u8]) -> Vec<u8> {
    let mut out = vec![tag];
    let length = content.len();
    if length < 128 {
        out.push(length as u8);
    } else {
        let bytes: Vec<u8> = length.to_be_bytes().into_iter().skip_while(|b| *b == 0).collect();
        out.push(0x80 | bytes.len() as u8);
        out.extend(bytes);
    }
    out.extend_from_slice(content);
    out
}
