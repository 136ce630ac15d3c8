//! Certificates in Secrets and ConfigMaps.

use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_meta::Key;
use corten_routing::ServerCertificate;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use super::References;
use super::references::{self, From};
use crate::objects::{Objects, Reference};

/// A reason why a reference to a certificate cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub reason: &'static str,
    pub message: String,
}

impl Problem {
    pub fn new(reason: &'static str, message: impl Into<String>) -> Problem {
        Problem { reason, message: message.into() }
    }
}

/// The key of an object that a reference names.
pub fn key_of(from: From<'_>, to: &Reference) -> Key {
    Key::new(to.namespace.clone().unwrap_or_else(|| from.namespace.to_owned()), to.name.clone())
}

/// Returns the certificate and key of a Secret that an object refers to. `invalid` is the reason of every failure but
/// a missing grant.
pub fn server_certificate(
    objects: &Objects,
    from: From<'_>,
    to: &Reference,
    invalid: &'static str,
    read: &mut References,
) -> Result<Arc<ServerCertificate>, Problem> {
    let kind = if to.kind.is_empty() { "Secret" } else { &to.kind };
    if !to.group.is_empty() || kind != "Secret" {
        return Err(Problem::new(invalid, format!("{kind} {} is no Secret", to.name)));
    }
    let to = Reference { kind: kind.to_owned(), ..to.clone() };
    if !references::is_permitted(objects, from, &to) {
        let message = format!("no ReferenceGrant allows the reference to Secret {}", key_of(from, &to));
        return Err(Problem::new("RefNotPermitted", message));
    }
    let key = key_of(from, &to);
    read.secrets.insert(key.clone());
    let secret = objects.secrets.get(&key);
    let secret = secret.ok_or_else(|| Problem::new(invalid, format!("Secret {key} does not exist")))?;
    let part = |name: &str| {
        let text = secret.data.get(name).map(String::as_str).unwrap_or_default();
        BASE64_STANDARD.decode(text).ok().filter(|bytes| !bytes.is_empty())
    };
    let missing = |name: &str| Problem::new(invalid, format!("Secret {key} has no {name}"));
    let chain = part("tls.crt").ok_or_else(|| missing("tls.crt"))?;
    let private_key = part("tls.key").ok_or_else(|| missing("tls.key"))?;
    if !has_certificate(&chain) {
        return Err(Problem::new(invalid, format!("tls.crt of Secret {key} has no certificate")));
    }
    if PrivateKeyDer::from_pem_slice(&private_key).is_err() {
        return Err(Problem::new(invalid, format!("tls.key of Secret {key} has no private key")));
    }
    Ok(Arc::new(ServerCertificate { chain_pem: chain.into(), key_pem: private_key.into() }))
}

/// The reasons of a reference to certificates of authorities.
pub struct AuthorityReasons {
    pub kind: &'static str,
    pub invalid: &'static str,
}

/// Returns the certificates of authorities in `ca.crt` of a ConfigMap.
pub fn authorities(
    objects: &Objects,
    from: From<'_>,
    to: &Reference,
    reasons: &AuthorityReasons,
    read: &mut References,
) -> Result<Vec<u8>, Problem> {
    if !to.group.is_empty() || to.kind != "ConfigMap" {
        return Err(Problem::new(reasons.kind, format!("{} {} is no ConfigMap", to.kind, to.name)));
    }
    let key = key_of(from, to);
    if !references::is_permitted(objects, from, to) {
        let message = format!("no ReferenceGrant allows the reference to ConfigMap {key}");
        return Err(Problem::new("RefNotPermitted", message));
    }
    read.config_maps.insert(key.clone());
    let invalid = |message: String| Problem::new(reasons.invalid, message);
    let map = objects.config_maps.get(&key).ok_or_else(|| invalid(format!("ConfigMap {key} does not exist")))?;
    let text = map.data.get("ca.crt").ok_or_else(|| invalid(format!("ConfigMap {key} has no ca.crt")))?;
    match has_certificate(text.as_bytes()) {
        true => Ok(text.clone().into_bytes()),
        false => Err(invalid(format!("ca.crt of ConfigMap {key} has no certificate"))),
    }
}

/// Reports whether bytes in PEM are certificates, one or more.
fn has_certificate(pem: &[u8]) -> bool {
    let certificates: Result<Vec<CertificateDer<'_>>, _> = CertificateDer::pem_slice_iter(pem).collect();
    certificates.is_ok_and(|certificates| {
        let parses = |one: &CertificateDer<'_>| x509_parser::parse_x509_certificate(one).is_ok();
        !certificates.is_empty() && certificates.iter().all(parses)
    })
}
