//! The deadline of a request: the client's `timeout`, within the server's limit for all requests. Long-running
//! requests, such as watches, have none.

use std::time::{Duration, Instant};

use corten_access::Verb;
use corten_meta::Status;
use http::StatusCode;

use crate::body::Reply;
use crate::request::RequestInfo;
use crate::response;

/// The limits of all requests, and of those that write.
const LONGEST: Duration = Duration::from_secs(60);
const LONGEST_WRITE: Duration = Duration::from_secs(34);

/// Returns the timeout that the client requests, if it is shorter than the limit.
pub fn requested_timeout(info: &RequestInfo) -> Result<Option<Duration>, Status> {
    let Some(text) = info.query.get("timeout").filter(|_| !info.is_long_running()) else { return Ok(None) };
    if let Some(why) = corten_meta::go::duration_error(text) {
        return Err(Status::bad_request(format!("invalid timeout specified in the request URL - {why}")));
    }
    let nanos = corten_cel::library::time::parse_duration(text).and_then(|nanos| u64::try_from(nanos).ok());
    Ok(nanos.map(Duration::from_nanos).filter(|requested| !requested.is_zero() && *requested < LONGEST))
}

/// Returns the deadline of a request that begins now.
pub fn of(info: &RequestInfo) -> Instant {
    let allowed = if matches!(info.verb, Verb::Get | Verb::List) { LONGEST } else { LONGEST_WRITE };
    let requested = requested_timeout(info).ok().flatten();
    Instant::now() + requested.map_or(allowed, |requested| requested.min(allowed))
}

/// Returns the response after the deadline. Upstream writes it before content negotiation, so its form is fixed.
pub fn exceeded() -> Reply {
    let body = r#"{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}"#;
    response::full(StatusCode::GATEWAY_TIMEOUT, "text/plain; charset=utf-8", format!("{body}\n").into())
}
