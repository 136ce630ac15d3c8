//! An instant query of a Prometheus server.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use corten_meta::Value;
use corten_outbound::https::{Endpoint, Tls};
use http::{Method, Request, header};
use http_body_util::Full;
use jiff::Timestamp;
use tokio_util::task::AbortOnDropHandle;

use crate::source::{Prometheus, Service};
use crate::{Address, Cluster, SECRET_NAMESPACE};

/// The time within which the server answers, if the source names none.
const TIMEOUT: u64 = 10;
/// The longest of a source's own.
const MAX_TIMEOUT: u64 = 30;
/// The most bytes of an answer.
const MAX_ANSWER: usize = 8 << 20;

/// One series of an answer, with its value at the time of the query.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    pub labels: BTreeMap<String, String>,
    pub time: Timestamp,
    pub value: f64,
}

/// A server, as requests reach it.
struct Target {
    url: String,
    /// The endpoint of the Service, whose name the URL has.
    address: Option<Address>,
}

/// Evaluates a query now.
pub async fn query(cluster: &dyn Cluster, server: &Prometheus, promql: &str) -> Result<Vec<Sample>, String> {
    let seconds = server.timeout_seconds.unwrap_or(TIMEOUT).clamp(1, MAX_TIMEOUT);
    let deadline = Duration::from_secs(seconds);
    let prepared = prepare(cluster, server, promql)?;
    // A task of its own: a request that comes from inside of the process is deep in the stack already.
    let asking = AbortOnDropHandle::new(tokio::spawn(ask(prepared, deadline)));
    match tokio::time::timeout(deadline, asking).await {
        Ok(Ok(answer)) => samples(&answer?),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("it does not answer within {seconds} s")),
    }
}

/// A request and the server that gets it.
struct Prepared {
    endpoint: Endpoint,
    request: Request<Full<Bytes>>,
}

fn prepare(cluster: &dyn Cluster, server: &Prometheus, promql: &str) -> Result<Prepared, String> {
    let target = target(cluster, server)?;
    let secret = match &server.secret_name {
        Some(name) => Some(Credentials::read(cluster, name)?),
        None => None,
    };
    let mut endpoint = Endpoint::with_tls(&target.url, &tls(cluster, secret.as_ref()))?;
    if let Some(Address { host, port }) = target.address {
        endpoint = endpoint.at(host, port);
    }
    let body = format!("query={}", form_escaped(promql));
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(format!("{}/api/v1/query", endpoint.prefix()))
        .header(header::HOST, endpoint.authority())
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .header(header::ACCEPT, "application/json");
    if let Some(authorization) = secret.as_ref().and_then(Credentials::authorization) {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let request = request.body(Full::new(Bytes::from(body))).map_err(|error| error.to_string())?;
    Ok(Prepared { endpoint, request })
}

async fn ask(prepared: Prepared, deadline: Duration) -> Result<Value, String> {
    let answer = prepared.endpoint.send(prepared.request, deadline).await?;
    let code = answer.head.status;
    let text = answer.text(MAX_ANSWER).await?;
    serde_json::from_str(&text).map_err(|_| format!("it answers {code} without a document of Prometheus' API"))
}

/// Returns the URL of the server; a Service has the address of one of its endpoints.
fn target(cluster: &dyn Cluster, server: &Prometheus) -> Result<Target, String> {
    match (&server.url, &server.service) {
        (Some(url), _) => Ok(Target { url: url.clone(), address: None }),
        (None, Some(Service { namespace, name, port, scheme, path })) => {
            let scheme = if scheme == "https" { "https" } else { "http" };
            Ok(Target {
                url: format!("{scheme}://{name}.{namespace}.svc:{port}{path}"),
                address: Some(cluster.resolve(namespace, name, *port)?),
            })
        }
        (None, None) => Err("the source has neither a url nor a service".to_owned()),
    }
}

/// The credentials of a Secret.
struct Credentials(BTreeMap<String, String>);

impl Credentials {
    fn read(cluster: &dyn Cluster, name: &str) -> Result<Credentials, String> {
        let missing = || format!("there is no Secret {name} in namespace {SECRET_NAMESPACE}");
        let secret = cluster.get("secrets", SECRET_NAMESPACE, name).ok_or_else(missing)?;
        let data = secret.get("data").and_then(Value::as_object).into_iter().flatten();
        let decoded = data.filter_map(|(key, value)| {
            let bytes = STANDARD.decode(value.as_str()?).ok()?;
            Some((key.clone(), String::from_utf8(bytes).ok()?))
        });
        Ok(Credentials(decoded.collect()))
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// Returns the value of the header `Authorization`: a token, or a name and a password.
    fn authorization(&self) -> Option<String> {
        if let Some(token) = self.get("token") {
            return Some(format!("Bearer {}", token.trim()));
        }
        let password = self.get("password").unwrap_or_default();
        let name = self.get("username")?;
        Some(format!("Basic {}", STANDARD.encode(format!("{name}:{password}"))))
    }
}

fn tls<'a>(cluster: &'a dyn Cluster, secret: Option<&'a Credentials>) -> Tls<'a> {
    let of = |key: &str| secret.and_then(|secret| secret.get(key));
    Tls { roots: of("ca.crt").unwrap_or_else(|| cluster.roots()), certificate: of("tls.crt"), key: of("tls.key") }
}

/// Escapes a value of a form.
fn form_escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => escaped.push(char::from(byte)),
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

/// Returns the samples of an answer. A scalar is one sample without labels.
pub fn samples(document: &Value) -> Result<Vec<Sample>, String> {
    if document["status"] != "success" {
        let error = document["error"].as_str().unwrap_or("no error is named");
        return Err(format!("it refuses the query: {error}"));
    }
    let data = &document["data"];
    let result = &data["result"];
    match data["resultType"].as_str() {
        Some("vector") => result.as_array().into_iter().flatten().map(series).collect(),
        Some("scalar") => Ok(vec![sample(BTreeMap::new(), result)?]),
        Some(other) => Err(format!("the query returns a {other}, and not a vector")),
        None => Err("its answer has no result".to_owned()),
    }
}

fn series(series: &Value) -> Result<Sample, String> {
    let labels = series["metric"].as_object().into_iter().flatten();
    let labels = labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned())));
    sample(labels.collect(), &series["value"])
}

fn sample(labels: BTreeMap<String, String>, value: &Value) -> Result<Sample, String> {
    let malformed = || "a sample of its answer is malformed".to_owned();
    let seconds = value.get(0).and_then(Value::as_f64).ok_or_else(malformed)?;
    let number = value.get(1).and_then(Value::as_str).ok_or_else(malformed)?;
    let time = Timestamp::from_millisecond((seconds * 1000.0) as i64).map_err(|_| malformed())?;
    let value = match number {
        "+Inf" => f64::INFINITY,
        "-Inf" => f64::NEG_INFINITY,
        other => other.parse().map_err(|_| malformed())?,
    };
    Ok(Sample { labels, time, value })
}
