//! The connections between the nodes of a volume: TLS, in which both sides show the certificate of their storage component,
//! which the cluster's authority signed. The subject names the node.
//!
//! *Invariant: no byte is exchanged with a peer that is not the storage component of the expected node.*

use std::path::PathBuf;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, ServerConfig, SignatureScheme};
use x509_parser::prelude::{FromDer, X509Certificate};

/// The identity of a node's storage component. Its files are read for every connection, so that renewed ones are used.
#[derive(Clone, Debug)]
pub struct PeerIdentity {
    /// The file with the certificate and its key.
    pub certificate: PathBuf,
    /// The file with the cluster's authorities.
    pub authority: PathBuf,
    /// The group of all storage components; the users are `GROUP:NODE`.
    pub group: String,
}

/// The parts of a TLS configuration.
struct Parts {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl PeerIdentity {
    /// Returns the configuration of the side that listens.
    pub fn server(&self) -> Result<Arc<ServerConfig>, String> {
        let parts = self.read()?;
        let config = ServerConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_client_cert_verifier(parts.verifier)
            .with_single_cert(parts.chain, parts.key)
            .map_err(|error| format!("the certificate of the storage component: {error}"))?;
        Ok(Arc::new(config))
    }

    /// Returns the configuration of the side that connects to a node.
    pub fn client(&self, node: &str) -> Result<Arc<ClientConfig>, String> {
        let parts = self.read()?;
        let verifier = NodeVerifier { chain: parts.verifier, group: self.group.clone(), node: node.to_owned() };
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(parts.chain, parts.key)
            .map_err(|error| format!("the certificate of the storage component: {error}"))?;
        Ok(Arc::new(config))
    }

    /// Returns the node of a certificate, if it is that of a storage component.
    pub fn node_of(&self, certificate: &CertificateDer<'_>) -> Option<String> {
        node_of(certificate, &self.group)
    }

    fn read(&self) -> Result<Parts, String> {
        let file = |path: &PathBuf| std::fs::read(path).map_err(|error| format!("read {}: {error}", path.display()));
        let own = file(&self.certificate)?;
        let damaged = |error: rustls::pki_types::pem::Error| format!("{}: {error}", self.certificate.display());
        let chain = CertificateDer::pem_slice_iter(&own).collect::<Result<_, _>>().map_err(damaged)?;
        let key = PrivateKeyDer::from_pem_slice(&own).map_err(damaged)?;
        let mut roots = RootCertStore::empty();
        for authority in CertificateDer::pem_slice_iter(&file(&self.authority)?) {
            let authority = authority.map_err(|error| format!("{}: {error}", self.authority.display()))?;
            roots.add(authority).map_err(|error| format!("{}: {error}", self.authority.display()))?;
        }
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
            .build()
            .map_err(|error| format!("{}: {error}", self.authority.display()))?;
        Ok(Parts { chain, key, verifier })
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns the node of a storage component's certificate: its user is `GROUP:NODE`, and its only group `GROUP`.
fn node_of(certificate: &CertificateDer<'_>, group: &str) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(certificate).ok()?;
    let subject = certificate.subject();
    let mut groups = subject.iter_organization();
    let is_component = groups.next()?.as_str().ok()? == group && groups.next().is_none();
    let mut names = subject.iter_common_name();
    let user = names.next()?.as_str().ok()?;
    let node = user.strip_prefix(group)?.strip_prefix(':')?;
    (is_component && names.next().is_none() && !node.is_empty()).then(|| node.to_owned())
}

/// Verifies that the peer is the storage component of a node. Its certificate is that of a client of the cluster: the chain
/// is verified as a server verifies its clients.
#[derive(Debug)]
struct NodeVerifier {
    chain: Arc<dyn ClientCertVerifier>,
    group: String,
    node: String,
}

impl ServerCertVerifier for NodeVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        self.chain.verify_client_cert(certificate, intermediates, now)?;
        match node_of(certificate, &self.group).as_ref() == Some(&self.node) {
            true => Ok(ServerCertVerified::assertion()),
            false => Err(TlsError::General(format!("the peer is not the storage component of node {}", self.node))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.chain.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        self.chain.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chain.supported_verify_schemes()
    }
}
