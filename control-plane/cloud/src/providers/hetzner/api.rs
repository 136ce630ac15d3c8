//! Requests to the Hetzner Cloud API: JSON with a token, with deadlines, limits and back-off.

use std::time::Duration;

use bytes::Bytes;
use corten_outbound::https::Endpoint;
use http::Method;
use http_body_util::Full;
use serde_json::Value;

use crate::provider::Error;

const ANSWER: Duration = Duration::from_secs(60);
const MOST_DOCUMENT: usize = 16 << 20;
const MOST_PAGES: usize = 1_000;
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

pub struct Api {
    pub endpoint: Endpoint,
    pub token: String,
}

/// A request that failed.
#[derive(Debug)]
pub struct Refusal {
    /// The code of the API's error; empty if there was no answer.
    pub code: String,
    pub error: Error,
    /// Whether another attempt may succeed, and cannot do harm.
    is_transient: bool,
}

impl From<Refusal> for Error {
    fn from(refusal: Refusal) -> Error {
        refusal.error
    }
}

impl Api {
    pub async fn get(&self, path: &str) -> Result<Value, Refusal> {
        self.send(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, Refusal> {
        self.send(Method::POST, path, Some(body)).await
    }

    /// Deletes; an object that is gone is no error.
    pub async fn delete(&self, path: &str) -> Result<(), Error> {
        match self.send(Method::DELETE, path, None).await {
            Err(refusal) if refusal.code != "not_found" => Err(refusal.into()),
            _ => Ok(()),
        }
    }

    /// Returns all pages of a list; `path` has a query.
    pub async fn list(&self, path: &str, name: &str) -> Result<Vec<Value>, Error> {
        let mut all = Vec::new();
        let mut page = 1;
        for _ in 0..MOST_PAGES {
            let mut answer = self.get(&format!("{path}&per_page=50&page={page}")).await?;
            if let Some(Value::Array(items)) = answer.get_mut(name).map(Value::take) {
                all.extend(items);
            }
            match answer["meta"]["pagination"]["next_page"].as_u64() {
                Some(next) => page = next,
                None => return Ok(all),
            }
        }
        Err(Error::Failed(format!("{path} has more than {MOST_PAGES} pages")))
    }

    async fn send(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, Refusal> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let refusal = match self.send_once(&method, path, body).await {
                Ok(answer) => return Ok(answer),
                Err(refusal) => refusal,
            };
            if !refusal.is_transient || attempt == ATTEMPTS {
                return Err(refusal);
            }
            tracing::debug!("{method} {path} is sent again: {}", refusal.error);
            tokio::time::sleep(pause).await;
            pause *= 3;
            attempt += 1;
        }
    }

    async fn send_once(&self, method: &Method, path: &str, body: Option<&Value>) -> Result<Value, Refusal> {
        // A creation whose answer was lost is found by the next reconcile, and not repeated here.
        let is_repeatable = *method != Method::POST || path.contains("/actions/");
        let lost = |reason: String| Refusal {
            code: String::new(),
            error: Error::Failed(format!("Hetzner {method} {path}: {reason}")),
            is_transient: is_repeatable,
        };
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.endpoint.prefix()))
            .header("host", self.endpoint.authority())
            .header("authorization", format!("Bearer {}", self.token))
            .header("content-type", "application/json")
            .body(Full::new(body.map(|body| Bytes::from(body.to_string())).unwrap_or_default()))
            .map_err(|error| lost(error.to_string()))?;
        let answer = self.endpoint.send(request, ANSWER).await.map_err(lost)?;
        let status = answer.head.status;
        let text = answer.text(MOST_DOCUMENT).await.map_err(lost)?;
        let document: Value = match text.trim() {
            "" => Value::Null,
            text => serde_json::from_str(text).unwrap_or(Value::Null),
        };
        if status.is_success() {
            return Ok(document);
        }
        let code = document["error"]["code"].as_str().unwrap_or(status.as_str()).to_owned();
        let reason = document["error"]["message"].as_str().unwrap_or_default();
        let message = format!("Hetzner {method} {path}: {code}: {reason}").trim_end_matches([' ', ':']).to_owned();
        let is_busy = ["locked", "conflict", "resource_unavailable"].contains(&code.as_str());
        let is_throttled = status.as_u16() == 429;
        let error = match status.as_u16() {
            401 | 403 => Error::Denied(message),
            429 => Error::Throttled { message, after: None },
            _ => Error::Failed(message),
        };
        let is_transient = is_throttled || is_busy || (status.is_server_error() && is_repeatable);
        Err(Refusal { code, error, is_transient })
    }
}
