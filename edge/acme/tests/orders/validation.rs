//! Validates challenges as authorities do: by a request to port 80, and by a handshake with port 443.

use std::sync::{Arc, Mutex};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use x509_parser::prelude::{FromDer as _, GeneralName, X509Certificate};

use crate::authority::Resolver;

/// The extension with the digest of the answer (RFC 8737).
const ACME_IDENTIFIER: &str = "1.3.6.1.5.5.7.1.31";

/// The answer that a name must give.
pub struct Expected {
    pub name: String,
    pub token: String,
    pub answer: String,
}

pub async fn validate(type_: &str, resolver: &Resolver, expected: &Expected) -> Result<(), String> {
    let port = if type_ == "tls-alpn-01" { 443 } else { 80 };
    let address = resolver(port).ok_or_else(|| format!("nothing listens on port {port}"))?;
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    match type_ {
        "http-01" => by_request(stream, expected).await,
        "tls-alpn-01" => by_handshake(stream, expected).await,
        other => Err(format!("{other} is not validated here")),
    }
}

async fn by_request(mut stream: TcpStream, expected: &Expected) -> Result<(), String> {
    let request = format!(
        "GET /.well-known/acme-challenge/{} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n",
        expected.token, expected.name
    );
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await.map_err(|error| error.to_string())?;
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    match head.starts_with("HTTP/1.1 200 ") && body.trim_end() == expected.answer {
        true => Ok(()),
        false => Err(format!("the answer is {response:?}")),
    }
}

async fn by_handshake(stream: TcpStream, expected: &Expected) -> Result<(), String> {
    let seen = Arc::new(Seen::default());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.dangerous().with_custom_certificate_verifier(seen.clone()).with_no_client_auth();
    config.alpn_protocols = vec![b"acme-tls/1".to_vec()];
    let name = ServerName::try_from(expected.name.clone()).map_err(|error| error.to_string())?;
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let tls = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
    if tls.get_ref().1.alpn_protocol() != Some(b"acme-tls/1") {
        return Err("the server does not speak acme-tls/1".to_owned());
    }
    let der = seen.certificate.lock().unwrap().clone();
    let (_, certificate) = X509Certificate::from_der(&der).map_err(|error| error.to_string())?;
    let names = certificate.subject_alternative_name().ok().flatten();
    let names = names.map(|names| names.value.general_names.clone()).unwrap_or_default();
    if names != [GeneralName::DNSName(&expected.name)] {
        return Err(format!("the names are {names:?}"));
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, expected.answer.as_bytes());
    let octets = [&[4, 32], digest.as_ref()].concat();
    let mut extensions = certificate.extensions().iter();
    let found = extensions.find(|extension| extension.oid.to_id_string() == ACME_IDENTIFIER);
    match found {
        Some(extension) if extension.critical && extension.value == octets => Ok(()),
        other => Err(format!("the extension is {other:?}")),
    }
}

/// Accepts every certificate, and keeps it.
#[derive(Debug, Default)]
struct Seen {
    certificate: Mutex<Vec<u8>>,
}

impl ServerCertVerifier for Seen {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        *self.certificate.lock().unwrap() = end_entity.to_vec();
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}
