//! Answers to HEAD.

use http::header::CONTENT_LENGTH;
use http::{Method, Response};
use http_body::Body;

/// Returns the answer without its body if the method is HEAD, with the length that the body had.
///
/// On HTTP/1 hyper leaves the body out by itself. On HTTP/2 it does not, and clients take the body for a protocol error.
pub fn answer<B: Body>(method: &Method, mut response: Response<B>, empty: B) -> Response<B> {
    if method != Method::HEAD {
        return response;
    }
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().entry(CONTENT_LENGTH).or_insert(length.into());
    }
    *response.body_mut() = empty;
    response
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http_body_util::Full;

    use super::*;

    #[test]
    fn only_head_loses_its_body() {
        for (method, left) in [(Method::GET, 4), (Method::HEAD, 0), (Method::POST, 4)] {
            let response = Response::new(Full::new(Bytes::from_static(b"body")));
            let response = answer(&method, response, Full::default());
            assert_eq!(response.body().size_hint().exact(), Some(left), "{method}");
            let length = response.headers().get(CONTENT_LENGTH).map(|length| length.as_bytes().to_vec());
            assert_eq!(length, (left == 0).then(|| b"4".to_vec()), "{method}");
        }
    }
}
