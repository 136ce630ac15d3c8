//! Probes a server for TLS versions and ciphers that it should refuse: a handwritten ClientHello, since no library of
//! ours supports them.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use jiff::Timestamp;
use rustls_pki_types::ServerName;
use x509_parser::prelude::{FromDer, X509Certificate};

pub use super::facts::TlsFact;

const PATIENCE: Duration = Duration::from_secs(5);
/// The record type of a handshake message: the server continues.
const HANDSHAKE: u8 = 22;
const TLS_1_1: [u8; 2] = [3, 2];
const TLS_1_2: [u8; 2] = [3, 3];
/// Cipher suites without forward secrecy, or with CBC, RC4 or 3DES.
const WEAK: [u16; 8] = [0x0005, 0x000a, 0x002f, 0x0035, 0xc009, 0xc00a, 0xc013, 0xc014];

/// Probes whether a server offers old versions of TLS or weak ciphers.
pub async fn probe(address: SocketAddr) -> TlsFact {
    TlsFact {
        offers_tls_1_1: accepts(address, TLS_1_1, &WEAK).await,
        offers_weak_ciphers: accepts(address, TLS_1_2, &WEAK).await,
    }
}

/// The facts of a server's certificate.
pub struct Certificate {
    pub is_self_signed: bool,
    /// The days until it expires.
    pub days: i64,
}

/// Reads the certificate that a server shows; `None` if it shows none.
pub async fn certificate(address: SocketAddr) -> Option<Certificate> {
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    // The certificate is only read, and nothing is sent to the server.
    let verifier = corten_client::AnyServer::new(&provider);
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(std::sync::Arc::new(verifier))
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    let connect = async {
        let stream = TcpStream::connect(address).await?;
        connector.connect(ServerName::IpAddress(address.ip().into()), stream).await
    };
    let stream = timeout(PATIENCE, connect).await.ok()?.ok()?;
    let shown = stream.get_ref().1.peer_certificates()?.first()?;
    let (_, parsed) = X509Certificate::from_der(shown).ok()?;
    let left = parsed.validity().not_after.timestamp() - Timestamp::now().as_second();
    Some(Certificate { is_self_signed: parsed.subject() == parsed.issuer(), days: left / (24 * 3600) })
}

async fn accepts(address: SocketAddr, version: [u8; 2], suites: &[u16]) -> bool {
    let answered = timeout(PATIENCE, answer(address, client_hello(version, suites))).await;
    matches!(answered, Ok(Ok(HANDSHAKE)))
}

/// Returns the type of the first record that the server sends.
async fn answer(address: SocketAddr, hello: Vec<u8>) -> std::io::Result<u8> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(&hello).await?;
    stream.read_u8().await
}

fn client_hello(version: [u8; 2], suites: &[u16]) -> Vec<u8> {
    let mut body = version.to_vec();
    body.extend([7; 32]);
    body.push(0);
    with_length(&mut body, &suites.iter().flat_map(|suite| suite.to_be_bytes()).collect::<Vec<u8>>());
    body.extend([1, 0]);
    with_length(&mut body, &extensions());
    let mut record = vec![HANDSHAKE, 3, 1];
    let length = (body.len() as u32).to_be_bytes();
    let mut message = vec![1, length[1], length[2], length[3]];
    message.extend(body);
    with_length(&mut record, &message);
    record
}

/// Returns curves and signatures that every server supports, so that only version and suites can be refused.
fn extensions() -> Vec<u8> {
    let mut list = Vec::new();
    for (kind, values) in [(10u16, [0x001d_u16, 0x0017]), (13, [0x0403, 0x0804])] {
        list.extend(kind.to_be_bytes());
        let mut content = Vec::new();
        with_length(&mut content, &values.iter().flat_map(|value| value.to_be_bytes()).collect::<Vec<u8>>());
        with_length(&mut list, &content);
    }
    list
}

/// Appends bytes after their length in two bytes.
fn with_length(target: &mut Vec<u8>, bytes: &[u8]) {
    target.extend((bytes.len() as u16).to_be_bytes());
    target.extend(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hello_is_well_formed() {
        let hello = client_hello(TLS_1_2, &[0xc02b]);
        let record = usize::from(u16::from_be_bytes([hello[3], hello[4]]));
        assert_eq!(record + 5, hello.len());
        let message = u32::from_be_bytes([0, hello[6], hello[7], hello[8]]) as usize;
        assert_eq!(message + 9, hello.len());
    }

    /// A server with current ciphers answers a hello with one of them, and refuses the weak ones.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_current_server_refuses_weak_ciphers() {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let config = corten_apiserver::tls_config(&made.cert.pem(), &made.signing_key.serialize_pem(), "").unwrap();
        let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(config));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                tokio::spawn(async move { acceptor.accept(stream).await.is_ok() });
            }
        });
        assert!(accepts(address, TLS_1_2, &[0xc02b]).await, "a strong suite is offered");
        let found = probe(address).await;
        assert!(!found.offers_tls_1_1 && !found.offers_weak_ciphers, "{found:?}");
    }
}
