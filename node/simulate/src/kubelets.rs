//! Drives the pods of all simulated nodes: one task that owns their states, hears of changes, and acts when an act is due.
//!
//! Every act is one request. Requests run beside the task, at most [`AT_ONCE`]; the next act of a pod is decided by the
//! event that shows the last one.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::core::v1::Pod as PodKind;
use corten_client::{Caches, Change, Client, DeleteOptions, ListOptions, Patch};
use corten_meta::Key;
use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::fleet::Fleet;
use crate::pod::{self, Action, Due, Facts, Pod};
use crate::slots::{Slots, pod_address};
use crate::startup::StartupTimes;
use crate::{Config, PodTimes, Watch, node};

/// The requests of all kubelets that are under way at once.
const AT_ONCE: usize = 256;
/// The changes that wait for the task.
const WAITING: usize = 1024;
/// The pause before an act that failed is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// A change of a pod, and the time when a watch showed it.
struct Seen {
    at: Instant,
    change: Change,
}

/// Follows the pods of the fleet and drives them until the shutdown.
pub async fn drive(
    config: Arc<Config>,
    fleet: Arc<Fleet>,
    client: Client,
    observers: Observers,
    shutdown: CancellationToken,
) {
    let Observers { startup, counts } = observers;
    let (sender, changes) = mpsc::channel(WAITING);
    let forwarders = TaskTracker::new();
    let mut caches = Vec::new();
    for (client, selector) in watches(&config, &fleet, &client) {
        let all = Caches::new(client, shutdown.clone());
        let mut pods = all.filtered::<PodKind>(ListOptions::fields(selector)).subscribe();
        caches.push(all);
        let sender = sender.clone();
        forwarders.spawn(async move {
            while let Some(change) = pods.next().await {
                if sender.send(Seen { at: Instant::now(), change }).await.is_err() {
                    return;
                }
            }
        });
    }
    drop(sender);
    forwarders.close();
    let names = fleet.members().iter().map(|member| (member.name.clone(), member.index)).collect();
    let kubelets = Kubelets {
        times: config.pods,
        slots: vec![Slots::default(); fleet.members().len()],
        names,
        fleet,
        startup,
        counts,
        pods: HashMap::new(),
        due: BTreeMap::new(),
        numbers: 0,
        requests: JoinSet::new(),
    };
    kubelets.run(changes, shutdown).await;
    forwarders.wait().await;
    for all in caches {
        all.ended().await;
    }
}

/// Returns the client and the field selector of every watch.
fn watches(config: &Config, fleet: &Fleet, client: &Client) -> Vec<(Client, String)> {
    match config.watch {
        Watch::Shared => vec![(client.clone(), "spec.nodeName!=".to_owned())],
        Watch::Node => {
            let own = |name: &str| format!("spec.nodeName={name}");
            fleet.members().iter().map(|member| (member.client.clone(), own(&member.name))).collect()
        }
    }
}

/// The parts of the simulation that hear of pods.
pub struct Observers {
    pub startup: Arc<StartupTimes>,
    pub counts: Arc<Counts>,
}

/// The numbers of pods of the simulated nodes, for others to read.
#[derive(Debug, Default)]
pub struct Counts {
    pods: std::sync::atomic::AtomicU64,
    ready: std::sync::atomic::AtomicU64,
    hurries: std::sync::atomic::AtomicBool,
}

impl Counts {
    pub fn pods(&self) -> u64 {
        self.pods.load(std::sync::atomic::Ordering::Relaxed)
    }

    pub fn ready(&self) -> u64 {
        self.ready.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Lets deleted pods stop at once from now on.
    pub fn hurry(&self) {
        self.hurries.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    fn set(&self, pods: u64, ready: u64) {
        self.pods.store(pods, std::sync::atomic::Ordering::Relaxed);
        self.ready.store(ready, std::sync::atomic::Ordering::Relaxed);
    }

    fn hurries(&self) -> bool {
        self.hurries.load(std::sync::atomic::Ordering::Relaxed)
    }
}

/// The time of an act, and a number that distinguishes acts of one time.
type Moment = (Instant, u64);

/// A pod of a simulated node.
struct Tracked {
    pod: Pod,
    node: u32,
    slot: Option<u8>,
    state: State,
}

/// The state of a pod's next act.
#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// Nothing is to be done until the object changes.
    Rests,
    /// The act is due at a moment.
    Waits(Moment, Action),
    /// The request of the act is under way, or has succeeded and its event has not arrived.
    Acts(Action, u32),
}

/// The outcome of an act.
struct Done {
    key: Key,
    uid: String,
    action: Action,
    failed: bool,
}

struct Kubelets {
    times: PodTimes,
    fleet: Arc<Fleet>,
    names: HashMap<String, u32>,
    slots: Vec<Slots>,
    startup: Arc<StartupTimes>,
    counts: Arc<Counts>,
    pods: HashMap<Key, Tracked>,
    due: BTreeMap<Moment, Key>,
    numbers: u64,
    requests: JoinSet<Done>,
}

impl Kubelets {
    async fn run(mut self, mut changes: mpsc::Receiver<Seen>, shutdown: CancellationToken) {
        let mut ready = 0;
        loop {
            let next = self.due.first_key_value().map(|((at, _), _)| *at);
            let may_act = self.requests.len() < AT_ONCE;
            let sleep = tokio::time::sleep_until(next.unwrap_or_else(Instant::now).into());
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                Some(done) = self.requests.join_next() => {
                    if let Ok(done) = done {
                        self.finish(done);
                    }
                }
                () = sleep, if next.is_some() && may_act => self.act(),
                seen = changes.recv() => match seen {
                    Some(Seen { at, change }) => {
                        ready = self.hear(at, change, ready);
                        self.counts.set(self.pods.len() as u64, ready);
                    }
                    None => return,
                },
            }
        }
    }

