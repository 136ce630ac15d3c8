//! Compression of responses by gzip.

use std::io::Write;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use http_body::{Body, Frame};
use std::pin::Pin;

use super::{ResponseBody, ResponseSource};
use crate::request_body::BodyError;

/// The smallest body that is worth it.
const MIN_LENGTH: u64 = 256;
/// Types of content that compress well.
const TYPES: &[&str] =
    &["text/", "application/json", "application/javascript", "application/xml", "image/svg+xml", "application/wasm"];

/// A body that is compressed frame by frame.
#[derive(Debug)]
pub(crate) struct Gzip {
    body: ResponseBody,
    encoder: Option<GzEncoder<Vec<u8>>>,
    trailers: Option<HeaderMap>,
}

impl Gzip {
    pub(crate) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            let Some(encoder) = &mut self.encoder else {
                return Poll::Ready(self.trailers.take().map(|trailers| Ok(Frame::trailers(trailers))));
            };
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => {
                        encoder.write_all(&data)?;
                        let compressed = std::mem::take(encoder.get_mut());
                        if !compressed.is_empty() {
                            return Poll::Ready(Some(Ok(Frame::data(compressed.into()))));
                        }
                    }
                    Err(frame) => self.trailers = frame.into_trailers().ok(),
                },
                None => {
                    let Some(encoder) = self.encoder.take() else {
                        continue;
                    };
                    return Poll::Ready(Some(Ok(Frame::data(encoder.finish()?.into()))));
                }
            }
        }
    }
}

/// Reports whether a client takes gzip.
pub(crate) fn is_accepted(headers: &HeaderMap) -> bool {
    headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok()).any(|value| {
        value.split(',').any(|coding| {
            let mut parts = coding.split(';').map(str::trim);
            let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip") || name == "*");
            let is_refused = parts.any(|part| matches!(part, "q=0" | "q=0.0" | "q=0.00" | "q=0.000"));
            is_gzip && !is_refused
        })
    })
}

/// Compresses a response if it gains by it.
pub(crate) fn compress(response: Response<ResponseBody>) -> Response<ResponseBody> {
    let (mut parts, body) = response.into_parts();
    let vary = HeaderValue::from_static("Accept-Encoding");
    if !is_compressible(&parts.headers, parts.status, &body) {
        return Response::from_parts(parts, body);
    }
    parts.headers.append(header::VARY, vary);
    parts.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.remove(header::CONTENT_LENGTH);
    parts.headers.remove(header::ACCEPT_RANGES);
    weaken_etag(&mut parts.headers);
    let encoder = GzEncoder::new(Vec::new(), Compression::new(5));
    let gzip = Gzip { body, encoder: Some(encoder), trailers: None };
    Response::from_parts(parts, ResponseBody::new(ResponseSource::Gzip(Box::new(gzip))))
}

fn is_compressible(headers: &HeaderMap, status: StatusCode, body: &ResponseBody) -> bool {
    let content_type = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let is_text = TYPES.iter().any(|kind| content_type.starts_with(kind));
    let no_transform = headers
        .get(header::CACHE_CONTROL)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|value| value.contains("no-transform"));
    status == StatusCode::OK
        && is_text
        // Events must reach the client one by one.
        && !content_type.starts_with("text/event-stream")
        && !headers.contains_key(header::CONTENT_ENCODING)
        && !no_transform
        && !body.is_end_stream()
        && body.size_hint().exact().is_none_or(|length| length >= MIN_LENGTH)
}

/// A compressed body is not the same bytes: its tag only says that it means the same.
fn weaken_etag(headers: &mut HeaderMap) {
    let Some(weak) = headers.get(header::ETAG).and_then(|tag| tag.to_str().ok()).filter(|tag| !tag.starts_with("W/"))
    else {
        return;
    };
    if let Ok(weak) = HeaderValue::from_str(&format!("W/{weak}")) {
        headers.insert(header::ETAG, weak);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::io::Read;

    #[test]
    fn gzip_is_taken_unless_refused() {
        for (value, expected) in
            [("gzip", true), ("br, gzip;q=0.5", true), ("gzip;q=0", false), ("*", true), ("br", false), ("", false)]
        {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, value.parse().unwrap());
            assert_eq!(is_accepted(&headers), expected, "{value}");
        }
    }

    #[tokio::test]
    async fn a_compressed_body_has_the_same_bytes() {
        let text = "a line of text\n".repeat(1000);
        let response = Response::builder()
            .header(header::CONTENT_TYPE, "text/plain")
            .header(header::CONTENT_LENGTH, text.len())
            .header(header::ETAG, "\"1\"")
            .body(ResponseBody::whole(text.clone()))
            .unwrap();
        let response = compress(response);
        assert_eq!(response.headers()[header::CONTENT_ENCODING], "gzip");
        assert_eq!(response.headers()[header::ETAG], "W/\"1\"");
        assert!(!response.headers().contains_key(header::CONTENT_LENGTH));
        let compressed = response.into_body().collect().await.unwrap().to_bytes();
        assert!(compressed.len() < text.len() / 10);
        let mut decoded = String::new();
        flate2::read::GzDecoder::new(&*compressed).read_to_string(&mut decoded).unwrap();
        assert_eq!(decoded, text);
    }

    #[test]
    fn images_and_small_bodies_stay_as_they_are() {
        for (kind, length) in [("image/png", 10_000), ("text/plain", 10)] {
            let response = Response::builder()
                .header(header::CONTENT_TYPE, kind)
                .body(ResponseBody::whole("x".repeat(length)))
                .unwrap();
            assert!(!compress(response).headers().contains_key(header::CONTENT_ENCODING), "{kind}");
        }
    }
}
