//! Tests of the store against a model of a few lines: random commits, expectations, ranges at old revisions,
//! compactions, leases with a manual clock, and reopening, in any order.

#![allow(clippy::unwrap_used, reason = "a test stops at what it does not expect")]

mod support;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corten_store::etcd::Etcd;
use corten_store::{Embedded, Entry, Error, Expect, LeaseId, Op, Outcome, Range, RangeResult, Revision, Store};
use proptest::prelude::*;

use support::etcd::EtcdCluster;
use support::{ManualClock, block_on, small};

type State = BTreeMap<Bytes, Entry>;

/// The model of the store: every state it ever had, by revision.
struct Model {
    states: BTreeMap<Revision, State>,
    compacted: Revision,
    /// The time to live and the deadline of each lease.
    leases: BTreeMap<LeaseId, (Duration, Duration)>,
    now: Duration,
}

impl Model {
    fn new() -> Model {
        let states = BTreeMap::from([(1, State::new())]);
        Model { states, compacted: 0, leases: BTreeMap::new(), now: Duration::ZERO }
    }

    fn revision(&self) -> Revision {
        *self.states.keys().last().unwrap()
    }

    fn current(&self) -> &State {
        &self.states[&self.revision()]
    }

    /// Returns the outcome; the leases that do not exist as an error. A conflict comes before a missing lease, except
    /// one of an earlier operation in the embedded engine.
    fn commit(&mut self, ops: &[Op], leases_first: bool) -> Result<Outcome, Vec<LeaseId>> {
        let mut state = self.current().clone();
        let revision = self.revision();
        let mut missing = Vec::new();
        for (number, op) in ops.iter().enumerate() {
            let current = state.get(op.key());
            let holds = match op.expect() {
                Expect::Any => true,
                Expect::Absent => current.is_none(),
                Expect::ModRevision(revision) => current.map(|entry| entry.mod_revision) == Some(revision),
            };
            if !holds {
                return Ok(Outcome::Conflict { op: number, current: current.cloned(), revision });
            }
            if let Op::Put { lease, .. } = op
                && *lease != 0
                && !self.leases.contains_key(lease)
            {
                missing.push(*lease);
                if leases_first {
                    return Err(missing);
                }
            }
        }
        if !missing.is_empty() {
            return Err(missing);
        }
        let next = revision + 1;
        let previous: Vec<_> = ops.iter().map(|op| change(&mut state, op, next)).collect();
        let changed = ops.iter().zip(&previous).any(|(op, old)| matches!(op, Op::Put { .. }) || old.is_some());
        if changed {
            self.states.insert(next, state);
        }
        let previous = previous.into_iter().map(|entry| entry.map(Arc::new)).collect();
        Ok(Outcome::Committed { revision: self.revision(), previous })
    }

    fn end_lease(&mut self, id: LeaseId) {
        self.leases.remove(&id);
        let keys: Vec<_> = self.current().values().filter(|entry| entry.lease == id).map(|e| e.key.clone()).collect();
        let ops: Vec<_> = keys.into_iter().map(|key| Op::delete(key, Expect::Any)).collect();
        self.commit(&ops, true).unwrap();
    }

    fn advance(&mut self, time: Duration) {
        self.now += time;
        let mut due: Vec<_> = self.leases.iter().filter(|(_, (_, end))| *end <= self.now).collect();
        // Leases expire in the order of their deadlines, and of their ids among equals.
        due.sort_by_key(|(id, (_, end))| (*end, **id));
        let due: Vec<LeaseId> = due.into_iter().map(|(id, _)| *id).collect();
        due.into_iter().for_each(|id| self.end_lease(id));
    }

    fn range(&self, range: &Range) -> RangeResult {
        let revision = range.revision.unwrap_or(self.revision());
        let inside = |key: &Bytes| *key >= range.start && (range.end.is_empty() || *key < range.end);
        let mut all: Vec<Entry> = self.states[&revision].values().filter(|entry| inside(&entry.key)).cloned().collect();
        let count = all.len() as u64;
        let limit = if range.limit == 0 { usize::MAX } else { range.limit };
        let more = !range.count_only && all.len() > limit;
        all.truncate(if range.count_only { 0 } else { limit });
        if range.keys_only {
            all.iter_mut().for_each(|entry| entry.value = Bytes::new());
        }
        RangeResult { revision, entries: all, more, count }
    }
}

