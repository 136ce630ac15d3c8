//! Sends a request to an endpoint, and to another one if the first cannot be reached.
//!
//! A request is sent again only if no byte of a response was passed on. Where no connection could be made, or no byte of
//! the request was sent, that is always safe; else only a rule's retry policy, or a request that changes nothing on a
//! connection that the endpoint closed while it was idle, allows it.
//!
//! The futures of rare steps are boxed: the one of a request is copied when it begins, and so must stay small.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use corten_routing::{BackendProtocol, Retry};
use http::header::{CONNECTION, HOST, UPGRADE};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode, Uri, Version};
use hyper::body::Incoming;
use tokio::time::{Instant, timeout_at};

use super::{Exchange, head, upgrade};
use crate::backend::{Backend, Client, ConnectError, Connected, Endpoint, Http1Connection, Http2Stream, InFlight};
use crate::policy::session::{self, Session};
use crate::random;
use crate::request_body::{RequestBody, WholeBody};
use crate::response::{ResponseBody, ResponseSource};
use crate::table::{Target, Targets};

/// The most endpoints that a request tries to connect to.
const MAX_CONNECTS: usize = 5;
/// The most times that a request is sent again because its connection was closed.
const MAX_REPEATS: u32 = 5;
/// The longest body that is kept to be sent again.
const MAX_KEPT: usize = 64 * 1024;

/// A request that got no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    NoEndpoint,
    Unreachable,
    /// TLS or HTTP with the endpoint failed.
    BadGateway,
    Reset,
    Timeout,
    TooLarge,
    BadRequest,
}

impl Failure {
    pub(super) fn status(self) -> StatusCode {
        match self {
            Failure::NoEndpoint | Failure::Unreachable | Failure::Reset => StatusCode::SERVICE_UNAVAILABLE,
            Failure::BadGateway => StatusCode::BAD_GATEWAY,
            Failure::Timeout => StatusCode::GATEWAY_TIMEOUT,
            Failure::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Failure::BadRequest => StatusCode::BAD_REQUEST,
        }
    }
}

/// Returns the target of a session's endpoint if it is still there.
pub(super) fn session_target(targets: &Targets, session: Session) -> Option<&Target> {
    targets.all().iter().find(|target| {
        let backend = target.backend.as_ref();
        backend.is_some_and(|backend| backend.session_endpoint(session.endpoint).is_some())
    })
}

/// A response's head with the connection that has its body.
struct Answered {
    response: Response<()>,
    carrier: Carrier,
    request: InFlight,
}

enum Carrier {
    Http1(Box<Http1Connection>),
    Http2(Http2Stream, Incoming),
}

/// One try that failed.
struct Failed {
    failure: Failure,
    /// Whether it is safe to repeat the request: no byte of it was sent, or it changes nothing and the endpoint may have
    /// closed the connection while it was idle.
    is_repeatable: bool,
}

/// Forwards a request until it is answered or has failed for good.
pub(super) async fn forward(
    exchange: &mut Exchange<'_>,
    backend: &Arc<Backend>,
    parts: &mut Parts,
    body: RequestBody,
) -> Result<Response<ResponseBody>, Failure> {
    if !backend.has_endpoints() {
        return Err(Failure::NoEndpoint);
    }
    let deadline = exchange.rule.timeouts.request.map(|limit| exchange.begun + limit);
    let mut request = outgoing(exchange, backend, parts, body)?;
    let trying = try_endpoints(exchange, backend, &mut request);
    let answered = match deadline {
        None => trying.await,
        Some(deadline) => timeout_at(deadline, Box::pin(trying)).await.unwrap_or(Err(Failure::Timeout)),
    };
    let answered = answered.map_err(|failure| {
        let is_exceeded = exchange.limit.as_ref().is_some_and(|limit| limit.is_exceeded());
        if is_exceeded { Failure::TooLarge } else { failure }
    })?;
    let mut response = respond(exchange, answered);
    if let Some(deadline) = deadline {
        response.body_mut().set_deadline(deadline);
    }
    Ok(response)
}

