//! The promises that no fault may break, checked on every change of the store itself.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_store::{Embedded, Event, EventKind, Store};
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::host;
use crate::users::{LIMITED, QUOTA};
use crate::world::NODE_CPUS;

const EVERYTHING: &[u8] = b"/registry/";
const PODS: &str = "/registry/pods/";
const SERVICES: &str = "/registry/services/specs/";
/// The owners of pods, and the field with the number that they want at once.
const OWNERS: [(&str, &str); 2] = [("/registry/replicasets/", "replicas"), ("/registry/jobs/", "parallelism")];

/// The time in which a controller deletes pods that it made twice.
const FORGIVEN_SECONDS: f64 = 60.0;

/// Follows the store.
#[derive(Clone, Default)]
pub struct Promises {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// The last revision.
    revision: u64,
    /// A digest of all changes.
    digest: DefaultHasher,
    pods: BTreeMap<String, Pod>,
    services: BTreeMap<String, Vec<String>>,
    /// The most pods that an owner ever wanted at once, by its uid.
    wanted: BTreeMap<String, u64>,
    /// The changes of pods.
    pod_changes: Vec<PodChange>,
    /// The time in seconds before which owners may have more pods.
    forgiven_until: f64,
    broken: Vec<String>,
}

/// A change of a pod, as a watch shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PodChange {
    pub revision: u64,
    pub kind: ChangeKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// The facts about a pod that promises are about.
#[derive(Clone, Debug, PartialEq)]
struct Pod {
    uid: String,
    /// The uid of the controller.
    owner: String,
    node: String,
    is_terminal: bool,
    is_deleted: bool,
}

impl Pod {
    fn of(object: &Value) -> Pod {
        let string = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let is_terminal = matches!(object["status"]["phase"].as_str(), Some("Succeeded" | "Failed"));
        Pod {
            uid: string(&object["metadata"]["uid"]),
            owner: string(&object["metadata"]["ownerReferences"][0]["uid"]),
            node: string(&object["spec"]["nodeName"]),
            is_terminal,
            is_deleted: !object["metadata"]["deletionTimestamp"].is_null(),
        }
    }
}

impl Promises {
    /// Follows a store from where the last one ended, until it closes.
    pub async fn follow(&self, store: &Arc<Embedded>) -> JoinHandle<()> {
        let from = self.state().revision + 1;
        let mut watch = store.watch(EVERYTHING, from).await.expect("the history is there");
        let promises = self.clone();
        tokio::spawn(async move {
            while let Some(batch) = watch.next().await {
                let Ok(batch) = batch else { return promises.state().fail("the store ended its own watch") };
                let mut state = promises.state();
                if batch.events.is_empty() {
                    continue;
                }
                state.advance(batch.revision);
                batch.events.iter().for_each(|event| state.see(event));
            }
        })
    }

    /// Lets owners have more pods for a while: a write that was refused because its sync failed may be found by the next
    /// server, after the controller has seen that it is not there.
    pub fn forgive_owners(&self) {
        self.state().forgiven_until = host::seconds() + FORGIVEN_SECONDS;
    }

    /// Returns the promises that were broken.
    pub fn broken(&self) -> Vec<String> {
        self.state().broken.clone()
    }

    /// Returns a digest of everything that the store ever held.
    pub fn digest(&self) -> u64 {
        self.state().digest.finish()
    }

    /// Returns the changes of pods, in order.
    pub fn pod_changes(&self) -> Vec<PodChange> {
        self.state().pod_changes.clone()
    }

