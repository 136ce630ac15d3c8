//! Reads responses of HTTP/1.1: the head, the length of the body, and its pieces. No I/O.
//!
//! A response whose length two readers could understand differently is invalid.

use std::mem::MaybeUninit;
use std::ops::Range;

use bytes::{Bytes, BytesMut};
use http::header::{CONNECTION, CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::Invalid;
use super::chunked::{Chunked, take};

/// The most bytes of a head.
const MAX_HEAD: usize = 256 * 1024;
/// The most headers of a head, or trailers.
const MAX_HEADERS: usize = 256;

/// The head of a response.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Framing,
    /// Whether another request may follow on the connection.
    pub(super) is_kept: bool,
}

/// The way in which the end of a body is found, and the position in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// The bytes that are left.
    Length(u64),
    Chunked(Chunked),
    /// The body ends with the connection.
    Close,
}

/// A piece of a body.
#[derive(Debug)]
pub(super) enum Piece {
    Data(Bytes),
    Trailers(HeaderMap),
    End,
}

impl Framing {
    pub(super) const EMPTY: Framing = Framing::Length(0);

    pub(super) fn is_end(&self) -> bool {
        matches!(self, Framing::Length(0) | Framing::Chunked(Chunked::End))
    }

    /// Takes the next piece of the body from bytes that were read; `None` if it needs more of them.
    pub(super) fn next(&mut self, read: &mut BytesMut) -> Result<Option<Piece>, Invalid> {
        match self {
            Framing::Length(0) => Ok(Some(Piece::End)),
            Framing::Length(left) => Ok(take(read, left).map(Piece::Data)),
            Framing::Chunked(chunked) => chunked.next(read),
            Framing::Close => Ok((!read.is_empty()).then(|| Piece::Data(read.split().freeze()))),
        }
    }
}

/// A header's name, and the place of its value.
struct Place {
    name: HeaderName,
    value: Range<usize>,
}

/// Returns the places of headers in the bytes that they were parsed from.
fn places(parsed: &[httparse::Header<'_>], bytes: &[u8]) -> Result<Vec<Place>, Invalid> {
    let start = bytes.as_ptr().addr();
    let place = |header: &httparse::Header<'_>| {
        let name = HeaderName::from_bytes(header.name.as_bytes()).map_err(|_| Invalid)?;
        let begin = header.value.as_ptr().addr().checked_sub(start).ok_or(Invalid)?;
        Ok(Place { name, value: begin..begin + header.value.len() })
    };
    parsed.iter().map(place).collect()
}

/// Returns the headers at places of bytes, which they share.
fn shared(places: Vec<Place>, bytes: &Bytes) -> Result<HeaderMap, Invalid> {
    let mut headers = HeaderMap::with_capacity(places.len());
    for place in places {
        if place.value.end > bytes.len() {
            return Err(Invalid);
        }
        let value = HeaderValue::from_maybe_shared(bytes.slice(place.value)).map_err(|_| Invalid)?;
        headers.append(place.name, value);
    }
    Ok(headers)
}

/// Returns the headers of bytes that hold nothing else.
pub(super) fn headers(bytes: &Bytes) -> Result<HeaderMap, Invalid> {
    let mut parsed = [httparse::EMPTY_HEADER; MAX_HEADERS];
    match httparse::parse_headers(bytes, &mut parsed) {
        Ok(httparse::Status::Complete((length, found))) if length == bytes.len() => {
            shared(places(found, bytes)?, bytes)
        }
        _ => Err(Invalid),
    }
}

