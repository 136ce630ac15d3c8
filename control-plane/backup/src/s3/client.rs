//! Signed requests to S3.

use std::time::Duration;

use bytes::Bytes;
use corten_outbound::https::{self, Endpoint};
use corten_outbound::sign::{self, Unsigned};
use corten_outbound::xml;
use http::{Method, StatusCode};
use http_body_util::Full;

use super::Config;
use crate::Error;

/// The time within which the head of an answer comes, after all of the request was sent.
const ANSWER: Duration = Duration::from_secs(300);
/// The most bytes of a document.
const MOST_DOCUMENT: usize = 16 << 20;
const SERVICE: &str = "s3";

/// The connection settings of a bucket.
pub struct Client {
    config: Config,
    endpoint: Endpoint,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Client({:?})", self.config)
    }
}

/// A request of a bucket.
pub struct Request<'a> {
    pub method: Method,
    /// The key of an object; empty for the bucket itself.
    pub key: &'a str,
    pub query: &'a [(&'a str, &'a str)],
    pub body: Bytes,
}

/// A request that failed.
pub struct Failure {
    pub reason: String,
    /// Whether another attempt may succeed.
    pub is_transient: bool,
    /// Whether the object does not exist. A missing bucket is another failure.
    pub is_missing: bool,
}

/// A successful answer.
pub struct Answer(https::Answer);

impl Client {
    pub fn new(config: Config) -> Result<Client, Error> {
        let invalid = |reason: String| Error::Target(format!("the S3 endpoint cannot be used: {reason}"));
        let endpoint = Endpoint::new(&config.endpoint, &config.roots).map_err(invalid)?;
        if !endpoint.prefix().is_empty() {
            return Err(invalid(format!("{:?} has a path", config.endpoint)));
        }
        Ok(Client { config, endpoint })
    }

    /// Sends a request once.
    pub async fn send(&self, request: &Request<'_>) -> Result<Answer, Failure> {
        let where_to = format!("S3 at {}", self.config.endpoint);
        let failure = |reason: String, is_transient: bool| {
            let reason = format!("{where_to}: {reason}");
            Failure { reason, is_transient, is_missing: false }
        };
        let transient = |reason: String| failure(reason, true);
        let permanent = |reason: String| failure(reason, false);
        let signed = self.signed(request).map_err(|error| permanent(error.to_string()))?;
        let answer = self.endpoint.send(signed, ANSWER).await.map_err(transient)?;
        let status = answer.head.status;
        let answer = Answer(answer);
        if status.is_success() {
            return Ok(answer);
        }
        let document = answer.text().await.unwrap_or_default();
        let code = xml::first(&document, "Code").unwrap_or_else(|| status.to_string());
        let message = xml::first(&document, "Message").unwrap_or_default();
        let key = request.key;
        let reason = format!("{} {}/{key}: {code}: {message}", request.method, self.config.bucket);
        let reason = reason.trim_end_matches([' ', ':']).to_owned();
        let is_busy = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT);
        // The answer to HEAD has no document, and so no code.
        let is_missing = status == StatusCode::NOT_FOUND && (code == "NoSuchKey" || request.method == Method::HEAD);
        let failure = if status.is_server_error() || is_busy { transient(reason) } else { permanent(reason) };
        Err(Failure { is_missing, ..failure })
    }

    fn signed(&self, request: &Request<'_>) -> Result<http::Request<Full<Bytes>>, http::Error> {
        let config = &self.config;
        let mut path = format!("/{}", sign::encode(&config.bucket, false));
        if !request.key.is_empty() {
            path.push('/');
            path.push_str(&sign::encode(request.key, true));
        }
        let query = sign::canonical_query(request.query);
        let body_hash = sign::sha256(&request.body);
        let unsigned = Unsigned {
            method: request.method.as_str(),
            host: self.endpoint.authority(),
            path: &path,
            query: request.query,
            body_hash: &body_hash,
            region: &config.region,
            service: SERVICE,
            time: jiff::Timestamp::now(),
        };
        let signed = sign::sign(&unsigned, &config.credentials);
        let target = if query.is_empty() { path } else { format!("{path}?{query}") };
        let mut built =
            http::Request::builder().method(&request.method).uri(target).header("host", self.endpoint.authority());
        for (name, value) in signed.headers {
            built = built.header(name, value);
        }
        built.body(Full::new(request.body.clone()))
    }
}

impl Answer {
    /// Returns a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.0.header(name)
    }

    /// Returns the next part of the body; none at its end.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Error> {
        self.0.next().await.map_err(|reason| Error::Target(format!("S3: {reason}")))
    }

    /// Returns the whole body as a document.
    pub async fn text(self) -> Result<String, Error> {
        self.0.text(MOST_DOCUMENT).await.map_err(|reason| Error::Target(format!("S3: {reason}")))
    }
}
