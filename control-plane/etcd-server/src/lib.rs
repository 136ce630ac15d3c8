//! etcd's v3 API, served from the embedded store: `etcdctl`, etcd's libraries and upstream's API server work on it.
//!
//! A request is checked (`check`), then answered from a snapshot of the store, or run by its committer as one
//! transaction (`execute`). Watches are those of the store, several per stream (`watch`). Errors have etcd's codes and
//! texts (`status`), since clients compare them.
//!
//! It must never answer from a state that is not durable, and never take a message, a stream or a watch beyond
//! [`Limits`]. Members cannot be added: a cluster of several needs etcd itself.

mod check;
mod cluster;
mod execute;
mod kv;
mod lease;
mod listen;
mod maintenance;
mod status;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use corten_etcd::etcdserverpb::ResponseHeader;
use corten_etcd::etcdserverpb::cluster_server::ClusterServer;
use corten_etcd::etcdserverpb::kv_server::KvServer;
use corten_etcd::etcdserverpb::lease_server::LeaseServer;
use corten_etcd::etcdserverpb::maintenance_server::MaintenanceServer;
use corten_etcd::etcdserverpb::watch_server::WatchServer;
use corten_etcd::{MAX_REQUEST_BYTES, MAX_TXN_OPS};
use corten_store::{Embedded, Revision, Store};
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Router;

pub use listen::{bind_unix, serve_tls, serve_unix};

/// The etcd version whose API this is. Upstream's API server enables by it what works: consistent reads from its cache
/// need 3.5.13.
pub const VERSION: &str = "3.5.21";

/// The raft term, which never changes with one member.
const TERM: u64 = 1;
/// The part of a message that is not keys and values, as etcd estimates it.
const MESSAGE_OVERHEAD: usize = 512 << 10;

/// The bounds of what clients may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The bytes of one request.
    pub request_bytes: usize,
    /// The operations of one transaction, on each of its sides.
    pub txn_ops: usize,
    /// The streams of one connection.
    pub streams: u32,
    /// The connections of one listener.
    pub connections: usize,
    /// The watches of one stream.
    pub watches: usize,
    /// The time to answer one request; a stream may last.
    pub deadline: Duration,
    /// The time to the progress notification of a watch without events.
    pub progress: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            request_bytes: MAX_REQUEST_BYTES,
            txn_ops: MAX_TXN_OPS,
            streams: 10_000,
            connections: 1_024,
            watches: 10_000,
            deadline: Duration::from_secs(60),
            progress: Duration::from_secs(5),
        }
    }
}

/// The one member of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub cluster_id: u64,
    pub id: u64,
    pub name: String,
    /// The URLs that clients reach it at.
    pub client_urls: Vec<String>,
}

impl Member {
    /// Returns the member of a node: its ids follow from the name.
    pub fn named(name: &str, client_urls: Vec<String>) -> Member {
        use sha2::{Digest, Sha256};
        let id = |salt: &str| {
            let digest: [u8; 32] = Sha256::new().chain_update(salt).chain_update(name).finalize().into();
            digest[..8].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        Member { cluster_id: id("cluster "), id: id("member "), name: name.to_owned(), client_urls }
    }
}

/// The services of the API.
#[derive(Clone, Debug)]
pub struct Server {
    store: Arc<Embedded>,
    member: Arc<Member>,
    limits: Limits,
    /// Ends the listeners and the streams.
    shutdown: CancellationToken,
}

impl Server {
    /// Makes the services of a store, which end at the shutdown.
    pub fn new(store: Arc<Embedded>, member: Member, limits: Limits, shutdown: CancellationToken) -> Server {
        Server { store, member: Arc::new(member), limits, shutdown }
    }

    fn router(&self) -> Router {
        let size = self.limits.request_bytes + MESSAGE_OVERHEAD;
        let server = self.clone();
        tonic::transport::Server::builder()
            .timeout(self.limits.deadline)
            .max_concurrent_streams(self.limits.streams)
            .http2_keepalive_interval(Some(Duration::from_secs(60)))
            .http2_keepalive_timeout(Some(Duration::from_secs(20)))
            .add_service(KvServer::new(server.clone()).max_decoding_message_size(size))
            .add_service(WatchServer::new(server.clone()).max_decoding_message_size(size))
            .add_service(LeaseServer::new(server.clone()).max_decoding_message_size(size))
            .add_service(MaintenanceServer::new(server.clone()).max_decoding_message_size(size))
            .add_service(ClusterServer::new(server).max_decoding_message_size(size))
    }

    /// Returns the header of an answer at a revision.
    fn header(&self, revision: Revision) -> Option<ResponseHeader> {
        Some(ResponseHeader {
            cluster_id: self.member.cluster_id,
            member_id: self.member.id,
            revision: signed(revision),
            raft_term: TERM,
        })
    }

    /// Returns the header of an answer at the store's revision.
    fn header_now(&self) -> Option<ResponseHeader> {
        self.header(self.store.revision())
    }
}

/// Returns a number of the store as the API has it.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