    pub fn revision(&self) -> u64 {
        self.state().revision
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn fail(&mut self, broken: impl Into<String>) {
        self.broken.push(format!("{:>9.3} {}", host::seconds(), broken.into()));
    }

    fn advance(&mut self, revision: u64) {
        if revision <= self.revision {
            self.fail(format!("revision {revision} after {}", self.revision));
        }
        self.revision = revision;
    }

    fn see(&mut self, event: &Event) {
        let key = String::from_utf8_lossy(&event.entry.key).into_owned();
        (event.entry.mod_revision, &key, &event.entry.value[..]).hash(&mut self.digest);
        let object = match event.kind {
            EventKind::Put => serde_json::from_slice(&event.entry.value).unwrap_or_default(),
            EventKind::Delete => Value::Null,
        };
        if let Some(name) = key.strip_prefix(PODS) {
            self.see_pod(name, event, &object);
        } else if let Some(name) = key.strip_prefix(SERVICES) {
            self.see_service(name, &object);
        } else if let Some((_, field)) = OWNERS.iter().find(|(prefix, _)| key.starts_with(prefix)) {
            self.see_owner(&object, field);
        }
    }

    fn see_owner(&mut self, object: &Value, field: &str) {
        if object.is_null() {
            return;
        }
        let most = self.wanted.entry(corten_meta::uid(object).to_owned()).or_default();
        *most = (*most).max(object["spec"][field].as_u64().unwrap_or(0));
    }

    fn see_pod(&mut self, name: &str, event: &Event, object: &Value) {
        let kind = match (event.kind, &event.previous) {
            (EventKind::Delete, _) => ChangeKind::Deleted,
            (EventKind::Put, None) => ChangeKind::Added,
            (EventKind::Put, Some(_)) => ChangeKind::Modified,
        };
        self.pod_changes.push(PodChange { revision: event.entry.mod_revision, kind });
        if kind == ChangeKind::Deleted {
            self.pods.remove(name);
            return;
        }
        let pod = Pod::of(object);
        if let Some(before) = self.pods.get(name) {
            self.check_same(name, &before.clone(), &pod);
        }
        self.pods.insert(name.to_owned(), pod.clone());
        self.check_node(&pod.node);
        self.check_owner(&pod.owner);
        self.check_quota();
    }

    /// A pod is bound once, and ends once.
    fn check_same(&mut self, name: &str, before: &Pod, now: &Pod) {
        if before.uid != now.uid {
            self.fail(format!("pod {name} is another one without a deletion"));
        } else if !before.node.is_empty() && before.node != now.node {
            self.fail(format!("pod {name} moved from {} to {:?}", before.node, now.node));
        } else if before.is_terminal && !now.is_terminal {
            self.fail(format!("pod {name} runs again after its end"));
        } else if before.is_deleted && !now.is_deleted {
            self.fail(format!("the deletion of pod {name} was taken back"));
        }
    }

    /// No node has more pods than it has CPUs.
    fn check_node(&mut self, node: &str) {
        let is_there = |pod: &&Pod| !node.is_empty() && pod.node == node && !pod.is_terminal;
        let pods = self.pods.values().filter(is_there).count() as u64;
        if pods > NODE_CPUS {
            self.fail(format!("{node} has {NODE_CPUS} CPUs and {pods} pods that request one each"));
        }
    }

    /// No owner has more pods at once than it ever wanted, also if answers to its controller are lost.
    fn check_owner(&mut self, owner: &str) {
        let Some(most) = self.wanted.get(owner).copied() else { return };
        let is_active = |pod: &&Pod| pod.owner == owner && !pod.is_terminal && !pod.is_deleted;
        let pods = self.pods.values().filter(is_active).count() as u64;
        if pods > most && host::seconds() > self.forgiven_until {
            self.fail(format!("the owner {owner} never wanted more than {most} pods, and has {pods}"));
        }
    }

    /// No namespace exceeds its quota.
    fn check_quota(&mut self) {
        let is_counted = |pod: &Pod| !pod.is_terminal && !pod.is_deleted;
        let prefix = format!("{LIMITED}/");
        let pods = self.pods.iter().filter(|(name, pod)| name.starts_with(&prefix) && is_counted(pod)).count() as u64;
        if pods > QUOTA {
            self.fail(format!("namespace {LIMITED} has {pods} pods, and its quota is {QUOTA}"));
        }
    }

    /// No two Services have the same address or node port.
    fn see_service(&mut self, name: &str, object: &Value) {
        self.services.remove(name);
        let spec = &object["spec"];
        let addresses = spec["clusterIPs"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let addresses = addresses.filter(|address| *address != "None").map(str::to_owned);
        let ports = spec["ports"].as_array().into_iter().flatten().filter_map(|port| port["nodePort"].as_u64());
        let taken: Vec<String> = addresses.chain(ports.map(|port| format!("node port {port}"))).collect();
        let twice = |(_, others): &(&String, &Vec<String>)| others.iter().any(|one| taken.contains(one));
        if let Some((other, _)) = self.services.iter().find(twice) {
            self.broken.push(format!("{:>9.3} Services {name} and {other} share {taken:?}", host::seconds()));
        }
        if !object.is_null() {
            self.services.insert(name.to_owned(), taken);
        }
    }
}
