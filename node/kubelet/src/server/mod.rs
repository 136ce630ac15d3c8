//! The kubelet's API, `https://<node>:10250`: logs, exec, attach, port-forward, stats. The API server calls it for
//! `kubectl`; other clients need authorization.
//!
//! Every request passes `authenticate` and `authorize` before it is routed; no handler can be reached around them.

mod access;
mod authorize;
mod cadvisor;
mod local_volumes;
mod logs;
mod metrics;
pub(crate) mod node_logs;
pub(crate) mod query;
mod stats;
mod streams;
mod tls;

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use corten_listen::{Gate, Limits, Slot};
use corten_meta::metrics::HealthChecks;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

pub use access::Access;

use crate::error::{Error, Result};
use crate::logs::follow::LogWatcher;
use crate::pod::view::Views;
use crate::services::Services;
use crate::stats::Collector;
use streams::PodPath;

pub type Body = BoxBody<Bytes, std::io::Error>;

/// The user of an API server's certificate for kubelets.
const API_SERVER: &str = "kube-apiserver-kubelet-client";

/// The number of connections to the kubelet's API: those of the API server and of metrics scrapers.
const LIMITS: Limits = Limits { connections: 4096, unauthenticated: 256 };
/// The number of connections to the health endpoint.
const HEALTH_LIMITS: Limits = Limits::anonymous(64);

/// The parts that the handlers use.
pub struct State {
    pub services: Arc<Services>,
    pub views: Views,
    pub log_watcher: LogWatcher,
    pub collector: Collector,
    pub access: Access,
    /// The results of the checks of `/healthz`.
    pub checks: HealthChecks,
    pub shutdown: CancellationToken,
    /// The tasks of streams; they end with the shutdown.
    pub tasks: TaskTracker,
}

impl State {
    /// Spawns a task that is dropped at shutdown.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = task => {}
            }
        });
    }
}

/// Answers `/healthz` on a local address until shutdown, without TLS and without authentication. An address that is in
/// use is no error: the kubelet's API has the same endpoint.
pub async fn serve_health(address: std::net::SocketAddr, shutdown: CancellationToken) {
    if address.port() == 0 {
        return;
    }
    let listener = match TcpListener::bind(address).await {
        Ok(listener) => listener,
        Err(error) => return info!(%error, %address, "healthz is not served"),
    };
    let connections = TaskTracker::new();
    let gate = Gate::new(HEALTH_LIMITS);
    loop {
        let (stream, slot) = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = gate.accept(&listener) => accepted,
        };
        let shutdown = shutdown.clone();
        connections.spawn(async move {
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = slot.closed() => {}
                () = serve_health_page(stream, &slot) => {}
            }
        });
    }
    connections.close();
    connections.wait().await;
}

async fn serve_health_page(stream: TcpStream, slot: &Slot) {
    let service = service_fn(|request: Request<Incoming>| {
        slot.request_arrived();
        let answer = match request.uri().path() {
            "/healthz" => text(StatusCode::OK, "ok"),
            _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        };
        std::future::ready(Ok::<_, std::convert::Infallible>(answer))
    });
    let builder = corten_listen::http1();
    if let Err(error) = builder.serve_connection(TokioIo::new(stream), service).await {
        debug!(%error, "connection ended");
    }
}

/// Serves the kubelet's API until shutdown; without certificates it is not served.
pub async fn serve(state: Arc<State>) -> Result<()> {
    let config = &state.services.config;
    let Some(mut certificates) = config.tls.clone() else { return Ok(()) };
    let mut acceptor = tls::acceptor(&certificates.borrow_and_update(), config.client_ca.as_deref())?;
    let address = config.listen;
    let listener = TcpListener::bind(address).await.map_err(|source| Error::Listen { address, source })?;
    info!(%address, "node API is served");
    let connections = TaskTracker::new();
    let gate = Gate::new(LIMITS);
    loop {
        let (stream, slot) = tokio::select! {
            () = state.shutdown.cancelled() => break,
            accepted = gate.accept(&listener) => accepted,
        };
        if certificates.has_changed().unwrap_or(false) {
            match tls::acceptor(&certificates.borrow_and_update(), config.client_ca.as_deref()) {
                Ok(renewed) => acceptor = renewed,
                Err(error) => warn!(%error, "the renewed certificate of the node API cannot be used"),
            }
        }
        connections.spawn(serve_connection(state.clone(), acceptor.clone(), stream, Arc::new(slot)));
    }
    connections.close();
    connections.wait().await;
    Ok(())
}

