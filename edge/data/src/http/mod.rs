//! The way of a request: check, match, filter, forward, filter the response, count.

mod error;
mod error_page;
mod filter;
mod forward;
mod head;
mod mirror;
mod upgrade;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use corten_routing::HttpRule;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;

use crate::access_log::Entry;
use crate::backend::Backend;
use crate::client::ConnectionInfo;
use crate::policy::rate::Permit;
use crate::policy::{hash, session};
use crate::request_body::{RequestBody, SizeLimit};
use crate::response::{ResponseBody, compression};
use crate::table::{HttpHosts, HttpTable, Protocol, Rule, Table, TlsTable};
use error::{ErrorStyle, error_response};

/// A request that a rule took.
pub(crate) struct Exchange<'a> {
    connection: &'a Arc<ConnectionInfo>,
    rule: &'a Rule,
    matched: &'a HttpRule,
    client: IpAddr,
    /// The scheme that the client used: a trusted proxy may have ended TLS.
    scheme: &'static str,
    begun: tokio::time::Instant,
    /// The host as the client wrote it, in lower case and without a port.
    host: &'a str,
    /// The path and query to forward, if it is not the client's.
    target: Option<String>,
    /// Headers that the response gets.
    response_headers: Option<HeaderMap>,
    limit: Option<SizeLimit>,
    mirrors: Vec<Arc<Backend>>,
    session: Option<session::Session>,
    /// The hash by which an endpoint is chosen.
    hash: Option<u64>,
    /// The limits that count the request until its response ends.
    permits: Vec<Permit>,
    upgrade: Option<OnUpgrade>,
    style: ErrorStyle,
}

/// The rule of a request.
struct Taken {
    table: Arc<HttpTable>,
    number: usize,
    rule: Arc<Rule>,
    host: head::Host,
    /// The path without dot segments, if the client's had some.
    normalized: Option<String>,
}

/// Answers a request. Its head is borrowed all the way: every future that has its own would copy it.
pub(crate) async fn handle(
    connection: &Arc<ConnectionInfo>,
    parts: &mut Parts,
    body: Incoming,
) -> Response<ResponseBody> {
    let begun = tokio::time::Instant::now();
    let table = connection.listener.table();
    let log = log_entry(connection, &table, parts, begun.into_std());
    let style = ErrorStyle::of(&parts.headers);
    let is_http1 = parts.version < http::Version::HTTP_2;
    let taken = find_rule(connection, &table, parts);
    let mut response = match &taken {
        Ok(taken) => {
            let asked = Asked { connection, table: &table, taken, begun };
            let response = answer(asked, parts, body).await;
            taken.rule.metrics.observe(response.status(), begun.elapsed().as_secs_f64());
            response
        }
        Err(status) => {
            connection.shared.metrics.unmatched().observe(*status, begun.elapsed().as_secs_f64());
            error_response(*status, style)
        }
    };
    if is_http1 && connection.listener.is_retired() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
        // The client's next connection is accepted by the process that took over.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let is_silent = taken.as_ref().is_ok_and(|taken| taken.rule.filters.is_silent);
    if let Some(mut log) = log.filter(|_| !is_silent) {
        log.status = response.status();
        log.route = taken.ok().map(|taken| taken.rule.route.clone());
        response.body_mut().set_log(log);
    }
    response
}

/// The state of a request before it is answered.
struct Asked<'a> {
    connection: &'a Arc<ConnectionInfo>,
    table: &'a Table,
    taken: &'a Taken,
    begun: tokio::time::Instant,
}

/// Finds the rule of a request, or the status of a request that no rule takes.
fn find_rule(connection: &ConnectionInfo, table: &Table, request: &Parts) -> Result<Taken, StatusCode> {
    head::check_framing(request)?;
    let host = head::Host::of(request)?;
    let name = host.name()?;
    let hosts = hosts(connection, table, &name)?;
    let http = hosts.hosts().find(&name).ok_or(StatusCode::NOT_FOUND)?;
    let path = corten_routing::normalize(request.uri.path()).map_err(|_| StatusCode::BAD_REQUEST)?;
    let looked_up = corten_routing::Request {
        method: request.method.as_str(),
        path: &path,
        query: request.uri.query(),
        headers: &request.headers,
    };
    let number = http.host.find(&looked_up).ok_or(StatusCode::NOT_FOUND)?.number;
    let normalized = match path {
        std::borrow::Cow::Borrowed(_) => None,
        std::borrow::Cow::Owned(path) => Some(path),
    };
    let rule = http.rule(number).map(Arc::clone).ok_or(StatusCode::NOT_FOUND)?;
    drop(name);
    Ok(Taken { table: Arc::clone(http), number, rule, host, normalized })
}

/// Returns the hosts of a connection. A connection with TLS serves only hosts of its server name's listener: the
/// certificate, and the verification of clients, of others may differ.
fn hosts<'a>(connection: &ConnectionInfo, table: &'a Table, host: &str) -> Result<&'a HttpHosts, StatusCode> {
    match &table.protocol {
        Protocol::Http(hosts) => Ok(hosts),
        Protocol::Tls(names) => {
            let name = connection.server_name.as_deref().unwrap_or_default();
            let names = names.hosts();
            let named = names.find(name).ok_or(StatusCode::MISDIRECTED_REQUEST)?;
            let asked = names.find(host).ok_or(StatusCode::MISDIRECTED_REQUEST)?;
            match &**named {
                TlsTable::Http { hosts, .. } if Arc::ptr_eq(named, asked) => Ok(hosts),
                _ => Err(StatusCode::MISDIRECTED_REQUEST),
            }
        }
        Protocol::Tcp(_) | Protocol::Udp(_) => Err(StatusCode::NOT_FOUND),
    }
}

