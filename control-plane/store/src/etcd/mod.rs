//! The etcd engine: a store in an etcd cluster, which other API servers may share.
//!
//! - `members` chooses the member of a call, and another one when it does not answer (`dial`, `failure`);
//! - `commit` makes transactions, and decides the outcome of one whose answer was lost (`history`);
//! - `current` reads the last revision by quorum, once for all that wait;
//! - `follower` keeps a watch alive over the loss of members (`stream`);
//! - `compaction` and `health` run beside them.
//!
//! All reads are linearizable. It must never repeat a write whose outcome it does not know, and never take a progress
//! notification of one watch for another.

mod commit;
mod compaction;
mod config;
mod current;
mod dial;
mod download;
mod failure;
mod follower;
mod health;
mod history;
mod members;
mod messages;
mod stream;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use bytes::Bytes;
use corten_etcd::etcdserverpb::alarm_request::AlarmAction;
use corten_etcd::etcdserverpb::kv_client::KvClient;
use corten_etcd::etcdserverpb::lease_client::LeaseClient;
use corten_etcd::etcdserverpb::maintenance_client::MaintenanceClient;
use corten_etcd::etcdserverpb::{
    AlarmRequest, AlarmType, CompactionRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseRevokeRequest,
    LeaseTimeToLiveRequest,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::Status;

use self::current::Current;
use self::failure::Refusal;
use self::follower::Follower;
use self::members::{Members, traced};
use self::messages::{get_request, range_end, range_request, range_result, revision, signed, unsigned};
use self::stream::Selection;
use crate::{
    Entry, Error, Health, Lease, LeaseId, Op, Outcome, Range, RangeResult, Revision, Store, Watch, prefix_end,
};

pub use config::{Config, Tls};
pub use download::download;
pub use health::Alarm;

/// The largest answer: a page of a list may hold many objects.
const MAX_ANSWER_BYTES: usize = 1 << 30;

/// Returns the alarms of a cluster whose members are suitable. No key is read: a corrupt cluster refuses that.
pub async fn alarms_of(config: &Config) -> Result<Vec<Alarm>, Error> {
    let members = Members::new(config)?;
    members.start(config.dial_timeout).await?;
    health::alarms(&members).await
}

/// A store in an etcd cluster. Dropping it ends its watches and tasks.
pub struct Etcd {
    shared: Arc<Shared>,
    watch_buffer: usize,
    _shutdown: DropGuard,
}

/// The state that the callers and the tasks share.
struct Shared {
    members: Arc<Members>,
    current: Arc<Current>,
    health_key: Bytes,
    health: watch::Sender<Health>,
    /// The prefix of each watch, and its wish for progress.
    watches: Mutex<Vec<(Bytes, Weak<Notify>)>>,
    compacted: AtomicU64,
    size: AtomicU64,
    /// The space that is left; `u64::MAX` if it is unknown.
    free: AtomicU64,
    shutdown: CancellationToken,
}

impl Etcd {
    /// Connects to the cluster. Refuses members that are too old, of another cluster, or not trusted; nothing is
    /// written before all that answer were checked.
    pub async fn open(config: Config) -> Result<Arc<Etcd>, Error> {
        let members = Arc::new(Members::new(&config)?);
        members.start(config.dial_timeout).await?;
        let shutdown = CancellationToken::new();
        let shared = Arc::new(Shared {
            members,
            current: Arc::default(),
            health_key: config.health_key.into(),
            health: watch::Sender::default(),
            watches: Mutex::default(),
            compacted: AtomicU64::new(0),
            size: AtomicU64::new(0),
            free: AtomicU64::new(u64::MAX),
            shutdown: shutdown.clone(),
        });
        current::read(&shared.members, &shared.health_key).await?;
        tokio::spawn(health::run(Arc::clone(&shared)));
        if !config.compaction_interval.is_zero() {
            tokio::spawn(compaction::run(Arc::clone(&shared), config.compaction_interval));
        }
        Ok(Arc::new(Etcd { shared, watch_buffer: config.watch_buffer, _shutdown: shutdown.drop_guard() }))
    }

    /// Replaces the client URLs of the members, when members joined or left. Calls and watches go on: those of a member
    /// that stays keep its connection, the others move. Fails, and changes nothing, if the list is empty or a URL is
    /// invalid. A new member is used once it proved to be of the same cluster.
    pub fn set_endpoints(&self, endpoints: &[String]) -> Result<(), Error> {
        self.shared.members.set_endpoints(endpoints)
    }

    /// Replaces the identity of this client and the CAs of the members: the next connections use them, and those that
    /// are open stay. Fails, and changes nothing, if they are invalid, such as a certificate beside another one's key.
    pub fn set_tls(&self, files: &Tls) -> Result<(), Error> {
        self.shared.members.set_tls(files)
    }

    /// Stops or resumes all writes to the cluster by its alarm NOSPACE. The embedded store lets the alarm end after half
    /// a minute, unless it is raised again.
    pub async fn set_writable(&self, is_writable: bool) -> Result<(), Error> {
        let action = if is_writable { AlarmAction::Deactivate } else { AlarmAction::Activate };
        let request = AlarmRequest { action: action.into(), member_id: 0, alarm: AlarmType::Nospace.into() };
        let members = &self.shared.members;
        let called = members.call(|channel| async move { MaintenanceClient::new(channel).alarm(request).await });
        called.await.answer().map(drop)
    }

    async fn follow(&self, prefix: Bytes, from: Revision) -> Result<Watch, Error> {
        let shared = &self.shared;
        let from = match from {
            0 => shared.current.get(&shared.members, &shared.health_key).await? + 1,
            from => check_start(shared, from).await.map(|()| from)?,
        };
        let (feed, watch) = Watch::new(VecDeque::new(), self.watch_buffer);
        let wanted = Arc::new(Notify::new());
        {
            let mut watches = shared.watches.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            watches.retain(|(_, wanted)| wanted.strong_count() > 0);
            watches.push((prefix.clone(), Arc::downgrade(&wanted)));
        }
        let key = messages::first_key(&prefix);
        let range_end = range_end(&prefix_end(&prefix));
        let follower = Follower {
            members: Arc::clone(&shared.members),
            selection: Selection { key, range_end, from },
            feed,
            wanted,
            shutdown: shared.shutdown.clone(),
        };
        tokio::spawn(follower.run());
        Ok(watch)
    }
}

/// Fails with [`Error::Compacted`] if no watch can begin at `from`.
async fn check_start(shared: &Shared, from: Revision) -> Result<(), Error> {
    // etcd reports that only after the watch was made; the state before its start is compacted at the same time.
    let range = Range::key(&shared.health_key).count_only().at((from - 1).max(1));
    match range_at(shared, &range).await {
        Ok(_) | Err(Error::Future { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

async fn range(shared: &Shared, range: Range) -> Result<RangeResult, Error> {
    range_at(shared, &range).await
}

async fn range_at(shared: &Shared, range: &Range) -> Result<RangeResult, Error> {
    let request = range_request(range);
    let called = shared.members.call(|channel| {
        let request = request.clone();
        async move { KvClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES).range(traced(request)).await }
    });
    let called = called.await;
    match called.refusal() {
        Some(Refusal::Compacted) => {
            let compacted = history::compacted(shared).await?;
            shared.compacted.fetch_max(compacted, Ordering::AcqRel);
            Err(Error::Compacted { compacted })
        }
        Some(Refusal::Future) => {
            let requested = range.revision.unwrap_or(0);
            Err(Error::Future { requested, current: shared.members.revision() })
        }
        _ => Ok(range_result(range, called.answer()?)),
    }
}

async fn compact(shared: &Shared, revision: Revision) -> Result<(), Error> {
    if revision == 0 {
        return Err(Error::Compacted { compacted: shared.compacted.load(Ordering::Acquire) });
    }
    let request = CompactionRequest { revision: signed(revision), physical: false };
    let called = shared.members.call(|channel| async move { KvClient::new(channel).compact(request).await });
    let called = called.await;
    match called.refusal() {
        // The lost attempt did it.
        Some(Refusal::Compacted) if called.is_repeated => {}
        Some(Refusal::Compacted) => {
            let compacted = history::compacted(shared).await?;
            return Err(Error::Compacted { compacted });
        }
        Some(Refusal::Future) => {
            return Err(Error::Future { requested: revision, current: shared.members.revision() });
        }
        _ => drop(called.answer()?),
    }
    shared.compacted.fetch_max(revision, Ordering::AcqRel);
    Ok(())
}

async fn grant(shared: &Shared, ttl: Duration, id: LeaseId) -> Result<LeaseId, Error> {
    // An id of our own shows whether a lost attempt granted the lease.
    let id = if id == 0 { (uuid::Uuid::new_v4().as_u128() as i64 & i64::MAX).max(1) } else { id };
    let seconds = i64::try_from(ttl.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
    let request = LeaseGrantRequest { ttl: seconds, id };
    let called = shared.members.call(|channel| async move { LeaseClient::new(channel).lease_grant(request).await });
    let called = called.await;
    match called.refusal() {
        Some(Refusal::LeaseExists) if called.is_repeated => Ok(id),
        Some(Refusal::LeaseExists) => Err(Error::LeaseExists(id)),
        _ => Ok(called.answer()?.id),
    }
}

async fn revoke(shared: &Shared, id: LeaseId) -> Result<Revision, Error> {
    let request = LeaseRevokeRequest { id };
    let called = shared.members.call(|channel| async move { LeaseClient::new(channel).lease_revoke(request).await });
    let called = called.await;
    match called.refusal() {
        Some(Refusal::LeaseNotFound) if called.is_repeated => Ok(shared.members.revision()),
        Some(Refusal::LeaseNotFound) => Err(Error::LeaseNotFound(id)),
        _ => Ok(revision(called.answer()?.header.as_ref())),
    }
}

async fn keep_alive(shared: &Shared, id: LeaseId) -> Result<Duration, Error> {
    let called = shared.members.call(|channel| async move {
        let requests = futures::stream::iter([LeaseKeepAliveRequest { id }]);
        let mut answers = LeaseClient::new(channel).lease_keep_alive(requests).await?.into_inner();
        let answer = answers.message().await?;
        answer.map(tonic::Response::new).ok_or_else(|| Status::unavailable("the member ended the stream"))
    });
    match called.await.answer()?.ttl {
        ttl if ttl <= 0 => Err(Error::LeaseNotFound(id)),
        ttl => Ok(Duration::from_secs(unsigned(ttl))),
    }
}

async fn time_to_live(shared: &Shared, id: LeaseId) -> Result<Lease, Error> {
    let request = LeaseTimeToLiveRequest { id, keys: true };
    let called = shared.members.call(|channel| async move {
        LeaseClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES).lease_time_to_live(request).await
    });
    let answer = called.await.answer()?;
    if answer.ttl < 0 {
        return Err(Error::LeaseNotFound(id));
    }
    let mut keys = answer.keys;
    keys.sort_unstable();
    let ttl = Duration::from_secs(unsigned(answer.granted_ttl));
    Ok(Lease { id, ttl, remaining: Duration::from_secs(unsigned(answer.ttl)), keys })
}

impl Store for Etcd {
    fn revision(&self) -> Revision {
        self.shared.members.revision()
    }

    fn is_shared(&self) -> bool {
        true
    }

    fn current(&self) -> BoxFuture<'_, Result<Revision, Error>> {
        self.shared.current.get(&self.shared.members, &self.shared.health_key).boxed()
    }

    fn compacted(&self) -> Revision {
        self.shared.compacted.load(Ordering::Acquire)
    }

    fn max_ops(&self) -> usize {
        corten_etcd::MAX_TXN_OPS
    }

    fn size(&self) -> u64 {
        self.shared.size.load(Ordering::Acquire)
    }

    fn free(&self) -> Option<u64> {
        Some(self.shared.free.load(Ordering::Acquire)).filter(|free| *free != u64::MAX)
    }

    /// Never broken: whatever befalls a member, the cluster may recover while this process runs.
    fn follow_health(&self) -> watch::Receiver<Health> {
        self.shared.health.subscribe()
    }

    fn get(&self, key: &[u8]) -> BoxFuture<'_, Result<(Revision, Option<Entry>), Error>> {
        let request = get_request(key);
        async move {
            let called = self.shared.members.call(|channel| {
                let request = request.clone();
                async move {
                    KvClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES).range(traced(request)).await
                }
            });
            let answer = called.await.answer()?;
            let revision = revision(answer.header.as_ref());
            Ok((revision, answer.kvs.into_iter().next().map(messages::entry)))
        }
        .boxed()
    }

    fn range(&self, wanted: Range) -> BoxFuture<'_, Result<RangeResult, Error>> {
        range(&self.shared, wanted).boxed()
    }

    fn commit(&self, ops: Vec<Op>) -> BoxFuture<'_, Result<Outcome, Error>> {
        commit::commit(&self.shared, ops).boxed()
    }

    fn watch(&self, prefix: &[u8], from: Revision) -> BoxFuture<'_, Result<Watch, Error>> {
        self.follow(Bytes::copy_from_slice(prefix), from).boxed()
    }

    fn progress(&self, prefix: &[u8]) -> BoxFuture<'_, Result<Revision, Error>> {
        let prefix = Bytes::copy_from_slice(prefix);
        async move {
            let revision = self.current().await?;
            let watches = self.shared.watches.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let same = watches.iter().filter(|(other, _)| *other == prefix).filter_map(|(_, wanted)| wanted.upgrade());
            same.for_each(|wanted| wanted.notify_one());
            Ok(revision)
        }
        .boxed()
    }

    fn compact(&self, revision: Revision) -> BoxFuture<'_, Result<(), Error>> {
        compact(&self.shared, revision).boxed()
    }

    fn grant(&self, ttl: Duration, id: LeaseId) -> BoxFuture<'_, Result<LeaseId, Error>> {
        grant(&self.shared, ttl, id).boxed()
    }

    fn revoke(&self, id: LeaseId) -> BoxFuture<'_, Result<Revision, Error>> {
        revoke(&self.shared, id).boxed()
    }

    fn keep_alive(&self, id: LeaseId) -> BoxFuture<'_, Result<Duration, Error>> {
        keep_alive(&self.shared, id).boxed()
    }

    fn time_to_live(&self, id: LeaseId) -> BoxFuture<'_, Result<Lease, Error>> {
        time_to_live(&self.shared, id).boxed()
    }
}
