//! One call of a Query API: a signed form, an XML document as its answer.
//!
//! Calls are tried again with back-off after throttling, and after failures of the connection or the server where a
//! repeated call is harmless. A call that creates is repeated only if AWS refused it: the next reconcile finds what an
//! answer that was lost has made.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_outbound::https::Endpoint;
use corten_outbound::sign::{self, Unsigned};
use corten_outbound::xml::{self, Element};
use http_body_util::Full;

use crate::credentials::Identity;
use crate::error::Error;
use crate::form::form_request;

/// The time within which the head of an answer comes.
const ANSWER: Duration = Duration::from_secs(60);
/// The most bytes of an answer.
const MOST_DOCUMENT: usize = 32 << 20;
/// The most pages of a list.
const MOST_PAGES: usize = 1_000;
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// A Query API in a region.
pub struct Api {
    pub endpoint: Endpoint,
    pub service: &'static str,
    pub version: &'static str,
    pub region: String,
    pub identity: Arc<Identity>,
}

/// A call: an action and its parameters.
#[derive(Clone, Debug)]
pub struct Call {
    action: &'static str,
    parameters: Vec<Parameter>,
    filters: usize,
}

/// A parameter of a call.
#[derive(Clone, Debug)]
struct Parameter {
    name: String,
    value: String,
}

/// A call that AWS refused, or that did not reach it.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// The code of AWS's error; empty if there was no answer.
    pub code: String,
    pub error: Error,
}

impl Call {
    pub fn new(action: &'static str) -> Call {
        Call { action, parameters: Vec::new(), filters: 0 }
    }

    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Call {
        self.parameters.push(Parameter { name: name.into(), value: value.into() });
        self
    }

    /// Adds a numbered list, such as `InstanceId.1`.
    pub fn list<T: Into<String>>(mut self, name: &str, values: impl IntoIterator<Item = T>) -> Call {
        for (index, value) in values.into_iter().enumerate() {
            self = self.with(format!("{name}.{}", index + 1), value);
        }
        self
    }

    /// Adds a filter of EC2.
    pub fn filter<T: Into<String>>(mut self, name: &str, values: impl IntoIterator<Item = T>) -> Call {
        self.filters += 1;
        let filter = format!("Filter.{}", self.filters);
        self.with(format!("{filter}.Name"), name).list(&format!("{filter}.Value"), values)
    }

    /// Returns the body of the request.
    fn form(&self, version: &str) -> String {
        let mut form = format!("Action={}&Version={version}", self.action);
        for Parameter { name, value } in &self.parameters {
            form.push_str(&format!("&{}={}", sign::encode(name, false), sign::encode(value, false)));
        }
        form
    }

    /// Reports whether the call may be sent again although AWS may have carried it out.
    fn is_repeatable(&self) -> bool {
        !self.action.starts_with("Create")
    }
}

/// The outcome of one attempt that failed.
struct Attempt {
    refusal: Refusal,
    /// Whether AWS refused without an effect, to be asked again later.
    is_throttled: bool,
    /// Whether another attempt may succeed.
    is_transient: bool,
}

