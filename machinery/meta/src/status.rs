//! Kubernetes' `Status`: the answer to a failed request, as an error. Reasons, codes and messages are exactly
//! upstream's, because `kubectl` prints them and controllers match on them.

use crate::field::{FieldError, aggregate};
use crate::names::{GroupKind, GroupResource};
use crate::quote::quote;
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::{Map, Value};

/// A failed request.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    pub code: u16,
    /// The CamelCase reason for programs; empty if unknown.
    pub reason: String,
    pub message: String,
    /// The details, boxed: an error should not make every `Result` wide.
    pub details: Option<Box<Details>>,
    /// The continue token for a list whose revision is compacted; empty elsewhere. Upstream puts it into the metadata.
    pub continue_token: Box<str>,
}

/// The object and the causes of the failure.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Details {
    pub name: String,
    pub group: String,
    pub kind: String,
    pub uid: String,
    pub causes: Vec<Cause>,
    /// The seconds to wait before a retry; 0 means absent.
    pub retry_after_seconds: i32,
}

/// One of several causes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cause {
    pub reason: String,
    pub message: String,
    pub field: String,
}

pub const REASON_UNAUTHORIZED: &str = "Unauthorized";
pub const REASON_FORBIDDEN: &str = "Forbidden";
pub const REASON_NOT_FOUND: &str = "NotFound";
pub const REASON_ALREADY_EXISTS: &str = "AlreadyExists";
pub const REASON_CONFLICT: &str = "Conflict";
pub const REASON_GONE: &str = "Gone";
pub const REASON_INVALID: &str = "Invalid";
pub const REASON_SERVER_TIMEOUT: &str = "ServerTimeout";
pub const REASON_TIMEOUT: &str = "Timeout";
pub const REASON_TOO_MANY_REQUESTS: &str = "TooManyRequests";
pub const REASON_BAD_REQUEST: &str = "BadRequest";
pub const REASON_METHOD_NOT_ALLOWED: &str = "MethodNotAllowed";
pub const REASON_NOT_ACCEPTABLE: &str = "NotAcceptable";
pub const REASON_REQUEST_ENTITY_TOO_LARGE: &str = "RequestEntityTooLarge";
pub const REASON_UNSUPPORTED_MEDIA_TYPE: &str = "UnsupportedMediaType";
pub const REASON_INTERNAL_ERROR: &str = "InternalError";
pub const REASON_EXPIRED: &str = "Expired";
pub const REASON_SERVICE_UNAVAILABLE: &str = "ServiceUnavailable";

/// The message of an update whose resource version is no longer the newest.
pub const OPTIMISTIC_LOCK_MESSAGE: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

impl Status {
    fn new(code: u16, reason: &str, message: impl Into<String>) -> Status {
        Status { code, reason: reason.to_owned(), message: message.into(), ..Status::default() }
    }

    fn about(mut self, resource: &GroupResource, name: &str) -> Status {
        self.details = Some(Box::new(Details {
            group: resource.group.clone(),
            kind: resource.resource.clone(),
            name: name.to_owned(),
            ..Details::default()
        }));
        self
    }

    fn retry_after(mut self, seconds: i32) -> Status {
        self.details.get_or_insert_default().retry_after_seconds = seconds;
        self
    }

    pub fn not_found(resource: &GroupResource, name: &str) -> Status {
        Status::new(404, REASON_NOT_FOUND, format!("{resource} {} not found", quote(name))).about(resource, name)
    }

    /// Makes the answer for a path that no resource serves.
    pub fn path_not_found() -> Status {
        let mut status = Status::new(404, REASON_NOT_FOUND, "the server could not find the requested resource");
        status.details = Some(Box::default());
        status
    }

    pub fn already_exists(resource: &GroupResource, name: &str) -> Status {
        Status::new(409, REASON_ALREADY_EXISTS, format!("{resource} {} already exists", quote(name)))
            .about(resource, name)
    }

    /// Makes the answer for a `generateName` that kept producing existing names.
    pub fn generate_name_conflict(resource: &GroupResource, name: &str, seconds: i32) -> Status {
        let message = format!(
            "{resource} {} already exists, the server was not able to generate a unique name for the object",
            quote(name)
        );
        Status::new(409, REASON_ALREADY_EXISTS, message).about(resource, name).retry_after(seconds)
    }

    pub fn conflict(resource: &GroupResource, name: &str, why: &str) -> Status {
        let message = format!("Operation cannot be fulfilled on {resource} {}: {why}", quote(name));
        Status::new(409, REASON_CONFLICT, message).about(resource, name)
    }

