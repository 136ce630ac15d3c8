//! TLS of the kubelet's API: its certificate, and the verification of client certificates against the client CA.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio_rustls::TlsAcceptor;

use crate::config::Tls;
use crate::error::{Error, Result};

/// Returns an acceptor that requests a client certificate, signed by `client_ca` if the configuration has one. It
/// accepts a client without a certificate, which gets a 401 later.
pub fn acceptor(tls: &Tls, client_ca: Option<&str>) -> Result<TlsAcceptor> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    for certificate in certificates(client_ca.unwrap_or(&tls.client_ca))? {
        roots.add(certificate).map_err(|error| Error::Tls(format!("client CA: {error}")))?;
    }
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone())
        .allow_unauthenticated()
        .build()
        .map_err(|error| Error::Tls(format!("client CA: {error}")))?;
    let key = PrivateKeyDer::from_pem_slice(tls.key.as_bytes()).map_err(|error| Error::Tls(format!("key: {error}")))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::Tls(error.to_string()))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates(&tls.certificate)?, key)
        .map_err(|error| Error::Tls(format!("certificate: {error}")))?;
    // Streams are upgraded connections, which HTTP/2 does not have; clients that need none may still use it.
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(pem.as_bytes())
        .collect::<std::result::Result<_, _>>()
        .map_err(|error| Error::Tls(format!("certificate: {error}")))
}