impl Api {
    /// Calls, and returns the answer below its outer elements.
    pub async fn call(&self, call: &Call) -> Result<Element, Refusal> {
        let mut pause = FIRST_PAUSE;
        let mut attempt = 1;
        loop {
            let failed = match self.send(call).await {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            let may_repeat = failed.is_throttled || (failed.is_transient && call.is_repeatable());
            if !may_repeat || attempt == ATTEMPTS {
                return Err(failed.refusal);
            }
            tracing::debug!("{} is called again: {}", call.action, failed.refusal.error);
            tokio::time::sleep(pause).await;
            pause *= 3;
            attempt += 1;
        }
    }

    /// Calls until the last page; returns the elements at a path of every page.
    pub async fn pages(&self, call: &Call, path: &str, token: PageToken) -> Result<Vec<Element>, Refusal> {
        let mut all = Vec::new();
        let mut next = String::new();
        for _ in 0..MOST_PAGES {
            let page = match next.as_str() {
                "" => self.call(call).await?,
                token_value => self.call(&call.clone().with(token.parameter, token_value)).await?,
            };
            all.extend(page.all(path).cloned());
            next = page.get(token.element).to_owned();
            if next.is_empty() {
                return Ok(all);
            }
        }
        let error = Error::Refused(format!("{} has more than {MOST_PAGES} pages", call.action));
        Err(Refusal { code: String::new(), error })
    }

    async fn send(&self, call: &Call) -> Result<Element, Attempt> {
        let place = format!("{} {}", self.service, call.action);
        // A region that does not exist is seen by its host alone.
        let host = self.endpoint.authority();
        let lost = |reason: String| Attempt {
            refusal: Refusal { code: String::new(), error: Error::Unknown(format!("{place} at {host}: {reason}")) },
            is_throttled: false,
            is_transient: true,
        };
        let request = self.signed(call).await.map_err(|error| Attempt {
            refusal: Refusal { code: String::new(), error },
            is_throttled: false,
            is_transient: false,
        })?;
        let answer = self.endpoint.send(request, ANSWER).await.map_err(lost)?;
        let status = answer.head.status;
        let after = answer.header("retry-after").and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
        let document = answer.text(MOST_DOCUMENT).await.map_err(lost)?;
        if status.is_success() {
            let root = xml::parse(&document).map_err(lost)?;
            let outer = root.children.into_iter().next().unwrap_or_default();
            let result = format!("{}Result", call.action);
            return Ok(outer.at(&result).cloned().unwrap_or(outer));
        }
        let code = xml::first(&document, "Code").unwrap_or_else(|| status.to_string());
        let message = xml::first(&document, "Message").unwrap_or_default();
        let message = format!("{place}: {code}: {message}").trim_end_matches([' ', ':']).to_owned();
        if is_expired(&code) {
            self.identity.forget();
        }
        let is_throttled = status.as_u16() == 429 || is_throttling(&code);
        let error = match () {
            () if is_throttled => Error::Throttled { message, after },
            () if is_denial(&code) => Error::Denied(message),
            () if status.is_server_error() => Error::Unknown(message),
            () => Error::Refused(message),
        };
        Err(Attempt { refusal: Refusal { code, error }, is_throttled, is_transient: status.is_server_error() })
    }

    async fn signed(&self, call: &Call) -> Result<http::Request<Full<Bytes>>, Error> {
        let credentials = self.identity.credentials().await?;
        let body = call.form(self.version);
        let path = format!("{}/", self.endpoint.prefix());
        let unsigned = Unsigned {
            method: "POST",
            host: self.endpoint.authority(),
            path: &path,
            query: &[],
            body_hash: &sign::sha256(body.as_bytes()),
            region: &self.region,
            service: self.service,
            time: jiff::Timestamp::now(),
        };
        let mut request = form_request(&path, self.endpoint.authority());
        for (name, value) in sign::sign(&unsigned, &credentials).headers {
            request = request.header(name, value);
        }
        request.body(Full::new(body.into())).map_err(|error| Error::Refused(error.to_string()))
    }
}

/// The names by which a list is continued.
#[derive(Clone, Copy)]
pub struct PageToken {
    parameter: &'static str,
    element: &'static str,
}

/// The names of EC2.
pub const NEXT_TOKEN: PageToken = PageToken { parameter: "NextToken", element: "nextToken" };
/// The names of ELBv2.
pub const MARKER: PageToken = PageToken { parameter: "Marker", element: "NextMarker" };

fn is_throttling(code: &str) -> bool {
    const CODES: [&str; 7] = [
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestThrottledException",
        "TooManyRequestsException",
        "SlowDown",
    ];
    CODES.contains(&code)
}

/// Reports whether the credentials themselves were refused, so that new ones may help.
fn is_expired(code: &str) -> bool {
    ["ExpiredToken", "ExpiredTokenException", "RequestExpired", "InvalidClientTokenId", "AuthFailure"].contains(&code)
}

fn is_denial(code: &str) -> bool {
    const CODES: [&str; 7] = [
        "AccessDenied",
        "AccessDeniedException",
        "UnauthorizedOperation",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
        "OptInRequired",
        "IncompleteSignature",
    ];
    CODES.contains(&code) || is_expired(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forms_have_numbered_lists_and_filters() {
        let call = Call::new("DescribeX").list("Id", ["a b", "ü"]).filter("tag:k/v", ["1"]).filter("n", ["2", "3"]);
        let expected = "Action=DescribeX&Version=1&Id.1=a%20b&Id.2=%C3%BC&Filter.1.Name=tag%3Ak%2Fv&Filter.1.Value.1=1\
                        &Filter.2.Name=n&Filter.2.Value.1=2&Filter.2.Value.2=3";
        assert_eq!(call.form("1"), expected);
        assert!(call.is_repeatable() && !Call::new("CreateRoute").is_repeatable());
    }
}