    /// Makes the answer for a server-side apply that conflicts with other managers.
    pub fn apply_conflict(causes: Vec<Cause>, message: &str) -> Status {
        let mut status = Status::new(409, REASON_CONFLICT, message);
        status.details = Some(Box::new(Details { causes, ..Details::default() }));
        status
    }

    pub fn invalid(kind: &GroupKind, name: &str, errors: Vec<FieldError>) -> Status {
        let message = match aggregate(&errors) {
            Some(all) => format!("{kind} {} is invalid: {all}", quote(name)),
            None => format!("{kind} {} is invalid", quote(name)),
        };
        let causes = errors
            .iter()
            .map(|e| Cause { reason: e.kind.reason().to_owned(), message: e.body(), field: e.field.clone() })
            .collect();
        let details = Details {
            group: kind.group.clone(),
            kind: kind.kind.clone(),
            name: name.to_owned(),
            causes,
            ..Details::default()
        };
        let details = Some(Box::new(details));
        Status { code: 422, reason: REASON_INVALID.into(), message, details, ..Status::default() }
    }

    pub fn forbidden(resource: &GroupResource, name: &str, why: &str) -> Status {
        let message = if resource.resource.is_empty() && resource.group.is_empty() {
            format!("forbidden: {why}")
        } else if name.is_empty() {
            format!("{resource} is forbidden: {why}")
        } else {
            format!("{resource} {} is forbidden: {why}", quote(name))
        };
        Status::new(403, REASON_FORBIDDEN, message).about(resource, name)
    }

    /// Makes the answer to a request without valid credentials.
    pub fn unauthorized() -> Status {
        Status::new(401, REASON_UNAUTHORIZED, "Unauthorized")
    }

    pub fn bad_request(message: impl Into<String>) -> Status {
        Status::new(400, REASON_BAD_REQUEST, message)
    }

    /// Makes the answer for a path that does not take the request's method.
    pub fn method_not_allowed() -> Status {
        let message = "the server does not allow this method on the requested resource";
        let mut status = Status::new(405, REASON_METHOD_NOT_ALLOWED, message);
        status.details = Some(Box::default());
        status
    }

    /// Makes the 410 for a resource version that is older than the server keeps. The client lists again.
    pub fn expired(message: impl Into<String>) -> Status {
        Status::new(410, REASON_EXPIRED, message)
    }

    pub fn gone(message: impl Into<String>) -> Status {
        Status::new(410, REASON_GONE, message)
    }

