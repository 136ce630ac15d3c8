//! A node's way to all API servers: a listener on the loopback that passes each connection on to a healthy one.
//!
//! TLS passes through, so that the balancer has no credentials and sees no request. A server that fails loses its
//! connections: its clients connect again at once, and get another. One that leaves closes them itself. Nodes choose different servers, by a hash of their
//! names, so that not all of them meet on one.
//!
//! Invariant: an empty list never replaces a known one, because a node without a server could not learn of any.

mod board;
mod order;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use corten_listen::{Gate, Limits, Slot, relay};
use futures::future::{BoxFuture, join_all};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use board::{Board, Candidate, Checked};

/// The most connections at once: a node has some dozen.
const MOST_CONNECTIONS: usize = 1024;
/// The longest time for a connection to a server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// The time between two checks of all servers.
const INTERVAL: Duration = Duration::from_secs(3);
/// The part of it between two checks while a server fails: its clients wait.
const HURRY: u32 = 6;
/// The longest time for one check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The health of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    Healthy,
    /// The server is about to stop: it gets no new connections, and closes those that it has when their requests are
    /// answered.
    Leaving,
    Failing,
}

/// Checks the health of a server, given as `host:port`.
pub type Check = Arc<dyn Fn(String) -> BoxFuture<'static, Health> + Send + Sync>;

/// The settings of a balancer.
pub struct Config {
    /// The node's name, by which it chooses among servers.
    pub node: String,
    /// Servers as `host:port` for when none of the list can be reached.
    pub fallback: Vec<String>,
    /// The list of servers as `host:port`, now and later.
    pub servers: watch::Receiver<Vec<String>>,
    pub check: Check,
    /// The time between two checks of all servers.
    pub interval: Duration,
}

impl Config {
    pub fn new(node: &str, fallback: Vec<String>, servers: watch::Receiver<Vec<String>>, check: Check) -> Config {
        Config { node: node.to_owned(), fallback, servers, check, interval: INTERVAL }
    }
}

/// A balancer that listens, and passes connections on while [`Balancer::run`] does.
pub struct Balancer {
    listener: TcpListener,
    config: Config,
    board: Arc<Board>,
}

impl Balancer {
    /// Listens at the first of the addresses that is free.
    pub async fn bind(addresses: &[SocketAddr], config: Config) -> std::io::Result<Balancer> {
        let listener = TcpListener::bind(addresses).await?;
        let board = Arc::new(Board::new(&config.node, &config.fallback));
        board.replace(&config.servers.borrow());
        Ok(Balancer { listener, config, board })
    }

    /// Returns the address that it listens at.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Passes connections on until the shutdown.
    pub async fn run(self, shutdown: CancellationToken) -> std::io::Result<()> {
        let Balancer { listener, mut config, board } = self;
        let gate = Gate::new(Limits::anonymous(MOST_CONNECTIONS));
        let mut connections = JoinSet::new();
        let mut checks = JoinSet::new();
        checks.spawn(check_all(Arc::clone(&board), Arc::clone(&config.check), Duration::ZERO));
        let mut is_followed = true;
        loop {
            tokio::select! {
                (stream, slot) = gate.accept(&listener) => {
                    connections.spawn(pass(stream, slot, Arc::clone(&board)));
                }
                Some(_) = connections.join_next() => {}
                // One round at a time: a round that takes long delays the next.
                Some(_) = checks.join_next() => {
                    let pause = if board.is_undecided() { config.interval / HURRY } else { config.interval };
                    checks.spawn(check_all(Arc::clone(&board), Arc::clone(&config.check), pause));
                }
                changed = config.servers.changed(), if is_followed => {
                    is_followed = changed.is_ok();
                    board.replace(&config.servers.borrow_and_update());
                }
                () = shutdown.cancelled() => return Ok(()),
            }
        }
    }
}

/// Passes one connection on to the first server that takes it, until either side or the server's health ends it.
async fn pass(client: TcpStream, slot: Slot, board: Arc<Board>) {
    let _ = client.set_nodelay(true);
    for Candidate { address, broken } in board.candidates() {
        let server = match tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(&address)).await {
            Ok(Ok(server)) => server,
            Ok(Err(error)) => {
                tracing::debug!(address, %error, "an API server cannot be reached");
                board.failed(&address);
                continue;
            }
            Err(_) => {
                tracing::debug!(address, "an API server cannot be reached in time");
                board.failed(&address);
                continue;
            }
        };
        let _ = server.set_nodelay(true);
        // All clients are processes of the node: no connection is closed in favour of another.
        slot.authenticated();
        tokio::select! {
            _ = relay(client, server) => {}
            () = broken.cancelled() => {}
        }
        return;
    }
    tracing::warn!("no API server can be reached");
}

/// Checks all servers after a pause.
async fn check_all(board: Arc<Board>, check: Check, pause: Duration) {
    tokio::time::sleep(pause).await;
    let checks = board.addresses().into_iter().map(|address| {
        let checked = tokio::time::timeout(CHECK_TIMEOUT, check(address.clone()));
        async move { Checked { address, health: checked.await.unwrap_or(Health::Failing) } }
    });
    board.checked(&join_all(checks).await);
}
