//! The identity of a client certificate: a user, or a front proxy that acts for users.
//!
//! TLS accepts certificates of both authorities; this module distinguishes them. A certificate of the front proxy's
//! authority never names a user, whatever its subject, and the user headers count only on such a connection.
//!
//! Authorities and revocations change while the server runs. A connection whose certificate is no longer trusted is
//! closed, with the watches on it.

use std::collections::BTreeMap;
use std::sync::Arc;

use http::HeaderMap;
use rustls::RootCertStore;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::sync::watch;

use super::revocation::Revocations;
use super::{Identity, User, header_string, user_of_certificate};
use crate::config::Config;
use crate::error::Error;
use crate::request::percent_decode;

/// The authorities of client certificates, and the revoked certificates.
pub struct ClientCertificates {
    trusted: watch::Sender<Trusted>,
    allowed_names: Vec<String>,
}

#[derive(Clone, Default)]
struct Trusted {
    users: Option<Arc<dyn ClientCertVerifier>>,
    front_proxies: Option<Arc<dyn ClientCertVerifier>>,
    revocations: Arc<Revocations>,
}

impl ClientCertificates {
    pub fn new(config: &Config) -> Result<ClientCertificates, Error> {
        let certificates = ClientCertificates {
            trusted: watch::Sender::default(),
            allowed_names: config.requestheader_allowed_names.clone(),
        };
        certificates.replace(&config.client_ca, config.requestheader_ca.as_deref())?;
        Ok(certificates)
    }

    /// Replaces the authorities of users and of the front proxy.
    pub fn replace(&self, client_ca: &str, requestheader_ca: Option<&str>) -> Result<(), Error> {
        let users = verifier(client_ca)?;
        let front_proxies = requestheader_ca.map_or(Ok(None), verifier)?;
        self.trusted.send_modify(|trusted| {
            trusted.users = users;
            trusted.front_proxies = front_proxies;
        });
        Ok(())
    }

    /// Replaces the revocations.
    pub fn revoke(&self, revocations: Revocations) {
        self.trusted.send_if_modified(|trusted| {
            let is_new = *trusted.revocations != revocations;
            trusted.revocations = Arc::new(revocations);
            is_new
        });
    }

    /// Waits until a chain that proved an identity no longer proves one.
    pub async fn distrusted(&self, chain: Vec<CertificateDer<'static>>) {
        let mut trusted = self.trusted.subscribe();
        while self.identify(&chain).is_proven() && trusted.changed().await.is_ok() {}
    }

    /// Returns the identity that a verified chain proves.
    pub fn identify(&self, chain: &[CertificateDer<'_>]) -> Identity {
        let Trusted { users, front_proxies, revocations } = self.trusted.borrow().clone();
        let Some((end_entity, intermediates)) = chain.split_first() else { return Identity::None };
        let is_of = |verifier: &Option<Arc<dyn ClientCertVerifier>>| {
            let verified = verifier.as_ref().map(|v| v.verify_client_cert(end_entity, intermediates, UnixTime::now()));
            verified.is_some_and(|result| result.is_ok())
        };
        let Some(subject) = user_of_certificate(end_entity) else { return Identity::None };
        if revocations.contains(&subject.name, end_entity) {
            return Identity::Revoked;
        }
        let named = self.allowed_names.is_empty() || self.allowed_names.contains(&subject.name);
        if named && is_of(&front_proxies) {
            let user = is_of(&users).then_some(subject);
            return Identity::FrontProxy(user);
        }
        if is_of(&users) { Identity::Certificate(subject) } else { Identity::None }
    }
}

fn verifier(bundle: &str) -> Result<Option<Arc<dyn ClientCertVerifier>>, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        let added = certificate.map_err(|e| e.to_string()).and_then(|c| roots.add(c).map_err(|e| e.to_string()));
        added.map_err(Error::Tls)?;
    }
    if roots.is_empty() {
        return Ok(None);
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
    Ok(Some(verifier.map_err(|e| Error::Tls(e.to_string()))?))
}

/// Returns the user that a front proxy acts for, if it names one.
pub fn user_of_headers(headers: &HeaderMap) -> Option<User> {
    const EXTRA: &str = "x-remote-extra-";
    let all = |name: &str| -> Vec<String> { headers.get_all(name).iter().map(header_string).collect() };
    let name = all("x-remote-user").into_iter().next().filter(|name| !name.is_empty())?;
    let uid = all("x-remote-uid").into_iter().next().unwrap_or_default();
    let keys = headers.keys().filter_map(|name| Some((name, name.as_str().strip_prefix(EXTRA)?)));
    let extra: BTreeMap<String, Vec<String>> =
        keys.map(|(name, key)| (percent_decode(key, false), all(name.as_str()))).collect();
    Some(User { name, uid, groups: all("x-remote-group"), extra }.authenticated())
}
