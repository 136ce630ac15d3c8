//! Certificates, signing requests, keys, and encrypted objects.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{json, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "certificate", seeds: certificate_seeds, run: certificate },
    Target { name: "signing-request", seeds: request_seeds, run: signing_request },
    Target { name: "private-key", seeds: key_seeds, run: private_key },
    Target { name: "json-web-keys", seeds: json_web_key_seeds, run: json_web_keys },
    Target { name: "encrypted-object", seeds: encrypted_seeds, run: encrypted_object },
];

/// A fixed key that signs only these seeds, so that they are the same on every machine.
const KEY: &[u8] = include_bytes!("../../seeds/key.pem");
const CERTIFICATE: &[u8] = include_bytes!("../../seeds/certificate.der");
const REQUEST: &[u8] = include_bytes!("../../seeds/request.der");
const REQUEST_TEXT: &[u8] = include_bytes!("../../seeds/request.pem");

fn certificate_seeds() -> Vec<Vec<u8>> {
    vec![CERTIFICATE.to_vec()]
}

fn certificate(input: &[u8]) {
    let _ = corten_apiserver::fuzz::certificate(input);
}

fn request_seeds() -> Vec<Vec<u8>> {
    vec![REQUEST.to_vec(), REQUEST_TEXT.to_vec()]
}

/// Reads a signing request; the input is its PEM, or the content of the PEM.
fn signing_request(input: &[u8]) {
    let usages = ["client auth", "digital signature"].map(str::to_owned);
    corten_controllers::fuzz::signing_request(input, &usages);
    let wrapped =
        format!("-----BEGIN CERTIFICATE REQUEST-----\n{}\n-----END CERTIFICATE REQUEST-----\n", STANDARD.encode(input));
    corten_controllers::fuzz::signing_request(wrapped.as_bytes(), &usages);
}

fn key_seeds() -> Vec<Vec<u8>> {
    vec![KEY.to_vec(), b"-----BEGIN RSA PRIVATE KEY-----\nMAA=\n-----END RSA PRIVATE KEY-----\n".to_vec()]
}

fn private_key(input: &[u8]) {
    let _ = text(input).map(corten_apiserver::fuzz::service_account_key);
}

fn json_web_key_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"keys":[{"kty":"EC","crv":"P-256","alg":"ES256","use":"sig","kid":"a","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}]}"#,
        r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB","alg":"RS256"},{"kty":"EC","crv":"P-384","x":"AA","y":"AA"},{"kty":"OKP"}]}"#,
    ])
}

fn json_web_keys(input: &[u8]) {
    let Some(document) = json(input) else { return };
    for algorithm in ["ES256", "ES384", "RS256", "RS512", "PS256", "none", ""] {
        let verified = corten_apiserver::fuzz::json_web_keys(&document, algorithm, &[0; 64]);
        assert!(!verified, "a signature of zeroes is verified by nothing");
    }
}

/// Returns the protobuf of a KMS envelope: data, key, source, an annotation, the kind of source.
fn encrypted_seeds() -> Vec<Vec<u8>> {
    vec![b"\x0a\x04data\x12\x03key\x1a\x06source\x22\x0c\x0a\x07a.b.com\x12\x01v\x28\x01".to_vec()]
}

fn encrypted_object(input: &[u8]) {
    let _ = corten_apiserver::fuzz::encrypted_object(input);
}