fn change(state: &mut State, op: &Op, revision: Revision) -> Option<Entry> {
    match op {
        Op::Delete { key, .. } => state.remove(key),
        Op::Put { key, value, lease, .. } => {
            let (create_revision, version) =
                state.get(key).map_or((revision, 1), |entry| (entry.create_revision, entry.version + 1));
            let key = key.clone();
            let value = value.clone();
            let lease = *lease;
            state.insert(key.clone(), Entry { key, value, create_revision, mod_revision: revision, version, lease })
        }
    }
}

#[derive(Clone, Debug)]
enum Action {
    /// A commit: keys by number, each with its change and its expectation.
    Commit(BTreeMap<u8, (Write, Expectation)>),
    Range {
        start: u8,
        end: u8,
        limit: usize,
        back: Option<u8>,
        count_only: bool,
        keys_only: bool,
    },
    Compact {
        back: u8,
    },
    Grant {
        id: LeaseId,
        seconds: u8,
    },
    Revoke(LeaseId),
    KeepAlive(LeaseId),
    Advance(u8),
    Reopen,
}

#[derive(Clone, Debug)]
enum Write {
    Put { size: u16, lease: LeaseId },
    Delete,
}

#[derive(Clone, Debug)]
enum Expectation {
    Any,
    Absent,
    Right,
    Wrong,
}

fn action() -> impl Strategy<Value = Action> {
    let lease = prop_oneof![6 => Just(0), 1 => 1..4_i64];
    let write = prop_oneof![
        3 => (0..300_u16, lease).prop_map(|(size, lease)| Write::Put { size, lease }),
        1 => Just(Write::Delete),
    ];
    let expectation = prop_oneof![
        5 => Just(Expectation::Any),
        1 => Just(Expectation::Absent),
        3 => Just(Expectation::Right),
        1 => Just(Expectation::Wrong),
    ];
    let commit = prop::collection::btree_map(0..12_u8, (write, expectation), 0..4);
    let range = (0..13_u8, 0..13_u8, 0..4_usize, any::<Option<u8>>(), any::<bool>(), any::<bool>());
    prop_oneof![
        12 => commit.prop_map(Action::Commit),
        6 => range.prop_map(|(start, end, limit, back, count_only, keys_only)| {
            Action::Range { start, end, limit, back, count_only, keys_only }
        }),
        1 => (0..20_u8).prop_map(|back| Action::Compact { back }),
        1 => (1..4_i64, 1..20_u8).prop_map(|(id, seconds)| Action::Grant { id, seconds }),
        1 => (1..4_i64).prop_map(Action::Revoke),
        1 => (1..4_i64).prop_map(Action::KeepAlive),
        1 => (0..15_u8).prop_map(Action::Advance),
        1 => Just(Action::Reopen),
    ]
}

fn key(number: u8) -> Bytes {
    // One key is the prefix of others, and one ends in the highest byte.
    match number {
        0 => Bytes::from_static(b"/a"),
        1 => Bytes::from_static(b"/a\xff"),
        12 => Bytes::new(),
        number => format!("/a/{number:02}").into(),
    }
}

/// An open store, and how to open it again.
enum Engine {
    Embedded {
        dir: tempfile::TempDir,
        clock: Arc<ManualClock>,
        store: Option<Arc<Embedded>>,
    },
    /// Its clock is the real one, so that no time passes in the model.
    Etcd {
        cluster: EtcdCluster,
        store: Arc<Etcd>,
    },
}

/// The time to live of leases that must not expire.
const LONG: Duration = Duration::from_secs(100_000);

struct Pair {
    engine: Engine,
    model: Model,
    written: u64,
}

impl Pair {
    fn embedded() -> Pair {
        let dir = tempfile::tempdir().unwrap();
        let clock = Arc::new(ManualClock::default());
        let store = Some(Embedded::open(small(dir.path(), &clock)).unwrap());
        Pair { engine: Engine::Embedded { dir, clock, store }, model: Model::new(), written: 0 }
    }

