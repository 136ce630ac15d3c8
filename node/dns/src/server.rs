//! The sockets: one UDP loop and one TCP loop per address.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use corten_listen::{Gate, Limits, Slot};
use hickory_proto::rr::Name;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{info, warn};

use crate::Config;
use crate::clients::{Clients, Permits};
use crate::error::Error;
use crate::forward::Forwarder;
use crate::metrics::{self, Transport};
use crate::respond::{Reply, Responder, Step};
use crate::zone::Zone;

/// The time after which a connection without a query is closed.
const IDLE: Duration = Duration::from_secs(10);
/// The limit of concurrent connections; one more closes the oldest, whose client queries again.
const LIMITS: Limits = Limits::anonymous(CONNECTIONS);
/// The most concurrent connections, of all clients and of each.
const CONNECTIONS: usize = 512;
const CONNECTIONS_OF_EACH: usize = 64;
/// The most datagrams with pending answers, of all clients and of each.
const DATAGRAMS: usize = 4096;
const DATAGRAMS_OF_EACH: usize = 256;
/// The pause after a failed receive, so that a permanent failure does not spin.
const PAUSE: Duration = Duration::from_millis(50);

/// Bound sockets, and the zone they answer from.
pub struct Server {
    sockets: Vec<(Arc<UdpSocket>, TcpListener)>,
    /// The addresses where metrics are served.
    metrics: Vec<SocketAddr>,
    domain: String,
    responder: Responder,
    clients: Arc<Clients>,
    ready: watch::Sender<bool>,
}

/// A signal of when the cluster's names are answered.
#[derive(Clone)]
pub struct Ready(watch::Receiver<bool>);

impl Ready {
    /// Waits until the names are answered; returns also when the server has ended before.
    pub async fn wait(&mut self) {
        let _ = self.0.wait_for(|ready| *ready).await;
    }
}

impl Server {
    /// Binds the sockets. Queries wait in them until [`Server::serve`].
    pub async fn bind(config: &Config) -> Result<Server, Error> {
        let zone = Zone::new(&config.domain, config.ttl, config.reverse_ranges.clone())?;
        let mut sockets = Vec::new();
        for address in &config.listen {
            let (udp, tcp) = bind(*address).await.map_err(|source| Error::Listen { address: *address, source })?;
            sockets.push((Arc::new(udp), tcp));
        }
        let responder = Responder {
            zone: Arc::new(RwLock::new(zone)),
            forwarder: Forwarder::new(foreign_upstreams(config), config.cache_size),
            stubs: Arc::new(stubs(config)?),
            rotation: Arc::default(),
            metrics: Arc::default(),
        };
        let metrics = config.metrics.clone();
        let domain = format!("{}.", config.domain);
        let clients = Arc::new(Clients::new(config.clients.clone()));
        Ok(Server { sockets, metrics, domain, responder, clients, ready: watch::Sender::new(false) })
    }

    /// Returns the addresses it listens at.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.sockets.iter().filter_map(|(udp, _)| udp.local_addr().ok()).collect()
    }

    /// Returns the names it answers; the watcher of the API writes them here.
    pub fn zone(&self) -> Arc<RwLock<Zone>> {
        self.responder.zone.clone()
    }

    pub fn ready(&self) -> Ready {
        Ready(self.ready.subscribe())
    }

    pub(crate) fn ready_sender(&self) -> watch::Sender<bool> {
        self.ready.clone()
    }

    /// Answers until shutdown.
    pub async fn serve(self, shutdown: CancellationToken) {
        let tasks = TaskTracker::new();
        for (udp, tcp) in self.sockets {
            let serving = Serving {
                responder: self.responder.clone(),
                clients: self.clients.clone(),
                tasks: tasks.clone(),
                shutdown: shutdown.clone(),
            };
            tasks.spawn(serving.clone().serve_udp(udp));
            tasks.spawn(serving.serve_tcp(tcp));
        }
        let responder = self.responder;
        let domain = self.domain;
        let render: Arc<dyn Fn() -> String + Send + Sync> =
            Arc::new(move || responder.metrics.render(&domain, responder.forwarder.entries()));
        for address in self.metrics {
            let page = metrics::Page { render: render.clone(), clients: self.clients.clone() };
            tasks.spawn(metrics::serve(address, page, tasks.clone(), shutdown.clone()));
        }
        shutdown.cancelled().await;
        tasks.close();
        tasks.wait().await;
    }
}

/// Returns the stub domains, the most specific first.
fn stubs(config: &Config) -> Result<Vec<(Name, Forwarder)>, Error> {
    let mut stubs = Vec::new();
    for (domain, resolvers) in &config.stub_domains {
        let name = Name::from_ascii(format!("{}.", domain.trim_end_matches('.')));
        let name = name.map_err(|_| Error::InvalidDomain(domain.clone()))?.to_lowercase();
        stubs.push((name, Forwarder::new(resolvers.clone(), config.cache_size)));
    }
    stubs.sort_by_key(|(name, _)| std::cmp::Reverse(name.num_labels()));
    Ok(stubs)
}

