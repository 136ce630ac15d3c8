//! The requests of Query APIs: forms.

/// Returns the head of a request with a form.
pub fn form_request(path: &str, host: &str) -> http::request::Builder {
    http::Request::post(path)
        .header("host", host)
        .header("content-type", "application/x-www-form-urlencoded; charset=utf-8")
}