    /// Takes over a change; returns the number of ready pods after it.
    fn hear(&mut self, at: Instant, change: Change, ready: u64) -> u64 {
        if self.is_stale(&change) {
            return ready;
        }
        let key = change.key;
        let before = self.pods.get(&key).is_some_and(|tracked| tracked.pod.ready);
        let pod = change.new.as_ref().and_then(|object| Pod::read(object));
        let pod = pod.and_then(|pod| self.names.get(&pod.node).map(|node| (pod, *node)));
        let is_other = |tracked: &Tracked| pod.as_ref().is_none_or(|(pod, _)| pod.uid != tracked.pod.uid);
        if self.pods.get(&key).is_some_and(is_other) {
            self.forget(&key);
        }
        let now_ready = pod.as_ref().is_some_and(|(pod, _)| pod.ready);
        match pod {
            Some((pod, node)) => {
                self.startup.seen(&key, at, pod.ready);
                self.take_over(key, pod, node);
            }
            None => self.startup.forget(&key),
        }
        ready + u64::from(now_ready) - u64::from(before)
    }

    /// Reports whether a change is that of a pod which another of its name has replaced: each node has a watch of its own,
    /// and that of the former pod's node may be late.
    fn is_stale(&self, change: &Change) -> bool {
        let known = self.pods.get(&change.key);
        known.zip(change.object()).is_some_and(|(tracked, object)| {
            tracked.pod.uid != object.header.uid && object.revision < tracked.pod.revision
        })
    }

    fn forget(&mut self, key: &Key) {
        let Some(tracked) = self.pods.remove(key) else { return };
        if let State::Waits(moment, _) = tracked.state {
            self.due.remove(&moment);
        }
        if let Some(slot) = tracked.slot {
            self.slots[tracked.node as usize].give_back(slot);
        }
    }

    /// Stores the newest state of a pod, and plans its next act.
    fn take_over(&mut self, key: Key, pod: Pod, node: u32) {
        let tracked = match self.pods.entry(key.clone()) {
            std::collections::hash_map::Entry::Occupied(entry) => {
                let tracked = entry.into_mut();
                tracked.pod = pod;
                tracked
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                let slot = self.slots[node as usize].take();
                entry.insert(Tracked { pod, node, slot, state: State::Rests })
            }
        };
        let mut times = self.times;
        if self.counts.hurries() {
            times.stop = Duration::ZERO;
        }
        let due = pod::next(&tracked.pod, &times);
        let is_planned = match (tracked.state, due) {
            (State::Rests, None) => true,
            (State::Waits(_, planned), Some(Due { action, .. })) => planned == action,
            (State::Acts(acts, restarts), Some(Due { action, .. })) => {
                acts == action && restarts == tracked.pod.restarts
            }
            _ => false,
        };
        if is_planned {
            return;
        }
        if let State::Waits(moment, _) = tracked.state {
            self.due.remove(&moment);
        }
        let Some(Due { action, after }) = due else {
            tracked.state = State::Rests;
            return;
        };
        self.numbers += 1;
        let moment = (Instant::now() + after, self.numbers);
        tracked.state = State::Waits(moment, action);
        self.due.insert(moment, key);
    }

    /// Sends the request of the first act that is due.
    fn act(&mut self) {
        let Some((_, key)) = self.due.pop_first() else { return };
        let Some(tracked) = self.pods.get_mut(&key) else { return };
        let State::Waits(_, action) = tracked.state else { return };
        tracked.state = State::Acts(action, tracked.pod.restarts);
        let pod_cidr = self.fleet.pod_cidr(tracked.node);
        let facts = Facts {
            host: node::address(tracked.node),
            pod: tracked.slot.and_then(|slot| pod_address(&pod_cidr, slot)),
            now: Timestamp::now(),
        };
        let status = pod::status(&tracked.pod, action, &facts);
        let uid = tracked.pod.uid.clone();
        let client = self.fleet.members()[tracked.node as usize].client.clone();
        self.requests.spawn(async move {
            let outcome = match status {
                Some(status) => {
                    let patch = Patch::Strategic(status);
                    client.send_patch::<PodKind>(&key.namespace, &key.name, &patch, Some("status")).await
                }
                None => {
                    let now = DeleteOptions { precondition_uid: Some(uid.clone()), ..DeleteOptions::now() };
                    client.delete::<PodKind>(&key.namespace, &key.name, &now).await
                }
            };
            // A pod that is gone needs nothing more; the watch shows it.
            let failed = outcome.is_err_and(|error| !error.is_not_found());
            Done { key, uid, action, failed }
        });
    }

    /// Plans an act again that failed.
    fn finish(&mut self, done: Done) {
        let Done { key, uid, action, failed } = done;
        let Some(tracked) = self.pods.get_mut(&key) else { return };
        let is_current = tracked.pod.uid == uid && matches!(tracked.state, State::Acts(acts, _) if acts == action);
        if failed && is_current {
            self.numbers += 1;
            let moment = (Instant::now() + RETRY, self.numbers);
            tracked.state = State::Waits(moment, action);
            self.due.insert(moment, key);
        }
    }
}
