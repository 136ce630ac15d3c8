//! TLS to backends, as a BackendTLSPolicy describes it.

use std::sync::Arc;

use corten_routing::{BackendProtocol, BackendTls, TrustedCertificates};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::{TlsError, certificates, private_key, provider, roots};

/// The files that distributions keep the system's trusted certificates in.
const SYSTEM_FILES: &[&str] = &[
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
];
/// The most bytes of such a file.
const MAX_FILE: u64 = 16 * 1024 * 1024;

/// The settings of connections to a backend.
pub(crate) struct BackendConfig {
    pub(crate) config: Arc<ClientConfig>,
    pub(crate) name: ServerName<'static>,
}

/// Makes the settings of a policy.
pub(crate) fn backend_config(policy: &BackendTls, protocol: BackendProtocol) -> Result<BackendConfig, TlsError> {
    let name = server_name(&policy.hostname)?;
    let roots = match &policy.trusted {
        TrustedCertificates::System => Some(roots(&system_certificates()?)?),
        TrustedCertificates::Pem(pem) => Some(roots(pem)?),
        TrustedCertificates::Unverified => None,
        TrustedCertificates::Invalid => return Err(TlsError::InvalidTrust),
    };
    let verifier: Arc<dyn ServerCertVerifier> = match roots.map(Arc::new) {
        Some(roots) if policy.subject_alt_names.is_empty() => {
            WebPkiServerVerifier::builder_with_provider(roots, provider()).build()?
        }
        roots => Arc::new(AlternativeNames { roots, names: Arc::clone(&policy.subject_alt_names) }),
    };
    let builder = ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let mut config = match &policy.client_certificate {
        None => builder.with_no_client_auth(),
        Some(pair) => builder.with_client_auth_cert(certificates(&pair.chain_pem)?, private_key(&pair.key_pem)?)?,
    };
    config.alpn_protocols = match protocol {
        BackendProtocol::Http1 => vec![b"http/1.1".to_vec()],
        BackendProtocol::Http2 => vec![b"h2".to_vec()],
    };
    Ok(BackendConfig { config: Arc::new(config), name })
}

fn server_name(name: &str) -> Result<ServerName<'static>, TlsError> {
    ServerName::try_from(name.to_owned()).map_err(|_| TlsError::ServerName(name.to_owned()))
}

fn system_certificates() -> Result<Vec<u8>, TlsError> {
    let readable = SYSTEM_FILES.iter().find_map(|path| {
        let size = std::fs::metadata(path).ok()?.len();
        std::fs::read(path).ok().filter(|_| size <= MAX_FILE)
    });
    readable.ok_or(TlsError::NoCertificate)
}

/// Verifies that a certificate has one of several names, DNS names or URIs, in the place of the server name. Without roots
/// every certificate is accepted.
#[derive(Debug)]
struct AlternativeNames {
    roots: Option<Arc<RootCertStore>>,
    names: Arc<[Arc<str>]>,
}

impl AlternativeNames {
    fn has_name(&self, certificate: &CertificateDer<'_>, parsed: &ParsedCertificate<'_>) -> bool {
        self.names.iter().any(|name| {
            if name.contains("://") {
                return has_uri(certificate, name);
            }
            ServerName::try_from(&**name).is_ok_and(|name| verify_server_name(parsed, &name).is_ok())
        })
    }
}

fn has_uri(certificate: &[u8], uri: &str) -> bool {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return false;
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return false;
    };
    names.value.general_names.iter().any(|name| matches!(name, GeneralName::URI(found) if *found == uri))
}

impl ServerCertVerifier for AlternativeNames {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(roots) = &self.roots else { return Ok(ServerCertVerified::assertion()) };
        let parsed = ParsedCertificate::try_from(certificate)?;
        let algorithms = provider().signature_verification_algorithms;
        verify_server_cert_signed_by_trust_anchor(&parsed, roots, intermediates, now, algorithms.all)?;
        if self.has_name(certificate, &parsed) {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(rustls::Error::InvalidCertificate(CertificateError::NotValidForName))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &provider().signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        provider().signature_verification_algorithms.supported_schemes()
    }
}
