//! How long a request may take: as long as its client says, within what is allowed to all. What lasts by its nature, such as
//! a watch, is not meant.

use std::time::{Duration, Instant};

use corten_meta::Status;
use http::StatusCode;

use crate::body::Reply;
use crate::request::RequestInfo;
use crate::response;
use crate::verb::Verb;

/// What is allowed to all requests, and to those that write.
const LONGEST: Duration = Duration::from_secs(60);
const LONGEST_WRITE: Duration = Duration::from_secs(34);

/// What the client asked for, if it is less than is allowed anyway.
pub fn asked(info: &RequestInfo) -> Result<Option<Duration>, Status> {
    let Some(text) = info.query.get("timeout").filter(|_| !info.is_long_running()) else { return Ok(None) };
    if let Some(why) = corten_meta::go::duration_error(text) {
        return Err(Status::bad_request(format!("invalid timeout specified in the request URL - {why}")));
    }
    let nanos = corten_cel::library::time::parse_duration(text).and_then(|nanos| u64::try_from(nanos).ok());
    Ok(nanos.map(Duration::from_nanos).filter(|asked| !asked.is_zero() && *asked < LONGEST))
}

/// When a request that begins now has to be done.
pub fn of(info: &RequestInfo) -> Instant {
    let allowed = if matches!(info.verb, Verb::Get | Verb::List) { LONGEST } else { LONGEST_WRITE };
    let asked = asked(info).ok().flatten();
    Instant::now() + asked.map_or(allowed, |asked| asked.min(allowed))
}

/// The answer when the time is over. Upstream gives it before it knows in which form the client would have it.
pub fn exceeded() -> Reply {
    let body = r#"{"metadata":{},"status":"Failure","message":"Timeout: request did not complete within the allotted timeout","reason":"Timeout","details":{},"code":504}"#;
    response::full(StatusCode::GATEWAY_TIMEOUT, "text/plain; charset=utf-8", format!("{body}\n").into())
}
