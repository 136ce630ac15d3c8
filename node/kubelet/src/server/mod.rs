//! The node API, `https://<node>:10250`: logs, exec, attach, port-forward, stats. The API server calls it for
//! `kubectl`; whoever else wants to must be allowed to by the API.
//!
//! Every request passes `authenticate` and `authorize` before it is routed; there is no way around them.

mod access;
mod authorize;
mod cadvisor;
mod local_volumes;
mod logs;
mod metrics;
mod node_logs;
mod query;
mod stats;
mod streams;
mod tls;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

pub use access::Access;

use crate::error::{Error, Result};
use crate::logs::follow::LogWatcher;
use crate::pods::Services;
use crate::pods::view::Views;
use crate::stats::Collector;

pub type Body = BoxBody<Bytes, std::io::Error>;

/// What the handlers need.
pub struct State {
    pub services: Arc<Services>,
    pub views: Views,
    pub log_watcher: LogWatcher,
    pub collector: Collector,
    pub access: Access,
    pub shutdown: CancellationToken,
}

/// Answers `/healthz` on an address of the machine itself until shutdown, without TLS and to everyone. An address that
/// is taken is no reason to fail: the node API has the same page.
pub async fn serve_health(address: std::net::SocketAddr, shutdown: CancellationToken) {
    if address.port() == 0 {
        return;
    }
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return info!(%error, %address, "healthz is not served"),
    };
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(_) => continue,
            },
        };
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            let service = service_fn(|request: Request<Incoming>| async move {
                let well = request.uri().path() == "/healthz";
                let answer =
                    if well { text(StatusCode::OK, "ok") } else { text(StatusCode::NOT_FOUND, "404 page not found\n") };
                Ok::<_, std::convert::Infallible>(answer)
            });
            let connection = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            tokio::select! {
                () = shutdown.cancelled() => {}
                ended = connection => if let Err(error) = ended { debug!(%error, "connection ended") },
            }
        });
    }
    connections.close();
    connections.wait().await;
}

/// Serves the node API until shutdown; without certificates there is none.
pub async fn serve(state: Arc<State>) -> Result<()> {
    let config = &state.services.config;
    let Some(mut certificates) = config.tls.clone() else { return Ok(()) };
    let mut acceptor = tls::acceptor(&certificates.borrow_and_update(), config.client_ca.as_deref())?;
    let address = config.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    info!(%address, "node API is served");
    let connections = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            () = state.shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    debug!(%error, "connection not accepted");
                    continue;
                }
            },
        };
        if certificates.has_changed().unwrap_or(false) {
            match tls::acceptor(&certificates.borrow_and_update(), config.client_ca.as_deref()) {
                Ok(renewed) => acceptor = renewed,
                Err(error) => warn!(%error, "the renewed certificate of the node API cannot be used"),
            }
        }
        connections.spawn(serve_connection(state.clone(), acceptor.clone(), stream));
    }
    connections.close();
    connections.wait().await;
    Ok(())
}

async fn serve_connection(state: Arc<State>, acceptor: tokio_rustls::TlsAcceptor, stream: TcpStream) {
    // The peer shows small interactive chunks; waiting to fill packets would be felt.
    let _ = stream.set_nodelay(true);
    let shutdown = state.shutdown.clone();
    let serve = async {
        let stream = match acceptor.accept(stream).await {
            Ok(stream) => stream,
            Err(error) => return debug!(%error, "TLS handshake failed"),
        };
        let user = authorize::user(stream.get_ref().1);
        let service = service_fn(move |request| {
            let (state, user) = (state.clone(), user.clone());
            async move { Ok::<_, std::convert::Infallible>(handle(&state, user.as_ref(), request).await) }
        });
        let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
        if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
            debug!(%error, "connection ended");
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = serve => {}
    }
}

/// Authenticate, authorize, route.
async fn handle(state: &Arc<State>, user: Option<&authorize::User>, request: Request<Incoming>) -> Response<Body> {
    let Some(user) = state.access.authenticate(state, user, request.headers()).await else {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    if let Err(reason) = state.access.authorize(state, &user, request.method(), request.uri().path()).await {
        return text(StatusCode::FORBIDDEN, &reason);
    }
    route(state, request).await
}

async fn route(state: &Arc<State>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    let labels = [request.method().as_str(), segments.first().copied().unwrap_or_default(), "readwrite"];
    state.services.metrics.count(&crate::metrics::HTTP_REQUESTS, &labels);
    match (request.method(), segments.as_slice()) {
        (&Method::GET, ["healthz", ..]) => text(StatusCode::OK, "ok"),
        (&Method::GET, ["pods"]) => stats::pods(state),
        (&Method::GET, ["runningpods"]) => stats::running_pods(state),
        (&Method::GET, ["stats", "summary"]) => stats::summary(state, request.uri().query()).await,
        (&Method::GET, ["metrics"]) => metrics::kubelet(state).await,
        (&Method::GET, ["metrics", "resource"]) => metrics::resource(state).await,
        (&Method::GET, ["metrics", "cadvisor"]) => cadvisor::page(state).await,
        (&Method::GET, ["metrics", "probes"]) => metrics::probes(state),
        (&Method::GET, ["configz"]) => stats::configz(state),
        (&Method::GET, ["logs", inside @ ..]) => {
            node_logs::serve(state, &inside.join("/"), request.uri().query()).await
        }
        (&Method::DELETE, ["localVolumes", name]) => local_volumes::delete(state, name).await,
        (&Method::POST, ["checkpoint", ..]) => {
            text(StatusCode::NOT_IMPLEMENTED, "checkpointing containers is not supported by this node\n")
        }
        (&Method::GET, ["containerLogs", namespace, pod, container]) => {
            logs::container_logs(state, namespace, pod, container, request.uri().query()).await
        }
        (_, ["exec", namespace, pod, container]) => {
            streams::exec(state, namespace, pod, None, container, request).await
        }
        (_, ["exec", namespace, pod, uid, container]) => {
            streams::exec(state, namespace, pod, Some(uid), container, request).await
        }
        (_, ["attach", namespace, pod, container]) => {
            streams::attach(state, namespace, pod, None, container, request).await
        }
        (_, ["attach", namespace, pod, uid, container]) => {
            streams::attach(state, namespace, pod, Some(uid), container, request).await
        }
        (_, ["portForward", namespace, pod]) => streams::port_forward(state, namespace, pod, None, request).await,
        (_, ["portForward", namespace, pod, uid]) => {
            streams::port_forward(state, namespace, pod, Some(uid), request).await
        }
        (&Method::POST, ["run", namespace, pod, container] | ["run", namespace, pod, _, container]) => {
            streams::run(state, namespace, pod, container, request.uri().query()).await
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

pub fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed()
}

/// A plain text answer.
pub fn text(status: StatusCode, message: &str) -> Response<Body> {
    answer(status, "text/plain; charset=utf-8", message.to_owned())
}

pub fn json(value: &corten_meta::Value) -> Response<Body> {
    answer(StatusCode::OK, "application/json", value.to_string())
}

fn answer(status: StatusCode, content_type: &'static str, content: String) -> Response<Body> {
    let mut response = Response::new(full(content));
    *response.status_mut() = status;
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static(content_type));
    response
}