    async fn etcd() -> Option<Pair> {
        let cluster = EtcdCluster::start(1)?;
        let store = cluster.open().await;
        Some(Pair { engine: Engine::Etcd { cluster, store }, model: Model::new(), written: 0 })
    }

    fn store(&self) -> &dyn Store {
        match &self.engine {
            Engine::Embedded { store, .. } => &**store.as_ref().unwrap(),
            Engine::Etcd { store, .. } => &**store,
        }
    }

    fn is_etcd(&self) -> bool {
        matches!(self.engine, Engine::Etcd { .. })
    }

    async fn advance(&mut self, time: Duration) {
        if let Engine::Embedded { clock, store, .. } = &self.engine {
            clock.advance(time);
            self.model.advance(time);
            store.as_ref().unwrap().tick().await.unwrap();
        }
    }

    async fn reopen(&mut self) {
        match &mut self.engine {
            Engine::Embedded { dir, clock, store } => {
                *store = None;
                *store = Some(Embedded::open(small(dir.path(), clock)).unwrap());
                let now = self.model.now;
                self.model.leases.values_mut().for_each(|(ttl, deadline)| *deadline = now + *ttl);
            }
            Engine::Etcd { cluster, store } => *store = cluster.open().await,
        }
    }

    async fn act(&mut self, action: Action) {
        match action {
            Action::Commit(ops) => self.commit(ops).await,
            Action::Range { start, end, limit, back, count_only, keys_only } => {
                let revision = back.map(|back| self.model.revision().saturating_sub(u64::from(back)).max(1));
                let range = Range { start: key(start), end: key(end), limit, revision, count_only, keys_only };
                self.range(range).await;
            }
            Action::Compact { back } => self.compact(back).await,
            Action::Grant { id, seconds } => {
                let ttl = Duration::from_secs(seconds.into());
                self.grant(id, if self.is_etcd() { LONG + ttl } else { ttl }).await;
            }
            Action::Revoke(id) => self.revoke(id).await,
            Action::KeepAlive(id) => self.keep_alive(id).await,
            Action::Advance(seconds) => self.advance(Duration::from_secs(seconds.into())).await,
            Action::Reopen => self.reopen().await,
        }
        self.compare().await;
    }

    async fn commit(&mut self, ops: BTreeMap<u8, (Write, Expectation)>) {
        let mut list = Vec::new();
        for (number, (write, expectation)) in ops {
            let key = key(number);
            let current = self.model.current().get(&key).map(|entry| entry.mod_revision);
            let expect = match expectation {
                Expectation::Any => Expect::Any,
                Expectation::Absent => Expect::Absent,
                Expectation::Right => current.map_or(Expect::Absent, Expect::ModRevision),
                Expectation::Wrong => Expect::ModRevision(current.unwrap_or(0) + 1),
            };
            list.push(match write {
                Write::Delete => Op::Delete { key, expect },
                Write::Put { size, lease } => {
                    self.written += 1;
                    let value = format!("{:0width$}", self.written, width = usize::from(size)).into();
                    Op::Put { key, value, lease, expect }
                }
            });
        }
        let is_etcd = self.is_etcd();
        let expected = self.model.commit(&list, !is_etcd);
        match (self.store().commit(list).await, expected) {
            (Ok(outcome), Ok(expected)) => assert_eq!(outcome, expected),
            // etcd does not report which lease it misses.
            (Err(Error::LeaseNotFound(id)), Err(missing)) => assert!(is_etcd || id == missing[0]),
            (outcome, expected) => panic!("{outcome:?} instead of {expected:?}"),
        }
    }

    async fn range(&self, range: Range) {
        let result = self.store().range(range.clone()).await;
        match range.revision {
            Some(revision) if revision < self.model.compacted => {
                assert!(matches!(result, Err(Error::Compacted { compacted }) if compacted == self.model.compacted));
            }
            _ => assert_eq!(result.unwrap(), self.model.range(&range)),
        }
        let current = self.model.revision();
        let future = self.store().range(range.at(current + 1)).await;
        assert!(matches!(future, Err(Error::Future { requested, .. }) if requested == current + 1));
    }

