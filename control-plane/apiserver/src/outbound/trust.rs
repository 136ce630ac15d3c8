//! The servers that a call trusts: those with a certificate of the bundle's authorities, those whose certificate is in
//! the bundle itself, or any.
//!
//! Many webhooks have a self-signed certificate and use that very certificate as their bundle. Go accepts it, whether
//! or not it is marked as an authority; our TLS library does not, so this module handles that case.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use corten_meta::Value;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use x509_parser::pem::Pem;

use crate::error::Error;

/// The client identity of this server: a PEM certificate chain and its key.
pub struct Identity<'a> {
    pub certificate: &'a str,
    pub key: &'a str,
}

/// Makes a TLS client that trusts a PEM bundle and presents the identity, if there is one. It uses HTTP/1.1: a
/// connection of HTTP/2 would send every request to the same endpoint.
pub fn client_config(bundle: &str, identity: Option<&Identity<'_>>) -> Result<rustls::ClientConfig, Error> {
    let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = RootCertStore::empty();
    let mut pinned = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()).flatten() {
        // A certificate that is no valid authority may still be the server's own certificate.
        let _ = roots.add(certificate.clone());
        pinned.push(certificate.into_owned());
    }
    // Without a bundle no server is trusted, which fails when a server presents its certificate.
    if pinned.is_empty() && !bundle.is_empty() {
        return Err(Error::Tls("unable to load root certificates: unable to parse bytes as PEM block".to_owned()));
    }
    let verifier = if roots.is_empty() {
        None
    } else {
        let builder = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
        Some(builder.build().map_err(|e| tls(&e))?)
    };
    with_trust(Trust::Bundle { verifier, pinned }, provider, identity)
}

/// Returns the error of a webhook's CA bundle, in upstream's words; an empty bundle means the system's authorities.
pub fn bundle_error(client: &Value) -> Option<String> {
    let bundle = STANDARD.decode(client["caBundle"].as_str()?).unwrap_or_default();
    if bundle.is_empty() {
        return None;
    }
    let blocks: Vec<Pem> = Pem::iter_from_buffer(&bundle).map_while(Result::ok).collect();
    let certificates: Vec<&Pem> = blocks.iter().filter(|block| block.label == "CERTIFICATE").collect();
    if certificates.iter().any(|certificate| certificate.parse_x509().is_ok()) {
        return None;
    }
    let why = match (blocks.is_empty(), certificates.is_empty()) {
        (true, _) => "unable to parse bytes as PEM block",
        (false, true) => "no valid certificate authority data seen",
        (false, false) => "failed to parse certificate: x509: malformed certificate",
    };
    Some(format!("unable to load root certificates: {why}"))
}

/// Makes a TLS client that accepts any certificate whose key the server holds: for proxied pods and services, whose
/// certificates no authority of ours could have signed, and for objects that skip verification. Never for a kubelet.
pub fn unverified_config(identity: Option<&Identity<'_>>) -> Result<rustls::ClientConfig, Error> {
    with_trust(Trust::AnyServer, Arc::new(rustls::crypto::ring::default_provider()), identity)
}

fn with_trust(
    trust: Trust,
    provider: Arc<CryptoProvider>,
    identity: Option<&Identity<'_>>,
) -> Result<rustls::ClientConfig, Error> {
    let tls = |e: &dyn std::fmt::Display| Error::Tls(e.to_string());
    let builder = rustls::ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| tls(&e))?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Verifier { trust, provider }));
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            let chain = CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>();
            let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).map_err(|e| tls(&e))?;
            builder.with_client_auth_cert(chain.map_err(|e| tls(&e))?, key).map_err(|e| tls(&e))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// The certificates that are accepted.
#[derive(Debug)]
enum Trust {
    Bundle { verifier: Option<Arc<WebPkiServerVerifier>>, pinned: Vec<CertificateDer<'static>> },
    AnyServer,
}

#[derive(Debug)]
struct Verifier {
    trust: Trust,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Trust::Bundle { verifier, pinned } = &self.trust else { return Ok(ServerCertVerified::assertion()) };
        if pinned.iter().any(|pinned| pinned.as_ref() == end_entity.as_ref()) {
            check_validity(end_entity, now)?;
            rustls::client::verify_server_name(&ParsedCertificate::try_from(end_entity)?, name)?;
            return Ok(ServerCertVerified::assertion());
        }
        match verifier {
            Some(verifier) => verifier.verify_server_cert(end_entity, intermediates, name, ocsp, now),
            None => Err(CertificateError::UnknownIssuer.into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

fn check_validity(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).map_err(|_| CertificateError::BadEncoding)?;
    let now = now.as_secs() as i64;
    let validity = parsed.validity();
    if now < validity.not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > validity.not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

/// Returns the error of a failed handshake in Go's words, where users know them.
pub fn go_message(e: &std::io::Error) -> String {
    const PREFIX: &str = "tls: failed to verify certificate: x509:";
    let inner = e.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match inner {
        Some(rustls::Error::InvalidCertificate(why)) => match why {
            // An authority with the right name and another key is unknown, too.
            CertificateError::UnknownIssuer | CertificateError::BadSignature => {
                format!("{PREFIX} certificate signed by unknown authority")
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                format!("{PREFIX} certificate has expired or is not yet valid")
            }
            other => format!("{PREFIX} {other}"),
        },
        Some(other) => format!("tls: {other}"),
        None => e.to_string(),
    }
}