/// Sends a request of our own to a backend.
pub(super) async fn send_once(
    exchange: &Exchange<'_>,
    backend: &Arc<Backend>,
    mut request: Request<RequestBody>,
) -> Result<Response<ResponseBody>, Failure> {
    set_target(&mut request, backend.protocol(), exchange.connection.scheme())?;
    let client = exchange.connection.addresses();
    let answered = send_to_backend(backend, client, request).await?;
    Ok(into_response(answered))
}

/// Sends a request to some endpoint of a backend, without retries.
pub(super) async fn mirror_to(
    backend: &Arc<Backend>,
    client: Client,
    scheme: &str,
    mut request: Request<RequestBody>,
) -> Result<Response<ResponseBody>, Failure> {
    set_target(&mut request, backend.protocol(), scheme)?;
    Ok(into_response(send_to_backend(backend, client, request).await?))
}

async fn send_to_backend(
    backend: &Arc<Backend>,
    client: Client,
    mut request: Request<RequestBody>,
) -> Result<Answered, Failure> {
    let endpoint = backend.choose(&[]).ok_or(Failure::NoEndpoint)?;
    let connected = backend.connect(&endpoint, client).await.map_err(|error| connect_failure(&error))?;
    send(&endpoint, connected, &mut request).await.map_err(|failed| failed.failure)
}

/// Makes our request of the client's.
fn outgoing(
    exchange: &Exchange<'_>,
    backend: &Backend,
    parts: &mut Parts,
    body: RequestBody,
) -> Result<Request<RequestBody>, Failure> {
    let mut request = Request::new(body);
    *request.method_mut() = std::mem::take(&mut parts.method);
    *request.headers_mut() = std::mem::take(&mut parts.headers);
    *request.uri_mut() = match &exchange.target {
        Some(target) => target.parse().map_err(|_| Failure::BadRequest)?,
        None => std::mem::take(&mut parts.uri),
    };
    set_target(&mut request, backend.protocol(), exchange.connection.scheme())?;
    Ok(request)
}

/// Gives a request the form of its protocol: HTTP/1.1 has the path in its target, HTTP/2 scheme and authority too.
fn set_target(request: &mut Request<RequestBody>, protocol: BackendProtocol, scheme: &str) -> Result<(), Failure> {
    match protocol {
        BackendProtocol::Http1 => {
            *request.version_mut() = Version::HTTP_11;
            if request.uri().authority().is_some() {
                let path = request.uri().path_and_query().cloned();
                *request.uri_mut() = path.map_or_else(Uri::default, Uri::from);
            }
        }
        BackendProtocol::Http2 => {
            *request.version_mut() = Version::HTTP_2;
            request.headers_mut().remove(CONNECTION);
            request.headers_mut().remove(UPGRADE);
            let host = request.headers_mut().remove(HOST).ok_or(Failure::BadRequest)?;
            let mut target = std::mem::take(request.uri_mut()).into_parts();
            target.authority = Some(host.as_bytes().try_into().map_err(|_| Failure::BadRequest)?);
            target.scheme = Some(scheme.parse().map_err(|_| Failure::BadRequest)?);
            *request.uri_mut() = Uri::from_parts(target).map_err(|_| Failure::BadRequest)?;
        }
    }
    Ok(())
}

