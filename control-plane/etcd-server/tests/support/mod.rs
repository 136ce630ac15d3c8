//! The shared parts of the tests: a store in a new directory, served on a unix socket.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corten_etcd::etcdserverpb::cluster_client::ClusterClient;
use corten_etcd::etcdserverpb::kv_client::KvClient;
use corten_etcd::etcdserverpb::lease_client::LeaseClient;
use corten_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use corten_etcd::etcdserverpb::watch_client::WatchClient;
use corten_etcd::etcdserverpb::{PutRequest, RangeRequest};
use corten_etcd_server::{Limits, Member, Server, bind_unix, serve_unix};
use corten_store::{Config, Embedded};
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::transport::{Channel, Endpoint};

/// The time after which a test gives up waiting for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A served store. Dropping it ends the server and removes the directory.
pub struct Served {
    pub store: Arc<Embedded>,
    pub socket: PathBuf,
    pub channel: Channel,
    _shutdown: DropGuard,
    _folder: TempDir,
}

pub async fn serve() -> Served {
    serve_with(Limits::default(), |config| config).await
}

pub async fn serve_with(limits: Limits, configure: impl FnOnce(Config) -> Config) -> Served {
    let folder = tempfile::tempdir().unwrap();
    let store = Embedded::open(configure(Config::new(folder.path().join("store")))).unwrap();
    let socket = folder.path().join("etcd.sock");
    let listener = bind_unix(&socket).unwrap();
    let shutdown = CancellationToken::new();
    let url = format!("unix://{}", socket.display());
    let server = Server::new(store.clone(), Member::named("test", vec![url.clone()]), limits, shutdown.clone());
    tokio::spawn(serve_unix(server, listener));
    let channel = Endpoint::try_from(url).unwrap().connect().await.unwrap();
    Served { store, socket, channel, _shutdown: shutdown.drop_guard(), _folder: folder }
}

impl Served {
    pub fn kv(&self) -> KvClient<Channel> {
        KvClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub fn watch(&self) -> WatchClient<Channel> {
        WatchClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub fn lease(&self) -> LeaseClient<Channel> {
        LeaseClient::new(self.channel.clone())
    }

    pub fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }

    pub fn cluster(&self) -> ClusterClient<Channel> {
        ClusterClient::new(self.channel.clone())
    }

    /// Puts a key and returns the revision.
    pub async fn put(&self, key: &str, value: &str) -> i64 {
        let request = PutRequest { key: key.to_owned().into(), value: value.to_owned().into(), ..Default::default() };
        self.kv().put(request).await.unwrap().into_inner().header.unwrap().revision
    }
}

/// Returns a range of one key.
pub fn one(key: &str) -> RangeRequest {
    RangeRequest { key: key.to_owned().into(), ..Default::default() }
}

/// Returns a range of all keys from `key` up to `end`.
pub fn span(key: &str, end: &str) -> RangeRequest {
    RangeRequest { range_end: end.to_owned().into(), ..one(key) }
}