    async fn compact(&mut self, back: u8) {
        let revision = self.model.revision().saturating_sub(back.into());
        let result = self.store().compact(revision).await;
        if revision <= self.model.compacted {
            assert!(matches!(result, Err(Error::Compacted { .. })));
        } else {
            result.unwrap();
            self.model.compacted = revision;
        }
    }

    async fn grant(&mut self, id: LeaseId, ttl: Duration) {
        let result = self.store().grant(ttl, id).await;
        if self.model.leases.contains_key(&id) {
            assert!(matches!(result, Err(Error::LeaseExists(existing)) if existing == id));
        } else {
            assert_eq!(result.unwrap(), id);
            self.model.leases.insert(id, (ttl, self.model.now + ttl));
        }
    }

    async fn revoke(&mut self, id: LeaseId) {
        let result = self.store().revoke(id).await;
        if self.model.leases.contains_key(&id) {
            self.model.end_lease(id);
            assert_eq!(result.unwrap(), self.model.revision());
        } else {
            assert!(matches!(result, Err(Error::LeaseNotFound(missing)) if missing == id));
        }
    }

    async fn keep_alive(&mut self, id: LeaseId) {
        let result = self.store().keep_alive(id).await;
        let now = self.model.now;
        match self.model.leases.get_mut(&id) {
            None => assert!(matches!(result, Err(Error::LeaseNotFound(_)))),
            Some((ttl, deadline)) => {
                *deadline = now + *ttl;
                assert_eq!(result.unwrap(), *ttl);
            }
        }
    }

    /// Checks the invariants after every action.
    async fn compare(&self) {
        let store = self.store();
        let model = &self.model;
        assert_eq!(store.current().await.unwrap(), model.revision());
        assert_eq!(store.revision(), model.revision());
        // A client of etcd learns of a compaction before it was opened when it meets it.
        assert!(store.compacted() == model.compacted || self.is_etcd() && store.compacted() == 0);
        let everything = Range::prefix(b"");
        assert_eq!(store.range(everything.clone()).await.unwrap(), model.range(&everything));
        for (id, (ttl, deadline)) in &model.leases {
            let lease = store.time_to_live(*id).await.unwrap();
            let keys: Vec<_> = model.current().values().filter(|e| e.lease == *id).map(|e| e.key.clone()).collect();
            assert_eq!((lease.ttl, lease.keys), (*ttl, keys));
            let remaining = *deadline - model.now;
            assert!(if self.is_etcd() { lease.remaining <= remaining } else { lease.remaining == remaining });
        }
    }

    /// Compares every kept revision, and the history between them.
    async fn compare_history(&self) {
        for revision in self.model.compacted.max(1)..=self.model.revision() {
            let range = Range::prefix(b"").at(revision);
            assert_eq!(self.store().range(range.clone()).await.unwrap(), self.model.range(&range));
        }
        let mut state = self.model.states[&self.model.compacted.max(1)].clone();
        let mut watch = self.store().watch(b"", self.model.compacted + 1).await.unwrap();
        for revision in self.model.compacted.max(1) + 1..=self.model.revision() {
            let batch = watch.next().await.unwrap().unwrap();
            assert_eq!(batch.revision, revision);
            for event in batch.events.iter() {
                let key = event.entry.key.clone();
                let before = match event.kind {
                    corten_store::EventKind::Put => state.insert(key, Entry::clone(&event.entry)),
                    corten_store::EventKind::Delete => state.remove(&key),
                };
                assert_eq!(event.previous.as_deref(), before.as_ref());
            }
            assert_eq!(state, self.model.states[&revision]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn the_store_agrees_with_the_model(actions in prop::collection::vec(action(), 1..120)) {
        block_on(async {
            let mut pair = Pair::embedded();
            for action in actions {
                pair.act(action).await;
            }
            pair.compare_history().await;
            pair.act(Action::Reopen).await;
            pair.compare_history().await;
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

    #[test]
    fn etcd_agrees_with_the_model(actions in prop::collection::vec(action(), 1..120)) {
        block_on(async {
            let Some(mut pair) = Pair::etcd().await else { return };
            for action in actions {
                pair.act(action).await;
            }
            pair.compare_history().await;
            pair.act(Action::Reopen).await;
            pair.compare_history().await;
        });
    }
}