/// Tries endpoints until one answers.
async fn try_endpoints(
    exchange: &Exchange<'_>,
    backend: &Arc<Backend>,
    request: &mut Request<RequestBody>,
) -> Result<Answered, Failure> {
    let is_repeatable = is_safe_to_repeat(request.method());
    let retry = exchange.rule.retry.as_deref().filter(|retry| is_repeatable || !retry.idempotent_only);
    let kept = match retry {
        Some(_) => Box::pin(keep(request)).await?,
        None => None,
    };
    let mut attempts = 0;
    let mut repeats = 0;
    let mut failed_at: Vec<SocketAddr> = Vec::new();
    loop {
        let (endpoint, connected) = connect(exchange, backend, &failed_at).await?;
        let sent = send_in_time(exchange, &endpoint, connected, request).await;
        let result = match sent {
            Ok(answered) => {
                let is_final = !retry.is_some_and(|retry| retry.codes.contains(&answered.response.status().as_u16()));
                if is_final || !may_retry(retry, attempts, kept.as_ref()) {
                    return Ok(answered);
                }
                None
            }
            Err(failed) => Some(failed),
        };
        if let Some(failed) = result {
            if failed.is_repeatable && repeats < MAX_REPEATS {
                // The other idle connections may be as old.
                endpoint.close_idle();
                repeats += 1;
                continue;
            }
            let is_retried = matches!(failed.failure, Failure::Reset | Failure::Timeout);
            if !is_retried || !may_retry(retry, attempts, kept.as_ref()) {
                return Err(failed.failure);
            }
        }
        attempts += 1;
        failed_at.push(endpoint.address);
        exchange.connection.shared.metrics.retries.add(1.0);
        if let Some(retry) = retry {
            Box::pin(tokio::time::sleep(backoff(retry, attempts))).await;
        }
        *request = kept.as_ref().map(Kept::request).ok_or(Failure::Reset)?;
    }
}

fn may_retry(retry: Option<&Retry>, attempts: u32, kept: Option<&Kept>) -> bool {
    kept.is_some() && retry.is_some_and(|retry| attempts < retry.attempts)
}

/// Returns the pause before a retry: the policy's, longer each time, and a part of it by chance so that the requests of
/// one failure do not come back at once.
fn backoff(retry: &Retry, attempt: u32) -> Duration {
    let full = retry.backoff.saturating_mul(1u32 << (attempt - 1).min(5));
    let half = full / 2;
    let spread = u64::try_from(half.as_millis()).unwrap_or(0);
    half + Duration::from_millis(random::number() % spread.saturating_add(1))
}

fn is_safe_to_repeat(method: &Method) -> bool {
    matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::PUT | Method::DELETE | Method::TRACE)
}

/// Connects to an endpoint; to another one if that fails. Endpoints that failed the request before come last.
async fn connect(
    exchange: &Exchange<'_>,
    backend: &Arc<Backend>,
    failed_at: &[SocketAddr],
) -> Result<(Arc<Endpoint>, Connected), Failure> {
    let mut tried: Vec<SocketAddr> = Vec::new();
    let client = exchange.connection.addresses();
    let mut failure = Failure::NoEndpoint;
    let mut session = exchange.session;
    while tried.len() < MAX_CONNECTS {
        let persistent = session.take().and_then(|session| backend.session_endpoint(session.endpoint));
        let hashed = exchange.hash.and_then(|hash| backend.choose_by_hash(hash, &tried));
        let other = || match failed_at {
            [] => None,
            _ => backend.choose(&[&tried, failed_at].concat()),
        };
        let Some(endpoint) = persistent.or(hashed).or_else(other).or_else(|| backend.choose(&tried)) else {
            return Err(failure);
        };
        match backend.connect(&endpoint, client).await {
            Ok(connected) => return Ok((endpoint, connected)),
            Err(error) => {
                tracing::debug!(%error, endpoint = %endpoint.address, backend = %backend.key.service, "no connection");
                failure = connect_failure(&error);
                tried.push(endpoint.address);
            }
        }
    }
    Err(failure)
}

fn connect_failure(error: &ConnectError) -> Failure {
    match error {
        ConnectError::Unreachable(_) => Failure::Unreachable,
        ConnectError::Tls(_) | ConnectError::InvalidTls | ConnectError::Http(_) => Failure::BadGateway,
    }
}

async fn send_in_time(
    exchange: &Exchange<'_>,
    endpoint: &Arc<Endpoint>,
    connected: Connected,
    request: &mut Request<RequestBody>,
) -> Result<Answered, Failed> {
    match exchange.rule.timeouts.backend_request {
        None => send(endpoint, connected, request).await,
        Some(limit) => {
            let sending = Box::pin(send(endpoint, connected, request));
            let late = Failed { failure: Failure::Timeout, is_repeatable: false };
            timeout_at(Instant::now() + limit, sending).await.unwrap_or(Err(late))
        }
    }
}

