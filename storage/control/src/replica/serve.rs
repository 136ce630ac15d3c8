//! The primary's side: serves increments of its volumes to their standbys.
//!
//! The content that a standby has confirmed is kept as a clone without a name, so that the next increment is found by the
//! blocks that differ from it. After a restart it is gone, and the next increment has the digests of all chunks.
//!
//! *Invariant: a volume is read only by the node that is its standby in the current epoch.*

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corten_listen::{Gate, Limits};
use corten_snapshots::VolumeReplica;
use corten_storage_backup::{CHUNK_BYTES, chunk_count, read_chunk};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::wire::{self, Answer, BATCH, Entry, Header, Hello, KEPT};
use super::{Increment, Peers, ReplicaData, blocking};
use crate::world::World;

/// The connections of standbys; each lasts as long as its increment.
const LIMITS: Limits = Limits { connections: 256, unauthenticated: 64 };
/// The time in which a standby must make a first increment durable.
const COMMIT_PATIENCE: Duration = Duration::from_secs(600);

/// The content that a standby has confirmed.
struct Base {
    generation: String,
    increment: Arc<Increment>,
}

/// The contents that standbys have confirmed, by their volumes.
#[derive(Clone, Default)]
pub struct Bases(Arc<Mutex<HashMap<String, Base>>>);

impl Bases {
    /// Takes the content that a standby has; one that no standby has any more is dropped.
    fn take(&self, volume: &str, generation: &str) -> Option<Arc<Increment>> {
        let mut bases = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bases.remove(volume).filter(|base| base.generation == generation).map(|base| base.increment)
    }

    /// Drops the contents of volumes that are not to be kept.
    pub fn retain(&self, is_kept: impl Fn(&str) -> bool) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|volume, _| is_kept(volume));
    }

    fn keep(&self, volume: &str, generation: &str, increment: Arc<Increment>) {
        let base = Base { generation: generation.to_owned(), increment };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(volume.to_owned(), base);
    }
}

/// A listener for standbys.
pub struct Server {
    pub address: SocketAddr,
    pub bases: Bases,
}

/// The parts of a connection.
#[derive(Clone)]
struct Serving {
    world: Arc<World>,
    data: Arc<dyn ReplicaData>,
    node: String,
    bases: Bases,
}

impl Server {
    /// Listens until the shutdown.
    pub async fn start(
        peers: &Peers,
        world: Arc<World>,
        data: Arc<dyn ReplicaData>,
        node: &str,
    ) -> Result<Server, String> {
        peers.identity.server()?;
        let listener = match TcpListener::bind((peers.address, peers.port)).await {
            Ok(listener) => listener,
            Err(_) => TcpListener::bind((peers.address, 0)).await.map_err(|error| format!("cannot listen: {error}"))?,
        };
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let bases = Bases::default();
        let serving = Serving { world: world.clone(), data, node: node.to_owned(), bases: bases.clone() };
        let peers = peers.clone();
        tokio::spawn(async move {
            let accepting = accept(listener, peers, serving);
            world.shutdown.run_until_cancelled(accepting).await;
        });
        Ok(Server { address, bases })
    }
}

