//! Applies filters to a request. A filter that answers by itself ends its way.

use corten_routing::{AddressPolicy, FixedResponse, ForwardAuth, PathChange, PathMatch, Redirect};
use http::header::{
    AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, HeaderName, LOCATION, RETRY_AFTER, SET_COOKIE, WWW_AUTHENTICATE,
};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::error::error_response;
use super::{Exchange, forward, head};
use crate::backend::Backend;
use crate::filters::{Filters, RequestFilter};
use crate::policy::cors::CorsPolicy;
use crate::random;
use crate::request_body::{RequestBody, SizeLimit};
use crate::response::ResponseBody;

/// The longest time for a backend's decision on a request.
const DECISION_TIMEOUT: Duration = Duration::from_secs(10);
/// Headers of the client's request that a backend that decides does not get: it gets no body.
const BODY_HEADERS: [HeaderName; 2] = [CONTENT_LENGTH, CONTENT_TYPE];

/// Applies filters in their order. The error is the answer of one of them.
pub(super) async fn apply(
    filters: &Filters,
    exchange: &mut Exchange<'_>,
    parts: &mut Parts,
) -> Result<(), Response<ResponseBody>> {
    for filter in &filters.request {
        let style = exchange.style;
        match filter {
            RequestFilter::Headers(changes) => changes.apply(&mut parts.headers),
            RequestFilter::Redirect(redirect) if leads_back(redirect, exchange) => {}
            RequestFilter::Redirect(redirect) => return Err(redirected(redirect, exchange, parts)),
            RequestFilter::Rewrite { hostname, path } => {
                if let Some(hostname) = hostname {
                    parts.headers.insert(HOST, hostname.clone());
                }
                if let Some(change) = path {
                    let path = changed_path(change, exchange, parts);
                    exchange.target = Some(head::with_query(&path, parts.uri.query()));
                }
            }
            RequestFilter::Mirror { backend, numerator, denominator } => {
                let drawn = random::below(usize::try_from(*denominator).unwrap_or(1)).unwrap_or(0);
                if drawn < usize::try_from(*numerator).unwrap_or(0) {
                    exchange.mirrors.push(Arc::clone(backend));
                }
            }
            RequestFilter::Cors(policy) => {
                if CorsPolicy::is_preflight(&parts.method, &parts.headers) {
                    let mut response = Response::new(ResponseBody::empty());
                    *response.status_mut() = StatusCode::NO_CONTENT;
                    *response.headers_mut() = policy.preflight(&parts.headers);
                    return Err(response);
                }
                exchange.response_headers = Some(policy.response(&parts.headers));
            }
            RequestFilter::RateLimit(limiter) => limiter.check(exchange.client).map_err(|wait| {
                let mut response = error_response(StatusCode::TOO_MANY_REQUESTS, style);
                let seconds = wait.as_secs().saturating_add(1);
                response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                response
            })?,
            RequestFilter::Concurrency(limiter) => {
                let permit = limiter.begin(exchange.client);
                let permit = permit.map_err(|()| error_response(StatusCode::SERVICE_UNAVAILABLE, style))?;
                exchange.permits.extend(permit);
            }
            RequestFilter::Addresses(policy) if !is_allowed(policy, exchange.client) => {
                return Err(error_response(StatusCode::FORBIDDEN, style));
            }
            RequestFilter::Addresses(_) => {}
            RequestFilter::BasicAuth(users) => {
                if !users.accept(&parts.headers) {
                    return Err(challenged(exchange, users.challenge()));
                }
                parts.headers.remove(AUTHORIZATION);
            }
            RequestFilter::Jwt(verifier) => {
                if !verifier.accept(&mut parts.headers) {
                    return Err(challenged(exchange, HeaderValue::from_static("Bearer")));
                }
            }
            RequestFilter::ForwardAuth { policy, backend } => {
                Box::pin(decide(exchange, policy, backend, parts)).await?;
            }
            RequestFilter::BodySize(limit) if is_longer(parts, *limit) => {
                return Err(error_response(StatusCode::PAYLOAD_TOO_LARGE, style));
            }
            RequestFilter::BodySize(limit) => exchange.limit = Some(SizeLimit::new(*limit)),
            RequestFilter::AnyOf(conditions) => Box::pin(any_of(conditions, exchange, parts)).await?,
            RequestFilter::Respond(response) => {
                if !response.exempt.iter().any(|network| network.contains(exchange.client)) {
                    return Err(fixed(response));
                }
            }
        }
    }
    Ok(())
}