/// Answers a request that a rule took.
async fn answer(asked: Asked<'_>, parts: &mut Parts, body: Incoming) -> Response<ResponseBody> {
    let Asked { connection, table, taken, begun } = asked;
    let rule = &*taken.rule;
    let style = if rule.grpc { ErrorStyle::Grpc } else { ErrorStyle::of(&parts.headers) };
    let (Some(matched), Ok(host)) = (taken.table.host.rule(taken.number), taken.host.name()) else {
        return error_response(StatusCode::NOT_FOUND, style);
    };
    let upgrade = if head::is_upgrade(parts) { parts.extensions.remove::<OnUpgrade>() } else { None };
    let is_trusted = connection.is_trusted(&table.options.trusted_proxies);
    let mut exchange = Exchange {
        connection,
        rule,
        matched,
        client: head::client(connection, is_trusted, &parts.headers, &table.options.trusted_proxies),
        scheme: head::scheme(connection, is_trusted, &parts.headers),
        begun,
        host: &host,
        target: taken.normalized.as_ref().map(|path| head::with_query(path, parts.uri.query())),
        response_headers: None,
        limit: None,
        mirrors: Vec::new(),
        session: None,
        hash: None,
        permits: Vec::new(),
        upgrade,
        style,
    };
    let is_gzip = rule.filters.is_compressed && compression::is_accepted(&parts.headers);
    let is_head = parts.method == Method::HEAD;
    head::prepare(parts, &exchange, is_trusted);
    let asked = rule.filters.error_pages.as_ref().map(|pages| error_page::Asked::of(pages, &exchange, parts));
    let mut response = match pass(&mut exchange, parts, body).await {
        Ok(response) | Err(response) => response,
    };
    if let Some(asked) = asked {
        response = asked.replace(&exchange, response).await;
    }
    for changes in &rule.filters.response {
        changes.apply(response.headers_mut());
    }
    if let Some(headers) = exchange.response_headers.take() {
        // The policy speaks for the backend.
        response.headers_mut().remove(header::ACCESS_CONTROL_ALLOW_ORIGIN);
        response.headers_mut().remove(header::ACCESS_CONTROL_ALLOW_CREDENTIALS);
        head::merge(response.headers_mut(), headers);
    }
    if is_gzip && !is_head {
        response = compression::compress(response);
    }
    if !exchange.permits.is_empty() {
        response.body_mut().hold(exchange.permits);
    }
    response
}

/// Filters a request and forwards it. The error is an answer of the edge itself.
async fn pass(
    exchange: &mut Exchange<'_>,
    parts: &mut Parts,
    body: Incoming,
) -> Result<Response<ResponseBody>, Response<ResponseBody>> {
    let rule = exchange.rule;
    filter::apply(&rule.filters, exchange, parts).await?;
    let style = exchange.style;
    let persistent = rule.session.as_ref().and_then(|policy| session::find(policy, &parts.headers));
    exchange.session = persistent;
    exchange.hash = rule.filters.hash.as_ref().and_then(|key| hash::of(key, exchange.client, exchange.host, parts));
    let target = match persistent.and_then(|session| forward::session_target(&rule.targets, session)) {
        Some(target) => target,
        None => rule.targets.choose().ok_or_else(|| error_response(StatusCode::INTERNAL_SERVER_ERROR, style))?,
    };
    filter::apply(&target.filters, exchange, parts).await?;
    let backend = target.backend.as_ref().ok_or_else(|| error_response(StatusCode::INTERNAL_SERVER_ERROR, style))?;
    let mut body = RequestBody::incoming(body);
    if let Some(limit) = &exchange.limit {
        body.set_limit(limit.clone());
    }
    mirror::begin(exchange, parts, &mut body);
    let forwarded = forward::forward(exchange, backend, parts, body).await;
    let mut response = forwarded.map_err(|failure| error_response(failure.status(), style))?;
    for changes in &target.filters.response {
        changes.apply(response.headers_mut());
    }
    Ok(response)
}

fn log_entry(connection: &ConnectionInfo, table: &Table, request: &Parts, begun: Instant) -> Option<Box<Entry>> {
    let log = connection.shared.access_log.clone()?;
    let text = |name: header::HeaderName| {
        let value = request.headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        value.unwrap_or_default()
    };
    let is_trusted = connection.is_trusted(&table.options.trusted_proxies);
    Some(Box::new(Entry {
        log,
        client: head::client(connection, is_trusted, &request.headers, &table.options.trusted_proxies),
        method: request.method.to_string(),
        host: head::Host::of(request).ok().and_then(|host| Some(host.name().ok()?.into_owned())).unwrap_or_default(),
        path: request.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        protocol: head::protocol(request.version),
        user_agent: text(header::USER_AGENT),
        referer: text(header::REFERER),
        traceparent: text(header::HeaderName::from_static("traceparent")),
        route: None,
        status: StatusCode::OK,
        begun,
        bytes: 0,
    }))
}
