//! The load of a run: writers, readers, lists and watches of ConfigMaps, which record all that they see.
//!
//! Some clients go through the balancer of an agent, as the components of a node do. Others go to one server each: their requests
//! may fail with it, and what they see must be as true.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::core::v1::ConfigMap;
use corten_client::{Client, DeleteOptions, Error, ListOptions, WatchEvent};
use futures::StreamExt;
use testkit::random::Random;
use tokio_util::sync::CancellationToken;

use super::history::{Event, Found, History, Kind, Listing, Outcome, Read, Watch, Write};

pub const NAMESPACE: &str = "faults";
/// The number of objects.
const KEYS: usize = 16;
/// The longest time of a request: after it the outcome is unknown.
const PATIENCE: Duration = Duration::from_secs(8);
/// The longest silence of a watch while there are writes.
const SILENCE: Duration = Duration::from_secs(8);
/// The pause after a failed request of a watch.
const PAUSE: Duration = Duration::from_millis(100);

/// One client of the load.
#[derive(Clone)]
pub struct Caller {
    pub name: String,
    pub client: Client,
    /// Whether its requests go through the balancer, so that they must not fail for long.
    pub is_balanced: bool,
}

/// A request that failed.
#[derive(Clone, Debug)]
pub struct Failure {
    pub caller: String,
    pub reason: String,
}

