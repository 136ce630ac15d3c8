//! Forwards a request to its backend, and joins the two connections if it is upgraded.

use std::io::Read;

use bytes::Bytes;
use corten_api::Role;
use corten_meta::Status;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, BodyStream, Limited};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;

use super::kubelet::Kubelets;
use super::links::LinkRewriter;
use super::locate::Backend;
use super::log_socket;
use crate::body::{Body, Reply, RequestBody};
use crate::context::Context;
use crate::tasks::Tasks;
use crate::websocket::{self, is_upgrade};
use crate::write::Scope;

/// Headers that belong to one connection or to this server's own credentials, and are not forwarded.
const NOT_FORWARDED: &[&str] = &[
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "host",
    "authorization",
    "impersonate-user",
    "impersonate-group",
    "impersonate-uid",
];

type OutBody = UnsyncBoxBody<Bytes, hyper::Error>;

/// Sends the request to the backend and returns its answer.
pub async fn forward(
    target: &Scope<'_>,
    kubelets: &Kubelets,
    backend: Backend,
    role: Role,
    body: RequestBody,
) -> Result<Reply, Status> {
    let stream = kubelets.connect(&backend).await;
    let stream = stream.map_err(|why| unreachable(target, &backend, role, &why))?;
    let broken = |e: hyper::Error| Status::internal(format!("error talking to the backend: {e}"));
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    // The task runs until both sides close the connection, or the server ends.
    target.core.tasks.spawn_until_drained(async move {
        if let Err(e) = connection.with_upgrades().await {
            tracing::debug!(error = %e, "a proxied connection ended");
        }
    });
    let upgrade = is_upgrade(&target.context.headers) && role != Role::Log;
    let request = request(target, &backend, body, upgrade)?;
    let response = sender.send_request(request).await.map_err(broken)?;
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return join(&target.core.tasks, target.context, response);
    }
    // The client reads the errors of a stream or a proxied page unchanged.
    if role == Role::Log && !response.status().is_success() {
        return Err(refused(target, response).await);
    }
    if role == Role::Log && websocket::is_websocket(&target.context.headers) {
        return Ok(log_socket::switch(&target.core.tasks, target.context, chunks(response.into_body())));
    }
    if role == Role::Proxy { through(target, &backend, response).await } else { Ok(passed(response)) }
}

/// Returns the error of an unreachable backend.
fn unreachable(target: &Scope<'_>, backend: &Backend, role: Role, why: &str) -> Status {
    let bare = |message: String| Status { code: 500, message, ..Status::default() };
    match role {
        Role::Log => {
            bare(format!("Get \"https://{}:{}{}\": {why}", backend.host, backend.port, backend.path_and_query))
        }
        Role::Proxy if !is_upgrade(&target.context.headers) => {
            Status::service_unavailable(format!("error trying to reach service: {why}"))
        }
        _ => bare(format!("error dialing backend: {why}")),
    }
}

/// The maximum size of a page whose links are rewritten.
const PAGE_BYTES: usize = 16 << 20;

/// Returns the answer of a proxied path: a redirect and the links of a page are rewritten to lead through this server.
async fn through(target: &Scope<'_>, backend: &Backend, mut response: Response<Incoming>) -> Result<Reply, Status> {
    let info = &target.context.info;
    let prefix = info.path.strip_suffix(info.remainder.as_str()).unwrap_or(&info.path).trim_end_matches('/');
    let server = header_value(&target.context.headers, &header::HOST).to_owned();
    let rewriter = LinkRewriter { prefix, backend: &format!("{}:{}", backend.host, backend.port), server: &server };
    let redirect = rewriter.link(header_value(response.headers(), &header::LOCATION));
    if let Ok(redirect) = HeaderValue::from_str(&redirect)
        && !redirect.is_empty()
    {
        response.headers_mut().insert(header::LOCATION, redirect);
        return Ok(passed(response));
    }
    let media_type =
        header_value(response.headers(), &header::CONTENT_TYPE).split(';').next().unwrap_or_default().trim();
    let encoding = header_value(response.headers(), &header::CONTENT_ENCODING);
    if media_type != "text/html" || !matches!(encoding, "" | "gzip") {
        return Ok(passed(response));
    }
    let is_packed = encoding == "gzip";
    let (mut parts, body) = response.into_parts();
    let page = Limited::new(body, PAGE_BYTES).collect().await.map_err(Status::internal)?.to_bytes();
    let page = if is_packed { unpacked(&page)? } else { page.to_vec() };
    parts.headers.remove(header::CONTENT_ENCODING);
    Ok(answer(&parts, Body::Full(rewriter.page(&page).into())))
}

