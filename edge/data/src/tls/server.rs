//! The TLS settings of a listener's host: its certificates, and how those of clients are verified.

use std::sync::Arc;

use corten_routing::{ClientValidation, ServerCertificate};
use rustls::ServerConfig;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CipherSuite, DigitallySignedStruct, DistinguishedName, SignatureScheme};
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use super::hello::ACME_PROTOCOL;
use super::{TlsError, certificates, private_key, provider, roots};

/// The protocols that HTTP listeners offer.
const HTTP_PROTOCOLS: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// The settings of a host's connections.
///
/// Most clients name AES with 256 bits first, and take 128 as well, whose digest is cheaper: the server's order
/// counts. A client that names ChaCha20 first has no instructions for AES: its order counts.
#[derive(Debug)]
pub(crate) struct HostConfig {
    by_server: Arc<ServerConfig>,
    by_client: Arc<ServerConfig>,
}

impl HostConfig {
    /// Makes the settings of a host.
    pub(crate) fn new(
        chains: &[Arc<ServerCertificate>],
        validation: Option<&ClientValidation>,
        is_http: bool,
    ) -> Result<HostConfig, TlsError> {
        let by_client = server_config(chains, validation, is_http)?;
        let mut by_server = by_client.clone();
        by_server.ignore_client_order = true;
        Ok(HostConfig { by_server: Arc::new(by_server), by_client: Arc::new(by_client) })
    }

    /// Returns the settings for a client.
    pub(crate) fn of(&self, hello: &ClientHello<'_>) -> Arc<ServerConfig> {
        let prefers_chacha = hello.cipher_suites().iter().find(|suite| is_known(**suite)).is_some_and(is_chacha);
        Arc::clone(if prefers_chacha { &self.by_client } else { &self.by_server })
    }
}

/// Reports whether a suite is one of ours: clients name others too, some of them to see whether servers mind.
fn is_known(suite: CipherSuite) -> bool {
    provider().cipher_suites.iter().any(|known| known.suite() == suite)
}

fn is_chacha(suite: &CipherSuite) -> bool {
    matches!(
        suite,
        CipherSuite::TLS13_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            | CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    )
}

fn server_config(
    chains: &[Arc<ServerCertificate>],
    validation: Option<&ClientValidation>,
    is_http: bool,
) -> Result<ServerConfig, TlsError> {
    let resolver = Certificates::new(chains)?;
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match validation {
        None => builder.with_no_client_auth(),
        Some(validation) => builder.with_client_cert_verifier(client_verifier(validation)?),
    };
    let mut config = builder.with_cert_resolver(Arc::new(resolver));
    // Tickets of a host are good for that host alone, so a client cannot resume around the verification of another.
    config.ticketer = rustls::crypto::ring::Ticketer::new()?;
    config.send_tls13_tickets = 1;
    if is_http {
        config.alpn_protocols = HTTP_PROTOCOLS.map(<[u8]>::to_vec).to_vec();
    }
    Ok(config)
}

/// Makes the settings that answer a challenge of ACME: nothing but the handshake follows.
pub(crate) fn challenge_config(certificate: &Arc<ServerCertificate>) -> Result<Arc<ServerConfig>, TlsError> {
    // The certificate has a critical extension that rustls does not know, so it must not be read as others are.
    let chain = certificates(&certificate.chain_pem)?;
    let key = provider().key_provider.load_private_key(private_key(&certificate.key_pem)?)?;
    let resolver = SingleCertAndKey::from(CertifiedKey::new(chain, key));
    let builder = ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(resolver));
    config.send_tls13_tickets = 0;
    config.alpn_protocols = vec![ACME_PROTOCOL.to_vec()];
    Ok(Arc::new(config))
}

/// The certificates of a host, in the order in which they are preferred.
#[derive(Debug)]
struct Certificates(Vec<Certificate>);

#[derive(Debug)]
struct Certificate {
    key: Arc<CertifiedKey>,
    /// The DNS names of the certificate, in lower case.
    names: Vec<String>,
}

impl Certificates {
    /// Reads the certificates. One that cannot be read is left out if there is another.
    fn new(chains: &[Arc<ServerCertificate>]) -> Result<Certificates, TlsError> {
        let mut read = Vec::new();
        let mut failed = TlsError::NoCertificate;
        for chain in chains {
            match Certificate::new(chain) {
                Ok(certificate) => read.push(certificate),
                Err(error) => failed = error,
            }
        }
        if read.is_empty() { Err(failed) } else { Ok(Certificates(read)) }
    }
}

impl Certificate {
    fn new(pair: &ServerCertificate) -> Result<Certificate, TlsError> {
        let chain = certificates(&pair.chain_pem)?;
        let names = chain.first().map(|leaf| dns_names(leaf)).unwrap_or_default();
        let key = CertifiedKey::from_der(chain, private_key(&pair.key_pem)?, &provider())?;
        Ok(Certificate { key: Arc::new(key), names })
    }

    /// Reports whether the certificate is for a server name.
    fn covers(&self, name: &str) -> bool {
        self.names.iter().any(|pattern| match pattern.strip_prefix("*.") {
            Some(suffix) => name.split_once('.').is_some_and(|(_, rest)| rest == suffix),
            None => pattern == name,
        })
    }
}

fn dns_names(certificate: &[u8]) -> Vec<String> {
    let Ok((_, parsed)) = X509Certificate::from_der(certificate) else {
        return Vec::new();
    };
    let Ok(Some(names)) = parsed.subject_alternative_name() else {
        return Vec::new();
    };
    let dns = names.value.general_names.iter().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    dns.collect()
}

impl ResolvesServerCert for Certificates {
    /// Returns a certificate for the server name whose key the client can verify; else one that it can verify; else the
    /// first.
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let is_usable =
            |certificate: &&Certificate| certificate.key.key.choose_scheme(hello.signature_schemes()).is_some();
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let covers = |certificate: &&Certificate| name.as_deref().is_some_and(|name| certificate.covers(name));
        let usable = || self.0.iter().filter(is_usable);
        let chosen = usable().find(covers).or_else(|| usable().next()).or_else(|| self.0.first());
        chosen.map(|certificate| Arc::clone(&certificate.key))
    }
}

fn client_verifier(validation: &ClientValidation) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let roots = Arc::new(roots(&validation.trusted_pem)?);
    let builder = WebPkiClientVerifier::builder_with_provider(roots, provider());
    if !validation.optional {
        return Ok(builder.build()?);
    }
    Ok(Arc::new(Lenient(builder.allow_unauthenticated().build()?)))
}

/// Lets clients pass whose certificate is invalid (AllowInsecureFallback). They still prove that they have its key.
#[derive(Debug)]
struct Lenient(Arc<dyn ClientCertVerifier>);

impl ClientCertVerifier for Lenient {
    fn offer_client_auth(&self) -> bool {
        true
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.0.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
