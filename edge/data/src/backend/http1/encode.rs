//! Writes requests of HTTP/1.1: the head, and the body in its framing.

use bytes::{Buf, Bytes, BytesMut};
use http::header::{CONTENT_LENGTH, HOST, TRAILER, TRANSFER_ENCODING};
use http::{HeaderMap, Request};
use http_body::{Body, Frame};

use crate::request_body::RequestBody;

/// The way in which the end of a body is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// The bytes that are left.
    Length(u64),
    Chunked,
}

/// Writes the head of a request, and returns the framing of its body; `None` if it has no body.
pub(super) fn head(request: &Request<RequestBody>, out: &mut BytesMut) -> Option<Framing> {
    let framing = framing(request);
    out.extend_from_slice(request.method().as_str().as_bytes());
    out.extend_from_slice(b" ");
    let target = request.uri().path_and_query().map_or("/", |target| target.as_str());
    out.extend_from_slice(target.as_bytes());
    out.extend_from_slice(b" HTTP/1.1\r\n");
    for (name, value) in request.headers() {
        if name == TRANSFER_ENCODING || (name == CONTENT_LENGTH && (framing.is_some() || value != "0")) {
            continue;
        }
        line(out, name.as_str(), value.as_bytes());
    }
    match framing {
        Some(Framing::Length(length)) => line(out, CONTENT_LENGTH.as_str(), length.to_string().as_bytes()),
        Some(Framing::Chunked) => line(out, TRANSFER_ENCODING.as_str(), b"chunked"),
        None => {}
    }
    out.extend_from_slice(b"\r\n");
    framing
}

fn line(out: &mut BytesMut, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

fn framing(request: &Request<RequestBody>) -> Option<Framing> {
    let body = request.body();
    if body.is_end_stream() {
        return None;
    }
    let named = || request.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
    Some(body.size_hint().exact().or_else(named).map_or(Framing::Chunked, Framing::Length))
}

/// A body whose length is not the one that its head names.
#[derive(Debug)]
pub(super) struct WrongLength;

impl Framing {
    /// Writes a frame of the body.
    pub(super) fn frame(&mut self, frame: Frame<Bytes>, out: &mut BytesMut) -> Result<(), WrongLength> {
        match frame.into_data() {
            Ok(data) => self.data(&data, out),
            Err(other) => {
                if let (Framing::Chunked, Ok(trailers)) = (&self, other.into_trailers()) {
                    last_chunk(&trailers, out);
                    // Nothing may follow.
                    *self = Framing::Length(0);
                }
                Ok(())
            }
        }
    }

    fn data(&mut self, data: &Bytes, out: &mut BytesMut) -> Result<(), WrongLength> {
        match self {
            Framing::Length(left) => {
                *left = left.checked_sub(data.remaining() as u64).ok_or(WrongLength)?;
                out.extend_from_slice(data);
            }
            Framing::Chunked if data.is_empty() => {}
            Framing::Chunked => {
                out.extend_from_slice(format!("{:x}\r\n", data.len()).as_bytes());
                out.extend_from_slice(data);
                out.extend_from_slice(b"\r\n");
            }
        }
        Ok(())
    }

    /// Writes the end of the body.
    pub(super) fn end(self, out: &mut BytesMut) -> Result<(), WrongLength> {
        match self {
            Framing::Length(0) => Ok(()),
            Framing::Length(_) => Err(WrongLength),
            Framing::Chunked => {
                out.extend_from_slice(b"0\r\n\r\n");
                Ok(())
            }
        }
    }
}

/// Writes the last chunk with trailers, without those that concern the message's form.
fn last_chunk(trailers: &HeaderMap, out: &mut BytesMut) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers {
        if ![CONTENT_LENGTH, TRANSFER_ENCODING, HOST, TRAILER].contains(name) {
            line(out, name.as_str(), value.as_bytes());
        }
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request_body::WholeBody;
    use http::HeaderValue;

    #[test]
    fn a_head_names_the_length_of_its_body_once() {
        for (body, headers, expected) in [
            ("", vec![], ""),
            ("", vec![("content-length", "0")], "content-length: 0\r\n"),
            ("", vec![("content-length", "7"), ("transfer-encoding", "chunked")], ""),
            ("abc", vec![("content-length", "7"), ("transfer-encoding", "chunked")], "content-length: 3\r\n"),
        ] {
            let data = (!body.is_empty()).then(|| Bytes::from_static(body.as_bytes()));
            let mut request = Request::new(RequestBody::whole(WholeBody { data, trailers: None }));
            *request.uri_mut() = "/a?b".parse().unwrap();
            for (name, value) in headers {
                request.headers_mut().append(name, HeaderValue::from_static(value));
            }
            let mut out = BytesMut::new();
            let framing = head(&request, &mut out);
            assert_eq!(framing, (!body.is_empty()).then_some(Framing::Length(3)));
            assert_eq!(String::from_utf8_lossy(&out), format!("GET /a?b HTTP/1.1\r\n{expected}\r\n"));
        }
    }

    #[test]
    fn bodies_have_the_length_that_was_named() {
        let mut out = BytesMut::new();
        let mut length = Framing::Length(3);
        length.frame(Frame::data(Bytes::from_static(b"ab")), &mut out).unwrap();
        assert!(length.end(&mut out).is_err());
        assert!(length.frame(Frame::data(Bytes::from_static(b"cd")), &mut out).is_err());
        let mut out = BytesMut::new();
        let mut chunked = Framing::Chunked;
        chunked.frame(Frame::data(Bytes::from_static(b"0123456789abcdef")), &mut out).unwrap();
        let trailers = [("x".parse().unwrap(), HeaderValue::from_static("y"))];
        chunked.frame(Frame::trailers(trailers.into_iter().collect()), &mut out).unwrap();
        chunked.end(&mut out).unwrap();
        assert_eq!(&out[..], b"10\r\n0123456789abcdef\r\n0\r\nx: y\r\n\r\n");
    }
}
