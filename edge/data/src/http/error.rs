//! Answers of the edge itself: statuses with a short text, or the statuses of gRPC.

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};

use crate::response::ResponseBody;

/// The form of errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ErrorStyle {
    Http,
    Grpc,
}

impl ErrorStyle {
    /// Returns the style that a client understands.
    pub(crate) fn of(headers: &HeaderMap) -> ErrorStyle {
        let kind = headers.get(header::CONTENT_TYPE);
        if kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
            ErrorStyle::Grpc
        } else {
            ErrorStyle::Http
        }
    }
}

/// Returns the answer of a failed request.
pub(crate) fn error_response(status: StatusCode, style: ErrorStyle) -> Response<ResponseBody> {
    let reason = status.canonical_reason().unwrap_or("Error");
    let mut response = Response::new(ResponseBody::empty());
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    match style {
        ErrorStyle::Http => {
            *response.status_mut() = status;
            *response.body_mut() = ResponseBody::whole(format!("{reason}\n"));
            response.headers_mut().insert(header::CONTENT_TYPE, plain);
        }
        ErrorStyle::Grpc => {
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert("grpc-status", HeaderValue::from(grpc_code(status)));
            headers.insert("grpc-message", HeaderValue::from_str(reason).unwrap_or(plain));
        }
    }
    response
}

/// Returns gRPC's code of a status.
fn grpc_code(status: StatusCode) -> u16 {
    match status.as_u16() {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        413 | 429 => 8,
        502 | 503 => 14,
        504 => 4,
        500 => 14,
        _ => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grpc_client_gets_a_grpc_status() {
        for (status, code) in [(404, "12"), (503, "14"), (504, "4"), (401, "16"), (418, "2")] {
            let response = error_response(StatusCode::from_u16(status).unwrap(), ErrorStyle::Grpc);
            assert_eq!(response.status(), 200);
            assert_eq!(response.headers()["grpc-status"], code, "{status}");
        }
        assert_eq!(error_response(StatusCode::NOT_FOUND, ErrorStyle::Http).status(), 404);
    }
}