/// Applies conditions until one lets the request pass. The error is the answer of the last.
async fn any_of(
    conditions: &[Filters],
    exchange: &mut Exchange<'_>,
    parts: &mut Parts,
) -> Result<(), Response<ResponseBody>> {
    let mut answer = Ok(());
    for condition in conditions {
        answer = apply(condition, exchange, parts).await;
        if answer.is_ok() {
            return Ok(());
        }
    }
    answer
}

fn is_allowed(policy: &AddressPolicy, client: IpAddr) -> bool {
    let is_denied = policy.deny.iter().any(|network| network.contains(client));
    !is_denied && (policy.allow.is_empty() || policy.allow.iter().any(|network| network.contains(client)))
}

fn challenged(exchange: &Exchange<'_>, challenge: HeaderValue) -> Response<ResponseBody> {
    let mut response = error_response(StatusCode::UNAUTHORIZED, exchange.style);
    response.headers_mut().insert(WWW_AUTHENTICATE, challenge);
    response
}

/// Reports whether a body says that it is longer than a limit.
fn is_longer(parts: &Parts, limit: u64) -> bool {
    let length = parts.headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    length.is_some_and(|length| length > limit)
}

fn fixed(response: &FixedResponse) -> Response<ResponseBody> {
    let mut made = Response::new(ResponseBody::whole(response.body.to_vec()));
    *made.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::SERVICE_UNAVAILABLE);
    if let Ok(kind) = HeaderValue::from_str(&response.content_type) {
        made.headers_mut().insert(CONTENT_TYPE, kind);
    }
    made
}

/// Returns the path of a request after a change. The path that was matched has no dot segments.
fn changed_path(change: &PathChange, exchange: &Exchange<'_>, parts: &Parts) -> String {
    let matched = exchange
        .target
        .as_deref()
        .map_or_else(|| parts.uri.path(), |target| target.split('?').next().unwrap_or(target));
    let changed = match change {
        PathChange::ReplaceFull(path) => path.to_string(),
        PathChange::ReplacePrefix(replacement) => {
            let prefix = match &exchange.matched.path {
                PathMatch::Prefix(prefix) => prefix.as_str(),
                PathMatch::Exact(path) => path.as_str(),
                PathMatch::Regex(_) => "",
            };
            let rest = matched.strip_prefix(prefix.trim_end_matches('/')).unwrap_or(matched);
            format!("{}{rest}", replacement.trim_end_matches('/'))
        }
        PathChange::ReplaceGroups(replacement) => match &exchange.matched.path {
            PathMatch::Regex(regex) => match regex.captures(matched) {
                Some(groups) => {
                    let mut path = String::new();
                    groups.expand(replacement, &mut path);
                    path
                }
                None => matched.to_owned(),
            },
            PathMatch::Exact(_) | PathMatch::Prefix(_) => replacement.to_string(),
        },
    };
    if changed.starts_with('/') { changed } else { format!("/{changed}") }
}

/// Reports whether a redirect to another scheme names the address that the client asked for, because a trusted proxy
/// ended TLS: to answer with it would never end. The request goes on if its rule has backends.
fn leads_back(redirect: &Redirect, exchange: &Exchange<'_>) -> bool {
    let is_other = exchange.scheme != exchange.connection.scheme();
    is_other
        && redirect.scheme.as_deref() == Some(exchange.scheme)
        && redirect.hostname.as_deref().is_none_or(|hostname| hostname == exchange.host)
        && redirect.path.is_none()
        && redirect.port.is_none()
        && !exchange.rule.targets.all().is_empty()
}

/// Returns the answer of a redirect.
fn redirected(redirect: &Redirect, exchange: &Exchange<'_>, parts: &Parts) -> Response<ResponseBody> {
    let connection = exchange.connection;
    let scheme = redirect.scheme.as_deref().unwrap_or(exchange.scheme);
    let host = redirect.hostname.as_deref().unwrap_or(exchange.host);
    let own_port = match scheme {
        "https" => 443,
        _ => 80,
    };
    // The port that a proxy in front listens on is its scheme's own.
    let is_proxied = exchange.scheme != connection.scheme();
    let listener_port = if redirect.scheme.is_some() || is_proxied { own_port } else { connection.port };
    let port = redirect.port.unwrap_or(listener_port);
    let path = match &redirect.path {
        Some(change) => head::with_query(&changed_path(change, exchange, parts), parts.uri.query()),
        None => {
            let own = parts.uri.path_and_query().map_or("/", |path| path.as_str());
            exchange.target.clone().unwrap_or_else(|| own.to_owned())
        }
    };
    let location =
        if port == own_port { format!("{scheme}://{host}{path}") } else { format!("{scheme}://{host}:{port}{path}") };
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::from_u16(redirect.status).unwrap_or(StatusCode::FOUND);
    match HeaderValue::from_str(&location) {
        Ok(location) => {
            response.headers_mut().insert(LOCATION, location);
            response
        }
        Err(_) => error_response(StatusCode::BAD_REQUEST, exchange.style),
    }
}