/// Sends a request. One that was not sent, and is safe to repeat, is left as it was.
async fn send(
    endpoint: &Arc<Endpoint>,
    connected: Connected,
    request: &mut Request<RequestBody>,
) -> Result<Answered, Failed> {
    let in_flight = endpoint.begin();
    match connected {
        Connected::Http1(mut connection) => {
            let is_reused = connection.is_reused;
            match connection.send(request).await {
                Ok(response) => Ok(Answered { response, carrier: Carrier::Http1(connection), request: in_flight }),
                Err(error) => {
                    let failure = if error.is_invalid { Failure::BadGateway } else { Failure::Reset };
                    let is_safe = !error.is_sent || is_reused && is_safe_to_repeat(request.method());
                    Err(Failed { failure, is_repeatable: error.is_whole && is_safe })
                }
            }
        }
        Connected::Http2(mut stream) => match stream.sender.try_send_request(take(request)).await {
            Ok(response) => {
                let (head, body) = response.into_parts();
                let response = Response::from_parts(head, ());
                Ok(Answered { response, carrier: Carrier::Http2(stream, body), request: in_flight })
            }
            Err(mut error) => {
                let again = error.take_message();
                let is_repeatable = again.is_some();
                if let Some(again) = again {
                    *request = again;
                }
                Err(Failed { failure: Failure::Reset, is_repeatable })
            }
        },
    }
}

/// Takes a request out of its place.
fn take(request: &mut Request<RequestBody>) -> Request<RequestBody> {
    std::mem::replace(request, Request::new(RequestBody::empty()))
}

/// Makes the client's response of the endpoint's.
fn respond(exchange: &mut Exchange<'_>, answered: Answered) -> Response<ResponseBody> {
    let endpoint = answered.request.endpoint().address;
    let mut response = if answered.response.status() == StatusCode::SWITCHING_PROTOCOLS {
        let (head, _) = answered.response.into_parts();
        match (exchange.upgrade.take(), answered.carrier) {
            (Some(client), Carrier::Http1(connection)) => {
                upgrade::begin(exchange.connection, client, connection, answered.request);
                Response::from_parts(head, ResponseBody::empty())
            }
            // The endpoint changed protocols, though that was not asked for.
            _ => super::error_response(StatusCode::BAD_GATEWAY, exchange.style),
        }
    } else {
        into_response(answered)
    };
    if let Some(policy) = &exchange.rule.session {
        session::write(policy, exchange.session, endpoint, response.headers_mut());
    }
    response
}

fn into_response(answered: Answered) -> Response<ResponseBody> {
    let (mut parts, ()) = answered.response.into_parts();
    head::remove_connection_headers(&mut parts.headers);
    parts.version = Version::HTTP_11;
    let source = match answered.carrier {
        Carrier::Http1(connection) => ResponseSource::Http1 { connection: Some(connection), request: answered.request },
        Carrier::Http2(stream, body) => ResponseSource::Http2 { body, _slot: stream.slot, _request: answered.request },
    };
    Response::from_parts(parts, ResponseBody::new(source))
}

/// A request that can be sent again.
struct Kept {
    head: Request<()>,
    body: WholeBody,
}

impl Kept {
    fn request(&self) -> Request<RequestBody> {
        let head = self.head.clone();
        head.map(|()| RequestBody::whole(self.body.clone()))
    }
}

fn head_of(request: &Request<RequestBody>) -> Request<()> {
    let mut head = Request::new(());
    *head.method_mut() = request.method().clone();
    *head.uri_mut() = request.uri().clone();
    *head.version_mut() = request.version();
    head.headers_mut().clone_from(request.headers());
    head
}

/// Reads a body into memory, so that the request can be sent again. A long one is sent once.
async fn keep(request: &mut Request<RequestBody>) -> Result<Option<Kept>, Failure> {
    let body = std::mem::replace(request.body_mut(), RequestBody::empty());
    match body.read_whole(MAX_KEPT).await.map_err(|_| Failure::BadRequest)? {
        Ok(whole) => {
            let kept = Kept { head: head_of(request), body: whole };
            *request.body_mut() = RequestBody::whole(kept.body.clone());
            Ok(Some(kept))
        }
        Err(rest) => {
            *request.body_mut() = rest;
            Ok(None)
        }
    }
}
