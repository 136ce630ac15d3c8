//! Error pages that a backend makes: it learns the status and the request by headers, and its body is the client's.

use http::header::{ACCEPT, HOST, HeaderName};
use http::request::Parts;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use std::time::Duration;

use super::{Exchange, forward};
use crate::filters::ErrorBackend;
use crate::request_body::RequestBody;
use crate::response::ResponseBody;

/// The longest time for an error page; without it the client gets the response as it was.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The parts of a request that an error page needs, kept because the request itself goes on.
pub(super) struct Asked<'a> {
    of: &'a ErrorBackend,
    host: Option<HeaderValue>,
    accept: Option<HeaderValue>,
    target: Option<HeaderValue>,
}

impl<'a> Asked<'a> {
    pub(super) fn of(of: &'a ErrorBackend, exchange: &Exchange<'_>, parts: &Parts) -> Asked<'a> {
        let own = parts.uri.path_and_query().map(|path| path.as_str());
        let target = exchange.target.as_deref().or(own).and_then(|target| HeaderValue::from_str(target).ok());
        Asked { of, host: parts.headers.get(HOST).cloned(), accept: parts.headers.get(ACCEPT).cloned(), target }
    }

    /// Returns the page of the backend for a response with one of its statuses, and every other response as it is.
    pub(super) async fn replace(
        self,
        exchange: &Exchange<'_>,
        response: Response<ResponseBody>,
    ) -> Response<ResponseBody> {
        let status = response.status();
        if !self.of.pages.statuses.contains(&status.as_u16()) {
            return response;
        }
        let asking = forward::send_once(exchange, &self.of.backend, self.question(exchange, status));
        match tokio::time::timeout(TIMEOUT, asking).await {
            Ok(Ok(mut page)) => {
                *page.status_mut() = status;
                page
            }
            _ => response,
        }
    }

    fn question(&self, exchange: &Exchange<'_>, status: StatusCode) -> Request<RequestBody> {
        let mut question = Request::new(RequestBody::empty());
        *question.method_mut() = Method::GET;
        *question.uri_mut() = Uri::from_static("/");
        let route = &exchange.rule.route;
        let text = |text: &str| HeaderValue::from_str(text).ok();
        let headers = [
            (HOST, self.host.clone()),
            (HeaderName::from_static("x-code"), Some(HeaderValue::from(status.as_u16()))),
            (HeaderName::from_static("x-format"), self.accept.clone()),
            (HeaderName::from_static("x-original-uri"), self.target.clone()),
            (HeaderName::from_static("x-namespace"), text(&route.namespace)),
            (HeaderName::from_static("x-ingress-name"), text(&route.name)),
        ];
        for (name, value) in headers {
            if let Some(value) = value {
                question.headers_mut().insert(name, value);
            }
        }
        question
    }
}