async fn accept(listener: TcpListener, peers: Peers, serving: Serving) {
    let gate = Gate::new(LIMITS);
    loop {
        let (stream, slot) = gate.accept(&listener).await;
        let peers = peers.clone();
        let serving = serving.clone();
        tokio::spawn(async move {
            let shutdown = serving.world.shutdown.clone();
            let served = async {
                let connected = connect(&peers, stream).await;
                let (mut stream, peer) = match connected {
                    Ok(connected) => connected,
                    Err(error) => return tracing::debug!(error, "a connection of a standby is refused"),
                };
                slot.authenticated();
                slot.request_arrived();
                if let Err(error) = serving.serve(&mut stream, &peer).await {
                    tracing::info!(peer, error, "an increment was not sent");
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => {}
                () = slot.closed() => {}
                () = served => {}
            }
        });
    }
}

/// Completes the handshake; returns the node of the peer.
async fn connect(
    peers: &Peers,
    stream: TcpStream,
) -> Result<(tokio_rustls::server::TlsStream<TcpStream>, String), String> {
    let _ = stream.set_nodelay(true);
    let acceptor = TlsAcceptor::from(peers.identity.server()?);
    let stream = corten_listen::handshake(&acceptor, stream).await.map_err(|error| error.to_string())?;
    let certificate = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
    let node = certificate.and_then(|certificate| peers.identity.node_of(certificate));
    let node = node.ok_or("the peer is not the storage component of a node")?;
    Ok((stream, node))
}

impl Serving {
    async fn serve(&self, stream: &mut (impl AsyncRead + AsyncWrite + Unpin), peer: &str) -> Result<(), String> {
        let hello: Hello = wire::receive(stream).await?;
        let replica: Option<VolumeReplica> = self.world.get("", &hello.replica);
        let refusal = refusal(replica.as_ref(), &hello, peer, &self.node);
        let (Some(replica), None) = (replica, &refusal) else {
            return wire::send(stream, &Answer::Refused(refusal.unwrap_or_default())).await;
        };
        send(stream, &self.data, &self.bases, &hello, &replica.spec.volume_handle).await
    }
}

/// Returns why a node gets no increment of a volume.
fn refusal(replica: Option<&VolumeReplica>, hello: &Hello, peer: &str, node: &str) -> Option<String> {
    let Some(replica) = replica else { return Some("the VolumeReplica does not exist".to_owned()) };
    let spec = &replica.spec;
    match () {
        () if spec.primary_node != node => Some(format!("node {node} is not the primary")),
        () if spec.standby_node != peer => Some(format!("node {peer} is not the standby")),
        () if spec.epoch != hello.epoch => Some(format!("the epoch is {}, and not {}", spec.epoch, hello.epoch)),
        () => None,
    }
}

/// Sends an increment over a connection.
pub async fn send(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    data: &Arc<dyn ReplicaData>,
    bases: &Bases,
    hello: &Hello,
    handle: &str,
) -> Result<(), String> {
    let base = bases.take(handle, &hello.base);
    let known = base.clone();
    let volume = handle.to_owned();
    let epoch = hello.epoch;
    let opened = blocking(data, move |data| {
        match data.part(&volume)? {
            Some(part) if part.is_primary && part.epoch == epoch => {}
            _ => return Err(format!("this node is not the primary of epoch {epoch} yet")),
        }
        plan(data, &volume, known)
    });
    let plan = match (opened.await, base) {
        (Ok(Some(plan)), _) => plan,
        (Ok(None), Some(base)) => {
            bases.keep(handle, &hello.base, base);
            return wire::send(stream, &Answer::Unchanged).await;
        }
        (Ok(None), None) => return Err("nothing is known to be unchanged".to_owned()),
        (Err(message), _) => return wire::send(stream, &Answer::Refused(message)).await,
    };
    let generation = plan.generation.clone();
    wire::send(stream, &Answer::Increment(plan.header())).await?;
    send_chunks(stream, data, &plan).await?;
    let kept = tokio::time::timeout(COMMIT_PATIENCE, wire::read(stream, KEPT.len())).await;
    match kept {
        Ok(Ok(frame)) if frame == KEPT => bases.keep(handle, &generation, plan.increment),
        _ => return Err("the standby did not confirm the increment".to_owned()),
    }
    Ok(())
}

/// An increment that is to be sent.
struct Planned {
    generation: String,
    increment: Arc<Increment>,
    /// The chunks that may differ from the copy's; none if that is not known.
    changed: Option<BTreeSet<u64>>,
}

impl Planned {
    fn header(&self) -> Header {
        let chunks = self.changed.as_ref().map_or(chunk_count(self.increment.bytes), |changed| changed.len() as u64);
        Header {
            generation: self.generation.clone(),
            record: self.increment.record.clone(),
            changed: chunks.saturating_mul(CHUNK_BYTES),
            is_whole: self.changed.is_none(),
        }
    }
}

/// Opens the content of a volume, and finds the chunks that changed; none if nothing did.
fn plan(data: &dyn ReplicaData, volume: &str, base: Option<Arc<Increment>>) -> Result<Option<Planned>, String> {
    let base = base.as_ref();
    let Some(increment) = data.increment(volume, base.map(|base| &base.file))? else { return Ok(None) };
    let changed = match base {
        // A volume that has grown has chunks that the base lacks.
        Some(base) if base.bytes == increment.bytes => data.changed(&base.file, &increment.file, increment.bytes)?,
        _ => None,
    };
    let mut random = [0; 16];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut random).map_err(|_| "no random number")?;
    let generation = random.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(Some(Planned { generation, increment: Arc::new(increment), changed }))
}

async fn send_chunks(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    data: &Arc<dyn ReplicaData>,
    plan: &Planned,
) -> Result<(), String> {
    let chunks = chunk_count(plan.increment.bytes);
    let mut next = 0;
    loop {
        let offered = next_chunks(plan, next, chunks);
        let increment = plan.increment.clone();
        let is_whole = plan.changed.is_none();
        let last = offered.last().copied();
        let entries = blocking(data, move |_| describe(&increment.file, increment.bytes, &offered, is_whole)).await?;
        if let (Some(last), true) = (last, entries.is_empty()) {
            next = last + 1;
            continue;
        }
        wire::write(stream, &wire::encode_entries(&entries)).await?;
        let Some(last) = last else { return Ok(()) };
        for index in wire::read_wanted(stream, &entries).await? {
            let increment = plan.increment.clone();
            let read = move |_: &dyn ReplicaData| {
                read_chunk(&increment.file, increment.bytes, index).map_err(|error| error.to_string())
            };
            let chunk = blocking(data, read).await?.ok_or("a chunk of an increment is gone")?;
            wire::write(stream, &chunk).await?;
        }
        next = last + 1;
    }
}

/// Returns the chunks of the next frame.
fn next_chunks(plan: &Planned, next: u64, chunks: u64) -> Vec<u64> {
    match &plan.changed {
        Some(changed) => changed.range(next..).copied().take(BATCH).collect(),
        None => (next..chunks).take(BATCH).collect(),
    }
}

/// Returns chunks with their digests; of a whole increment only those that are not zero.
fn describe(file: &File, bytes: u64, indexes: &[u64], is_whole: bool) -> Result<Vec<Entry>, String> {
    let mut entries = Vec::new();
    for index in indexes {
        let chunk = read_chunk(file, bytes, *index).map_err(|error| error.to_string())?;
        let digest = chunk.map(|chunk| wire::digest(&chunk));
        if digest.is_some() || !is_whole {
            entries.push(Entry { index: *index, digest });
        }
    }
    Ok(entries)
}