pub(crate) fn unpacked(page: &[u8]) -> Result<Vec<u8>, Status> {
    let mut out = Vec::new();
    let mut unpacking = flate2::read::GzDecoder::new(page).take(PAGE_BYTES as u64);
    unpacking.read_to_end(&mut out).map_err(Status::internal)?;
    Ok(out)
}

fn header_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// The maximum number of bytes that are read of a kubelet's error.
const ERROR_BYTES: usize = 50_000;

/// Converts a kubelet's plain text error to the `Status` that clients of the API expect.
async fn refused(target: &Scope<'_>, response: Response<Incoming>) -> Status {
    let code = response.status();
    let message = match Limited::new(response.into_body(), ERROR_BYTES).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).trim_end().to_owned(),
        Err(e) => return Status::internal(e),
    };
    match code {
        StatusCode::INTERNAL_SERVER_ERROR => Status::internal(message),
        StatusCode::BAD_REQUEST => Status::bad_request(message),
        code => Status::generic(code.as_u16(), "", &target.resource.group_resource(), target.name, &message),
    }
}

fn request(
    target: &Scope<'_>,
    backend: &Backend,
    body: RequestBody,
    upgrade: bool,
) -> Result<Request<OutBody>, Status> {
    let context = target.context;
    let body = if upgrade { OutBody::default() } else { body.passed_on() };
    let mut builder = Request::builder().method(context.method.clone()).uri(&backend.path_and_query);
    if let Some(headers) = builder.headers_mut() {
        copy_headers(&context.headers, headers);
        if upgrade {
            for name in [header::CONNECTION, header::UPGRADE] {
                if let Some(value) = context.headers.get(&name) {
                    headers.insert(name, value.clone());
                }
            }
        }
        let host = format!("{}:{}", backend.host, backend.port);
        if let Ok(host) = host.parse() {
            headers.insert(header::HOST, host);
        }
    }
    builder.body(body).map_err(|e| Status::bad_request(format!("the request cannot be passed on: {e}")))
}

/// Reports whether a header of a request is forwarded.
pub fn is_passed_on(name: &HeaderName) -> bool {
    !NOT_FORWARDED.contains(&name.as_str()) && !name.as_str().starts_with("impersonate-extra-")
}

fn copy_headers(from: &HeaderMap, to: &mut HeaderMap) {
    for (name, value) in from {
        if is_passed_on(name) {
            to.append(name.clone(), value.clone());
        }
    }
}

/// Returns the backend's answer, whose body is streamed.
pub fn passed(response: Response<Incoming>) -> Reply {
    let (parts, body) = response.into_parts();
    answer(&parts, Body::Stream(chunks(body)))
}

fn chunks(body: Incoming) -> BoxStream<'static, Result<Bytes, std::io::Error>> {
    let frames = BodyStream::new(body).filter_map(|frame| async move {
        match frame {
            Ok(frame) => frame.into_data().ok().map(Ok),
            Err(e) => Some(Err(std::io::Error::other(e))),
        }
    });
    frames.boxed()
}

fn answer(parts: &http::response::Parts, body: Body) -> Reply {
    let mut reply = Reply::new(body);
    *reply.status_mut() = parts.status;
    copy_headers(&parts.headers, reply.headers_mut());
    reply.headers_mut().remove(header::CONTENT_LENGTH);
    reply
}

/// Joins the two connections after both sides switched protocols: forwards bytes until one side closes.
pub fn join(tasks: &Tasks, context: &Context, response: Response<Incoming>) -> Result<Reply, Status> {
    let client = context.upgrade.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    let client = client.ok_or_else(|| Status::bad_request("Upgrade request required"))?;
    let mut headers = HeaderMap::new();
    copy_headers(response.headers(), &mut headers);
    for name in [header::CONNECTION, header::UPGRADE, HeaderName::from_static("sec-websocket-accept")] {
        if let Some(value) = response.headers().get(&name) {
            headers.insert(name, value.clone());
        }
    }
    tasks.spawn_until_shutdown(async move {
        let (client, backend) = match tokio::join!(client, hyper::upgrade::on(response)) {
            (Ok(client), Ok(backend)) => (client, backend),
            (Err(e), _) | (_, Err(e)) => {
                tracing::debug!(error = %e, "a connection could not be upgraded");
                return;
            }
        };
        let _ = corten_listen::relay(TokioIo::new(client), TokioIo::new(backend)).await;
    });
    let mut reply = Reply::new(Body::empty());
    *reply.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    *reply.headers_mut() = headers;
    Ok(reply)
}
