//! A document that rarely changes, served as Go's `http.ServeContent` does: clients ask whether it changed, by its ETag
//! or by its time, and may request a range of it.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use jiff::Timestamp;

use crate::body::{Body, Reply};
use crate::response;

const TIME: &str = "%a, %d %b %Y %H:%M:%S GMT";

/// The ETag, the time and the media type of a document.
pub struct Content<'a> {
    /// The ETag with its quotes; empty if there is none.
    pub tag: &'a str,
    pub modified: Timestamp,
    pub media_type: &'static str,
}

/// The result of the conditions of a request.
enum Verdict {
    Serve { ranges: bool },
    NotModified,
    Failed,
}

impl Content<'_> {
    /// Answers a request. `bytes` is only called if the response has a body.
    pub fn reply(&self, method: &Method, headers: &HeaderMap, bytes: impl FnOnce() -> Bytes) -> Reply {
        let range = header_value(headers, header::RANGE);
        let mut reply = match self.verdict(method, headers) {
            Verdict::NotModified => {
                let mut reply = empty(StatusCode::NOT_MODIFIED);
                if !self.tag.is_empty() {
                    set(&mut reply, header::ETAG, self.tag);
                    return reply;
                }
                reply
            }
            Verdict::Failed => {
                let mut reply = empty(StatusCode::PRECONDITION_FAILED);
                set(&mut reply, header::CONTENT_TYPE, self.media_type);
                reply
            }
            Verdict::Serve { ranges } => {
                let bytes = bytes();
                match parts(range.filter(|_| ranges).unwrap_or_default(), bytes.len()) {
                    Ok(parts) => self.parts(bytes, &parts),
                    Err(why) => return refused(&why, bytes.len()),
                }
            }
        };
        set(&mut reply, header::LAST_MODIFIED, &self.modified.strftime(TIME).to_string());
        if !self.tag.is_empty() {
            set(&mut reply, header::ETAG, self.tag);
        }
        reply
    }

    fn parts(&self, bytes: Bytes, parts: &[(usize, usize)]) -> Reply {
        let size = bytes.len();
        let named = |(start, end): &(usize, usize)| format!("bytes {start}-{}/{size}", end - 1);
        let mut reply = match parts {
            [] => response::full(StatusCode::OK, self.media_type, bytes),
            [part] => {
                let piece = bytes.slice(part.0..part.1);
                let mut reply = response::full(StatusCode::PARTIAL_CONTENT, self.media_type, piece);
                set(&mut reply, header::CONTENT_RANGE, &named(part));
                reply
            }
            many => {
                let boundary = format!("{:032x}{:028x}", self.modified.as_nanosecond(), size);
                let mut body = Vec::new();
                for part in many {
                    let head = format!("Content-Range: {}\r\nContent-Type: {}", named(part), self.media_type);
                    body.extend_from_slice(format!("--{boundary}\r\n{head}\r\n\r\n").as_bytes());
                    body.extend_from_slice(&bytes[part.0..part.1]);
                    body.extend_from_slice(b"\r\n");
                }
                body.extend_from_slice(format!("--{boundary}--\r\n").as_bytes());
                let mut reply = response::full(StatusCode::PARTIAL_CONTENT, self.media_type, body.into());
                set(&mut reply, header::CONTENT_TYPE, &format!("multipart/byteranges; boundary={boundary}"));
                reply
            }
        };
        set(&mut reply, header::ACCEPT_RANGES, "bytes");
        reply
    }

    fn verdict(&self, method: &Method, headers: &HeaderMap) -> Verdict {
        let read = *method == Method::GET || *method == Method::HEAD;
        let since = |name: HeaderName| header_value(headers, name).and_then(time);
        let made = self.modified.as_second();
        let matches = match header_value(headers, header::IF_MATCH) {
            Some(tags) => self.is_among(tags, false),
            None => since(header::IF_UNMODIFIED_SINCE).is_none_or(|time| made <= time),
        };
        if !matches {
            return Verdict::Failed;
        }
        let known = match header_value(headers, header::IF_NONE_MATCH) {
            Some(tags) => self.is_among(tags, true),
            None => read && since(header::IF_MODIFIED_SINCE).is_some_and(|time| made <= time),
        };
        match known {
            true if read => Verdict::NotModified,
            true => Verdict::Failed,
            // A range is only of use to a client that has the rest of the same document.
            false => Verdict::Serve {
                ranges: !read
                    || header_value(headers, header::IF_RANGE).is_none_or(|tag| match tag.contains('"') {
                        true => tag == self.tag,
                        false => time(tag) == Some(made),
                    }),
            },
        }
    }

    /// Returns whether a list of tags has this one. With `weak`, weak tags match too, as `If-None-Match` compares.
    fn is_among(&self, tags: &str, weak: bool) -> bool {
        tags.split(',').map(str::trim).any(|tag| {
            let tag = if weak { tag.strip_prefix("W/").unwrap_or(tag) } else { tag };
            tag == "*" || (tag == self.tag && !self.tag.is_empty())
        })
    }
}

