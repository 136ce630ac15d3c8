//! One HTTP request to a container, as probes and lifecycle hooks make it: short, without a connection pool, without
//! certificate verification (a probe checks whether a server answers, not which).

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bytes::Bytes;
use http::header::{HOST, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use http_body_util::{BodyExt, Empty, Limited};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// The number of bytes of a response that are read.
const MAX_BODY: usize = 10 * 1024;

/// The number of redirects that are followed.
const MAX_REDIRECTS: usize = 10;

/// The request: address, path and headers.
#[derive(Clone, Debug)]
pub struct Get {
    pub https: bool,
    pub host: String,
    pub port: u16,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub user_agent: String,
}

/// The response: its status code and the beginning of its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub body: String,
    location: Option<String>,
}

impl Get {
    pub fn url(&self) -> String {
        let scheme = if self.https { "https" } else { "http" };
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        format!("{scheme}://{host}:{}{}", self.port, self.path)
    }

    /// Sends the request; the error is a message fit for an event.
    pub async fn send(&self, timeout: Duration) -> Result<Answer, String> {
        let failed = |error: String| format!("Get {:?}: {error}", self.url());
        match tokio::time::timeout(timeout, self.follow()).await {
            Ok(result) => result.map_err(failed),
            Err(_) => Err(failed("context deadline exceeded (Client.Timeout exceeded while awaiting headers)".into())),
        }
    }

    /// Sends the request, and follows redirects to the same host. A redirect to another host is the response.
    async fn follow(&self) -> Result<Answer, String> {
        let mut get = self.clone();
        for _ in 0..MAX_REDIRECTS {
            let answer = get.exchange().await?;
            match get.redirected(&answer) {
                Some(next) => get = next,
                None => return Ok(answer),
            }
        }
        Err(format!("stopped after {MAX_REDIRECTS} redirects"))
    }

    /// Returns the request of a redirect, if it stays on the host.
    fn redirected(&self, answer: &Answer) -> Option<Get> {
        let location = answer.location.as_deref().filter(|_| matches!(answer.status, 301 | 302 | 303 | 307 | 308))?;
        if !location.contains("://") {
            return (!location.starts_with("//")).then(|| Get { path: self.resolve(location), ..self.clone() });
        }
        let target: http::Uri = location.parse().ok()?;
        let https = match target.scheme_str()? {
            "http" => false,
            "https" => true,
            _ => return None,
        };
        if target.host()?.trim_matches(['[', ']']) != self.host {
            return None;
        }
        let port = target.port_u16().unwrap_or(if https { 443 } else { 80 });
        let path = target.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        Some(Get { https, port, path, ..self.clone() })
    }

    /// Resolves a path that is relative to that of this request.
    fn resolve(&self, location: &str) -> String {
        let location = location.split('#').next().unwrap_or_default();
        if location.starts_with('/') {
            return location.to_owned();
        }
        let path = self.path.split('?').next().unwrap_or_default();
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        format!("{folder}/{location}")
    }

    async fn exchange(&self) -> Result<Answer, String> {
        let stream = TcpStream::connect((self.host.as_str(), self.port))
            .await
            .map_err(|error| dial_error(&self.host, self.port, &error))?;
        if !self.https {
            return self.over(stream).await;
        }
        let name = ServerName::try_from(self.host.clone()).map_err(|error| error.to_string())?;
        let connector = tokio_rustls::TlsConnector::from(TRUSTING.clone());
        let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
        self.over(stream).await
    }

    async fn over(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Answer, String> {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(|error| error.to_string())?;
        let request = self.request()?;
        let exchange = async {
            let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
            let status = response.status().as_u16();
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok()).map(str::to_owned);
            let body = Limited::new(response.into_body(), MAX_BODY).collect().await;
            let body = body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default();
            Ok(Answer { status, body, location })
        };
        let mut connection = std::pin::pin!(connection);
        let mut exchange = std::pin::pin!(exchange);
        tokio::select! {
            result = &mut exchange => result,
            _ = &mut connection => exchange.await,
        }
    }

    fn request(&self) -> Result<http::Request<Empty<Bytes>>, String> {
        let path = if self.path.starts_with('/') { self.path.clone() } else { format!("/{}", self.path) };
        let mut request = http::Request::get(path).body(Empty::new()).map_err(|error| error.to_string())?;
        let headers = request.headers_mut();
        let authority = format!("{}:{}", self.host, self.port);
        headers.insert(HOST, HeaderValue::from_str(&authority).map_err(|error| error.to_string())?);
        headers.insert(USER_AGENT, HeaderValue::from_str(&self.user_agent).map_err(|error| error.to_string())?);
        headers.insert(http::header::ACCEPT, HeaderValue::from_static("*/*"));
        headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        for (name, value) in &self.headers {
            let name = HeaderName::try_from(name.as_str()).map_err(|error| error.to_string())?;
            headers.insert(name, HeaderValue::from_str(value).map_err(|error| error.to_string())?);
        }
        Ok(request)
    }
}

/// Formats a failed dial in Go's words, which people search for.
pub fn dial_error(host: &str, port: u16, error: &std::io::Error) -> String {
    let reason = match error.kind() {
        std::io::ErrorKind::ConnectionRefused => "connect: connection refused".to_owned(),
        std::io::ErrorKind::HostUnreachable => "connect: no route to host".to_owned(),
        std::io::ErrorKind::NetworkUnreachable => "connect: network is unreachable".to_owned(),
        _ => error.to_string(),
    };
    format!("dial tcp {host}:{port}: {reason}")
}

static TRUSTING: LazyLock<Arc<ClientConfig>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let anyone = Arc::new(corten_client::AnyServer::new(&provider));
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default protocol versions")
        .dangerous()
        .with_custom_certificate_verifier(anyone)
        .with_no_client_auth();
    Arc::new(config)
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_redirects_within_the_host_are_followed() {
        let get = Get {
            https: false,
            host: "10.0.0.1".into(),
            port: 8080,
            path: "/a/b?c=d".into(),
            headers: vec![],
            user_agent: String::new(),
        };
        for (status, location, expected) in [
            (302, "/healthz", Some("http://10.0.0.1:8080/healthz")),
            (301, "x?y=z#top", Some("http://10.0.0.1:8080/a/x?y=z")),
            (307, "https://10.0.0.1/x", Some("https://10.0.0.1:443/x")),
            (308, "http://10.0.0.1:81", Some("http://10.0.0.1:81/")),
            (302, "http://0.0.0.0/", None),
            (302, "http://10.0.0.1.example.com/", None),
            (302, "//10.0.0.2/x", None),
            (302, "ftp://10.0.0.1/x", None),
            (304, "/healthz", None),
            (200, "/healthz", None),
        ] {
            let answer = Answer { status, body: String::new(), location: Some(location.to_owned()) };
            let next = get.redirected(&answer).map(|next| next.url());
            assert_eq!(next.as_deref(), expected, "{status} {location}");
        }
        assert!(get.redirected(&Answer { status: 302, body: String::new(), location: None }).is_none());
    }
}