/// Takes the head of the response to a request with a method; `None` if it needs more bytes. Heads of interim responses
/// are skipped.
pub(super) fn take_head(read: &mut BytesMut, method: &Method) -> Result<Option<Head>, Invalid> {
    loop {
        let mut space = [const { MaybeUninit::<httparse::Header<'_>>::uninit() }; MAX_HEADERS];
        let mut response = httparse::Response::new(&mut []);
        let config = httparse::ParserConfig::default();
        let parsed = config.parse_response_with_uninit_headers(&mut response, read, &mut space);
        let length = match parsed.map_err(|_| Invalid)? {
            httparse::Status::Complete(length) => length,
            httparse::Status::Partial if read.len() < MAX_HEAD => return Ok(None),
            httparse::Status::Partial => return Err(Invalid),
        };
        let status = response.code.and_then(|code| StatusCode::from_u16(code).ok()).ok_or(Invalid)?;
        let is_http11 = response.version == Some(1);
        let places = places(response.headers, read)?;
        let bytes = read.split_to(length).freeze();
        if status.is_informational() && status != StatusCode::SWITCHING_PROTOCOLS {
            continue;
        }
        let mut headers = shared(places, &bytes)?;
        let body = framing(&mut headers, status, method, is_http11)?;
        let is_kept = body != Framing::Close && keeps(&headers, is_http11) && status != StatusCode::SWITCHING_PROTOCOLS;
        return Ok(Some(Head { status, headers, body, is_kept }));
    }
}

/// Reports whether the endpoint keeps the connection open.
fn keeps(headers: &HeaderMap, is_http11: bool) -> bool {
    let has = |token: &[u8]| {
        let values = headers.get_all(CONNECTION).iter();
        let mut tokens = values.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        tokens.any(|one| one.trim_ascii().eq_ignore_ascii_case(token))
    };
    if is_http11 { !has(b"close") } else { has(b"keep-alive") }
}

fn framing(headers: &mut HeaderMap, status: StatusCode, method: &Method, is_http11: bool) -> Result<Framing, Invalid> {
    let length = content_length(headers)?;
    let is_bodiless = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED)
        || status == StatusCode::SWITCHING_PROTOCOLS
        || method == Method::HEAD;
    if is_bodiless {
        return Ok(Framing::EMPTY);
    }
    let mut codings = headers.get_all(TRANSFER_ENCODING).iter();
    if let Some(coding) = codings.next() {
        // Another coding would reach the client under a name that says otherwise.
        let is_chunked = coding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
        if !is_chunked || codings.next().is_some() || !is_http11 {
            return Err(Invalid);
        }
        headers.remove(CONTENT_LENGTH);
        return Ok(Framing::Chunked(Chunked::Size));
    }
    Ok(length.map_or(Framing::Close, Framing::Length))
}

/// Returns the length that the headers name; more than one must be the same.
fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Invalid> {
    let mut found = None;
    for value in headers.get_all(CONTENT_LENGTH) {
        let digits = std::str::from_utf8(value.as_bytes()).map_err(|_| Invalid)?;
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(Invalid);
        }
        let length: u64 = digits.parse().map_err(|_| Invalid)?;
        if found.is_some_and(|other| other != length) {
            return Err(Invalid);
        }
        found = Some(length);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes a response, read as a whole and byte by byte.
    fn read(response: &str, method: &Method) -> String {
        let whole = describe([response.as_bytes()].into_iter(), method);
        let pieces = describe(response.as_bytes().chunks(1), method);
        assert_eq!(whole, pieces, "{response:?}");
        whole
    }

    fn describe<'a>(chunks: impl Iterator<Item = &'a [u8]>, method: &Method) -> String {
        let mut read = BytesMut::new();
        let mut head: Option<Head> = None;
        let mut body = Vec::new();
        let mut trailers = String::new();
        for chunk in chunks {
            read.extend_from_slice(chunk);
            if head.is_none() {
                match take_head(&mut read, method) {
                    Ok(taken) => head = taken,
                    Err(Invalid) => return "invalid".to_owned(),
                }
            }
            let Some(head) = &mut head else { continue };
            while !head.body.is_end() {
                match head.body.next(&mut read) {
                    Ok(Some(Piece::Data(data))) => body.extend_from_slice(&data),
                    Ok(Some(Piece::Trailers(found))) => trailers = format!(" {found:?}"),
                    Ok(Some(Piece::End)) | Ok(None) => break,
                    Err(Invalid) => return "invalid".to_owned(),
                }
            }
        }
        let Some(head) = head else { return "incomplete".to_owned() };
        let end = if head.body.is_end() { "end" } else { "open" };
        let kept = if head.is_kept { "kept" } else { "closed" };
        let left = if read.is_empty() { "" } else { ", more" };
        let body = String::from_utf8_lossy(&body).into_owned();
        format!("{} {body:?}{trailers} {end} {kept}{left}", head.status.as_u16())
    }

    #[test]
    fn bodies_end_where_their_framing_says() {
        for (response, expected) in [
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", "200 \"abc\" end kept"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcd", "200 \"abc\" end kept, more"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", "200 \"abc\" open kept"),
            ("HTTP/1.1 200 OK\r\nConnection: x, Close\r\nContent-Length: 0\r\n\r\n", "200 \"\" end closed"),
            ("HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na", "200 \"a\" end closed"),
            ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 1\r\n\r\na", "200 \"a\" end kept"),
            ("HTTP/1.1 200 OK\r\n\r\nabc", "200 \"abc\" open closed"),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 7\r\n\r\n", "204 \"\" end kept"),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "200 \"\" end kept"),
            ("HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\n\r\nabc", "101 \"\" end closed, more"),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nab\r\n1\r\nc\r\n0\r\n\r\n",
                "200 \"abc\" end kept",
            ),
            (
                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n\r\n0\r\nx: y\r\n\r\n",
                "200 \"\" {\"x\": \"y\"} end kept",
            ),
            ("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", "200 \"a\" end kept"),
            ("HTTP/1.1 200", "incomplete"),
        ] {
            assert_eq!(read(response, &Method::GET), expected, "{response:?}");
        }
        assert_eq!(read("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", &Method::HEAD), "200 \"\" end kept");
    }

    #[test]
    fn responses_of_doubtful_length_are_invalid() {
        for headers in [
            "Content-Length: 1\r\nContent-Length: 2\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length:\r\n",
            "Content-Length: 99999999999999999999\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
            "Transfer-Encoding: identity\r\n",
            "bad header\r\n",
        ] {
            assert_eq!(read(&format!("HTTP/1.1 200 OK\r\n{headers}\r\n"), &Method::GET), "invalid", "{headers:?}");
        }
        assert_eq!(read("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", &Method::GET), "invalid");
        for body in ["x\r\n", "\r\n", "1\nab", "+1\r\na\r\n", "1\r\nab\r\n", "11111111111111111\r\n", "0x1\r\na\r\n"] {
            let response = format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
            assert_eq!(read(&response, &Method::GET), "invalid", "{body:?}");
        }
    }
}
