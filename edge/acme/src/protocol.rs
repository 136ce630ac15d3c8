//! The client of ACME: requests to an authority, with nonces, limits and deadlines.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, LOCATION, RETRY_AFTER};
use reqwest::{Response, Url};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::Error;
use crate::jws::{AccountKey, ExternalBinding, Signer};

const NONCE: HeaderName = HeaderName::from_static("replay-nonce");
const CONTENT: &str = "application/jose+json";
/// The longest time of a request.
const DEADLINE: Duration = Duration::from_secs(30);
/// The most bytes of an answer. A chain of certificates has less than ten thousand.
const MAX_ANSWER: usize = 256 * 1024;
/// The most times that a request is sent because its nonce was refused.
const MAX_NONCES: usize = 5;
/// The longest time that an authority can ask to wait.
const LONGEST_WAIT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The URLs of an authority.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Directory {
    new_nonce: String,
    new_account: String,
    new_order: String,
    #[serde(default)]
    meta: Meta,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Meta {
    external_account_required: bool,
}

/// The state of an order or authorization.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    Pending,
    Ready,
    Processing,
    Valid,
    /// Failed, revoked, expired or deactivated.
    #[default]
    #[serde(other)]
    Invalid,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Order {
    #[serde(skip)]
    pub url: String,
    pub status: Status,
    pub authorizations: Vec<String>,
    pub finalize: String,
    pub certificate: Option<String>,
    pub error: Option<Problem>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Authorization {
    pub status: Status,
    pub identifier: Identifier,
    pub challenges: Vec<Challenge>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct Identifier {
    pub value: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Challenge {
    #[serde(rename = "type")]
    pub type_: String,
    pub url: String,
    pub token: String,
    pub error: Option<Problem>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Problem {
    #[serde(rename = "type")]
    pub type_: String,
    pub detail: String,
}

impl Problem {
    pub fn into_error(self) -> Error {
        Error::Refused { kind: self.type_, detail: self.detail, retry_after: None }
    }
}

/// An answer of the authority.
struct Answer {
    headers: HeaderMap,
    body: Vec<u8>,
}

/// An authority, and the key of the account there.
pub struct Authority {
    http: reqwest::Client,
    directory: Directory,
    key: AccountKey,
    account: String,
    nonce: Mutex<Option<String>>,
}

impl Authority {
    /// Reads the directory of an authority. `roots` are certificates in PEM that are trusted beside the system's.
    pub async fn open(directory: &str, roots: Option<&str>, key: AccountKey) -> Result<Authority, Error> {
        // The client takes the process' provider; a second installation is refused, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let unreachable = |error: reqwest::Error| Error::Unreachable(causes(&error));
        let roots = roots.map(|pem| reqwest::Certificate::from_pem_bundle(pem.as_bytes())).transpose();
        let http = reqwest::Client::builder()
            .tls_certs_merge(
                roots.map_err(|_| Error::Invalid("the issuer's caBundle is not valid".to_owned()))?.unwrap_or_default(),
            )
            .timeout(DEADLINE)
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("corten/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(unreachable)?;
        let response = http.get(url(directory)?).send().await.map_err(unreachable)?;
        let answer = read(response).await?;
        let directory = serde_json::from_slice(&answer.body).map_err(|_| Error::Malformed("the directory"))?;
        Ok(Authority { http, directory, key, account: String::new(), nonce: Mutex::default() })
    }

    pub fn key(&self) -> &AccountKey {
        &self.key
    }

    /// Takes over the URL of an account that exists.
    pub fn set_account(&mut self, account: String) {
        self.account = account;
    }

    /// Makes the account of the key, or finds it, and returns its URL.
    pub async fn register(&mut self, email: Option<&str>, binding: Option<&ExternalBinding>) -> Result<&str, Error> {
        if self.directory.meta.external_account_required && binding.is_none() {
            return Err(Error::Invalid("the authority requires an externalAccountBinding".to_owned()));
        }
        let mut account = json!({"termsOfServiceAgreed": true});
        if let Some(email) = email {
            account["contact"] = json!([format!("mailto:{email}")]);
        }
        if let Some(binding) = binding {
            account["externalAccountBinding"] = binding.sign(&self.directory.new_account, &self.key);
        }
        let answer = self.post(&self.directory.new_account, &Signer::Key, Some(&account)).await?;
        self.account = location(&answer)?;
        Ok(&self.account)
    }

    pub async fn new_order(&self, names: &[String]) -> Result<Order, Error> {
        let identifiers: Vec<Value> = names.iter().map(|name| json!({"type": "dns", "value": name})).collect();
        let wanted = json!({"identifiers": identifiers});
        let answer = self.post(&self.directory.new_order, &self.signer(), Some(&wanted)).await?;
        Ok(Order { url: location(&answer)?, ..decode(&answer, "an order")? })
    }

    pub async fn order(&self, url: &str) -> Result<Order, Error> {
        let answer = self.post(url, &self.signer(), None).await?;
        Ok(Order { url: url.to_owned(), ..decode(&answer, "an order")? })
    }

    pub async fn authorization(&self, url: &str) -> Result<Authorization, Error> {
        decode(&self.post(url, &self.signer(), None).await?, "an authorization")
    }

    /// Lets the authority validate a challenge whose answer is served.
    pub async fn validate(&self, challenge: &Challenge) -> Result<(), Error> {
        self.post(&challenge.url, &self.signer(), Some(&json!({}))).await.map(drop)
    }

    /// Sends the request for the certificate of an order, in DER.
    pub async fn finalize(&self, order: &Order, request: &[u8]) -> Result<(), Error> {
        let wanted = json!({"csr": crate::jws::encode(request)});
        self.post(&order.finalize, &self.signer(), Some(&wanted)).await.map(drop)
    }

    /// Returns the chain of a certificate in PEM.
    pub async fn certificate(&self, url: &str) -> Result<String, Error> {
        let answer = self.post(url, &self.signer(), None).await?;
        String::from_utf8(answer.body).map_err(|_| Error::Malformed("a certificate"))
    }

    fn signer(&self) -> Signer<'_> {
        Signer::Account(&self.account)
    }

    /// Sends a signed request. One whose nonce is refused is sent again with the nonce of the refusal.
    async fn post(&self, to: &str, signer: &Signer<'_>, payload: Option<&Value>) -> Result<Answer, Error> {
        let mut tries = 0;
        loop {
            tries += 1;
            let nonce = self.nonce().await?;
            let signed = self.key.sign(to, &nonce, signer, payload)?;
            let request = self.http.post(url(to)?).header(CONTENT_TYPE, CONTENT).body(signed.to_string());
            let response = request.send().await.map_err(|error| Error::Unreachable(causes(&error)))?;
            self.keep_nonce(response.headers());
            match read(response).await {
                Err(error) if error.is_problem("badNonce") && tries < MAX_NONCES => {}
                answered => return answered,
            }
        }
    }

    async fn nonce(&self) -> Result<String, Error> {
        if let Some(nonce) = self.nonce.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return Ok(nonce);
        }
        let request = self.http.head(url(&self.directory.new_nonce)?);
        let response = request.send().await.map_err(|error| Error::Unreachable(causes(&error)))?;
        let nonce = response.headers().get(NONCE).and_then(|value| value.to_str().ok());
        nonce.map(str::to_owned).ok_or(Error::Malformed("no nonce"))
    }

    fn keep_nonce(&self, headers: &HeaderMap) {
        if let Some(nonce) = headers.get(NONCE).and_then(|value| value.to_str().ok()) {
            *self.nonce.lock().unwrap_or_else(PoisonError::into_inner) = Some(nonce.to_owned());
        }
    }
}

fn url(text: &str) -> Result<Url, Error> {
    Url::parse(text).map_err(|_| Error::Malformed("a URL"))
}

fn location(answer: &Answer) -> Result<String, Error> {
    let location = answer.headers.get(LOCATION).and_then(|value| value.to_str().ok());
    location.map(str::to_owned).ok_or(Error::Malformed("no location"))
}

fn decode<T: serde::de::DeserializeOwned>(answer: &Answer, what: &'static str) -> Result<T, Error> {
    serde_json::from_slice(&answer.body).map_err(|_| Error::Malformed(what))
}

/// Reads an answer to its end. One without success is an error.
async fn read(mut response: Response) -> Result<Answer, Error> {
    let status = response.status();
    let headers = response.headers().clone();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| Error::Unreachable(causes(&error)))? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_ANSWER {
            return Err(Error::Malformed("it is too long"));
        }
    }
    if status.is_success() {
        return Ok(Answer { headers, body });
    }
    let problem: Problem = serde_json::from_slice(&body).unwrap_or_default();
    let detail = if problem.detail.is_empty() { format!("status {status}") } else { problem.detail };
    Err(Error::Refused { kind: problem.type_, detail, retry_after: retry_after(&headers) })
}

/// Returns the time of a Retry-After header in seconds, or until a date.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let value = headers.get(RETRY_AFTER)?.to_str().ok()?.trim();
    let wait = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(value).ok()?;
            Duration::try_from(date.timestamp().duration_since(corten_meta::time::now())).ok()?
        }
    };
    Some(wait.min(LONGEST_WAIT))
}

/// Joins an error with its causes, each once.
fn causes(error: &reqwest::Error) -> String {
    let error: &(dyn std::error::Error + 'static) = error;
    let mut messages: Vec<String> = Vec::new();
    for cause in std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string) {
        if !messages.iter().any(|message| message.contains(&cause)) {
            messages.push(cause);
        }
    }
    messages.join(": ")
}