    /// Makes the 415; `accepted` lists the media types that the server reads.
    pub fn unsupported_media_type(accepted: &[&str]) -> Status {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            accepted.join(", ")
        );
        Status::new(415, REASON_UNSUPPORTED_MEDIA_TYPE, message)
    }

    /// Makes the 406; `accepted` lists the media types that the server writes.
    pub fn not_acceptable(accepted: &[&str]) -> Status {
        let message = format!("only the following media types are accepted: {}", accepted.join(", "));
        Status::new(406, REASON_NOT_ACCEPTABLE, message)
    }

    pub fn request_too_large(message: &str) -> Status {
        Status::new(413, REASON_REQUEST_ENTITY_TOO_LARGE, format!("Request entity too large: {message}"))
    }

    pub fn internal(why: impl std::fmt::Display) -> Status {
        let why = why.to_string();
        let mut status = Status::new(500, REASON_INTERNAL_ERROR, format!("Internal error occurred: {why}"));
        let cause = Cause { message: why, ..Cause::default() };
        status.details = Some(Box::new(Details { causes: vec![cause], ..Details::default() }));
        status
    }

    /// Makes the answer for a request that took too long; it may still complete.
    pub fn timeout(message: &str, seconds: i32) -> Status {
        Status::new(504, REASON_TIMEOUT, format!("Timeout: {message}")).retry_after(seconds)
    }

    pub fn server_timeout(resource: &GroupResource, operation: &str, seconds: i32) -> Status {
        let message = format!(
            "The {operation} operation against {resource} could not be completed at this time, please try again."
        );
        Status::new(500, REASON_SERVER_TIMEOUT, message).about(resource, operation).retry_after(seconds)
    }

    pub fn too_many_requests(message: impl Into<String>, seconds: i32) -> Status {
        Status::new(429, REASON_TOO_MANY_REQUESTS, message).retry_after(seconds)
    }

    pub fn service_unavailable(message: impl Into<String>) -> Status {
        Status::new(503, REASON_SERVICE_UNAVAILABLE, message)
    }

    /// Makes a status for a response without one. `verb` is an HTTP method.
    pub fn generic(code: u16, verb: &str, resource: &GroupResource, name: &str, server_message: &str) -> Status {
        let (reason, message) = generic_reason(code, verb, server_message);
        let message = match (resource.resource.is_empty(), name.is_empty()) {
            (false, false) => format!("{message} ({} {resource} {name})", verb.to_lowercase()),
            (false, true) => format!("{message} ({} {resource})", verb.to_lowercase()),
            _ => message,
        };
        Status::new(code, reason, message).about(resource, name)
    }

    pub fn is_not_found(&self) -> bool {
        self.is(REASON_NOT_FOUND, Some(404))
    }
    pub fn is_already_exists(&self) -> bool {
        self.reason == REASON_ALREADY_EXISTS
    }
    pub fn is_conflict(&self) -> bool {
        self.is(REASON_CONFLICT, Some(409))
    }
    pub fn is_invalid(&self) -> bool {
        self.is(REASON_INVALID, Some(422))
    }
    pub fn is_gone(&self) -> bool {
        self.is(REASON_GONE, Some(410))
    }
    /// Reports whether the resource version is too old, so that the client must list again. A bare 410 counts.
    pub fn is_expired(&self) -> bool {
        self.reason == REASON_EXPIRED || self.is_gone()
    }
    pub fn is_forbidden(&self) -> bool {
        self.is(REASON_FORBIDDEN, Some(403))
    }
    pub fn is_unauthorized(&self) -> bool {
        self.is(REASON_UNAUTHORIZED, Some(401))
    }
    pub fn is_timeout(&self) -> bool {
        self.is(REASON_TIMEOUT, Some(504))
    }
    pub fn is_too_many_requests(&self) -> bool {
        self.is(REASON_TOO_MANY_REQUESTS, Some(429))
    }
    pub fn is_bad_request(&self) -> bool {
        self.is(REASON_BAD_REQUEST, Some(400))
    }
    pub fn is_method_not_allowed(&self) -> bool {
        self.is(REASON_METHOD_NOT_ALLOWED, Some(405))
    }

    /// Reports whether the status has this reason. The code decides only if the reason is unknown.
    fn is(&self, reason: &str, code: Option<u16>) -> bool {
        self.reason == reason || (!KNOWN_REASONS.contains(&self.reason.as_str()) && Some(self.code) == code)
    }

    /// Makes the answer of a successful request that has no object; a code of 0 is left out.
    pub fn success(code: u16) -> Status {
        Status { code, ..Status::default() }
    }

    /// Makes the answer of a successful deletion.
    pub fn deleted(resource: &GroupResource, name: &str, uid: &str) -> Status {
        let mut status = Status::success(0).about(resource, name);
        status.details.get_or_insert_default().uid = uid.to_owned();
        status
    }

    /// Returns the `Status` object as a value.
    pub fn to_value(&self) -> Value {
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Reads a `Status` object; `None` if the value is something else.
    pub fn from_value(value: &Value) -> Option<Status> {
        if value.get("kind")?.as_str()? != "Status" {
            return None;
        }
        Some(Status {
            code: value.get("code").and_then(Value::as_u64).and_then(|c| u16::try_from(c).ok()).unwrap_or(0),
            reason: word(value, "reason"),
            message: word(value, "message"),
            details: value.get("details").filter(|d| d.is_object()).map(|d| Box::new(Details::from_value(d))),
            continue_token: value.get("metadata").map(|m| word(m, "continue")).unwrap_or_default().into(),
        })
    }
}

impl Details {
    fn from_value(value: &Value) -> Details {
        let causes = value.get("causes").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        let seconds = value.get("retryAfterSeconds").and_then(Value::as_i64).unwrap_or(0);
        Details {
            name: word(value, "name"),
            group: word(value, "group"),
            kind: word(value, "kind"),
            uid: word(value, "uid"),
            causes: causes.iter().map(Cause::from_value).collect(),
            retry_after_seconds: i32::try_from(seconds).unwrap_or(i32::MAX),
        }
    }
}

impl Cause {
    fn from_value(value: &Value) -> Cause {
        Cause { reason: word(value, "reason"), message: word(value, "message"), field: word(value, "field") }
    }
}

