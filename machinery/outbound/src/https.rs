//! HTTP/1.1 to one endpoint: one connection a request, a deadline for each step, and a limit for each document.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Uri};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The time within which a connection is made.
const CONNECT: Duration = Duration::from_secs(20);
/// The time within which the next part of an answer comes.
const PART: Duration = Duration::from_secs(60);

/// The certificates of a connection, in PEM.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tls<'a> {
    /// The CAs that the server is verified by.
    pub roots: &'a str,
    /// The certificate and the key by which the server knows this client.
    pub certificate: Option<&'a str>,
    pub key: Option<&'a str>,
}

/// The address of a service, and how its certificate is verified.
pub struct Endpoint {
    host: String,
    port: u16,
    /// The host to connect to, if it is another than that of the URL.
    address: Option<String>,
    authority: String,
    /// The path before that of each request, without a slash at its end.
    prefix: String,
    tls: Option<Arc<ClientConfig>>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Endpoint({}{})", self.authority, self.prefix)
    }
}

/// The answer to a request.
#[derive(Debug)]
pub struct Answer {
    pub head: http::response::Parts,
    body: Incoming,
}

impl Endpoint {
    /// Reads the URL of an endpoint; `roots` are the CAs that an `https` endpoint is verified by, in PEM.
    pub fn new(url: &str, roots: &str) -> Result<Endpoint, String> {
        Endpoint::with_tls(url, &Tls { roots, ..Tls::default() })
    }

    /// Does the same for a server that asks for a certificate of the client.
    pub fn with_tls(url: &str, certificates: &Tls<'_>) -> Result<Endpoint, String> {
        let uri: Uri = url.parse().map_err(|_| format!("{url:?} is no URL"))?;
        let is_tls = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(format!("{url:?} begins with neither https:// nor http://")),
        };
        let host = uri.host().ok_or_else(|| format!("{url:?} names no host"))?.to_owned();
        let authority = uri.authority().map(ToString::to_string).unwrap_or_else(|| host.clone());
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let tls = if is_tls { Some(tls(certificates)?) } else { None };
        let host = host.trim_matches(['[', ']']).to_owned();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        Ok(Endpoint { host, port, address: None, authority, prefix, tls })
    }

    /// Connects to this host and port. The server is verified by the name in the URL, as before.
    pub fn at(mut self, host: String, port: u16) -> Endpoint {
        self.address = Some(host.trim_matches(['[', ']']).to_owned());
        self.port = port;
        self
    }

    /// Returns the value of the header `host`.
    pub fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the path of the endpoint's URL, without a slash at its end.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Sends a request once. The head of the answer comes within `deadline` after all of the request was sent.
    pub async fn send(&self, request: Request<Full<Bytes>>, deadline: Duration) -> Result<Answer, String> {
        let silent = || "it does not answer".to_owned();
        let connected = tokio::time::timeout(CONNECT, self.connect()).await.map_err(|_| silent())?;
        let stream = connected.map_err(|error| error.to_string())?;
        let connection = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
        let (mut sender, connection) = connection.map_err(|error| error.to_string())?;
        // The task ends with the connection, which ends with the answer.
        tokio::spawn(connection);
        let answered = tokio::time::timeout(deadline, sender.send_request(request)).await.map_err(|_| silent())?;
        let (head, body) = answered.map_err(|error| error.to_string())?.into_parts();
        Ok(Answer { head, body })
    }

    async fn connect(&self) -> std::io::Result<Box<dyn Stream>> {
        let host = self.address.as_deref().unwrap_or(&self.host);
        let tcp = TcpStream::connect((host, self.port)).await?;
        let Some(tls) = &self.tls else { return Ok(Box::new(tcp)) };
        let name = ServerName::try_from(self.host.clone()).map_err(std::io::Error::other)?;
        let stream = tokio_rustls::TlsConnector::from(tls.clone()).connect(name, tcp).await?;
        Ok(Box::new(stream))
    }
}

/// A connection, over TLS or not.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

fn tls(certificates: &Tls<'_>) -> Result<Arc<ClientConfig>, String> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(certificates.roots.as_bytes()).flatten() {
        // A bundle of a distribution may hold certificates that are no CAs for TLS.
        let _ = store.add(certificate);
    }
    if store.is_empty() {
        return Err("this machine has no CA bundle to verify servers by".to_owned());
    }
    let builder = ClientConfig::builder().with_root_certificates(store);
    let (Some(certificate), Some(key)) = (certificates.certificate, certificates.key) else {
        return Ok(Arc::new(builder.with_no_client_auth()));
    };
    let chain = CertificateDer::pem_slice_iter(certificate.as_bytes()).flatten().collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(|error| format!("the client's key: {error}"))?;
    let config = builder.with_client_auth_cert(chain, key);
    config.map(Arc::new).map_err(|error| format!("the client's certificate: {error}"))
}

impl Answer {
    /// Returns a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }

    /// Returns the next part of the body; none at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, String> {
        loop {
            let frame = tokio::time::timeout(PART, self.body.frame()).await;
            let frame = frame.map_err(|_| "it stopped in the middle of an answer".to_owned())?;
            let Some(frame) = frame else { return Ok(None) };
            let frame = frame.map_err(|error| format!("an answer ended too early: {error}"))?;
            if let Ok(data) = frame.into_data() {
                return Ok(Some(data));
            }
        }
    }

    /// Returns the whole body as a document of at most `limit` bytes.
    pub async fn text(mut self, limit: usize) -> Result<String, String> {
        let mut bytes = Vec::new();
        while let Some(part) = self.next().await? {
            bytes.extend_from_slice(&part);
            if bytes.len() > limit {
                return Err(format!("an answer has more than {limit} bytes"));
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        let endpoint = Endpoint::new("http://[::1]:5000/v1/", "").unwrap();
        assert_eq!((endpoint.host.as_str(), endpoint.port, endpoint.prefix()), ("::1", 5000, "/v1"));
        assert_eq!(endpoint.authority(), "[::1]:5000");
        let endpoint =
            Endpoint::new("http://prometheus.monitoring.svc:9090", "").unwrap().at("[fd00::1]".to_owned(), 80);
        assert_eq!((endpoint.address.as_deref(), endpoint.port), (Some("fd00::1"), 80));
        assert_eq!(endpoint.authority(), "prometheus.monitoring.svc:9090");
        for (url, error) in [
            ("ftp://a", "\"ftp://a\" begins with neither https:// nor http://"),
            ("a b", "\"a b\" is no URL"),
            ("https://a", "this machine has no CA bundle to verify servers by"),
        ] {
            assert_eq!(Endpoint::new(url, "").unwrap_err(), error);
        }
    }
}