/// Returns the parts that a Range header requests, from and to; none for the whole document.
fn parts(range: &str, size: usize) -> Result<Vec<(usize, usize)>, String> {
    if range.is_empty() {
        return Ok(Vec::new());
    }
    let invalid = || "invalid range".to_owned();
    let number = |text: &str| match text.bytes().all(|b| b.is_ascii_digit()) {
        true => text.parse::<usize>().map_err(|_| invalid()),
        false => Err(invalid()),
    };
    let mut found = Vec::new();
    let mut beyond = false;
    for part in range.strip_prefix("bytes=").ok_or_else(invalid)?.split(',') {
        let part = part.trim();
        if part.is_empty() {
            continue;
        }
        let (start, end) = part.split_once('-').ok_or_else(invalid)?;
        let start = start.trim();
        let end = end.trim();
        if start.is_empty() {
            found.push((size.saturating_sub(number(end)?), size));
            continue;
        }
        let start = number(start)?;
        if start >= size {
            beyond = true;
            continue;
        }
        let end = if end.is_empty() { size } else { number(end)?.saturating_add(1).min(size) };
        if start >= end {
            return Err(invalid());
        }
        found.push((start, end));
    }
    if found.is_empty() && beyond {
        return Err("invalid range: failed to overlap".to_owned());
    }
    // A client that requests more bytes than there are gets the whole document.
    let requested: usize = found.iter().map(|(start, end)| end - start).sum();
    Ok(if requested > size { Vec::new() } else { found })
}

fn refused(why: &str, size: usize) -> Reply {
    let mut reply = response::text(StatusCode::RANGE_NOT_SATISFIABLE, format!("{why}\n"));
    if why.contains(':') {
        set(&mut reply, header::CONTENT_RANGE, &format!("bytes */{size}"));
    }
    reply
}

fn header_value(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim).filter(|value| !value.is_empty())
}

/// Parses an HTTP date to seconds since 1970.
fn time(text: &str) -> Option<i64> {
    // The day of the week is not compared with the date.
    let (_, text) = text.split_once(", ")?;
    let read = jiff::fmt::strtime::parse(&TIME[4..], text).and_then(|read| read.to_datetime()).ok()?;
    read.to_zoned(jiff::tz::TimeZone::UTC).ok().map(|at| at.timestamp().as_second())
}

fn empty(code: StatusCode) -> Reply {
    let mut reply = Reply::new(Body::empty());
    *reply.status_mut() = code;
    reply
}

fn set(reply: &mut Reply, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        reply.headers_mut().insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_parts() {
        let modified: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let content = Content { tag: "\"t\"", modified, media_type: "application/json" };
        let then = "Mon, 02 Jan 2026 03:04:05 GMT";
        let before = "Mon, 01 Jan 2001 00:00:00 GMT";
        for (method, headers, code, range) in [
            ("GET", vec![], 200, None),
            ("GET", vec![("if-none-match", "\"t\"")], 304, None),
            ("GET", vec![("if-none-match", "\"x\", W/\"t\"")], 304, None),
            ("GET", vec![("if-none-match", "*")], 304, None),
            ("POST", vec![("if-none-match", "*")], 412, None),
            ("GET", vec![("if-none-match", "\"x\"")], 200, None),
            ("GET", vec![("if-modified-since", then)], 304, None),
            ("GET", vec![("if-modified-since", before)], 200, None),
            ("GET", vec![("if-modified-since", "x")], 200, None),
            ("GET", vec![("if-match", "\"x\"")], 412, None),
            ("GET", vec![("if-match", "*")], 200, None),
            ("GET", vec![("if-unmodified-since", before)], 412, None),
            ("GET", vec![("if-unmodified-since", then)], 200, None),
            ("GET", vec![("range", "bytes=0-3")], 206, Some("bytes 0-3/10")),
            ("GET", vec![("range", "bytes=-3")], 206, Some("bytes 7-9/10")),
            ("GET", vec![("range", "bytes=8-")], 206, Some("bytes 8-9/10")),
            ("GET", vec![("range", "bytes=0-1,3-4")], 206, None),
            ("GET", vec![("range", "bytes=0-9,0-9")], 200, None),
            ("GET", vec![("range", "bytes=10-")], 416, Some("bytes */10")),
            ("GET", vec![("range", "x")], 416, None),
            ("GET", vec![("range", "bytes=0-3"), ("if-range", "\"x\"")], 200, None),
            ("GET", vec![("range", "bytes=0-3"), ("if-range", "\"t\"")], 206, Some("bytes 0-3/10")),
        ] {
            let given =
                headers.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)));
            let method: Method = method.parse().unwrap();
            let reply = content.reply(&method, &given.collect(), || Bytes::from_static(b"0123456789"));
            let content_range = reply.headers().get(header::CONTENT_RANGE).map(|value| value.to_str().unwrap());
            assert_eq!((reply.status().as_u16(), content_range), (code, range), "{method} {headers:?}");
            let dated = reply.headers().contains_key(header::LAST_MODIFIED);
            assert_eq!(dated, !matches!(code, 304 | 416), "{method} {headers:?}");
        }
    }
}