/// The fields are in upstream's order: some clients compare or print the bytes as they came.
impl Serialize for Status {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(None)?;
        out.serialize_entry("kind", "Status")?;
        out.serialize_entry("apiVersion", "v1")?;
        let metadata: Map<String, Value> = match &*self.continue_token {
            "" => Map::new(),
            token => Map::from_iter([("continue".to_owned(), token.into())]),
        };
        out.serialize_entry("metadata", &metadata)?;
        out.serialize_entry("status", if self.code < 300 { "Success" } else { "Failure" })?;
        put(&mut out, "message", &self.message)?;
        put(&mut out, "reason", &self.reason)?;
        if let Some(details) = &self.details {
            out.serialize_entry("details", details)?;
        }
        if self.code != 0 {
            out.serialize_entry("code", &self.code)?;
        }
        out.end()
    }
}

impl Serialize for Details {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(None)?;
        put(&mut out, "name", &self.name)?;
        put(&mut out, "group", &self.group)?;
        put(&mut out, "kind", &self.kind)?;
        put(&mut out, "uid", &self.uid)?;
        if !self.causes.is_empty() {
            out.serialize_entry("causes", &self.causes)?;
        }
        if self.retry_after_seconds != 0 {
            out.serialize_entry("retryAfterSeconds", &self.retry_after_seconds)?;
        }
        out.end()
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut out = serializer.serialize_map(None)?;
        put(&mut out, "reason", &self.reason)?;
        put(&mut out, "message", &self.message)?;
        put(&mut out, "field", &self.field)?;
        out.end()
    }
}

const KNOWN_REASONS: &[&str] = &[
    REASON_UNAUTHORIZED,
    REASON_FORBIDDEN,
    REASON_NOT_FOUND,
    REASON_ALREADY_EXISTS,
    REASON_CONFLICT,
    REASON_GONE,
    REASON_INVALID,
    REASON_SERVER_TIMEOUT,
    REASON_TIMEOUT,
    REASON_TOO_MANY_REQUESTS,
    REASON_BAD_REQUEST,
    REASON_METHOD_NOT_ALLOWED,
    REASON_NOT_ACCEPTABLE,
    REASON_REQUEST_ENTITY_TOO_LARGE,
    REASON_UNSUPPORTED_MEDIA_TYPE,
    REASON_INTERNAL_ERROR,
    REASON_EXPIRED,
    REASON_SERVICE_UNAVAILABLE,
];

fn generic_reason(code: u16, verb: &str, server_message: &str) -> (&'static str, String) {
    let (reason, message) = match code {
        409 if verb == "POST" => (REASON_ALREADY_EXISTS, "the server reported a conflict"),
        409 => (REASON_CONFLICT, "the server reported a conflict"),
        404 => (REASON_NOT_FOUND, "the server could not find the requested resource"),
        400 => (REASON_BAD_REQUEST, "the server rejected our request for an unknown reason"),
        401 => (REASON_UNAUTHORIZED, "the server has asked for the client to provide credentials"),
        403 => (REASON_FORBIDDEN, server_message),
        406 if server_message.is_empty() || server_message == "unknown" => {
            (REASON_NOT_ACCEPTABLE, "the server was unable to respond with a content type that the client supports")
        }
        406 => (REASON_NOT_ACCEPTABLE, server_message),
        415 => (REASON_UNSUPPORTED_MEDIA_TYPE, server_message),
        405 => (REASON_METHOD_NOT_ALLOWED, "the server does not allow this method on the requested resource"),
        422 => (REASON_INVALID, "the server rejected our request due to an error in our request"),
        503 => (REASON_SERVICE_UNAVAILABLE, "the server is currently unable to handle the request"),
        504 => (
            REASON_TIMEOUT,
            "the server was unable to return a response in the time allotted, but may still be processing the request",
        ),
        429 => {
            (REASON_TOO_MANY_REQUESTS, "the server has received too many requests and has asked us to try again later")
        }
        500.. => {
            let message =
                format!("an error on the server ({}) has prevented the request from succeeding", quote(server_message));
            return (REASON_INTERNAL_ERROR, message);
        }
        _ => {
            return (
                "",
                format!("the server responded with the status code {code} but did not return more information"),
            );
        }
    };
    (reason, message.to_owned())
}

fn put<M: SerializeMap>(out: &mut M, key: &str, text: &str) -> Result<(), M::Error> {
    if text.is_empty() { Ok(()) } else { out.serialize_entry(key, text) }
}