/// The record that all clients share.
pub struct Load {
    start: Instant,
    history: Mutex<History>,
    /// The versions of objects, as last seen; none for one that is absent.
    known: Mutex<HashMap<String, Option<u64>>>,
    values: AtomicU64,
    requests: AtomicU64,
    /// The requests through the balancer.
    balanced: AtomicU64,
    /// The times of acknowledged writes through the balancer.
    acknowledged: Mutex<Vec<u64>>,
    failures: Mutex<Vec<Failure>>,
    /// The last version of each watch.
    reached: Mutex<BTreeMap<String, u64>>,
    /// Cancelled when no more requests are sent.
    pub stop: CancellationToken,
    /// Cancelled when the watches end.
    pub end: CancellationToken,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(random: &mut Random) -> String {
    format!("key-{:02}", random.index(KEYS))
}

fn version_of(object: &ConfigMap) -> u64 {
    object.metadata.resource_version.as_deref().and_then(|version| version.parse().ok()).unwrap_or_default()
}

fn value_of(object: &ConfigMap) -> String {
    object.data.as_ref().and_then(|data| data.get("value")).cloned().unwrap_or_default()
}

fn object(key: &str, value: &str, version: Option<u64>) -> ConfigMap {
    let mut object = ConfigMap::default();
    object.metadata.name = Some(key.to_owned());
    object.metadata.namespace = Some(NAMESPACE.to_owned());
    object.metadata.resource_version = version.map(|version| version.to_string());
    object.data = Some([("value".to_owned(), value.to_owned())].into());
    object
}

/// Returns the outcome that an error leaves: a refusal says that nothing took place.
fn outcome_of(error: &Error) -> Outcome {
    match error.status().map(|status| status.code) {
        Some(code) if (400..500).contains(&code) => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

impl Load {
    pub fn new() -> Arc<Load> {
        Arc::new(Load {
            start: Instant::now(),
            history: Mutex::default(),
            known: Mutex::default(),
            values: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            balanced: AtomicU64::new(0),
            acknowledged: Mutex::default(),
            failures: Mutex::default(),
            reached: Mutex::default(),
            stop: CancellationToken::new(),
            end: CancellationToken::new(),
        })
    }

    /// Returns the nanoseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub fn history(&self) -> History {
        lock(&self.history).clone()
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    pub fn balanced(&self) -> u64 {
        self.balanced.load(Ordering::Relaxed)
    }

    fn count(&self, caller: &Caller) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        if caller.is_balanced {
            self.balanced.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn acknowledged(&self) -> Vec<u64> {
        lock(&self.acknowledged).clone()
    }

    pub fn failures(&self) -> Vec<Failure> {
        lock(&self.failures).clone()
    }

    pub fn reached(&self) -> BTreeMap<String, u64> {
        lock(&self.reached).clone()
    }

    fn failed(&self, caller: &Caller, request: &str, error: &Error) {
        let reason = format!("{request}: {error}");
        lock(&self.failures).push(Failure { caller: caller.name.clone(), reason });
    }

    fn learn(&self, key: &str, version: Option<u64>) {
        lock(&self.known).insert(key.to_owned(), version);
    }

    /// Sends requests of one client until the stop, one every `pause`.
    pub async fn write(self: Arc<Load>, caller: Caller, seed: u64, pause: Duration) {
        let mut random = Random::new(seed);
        let mut ticks = tokio::time::interval(pause);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let key = key(&mut random);
            let known = lock(&self.known).get(&key).copied();
            match known {
                None => self.read(&caller, &key).await,
                Some(None) => self.change(&caller, Kind::Create, &key, None).await,
                Some(version) if random.index(12) == 0 => self.change(&caller, Kind::Delete, &key, version).await,
                Some(version) => self.change(&caller, Kind::Update, &key, version).await,
            }
        }
    }

    async fn change(&self, caller: &Caller, kind: Kind, key: &str, expected: Option<u64>) {
        let value = format!("{}-{}", caller.name, self.values.fetch_add(1, Ordering::Relaxed));
        self.count(caller);
        let began = self.now();
        let sent = async {
            match kind {
                Kind::Create => caller.client.create(&object(key, &value, None)).await.map(Some),
                Kind::Update => caller.client.update(&object(key, &value, expected)).await.map(Some),
                Kind::Delete => {
                    let precondition_resource_version = expected.map(|version| version.to_string());
                    let options = DeleteOptions { precondition_resource_version, ..DeleteOptions::default() };
                    caller.client.delete::<ConfigMap>(NAMESPACE, key, &options).await.map(|()| None)
                }
            }
        };
        let answer = match tokio::time::timeout(PATIENCE, sent).await {
            Ok(answer) => answer,
            Err(_) => Err(Error::Timeout(PATIENCE)),
        };
        let ended = self.now();
        let outcome = match &answer {
            Ok(object) => {
                let version = object.as_ref().map(version_of);
                self.learn(key, version);
                if caller.is_balanced {
                    lock(&self.acknowledged).push(ended);
                }
                Outcome::Done(version)
            }
            Err(error) => {
                let outcome = outcome_of(error);
                if outcome == Outcome::Unknown {
                    self.failed(caller, &format!("{kind:?}"), error);
                }
                lock(&self.known).remove(key);
                outcome
            }
        };
        let key = key.to_owned();
        lock(&self.history).writes.push(Write { key, kind, value, expected, began, ended, outcome });
    }

    /// Makes the last write, and returns its version once the store takes it.
    pub async fn finish(&self, caller: &Caller) -> u64 {
        loop {
            self.read(caller, "end").await;
            let known = lock(&self.known).get("end").copied().flatten();
            let kind = if known.is_some() { Kind::Update } else { Kind::Create };
            self.change(caller, kind, "end", known).await;
            if let Some(Some(version)) = lock(&self.known).get("end").copied() {
                return version;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn read(&self, caller: &Caller, key: &str) {
        self.count(caller);
        let began = self.now();
        let sent = caller.client.find::<ConfigMap>(NAMESPACE, key);
        let answer = tokio::time::timeout(PATIENCE, sent).await.unwrap_or(Err(Error::Timeout(PATIENCE)));
        let ended = self.now();
        match answer {
            Err(error) => self.failed(caller, "get", &error),
            Ok(object) => {
                let found = object.map(|object| Found { version: version_of(&object), value: value_of(&object) });
                self.learn(key, found.as_ref().map(|found| found.version));
                lock(&self.history).reads.push(Read { key: key.to_owned(), began, ended, found });
            }
        }
    }

    /// Reads objects of one client until the stop.
    pub async fn read_on(self: Arc<Load>, caller: Caller, seed: u64, pause: Duration) {
        let mut random = Random::new(seed);
        let mut ticks = tokio::time::interval(pause);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            match random.index(3) {
                0 => drop(self.list(&caller).await),
                _ => self.read(&caller, &key(&mut random)).await,
            }
        }
    }

    /// Lists all objects; returns the version of the list.
    async fn list(&self, caller: &Caller) -> Option<u64> {
        self.count(caller);
        let began = self.now();
        let options = ListOptions::fields("metadata.name!=kube-root-ca.crt");
        let sent = caller.client.list::<ConfigMap>(NAMESPACE, &options);
        let answer = tokio::time::timeout(PATIENCE, sent).await.unwrap_or(Err(Error::Timeout(PATIENCE)));
        let ended = self.now();
        let list = match answer {
            Ok(list) => list,
            Err(error) => {
                self.failed(caller, "list", &error);
                return None;
            }
        };
        let version = list.resource_version.parse().ok()?;
        let items = list.items.iter().map(|object| {
            let name = object.metadata.name.clone().unwrap_or_default();
            (name, Found { version: version_of(object), value: value_of(object) })
        });
        let items = items.collect();
        lock(&self.history).listings.push(Listing { began, ended, version, items });
        Some(version)
    }

    /// Watches all objects until the end. A watch that is broken goes on after its last version; one that has expired is
    /// another one.
    pub async fn watch(self: Arc<Load>, caller: Caller) {
        let mut number = 0;
        while !self.end.is_cancelled() {
            let Some(from) = self.list(&caller).await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            number += 1;
            let name = format!("{} watch {number}", caller.name);
            let mut watch = Watch { name, from, until: from, events: Vec::new() };
            while !self.end.is_cancelled() && !self.follow(&caller, &mut watch).await {
                tokio::time::sleep(PAUSE).await;
            }
            lock(&self.history).watches.push(watch);
        }
    }

    /// Goes on with a watch over one connection; reports whether it has expired.
    async fn follow(&self, caller: &Caller, watch: &mut Watch) -> bool {
        let options = ListOptions {
            resource_version: Some(watch.until.to_string()),
            allow_watch_bookmarks: true,
            ..ListOptions::fields("metadata.name!=kube-root-ca.crt")
        };
        let opened = caller.client.watch::<ConfigMap>(NAMESPACE, &options);
        let mut events = match tokio::time::timeout(PATIENCE, opened).await {
            Ok(Ok(events)) => events,
            Ok(Err(error)) if error.is_expired() => return true,
            Ok(Err(error)) => {
                self.failed(caller, "watch", &error);
                return false;
            }
            Err(_) => return false,
        };
        loop {
            let event = tokio::select! {
                () = self.end.cancelled() => return false,
                event = tokio::time::timeout(SILENCE, events.next()) => event,
            };
            let event = match event {
                Ok(Some(Ok(event))) => event,
                _ => return false,
            };
            let (object, is_deletion) = match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, false),
                WatchEvent::Deleted(object) => (object, true),
                WatchEvent::Bookmark { revision, .. } => {
                    watch.until = watch.until.max(revision);
                    lock(&self.reached).insert(caller.name.clone(), watch.until);
                    continue;
                }
                WatchEvent::Error(status) => return status.code == 410,
            };
            let value = object.value();
            let event = Event {
                version: object.revision,
                key: corten_meta::name(&value).to_owned(),
                value: value["data"]["value"].as_str().unwrap_or_default().to_owned(),
                is_deletion,
            };
            watch.until = watch.until.max(event.version);
            watch.events.push(event);
            lock(&self.reached).insert(caller.name.clone(), watch.until);
        }
    }
}
