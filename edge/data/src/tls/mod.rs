//! TLS: the certificates of listeners, the reading of ClientHellos, and TLS to backends.

mod backend;
mod hello;
mod server;

pub(crate) use backend::backend_config;
pub(crate) use hello::{Hello, read_hello};
pub(crate) use server::{HostConfig, challenge_config};

use rustls::RootCertStore;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::sync::{Arc, OnceLock};
use thiserror::Error;

#[derive(Debug, Error)]
pub(crate) enum TlsError {
    #[error("a certificate or key is malformed: {0}")]
    Pem(#[from] rustls::pki_types::pem::Error),
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("there is no certificate")]
    NoCertificate,
    #[error("certificates of clients cannot be verified: {0}")]
    ClientVerifier(#[from] rustls::server::VerifierBuilderError),
    #[error("{0} is not a server name")]
    ServerName(String),
    #[error("the trusted certificates are invalid")]
    InvalidTrust,
}

/// Returns the cryptography of every connection.
fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let made = || {
        let mut provider = rustls::crypto::ring::default_provider();
        // Of each version first AES with 128 bits, then with 256.
        let is_short = |suite: &rustls::SupportedCipherSuite| suite.suite().as_str().is_some_and(is_aes_128);
        provider.cipher_suites.sort_by_key(|suite| (suite.tls13().is_none(), !is_short(suite)));
        Arc::new(provider)
    };
    Arc::clone(PROVIDER.get_or_init(made))
}

fn is_aes_128(suite: &str) -> bool {
    suite.contains("AES_128")
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>()?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate);
    }
    Ok(chain)
}

fn private_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    Ok(PrivateKeyDer::from_pem_slice(pem)?)
}

/// Returns trusted certificates. One that rustls does not understand is left out.
fn roots(pem: &[u8]) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    let (added, _) = roots.add_parsable_certificates(certificates(pem)?);
    if added == 0 {
        return Err(TlsError::NoCertificate);
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::CipherSuite;

    #[test]
    fn aes_with_128_bits_comes_first_in_each_version() {
        let provider = provider();
        let suites: Vec<CipherSuite> = provider.cipher_suites.iter().map(|suite| suite.suite()).collect();
        assert_eq!(suites.first(), Some(&CipherSuite::TLS13_AES_128_GCM_SHA256));
        let older = provider.cipher_suites.iter().skip_while(|suite| suite.tls13().is_some());
        let first = older.clone().next().map(|suite| suite.suite());
        assert!(first.and_then(|suite| suite.as_str()).is_some_and(is_aes_128), "{first:?}");
        assert!(older.clone().all(|suite| suite.tls13().is_none()), "{suites:?}");
    }
}
