//! Controllers on a faulty API: writes that are refused, answers that get lost, caches that lag, processes that start
//! anew, others that write too. Seeded, so that a failure can be replayed.
//!
//! [`workloads`] plays those that keep pods, [`makers`] all others that create something. What must hold at every step:
//! nothing is there more often than it was ever asked for. What must hold when the faults end: everything is as asked,
//! and nothing is left over. [`everyone`] plays all there are, each alone and all together, on worlds put
//! together at random.

mod everyone;
mod makers;
mod workloads;
mod worlds;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_meta::{Key, Object};
use serde_json::json;

use crate::model::{Model, NOW, Told};
use crate::runtime::{Action, Decide};
use crate::workload::owner::controller_of;
use crate::workload::pods;

/// A small generator of its own: the same numbers for the same seed, whatever a library does.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed * 2_654_435_761 + 1)
    }

    pub fn next(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap_or(0) % below.max(1)
    }

    pub fn chance(&mut self, percent: usize) -> bool {
        self.next(100) < percent
    }
}

/// A controller with its own view of the world.
pub struct Actor {
    controller: Arc<dyn Decide>,
    cache: Model,
    /// How much of the log its cache has taken over.
    position: usize,
    pending: BTreeSet<Key>,
    /// A key is not looked at before the cache shows what was written for it.
    floors: BTreeMap<Key, usize>,
}

impl Actor {
    pub fn new(controller: Arc<dyn Decide>) -> Actor {
        let (cache, pending, floors) = (Model::default(), BTreeSet::new(), BTreeMap::new());
        Actor { controller, cache, position: 0, pending, floors }
    }

    fn wake(&mut self, told: &Told) {
        for watch in self.controller.watches().iter().filter(|watch| watch.resource.kind == told.kind) {
            self.pending.extend((watch.keys)(&self.cache, &told.change));
        }
    }

    /// Takes over some more of what happened.
    pub fn listen(&mut self, server: &Model, most: usize) {
        let log = server.log.as_deref().unwrap_or_default();
        for told in log.iter().skip(self.position).take(most) {
            self.cache.follow(told);
            self.position += 1;
            self.wake(told);
        }
    }

    /// Forgets everything and lists anew.
    pub fn restart(&mut self, server: &Model) {
        self.cache = server.listed();
        self.position = server.log.as_ref().map_or(0, Vec::len);
        self.pending.clear();
        self.floors.clear();
        server.told().for_each(|told| self.wake(&told));
    }

    /// Looks at one key and writes what it decides, as far as the API lets it.
    pub fn act(&mut self, server: &mut Model, random: &mut Random, faults: bool) {
        // Where keys are worked on one at a time, a write for one holds up all.
        let alone = self.controller.workers() == 1;
        let shown = |key: &Key| self.floors.iter().all(|(of, at)| self.position >= *at || !(alone || of == key));
        let ready: Vec<Key> = self.pending.iter().filter(|key| shown(key)).cloned().collect();
        let Some(key) = ready.get(random.next(ready.len())).cloned() else { return };
        self.pending.remove(&key);
        self.cache.reversed = random.chance(50);
        let plan = self.controller.decide(&self.cache, &key, *NOW);
        crate::rights::assert_permitted(self.controller.name(), &plan);
        for action in &plan.actions {
            let refused = faults && random.chance(6);
            let answer_lost = faults && random.chance(4);
            let outcome = if refused { Err("refused".to_owned()) } else { attempt(server, action) };
            self.floors.insert(key.clone(), server.log.as_ref().map_or(0, Vec::len));
            if outcome.is_err() || answer_lost {
                self.pending.insert(key);
                return;
            }
        }
    }
}

/// One action as the runtime takes it: what is gone need be neither patched nor deleted.
fn attempt(server: &mut Model, action: &Action) -> Result<(), String> {
    match (server.attempt(action), action) {
        (Err(why), Action::Patch { .. } | Action::Delete { .. }) if why.ends_with("is gone") => Ok(()),
        (outcome, _) => outcome,
    }
}

/// A pod goes one step on its way: runs, ends, or is let go.
fn kubelet(server: &mut Model, random: &mut Random) {
    let all: Vec<Pod> = server.typed();
    let Some(pod) = all.get(random.next(all.len())) else { return };
    let mut value = pod.to_value();
    let ends = controller_of(&pod.metadata).is_some_and(|owner| owner.kind == "Job");
    if pods::is_terminating(pod) {
        let held = pod.metadata.finalizers.as_ref().is_some_and(|all| !all.is_empty());
        match held {
            true if pods::is_terminal(pod) => return,
            true => value["status"]["phase"] = json!("Failed"),
            false => return server.remove("Pod", pod.namespace(), pod.name()),
        }
    } else if pods::is_terminal(pod) || (!ends && pods::is_ready(pod)) {
        return;
    } else if ends && pods::is_ready(pod) {
        let succeeded = random.chance(80);
        value["status"]["phase"] = json!(if succeeded { "Succeeded" } else { "Failed" });
        let terminated = json!({"exitCode": i32::from(!succeeded), "finishedAt": "2026-01-01T00:00:00Z"});
        value["status"]["containerStatuses"] = json!([{"name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": {"terminated": terminated}}]);
    } else {
        value["status"]["phase"] = json!("Running");
        value["status"]["conditions"] =
            json!([{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
    }
    server.put(value);
}

/// What a garbage collector does: whose owners are all gone goes too, or is on its way while something holds it.
fn collect(server: &mut Model) {
    let uids: HashSet<&str> = server.objects().map(|(_, object)| object.header.uid.as_str()).collect();
    let owned = server.objects().filter(|(_, object)| !object.header.owners.is_empty());
    let left = owned.filter(|(_, object)| !object.header.owners.iter().any(|owner| uids.contains(owner.uid.as_str())));
    let left: Vec<(String, Arc<Object>)> = left.map(|(kind, object)| (kind.to_owned(), object.clone())).collect();
    for (kind, object) in left {
        if object.header.finalizers.is_empty() {
            server.remove(&kind, &object.header.namespace, &object.header.name);
        } else if object.header.deletion_timestamp.is_none() {
            let mut value = object.value();
            value["metadata"]["deletionTimestamp"] = json!(corten_meta::time::rfc3339(*NOW));
            server.put(value);
        }
    }
}

/// Plays a world of every seed; a failure names its seed.
fn play(seeds: u64, one: impl Fn(u64) + std::panic::RefUnwindSafe) {
    for seed in 1..=seeds {
        if let Err(panic) = std::panic::catch_unwind(|| one(seed)) {
            eprintln!("the seed was {seed}");
            std::panic::resume_unwind(panic);
        }
    }
}