async fn serve_connection(state: Arc<State>, acceptor: tokio_rustls::TlsAcceptor, stream: TcpStream, slot: Arc<Slot>) {
    // The peer shows small interactive chunks; a delay to fill packets would be noticed.
    let _ = stream.set_nodelay(true);
    let shutdown = state.shutdown.clone();
    let address = stream.peer_addr().ok().map(|peer| peer.ip().to_canonical());
    let serve = async {
        let stream = match corten_listen::handshake(&acceptor, stream).await {
            Ok(stream) => stream,
            Err(error) => return debug!(%error, "TLS handshake failed"),
        };
        let caller = Arc::new(Caller { user: authorize::user(stream.get_ref().1), slot: slot.clone() });
        if let Some(user) = &caller.user {
            slot.authenticated();
            note_api_server(&state, &user.name, address);
        }
        let service = service_fn(move |request| {
            let state = state.clone();
            let caller = caller.clone();
            async move {
                let method = request.method().clone();
                let response = handle(&state, &caller, request).await;
                let empty = Full::default().map_err(|never| match never {}).boxed();
                Ok::<_, std::convert::Infallible>(corten_listen::head::answer(&method, response, empty))
            }
        });
        let builder = corten_listen::http();
        if let Err(error) = builder.serve_connection_with_upgrades(TokioIo::new(stream), service).await {
            debug!(%error, "connection ended");
        }
    };
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = slot.closed() => {}
        () = serve => {}
    }
}

/// Passes on from where an API server calls: it may have moved to an address that the node does not know.
fn note_api_server(state: &State, user: &str, address: Option<IpAddr>) {
    if let (Some(sender), Some(address), API_SERVER) = (&state.services.config.api_servers, address, user) {
        // A full channel holds older calls, which say the same.
        let _ = sender.try_send(address);
    }
}

/// The client of a connection.
struct Caller {
    /// The user of its client certificate.
    user: Option<authorize::User>,
    slot: Arc<Slot>,
}

/// Authenticates, authorizes and routes a request.
async fn handle(state: &Arc<State>, caller: &Caller, request: Request<Incoming>) -> Response<Body> {
    caller.slot.request_arrived();
    let Some(user) = state.access.authenticate(state, caller.user.as_ref(), request.headers()).await else {
        return text(StatusCode::UNAUTHORIZED, "Unauthorized");
    };
    if user.name != access::ANONYMOUS {
        caller.slot.authenticated();
    }
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
        (&Method::GET, ["healthz", ..]) => {
            state.checks.observe("ping", "healthz", true);
            text(StatusCode::OK, "ok")
        }
        (&Method::GET, ["pods"]) => stats::pods(state),
        (&Method::GET, ["runningpods"]) => stats::running_pods(state),
        (&Method::GET, ["stats", "summary"]) => stats::summary(state, request.uri().query()).await,
        (&Method::GET, ["metrics"]) => metrics::kubelet(state).await,
        (&Method::GET, ["metrics", "resource"]) => metrics::resource(state).await,
        (&Method::GET, ["metrics", "cadvisor"]) => cadvisor::page(state).await,
        (&Method::GET, ["metrics", "probes"]) => metrics::probes(state),
        (&Method::GET, ["metrics", "slis"]) => metrics::slis(state),
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
            streams::exec(state, PodPath::new(namespace, pod, None), container, request).await
        }
        (_, ["exec", namespace, pod, uid, container]) => {
            streams::exec(state, PodPath::new(namespace, pod, Some(uid)), container, request).await
        }
        (_, ["attach", namespace, pod, container]) => {
            streams::attach(state, PodPath::new(namespace, pod, None), container, request).await
        }
        (_, ["attach", namespace, pod, uid, container]) => {
            streams::attach(state, PodPath::new(namespace, pod, Some(uid)), container, request).await
        }
        (_, ["portForward", namespace, pod]) => {
            streams::port_forward(state, PodPath::new(namespace, pod, None), request).await
        }
        (_, ["portForward", namespace, pod, uid]) => {
            streams::port_forward(state, PodPath::new(namespace, pod, Some(uid)), request).await
        }
        (&Method::POST, ["run", namespace, pod, container] | ["run", namespace, pod, _, container]) => {
            streams::run(state, PodPath::new(namespace, pod, None), container, request.uri().query()).await
        }
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

pub fn full(content: impl Into<Bytes>) -> Body {
    Full::new(content.into()).map_err(|never| match never {}).boxed()
}

/// Returns a plain text response.
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