/// Asks a backend whether a request may pass. Its headers that the policy names go to the request.
async fn decide(
    exchange: &mut Exchange<'_>,
    policy: &ForwardAuth,
    backend: &Arc<Backend>,
    parts: &mut Parts,
) -> Result<(), Response<ResponseBody>> {
    let style = exchange.style;
    let failed = |status| error_response(status, style);
    let target = exchange.target.clone();
    let own = target.unwrap_or_else(|| parts.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned());
    let question = question(exchange, policy, parts, &own).map_err(|()| failed(StatusCode::INTERNAL_SERVER_ERROR))?;
    let asking = forward::send_once(exchange, backend, question);
    let decided = tokio::time::timeout(DECISION_TIMEOUT, asking).await;
    let decision = decided
        .map_err(|_| failed(StatusCode::GATEWAY_TIMEOUT))?
        .map_err(|_| failed(StatusCode::SERVICE_UNAVAILABLE))?;
    if decision.status().is_success() {
        for name in policy.response_headers.iter().filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok()) {
            parts.headers.remove(&name);
            for value in decision.headers().get_all(&name) {
                parts.headers.append(name.clone(), value.clone());
            }
        }
        return Ok(());
    }
    let is_refused = matches!(decision.status(), StatusCode::UNAUTHORIZED);
    match &policy.sign_in {
        Some(sign_in) if is_refused => Err(sign_in_redirect(exchange, sign_in, parts, &own, decision.headers())),
        _ => Err(decision),
    }
}

/// Returns the request to the backend that decides.
fn question(
    exchange: &Exchange<'_>,
    policy: &ForwardAuth,
    parts: &Parts,
    own: &str,
) -> Result<Request<RequestBody>, ()> {
    let mut question = Request::new(RequestBody::empty());
    *question.method_mut() = Method::GET;
    *question.uri_mut() = policy.path.replace("{path}", own).parse().map_err(|_| ())?;
    let headers = question.headers_mut();
    if policy.request_headers.is_empty() {
        headers.clone_from(&parts.headers);
        for name in BODY_HEADERS {
            headers.remove(name);
        }
        head::remove_connection_headers(headers);
    } else {
        let named = policy.request_headers.iter().filter_map(|name| HeaderName::from_bytes(name.as_bytes()).ok());
        for name in named {
            for value in parts.headers.get_all(&name) {
                headers.append(name.clone(), value.clone());
            }
        }
    }
    let host = match &policy.host {
        Some(host) => HeaderValue::from_str(host).map_err(|_| ())?,
        None => parts.headers.get(HOST).cloned().ok_or(())?,
    };
    headers.insert(HOST, host);
    let url = format!("{}://{}{own}", exchange.scheme, exchange.host);
    for (name, value) in [
        ("x-forwarded-method", parts.method.as_str()),
        ("x-forwarded-uri", own),
        ("x-original-method", parts.method.as_str()),
        ("x-original-url", &url),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_str(value).map_err(|_| ())?);
    }
    Ok(question)
}

/// Encodes a string as the value of a query.
fn encoded(text: &str) -> String {
    let character = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(character).collect()
}

fn sign_in_redirect(
    exchange: &Exchange<'_>,
    sign_in: &str,
    parts: &Parts,
    own: &str,
    decided: &HeaderMap,
) -> Response<ResponseBody> {
    let host = parts.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or(exchange.host);
    let url = format!("{}://{host}{own}", exchange.scheme);
    // The host comes last: only its own characters are not encoded.
    let location = sign_in
        .replace("{url}", &encoded(&url))
        .replace("{path}", &encoded(own))
        .replace("{scheme}", exchange.scheme)
        .replace("{host}", host);
    let Ok(location) = HeaderValue::from_str(&location) else {
        return error_response(StatusCode::UNAUTHORIZED, exchange.style);
    };
    let mut response = Response::new(ResponseBody::empty());
    *response.status_mut() = StatusCode::FOUND;
    response.headers_mut().insert(LOCATION, location);
    for cookie in decided.get_all(SET_COOKIE) {
        response.headers_mut().append(SET_COOKIE, cookie.clone());
    }
    response
}