/// Binds UDP and TCP at one address; with port 0, at one free port. A port that is free for TCP may be taken for UDP:
/// then another is tried.
async fn bind(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener)> {
    let mut tries = if address.port() == 0 { 32 } else { 1 };
    loop {
        let tcp = TcpListener::bind(address).await?;
        tries -= 1;
        match UdpSocket::bind(tcp.local_addr()?).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse && tries > 0 => {}
            udp => return Ok((udp?, tcp)),
        }
    }
}

/// Returns the resolvers without those that lead back here: a node whose resolv.conf names the cluster's own DNS must
/// not make it query itself.
fn foreign_upstreams(config: &Config) -> Vec<SocketAddr> {
    let own = |upstream: &SocketAddr| {
        config.listen.iter().any(|listen| {
            let same_address = listen.ip() == upstream.ip() || listen.ip().is_unspecified();
            same_address && listen.port() == upstream.port()
        }) || config.own_addresses.contains(&upstream.ip())
    };
    let (dropped, kept): (Vec<_>, Vec<_>) = config.upstreams.iter().copied().partition(own);
    for upstream in dropped {
        warn!(%upstream, "ignoring a resolver that leads back to the cluster's own DNS");
    }
    if kept.is_empty() {
        info!("there is no resolver for names outside of the cluster");
    }
    kept
}

/// The state that the loops of the sockets share.
#[derive(Clone)]
struct Serving {
    responder: Responder,
    clients: Arc<Clients>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Serving {
    async fn serve_udp(self, socket: Arc<UdpSocket>) {
        let permits = Permits::new(DATAGRAMS, DATAGRAMS_OF_EACH);
        let mut buffer = vec![0; usize::from(u16::MAX)];
        loop {
            let received = tokio::select! {
                received = socket.recv_from(&mut buffer) => received,
                () = self.shutdown.cancelled() => return,
            };
            match received {
                Ok((length, client)) if self.clients.admits(client.ip()) => {
                    self.take_datagram(&socket, &permits, &buffer[..length], client);
                }
                Ok(_) => {}
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }

    fn take_datagram(&self, socket: &Arc<UdpSocket>, permits: &Arc<Permits>, datagram: &[u8], client: SocketAddr) {
        let started = Instant::now();
        let send = |reply: Reply| {
            self.responder.count(&reply, Transport::Udp, client.ip(), started);
            if let Some(bytes) = reply.datagram() {
                // A full send queue loses the answer, as the network might: the client queries again.
                let _ = socket.try_send_to(&bytes, client);
            }
        };
        let waiting = match self.responder.respond(datagram) {
            Step::Ignore => return,
            Step::Done(reply) => return send(reply),
            Step::Ask(waiting) => waiting,
        };
        let Some(permit) = permits.take(client.ip()) else { return send(waiting.refused()) };
        let responder = self.responder.clone();
        let shutdown = self.shutdown.clone();
        let socket = socket.clone();
        self.tasks.spawn(async move {
            let _permit = permit;
            let answer = async {
                let reply = responder.complete(*waiting).await;
                responder.count(&reply, Transport::Udp, client.ip(), started);
                if let Some(bytes) = reply.datagram() {
                    let _ = socket.send_to(&bytes, client).await;
                }
            };
            shutdown.run_until_cancelled(answer).await;
        });
    }

    async fn serve_tcp(self, listener: TcpListener) {
        let gate = Gate::new(LIMITS);
        let permits = Permits::new(CONNECTIONS, CONNECTIONS_OF_EACH);
        loop {
            let (stream, slot) = tokio::select! {
                accepted = gate.accept(&listener) => accepted,
                () = self.shutdown.cancelled() => return,
            };
            let Ok(client) = stream.peer_addr() else { continue };
            if !self.clients.admits(client.ip()) {
                continue;
            }
            // One connection too many of one client is closed at once; the client queries again.
            let Some(permit) = permits.take(client.ip()) else { continue };
            let responder = self.responder.clone();
            let shutdown = self.shutdown.clone();
            self.tasks.spawn(async move {
                let _permit = permit;
                tokio::select! {
                    () = shutdown.cancelled() => {}
                    () = slot.closed() => {}
                    _ = serve_connection(stream, client.ip(), responder, &slot) => {}
                }
            });
        }
    }
}

/// Answers the queries of a connection one after the other. Closes the connection of a client that misbehaves.
async fn serve_connection(mut stream: TcpStream, client: IpAddr, responder: Responder, slot: &Slot) -> Option<()> {
    loop {
        let length = timeout(IDLE, stream.read_u16()).await.ok()?.ok()?;
        let mut request = vec![0; usize::from(length)];
        timeout(IDLE, stream.read_exact(&mut request)).await.ok()?.ok()?;
        slot.request_arrived();
        let started = Instant::now();
        let reply = match responder.respond(&request) {
            Step::Ignore => return None,
            Step::Done(reply) => reply,
            Step::Ask(waiting) => responder.complete(*waiting).await,
        };
        responder.count(&reply, Transport::Tcp, client, started);
        let bytes = reply.stream()?;
        let length = u16::try_from(bytes.len()).ok()?;
        timeout(IDLE, stream.write_all(&[&length.to_be_bytes()[..], &bytes].concat())).await.ok()?.ok()?;
    }
}
