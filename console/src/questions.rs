//! The questions of a page that the program answers: why an object is not as it should be, and how it came to be.

use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{self, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde_json::Value;

/// The paths of the questions.
const WHY: &str = "/console/why";
const TRACE: &str = "/console/trace";

/// A question about an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub kind: QuestionKind,
    pub object: ObjectName,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuestionKind {
    /// Why the object is not as it should be.
    Why,
    /// The steps by which the object, and the objects that it owns, came to be.
    Trace,
}

/// The object that a page asks about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObjectName {
    pub group: String,
    pub plural: String,
    pub namespace: String,
    pub name: String,
}

/// Answers questions with the rights of a token.
pub trait Explainer: Send + Sync {
    fn answer(&self, token: String, question: Question) -> BoxFuture<'static, Result<Value, String>>;
}

impl Question {
    /// Returns the question of a request; `None` if the path is none of a question.
    pub fn of(path: &str, query: &str) -> Option<Question> {
        let kind = match path {
            WHY => QuestionKind::Why,
            TRACE => QuestionKind::Trace,
            _ => return None,
        };
        Some(Question { kind, object: ObjectName::of(query) })
    }
}

impl ObjectName {
    /// Reads the object of a query.
    fn of(query: &str) -> ObjectName {
        let mut object = ObjectName::default();
        for (key, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value = percent_decoded(value);
            match key {
                "group" => object.group = value,
                "resource" => object.plural = value,
                "namespace" => object.namespace = value,
                "name" => object.name = value,
                _ => {}
            }
        }
        object
    }
}

/// Returns the response with an answer, or with the reason why there is none.
pub fn response(answer: Result<Value, String>) -> Response<Bytes> {
    match answer {
        Ok(answer) => {
            let mut response = Response::new(Bytes::from(answer.to_string()));
            response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            protected(response)
        }
        Err(reason) => refusal(StatusCode::BAD_GATEWAY, &reason),
    }
}

/// Returns a response that says why there is no answer.
pub fn refusal(code: StatusCode, reason: &str) -> Response<Bytes> {
    let mut response = Response::new(Bytes::from(reason.to_owned()));
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    protected(response)
}

/// Adds the headers that keep pages of other sites from reading an answer as something else.
fn protected(mut response: Response<Bytes>) -> Response<Bytes> {
    let policy = HeaderName::from_static("cross-origin-resource-policy");
    response.headers_mut().insert(policy, HeaderValue::from_static("same-origin"));
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn percent_decoded(value: &str) -> String {
    let mut bytes = Vec::with_capacity(value.len());
    let mut rest = value.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        let decoded = hex.filter(|_| *first == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_object_of_a_query_is_decoded() {
        let query = "group=apps&resource=deployments&namespace=a%2Fb&name=caf%C3%A9&x=y&name2";
        let object = ObjectName {
            group: "apps".into(),
            plural: "deployments".into(),
            namespace: "a/b".into(),
            name: "café".into(),
        };
        assert_eq!(Question::of(WHY, query), Some(Question { kind: QuestionKind::Why, object: object.clone() }));
        assert_eq!(Question::of(TRACE, query), Some(Question { kind: QuestionKind::Trace, object }));
        assert_eq!(Question::of("/console/app.js", query), None);
        assert_eq!(percent_decoded("%zz%4"), "%zz%4");
    }
}
