//! Exec, attach and port-forward: the HTTP server of the streaming URLs of the CRI.
//!
//! It listens on loopback only, and a URL works once and for a short time: only a client that got it from the runtime
//! has it. The kubelet passes the client's upgrade request through unchanged, so the protocols here are those of
//! kubectl: WebSocket channels, SPDY streams, and SPDY inside of a WebSocket for port-forward.

mod attach;
mod exec;
mod port_forward;
pub(crate) mod session;
pub(crate) mod spdy;
mod terminal;
mod upgrade;
pub(crate) mod websocket;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_cri::v1;
use corten_listen::{Gate, Limits, Slot};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::Error;
use crate::daemon::Daemon;
use session::{Connection, Outcome, Wanted};
use upgrade::{Protocol, Upgraded};

/// The lifetime of an unused URL.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60);
/// The most unused URLs; the kubelet requests one at a time and uses it.
const MAX_PENDING: usize = 1000;
/// The limit of connections that have not used their URL yet. Every process of the node can open one.
const LIMITS: Limits = Limits::anonymous(256);

/// The request that a URL was made for.
#[derive(Debug, Clone)]
pub(crate) enum Target {
    Exec(v1::ExecRequest),
    Attach(v1::AttachRequest),
    PortForward(v1::PortForwardRequest),
}

impl Target {
    fn name(&self) -> &'static str {
        match self {
            Self::Exec(_) => "exec",
            Self::Attach(_) => "attach",
            Self::PortForward(_) => "portforward",
        }
    }
}

/// The server; clones are the same server.
#[derive(Clone)]
pub(crate) struct StreamingServer(Arc<Inner>);

struct Inner {
    address: SocketAddr,
    daemon: Arc<Daemon>,
    pending: Mutex<HashMap<String, (Instant, Target)>>,
    /// The listener, its connections and their sessions; all end with the shutdown.
    tasks: TaskTracker,
}

impl StreamingServer {
    /// Binds a free port of loopback and serves until `shutdown`.
    pub async fn start(daemon: Arc<Daemon>, shutdown: CancellationToken) -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await.map_err(Error::system("bind the streaming server"))?;
        let address = listener.local_addr().map_err(Error::system("bind the streaming server"))?;
        let tasks = TaskTracker::new();
        let server = Self(Arc::new(Inner { address, daemon, pending: Mutex::default(), tasks }));
        server.0.tasks.spawn(server.clone().accept(listener, shutdown));
        Ok(server)
    }

    /// Waits until all connections have ended, after the shutdown.
    pub async fn ended(&self) {
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    async fn accept(self, listener: TcpListener, shutdown: CancellationToken) {
        let gate = Gate::new(LIMITS);
        loop {
            let (socket, slot) = tokio::select! {
                accepted = gate.accept(&listener) => accepted,
                () = shutdown.cancelled() => return,
            };
            let _ = socket.set_nodelay(true);
            self.0.tasks.spawn(self.clone().connection(socket, slot, shutdown.clone()));
        }
    }

    /// Serves requests until one of them switches to another protocol, which is then served by a task of its own.
    async fn connection(self, socket: TcpStream, slot: Slot, shutdown: CancellationToken) {
        let service = hyper::service::service_fn(|request| {
            slot.request_arrived();
            let answer = upgrade::answer(&self, &shutdown, request);
            std::future::ready(Ok::<_, std::convert::Infallible>(answer))
        });
        let http = corten_listen::http1();
        tokio::select! {
            _ = http.serve_connection(TokioIo::new(socket), service).with_upgrades() => {}
            () = slot.closed() => {}
            () = shutdown.cancelled() => {}
        }
    }

    /// Makes a URL for one use.
    pub fn url(&self, target: Target) -> String {
        let token = uuid::Uuid::new_v4().simple().to_string();
        let url = format!("http://{}/{}/{token}", self.0.address, target.name());
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        pending.retain(|_, (since, _)| since.elapsed() < TOKEN_LIFETIME);
        if pending.len() < MAX_PENDING {
            pending.insert(token, (Instant::now(), target));
        }
        url
    }

    /// Redeems a token.
    fn take(&self, token: &str) -> Option<Target> {
        let mut pending = self.0.pending.lock().unwrap_or_else(PoisonError::into_inner);
        let (since, target) = pending.remove(token)?;
        (since.elapsed() < TOKEN_LIFETIME).then_some(target)
    }

    /// Serves an upgraded connection until it ends.
    async fn serve(self, target: Target, protocol: Protocol, upgraded: Upgraded) {
        let daemon = self.0.daemon.clone();
        match target {
            Target::Exec(request) => {
                let wanted = Wanted {
                    stdin: request.stdin,
                    stdout: request.stdout,
                    stderr: request.stderr,
                    terminal: request.tty,
                };
                let Some(connection) = connect(protocol, upgraded, wanted).await else { return };
                let (mut streams, status) = connection.split();
                let outcome = exec::run(&daemon, request, &mut streams).await;
                drop(streams);
                status.report(outcome).await;
            }
            Target::Attach(request) => {
                let wanted = Wanted {
                    stdin: request.stdin,
                    stdout: request.stdout,
                    stderr: request.stderr,
                    terminal: request.tty,
                };
                let Some(connection) = connect(protocol, upgraded, wanted).await else { return };
                let (mut streams, status) = connection.split();
                let outcome = attach::run(&daemon, request, &mut streams).await;
                drop(streams);
                status.report(outcome).await;
            }
            Target::PortForward(request) => {
                let streams = match protocol {
                    Protocol::WebSocket(framing) => {
                        return port_forward::run_in_channels(&daemon, request, framing, upgraded).await;
                    }
                    Protocol::SpdyInWebSocket => spdy::serve(websocket::tunnel(upgraded).await),
                    _ => spdy::serve(upgraded),
                };
                port_forward::run(&daemon, &request.pod_sandbox_id, streams).await;
            }
        }
    }
}

/// Makes the channels of a connection, for each protocol.
async fn connect(protocol: Protocol, upgraded: Upgraded, wanted: Wanted) -> Option<Connection> {
    match protocol {
        Protocol::WebSocket(channels) => Some(websocket::channels(upgraded, channels, wanted).await),
        Protocol::Spdy(version) => session::from_spdy(spdy::serve(upgraded), wanted, version).await,
        Protocol::SpdyInWebSocket => None,
    }
}

/// The result of an exec or attach: the exit code, or the error.
type Ended = Result<i32, Error>;

impl From<Ended> for Outcome {
    fn from(ended: Ended) -> Self {
        match ended {
            Ok(0) => Self::Success,
            Ok(code) => Self::ExitCode(code),
            Err(error) => Self::Failure(error.to_string()),
        }
    }
}