fn word(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::field::Path;

    fn pods() -> GroupResource {
        GroupResource::new("", "pods")
    }
    fn deployments() -> GroupResource {
        GroupResource::new("apps", "deployments")
    }

    #[test]
    fn messages_are_upstreams() {
        for (status, code, reason, message) in [
            (Status::not_found(&pods(), "web"), 404, "NotFound", r#"pods "web" not found"#),
            (
                Status::already_exists(&deployments(), "w"),
                409,
                "AlreadyExists",
                r#"deployments.apps "w" already exists"#,
            ),
            (
                Status::conflict(&pods(), "w", OPTIMISTIC_LOCK_MESSAGE),
                409,
                "Conflict",
                r#"Operation cannot be fulfilled on pods "w": the object has been modified; please apply your changes to the latest version and try again"#,
            ),
            (Status::forbidden(&pods(), "", "no"), 403, "Forbidden", "pods is forbidden: no"),
            (Status::forbidden(&GroupResource::default(), "", "no"), 403, "Forbidden", "forbidden: no"),
            (
                Status::method_not_allowed(),
                405,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
            ),
            (Status::timeout("slow", 3), 504, "Timeout", "Timeout: slow"),
            (Status::internal("boom"), 500, "InternalError", "Internal error occurred: boom"),
            (
                Status::request_too_large("limit is 3"),
                413,
                "RequestEntityTooLarge",
                "Request entity too large: limit is 3",
            ),
            (
                Status::generic(422, "PATCH", &GroupResource::default(), "", "x"),
                422,
                "Invalid",
                "the server rejected our request due to an error in our request",
            ),
            (
                Status::generic(404, "GET", &pods(), "w", ""),
                404,
                "NotFound",
                "the server could not find the requested resource (get pods w)",
            ),
            (
                Status::generic(502, "GET", &GroupResource::default(), "", "bad gateway"),
                502,
                "InternalError",
                r#"an error on the server ("bad gateway") has prevented the request from succeeding"#,
            ),
        ] {
            assert_eq!((status.code, status.reason.as_str(), status.message.as_str()), (code, reason, message));
        }
    }

    #[test]
    fn invalid_lists_causes() {
        let path = Path::root("spec").child("replicas");
        let kind = GroupKind::new("apps", "Deployment");
        let one = FieldError::invalid(&path, -1, "must be greater than or equal to 0");
        let status = Status::invalid(&kind, "w", vec![one.clone()]);
        assert_eq!(
            status.message,
            r#"Deployment.apps "w" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"#
        );
        let causes = status.details.unwrap().causes;
        assert_eq!(causes[0].reason, "FieldValueInvalid");
        assert_eq!(causes[0].message, "Invalid value: -1: must be greater than or equal to 0");
        let two = Status::invalid(&kind, "w", vec![one, FieldError::required(&Path::root("spec"), "")]);
        assert!(two.message.ends_with("equal to 0, spec: Required value]"), "{}", two.message);
        assert_eq!(Status::invalid(&kind, "w", vec![]).message, r#"Deployment.apps "w" is invalid"#);
    }

    #[test]
    fn fields_are_written_in_upstreams_order() {
        let conflict = Status::already_exists(&GroupResource::new("apps", "deployments"), "web");
        assert_eq!(
            serde_json::to_string(&conflict).unwrap(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"deployments.apps \"web\" already exists","reason":"AlreadyExists","details":{"name":"web","group":"apps","kind":"deployments"},"code":409}"#
        );
        assert_eq!(
            serde_json::to_string(&Status::deleted(&pods(), "web", "u-1")).unwrap(),
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","details":{"name":"web","kind":"pods","uid":"u-1"}}"#
        );
    }

    #[test]
    fn round_trips_and_recognises() {
        let all = [
            Status::not_found(&pods(), "web"),
            Status::too_many_requests("later", 7),
            Status::invalid(&GroupKind::new("", "Pod"), "p", vec![FieldError::required(&Path::root("spec"), "why")]),
            Status::internal("x"),
        ];
        for status in all {
            assert_eq!(Status::from_value(&status.to_value()), Some(status));
        }
        assert_eq!(Status::from_value(&serde_json::json!({"kind": "Pod"})), None);
        assert!(Status::expired("x").is_expired() && Status::gone("x").is_expired());
        assert!(!Status::already_exists(&pods(), "x").is_conflict());
        let odd = Status { code: 404, reason: "Odd".into(), ..Status::default() };
        assert!(odd.is_not_found() && !odd.is_conflict());
    }
}
