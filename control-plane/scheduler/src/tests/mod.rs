//! Tests of the scheduler as text: the files in `scripts`, run on the scheduler's state without a server.
//!
//! A line of the fixture language is a change that the scheduler sees, as its watches report it. A node has 4Gi, 110
//! pods and its host name, unless its line says otherwise. The other commands:
//!
//! | command | effect and output |
//! |---|---|
//! | `schedule POD` | prints the node of one scheduling cycle, or the message of its rejection; changes nothing |
//! | `preempt POD` | prints the node and the victims of a rejected cycle |
//! | `feasible POD` | prints the nodes that pass all filters |
//! | `explain POD` | prints the explanation of one cycle |
//! | `requests POD` | prints the resources that a pod requests, and those that it is scored by before and on a node |
//! | `decide` | takes the next pod of the queue and decides about it; prints the decision and its writes |
//! | `next` | prints the pods that are due, and takes them from the queue |
//! | `fail` | takes the next pod of the queue and fails to decide about it |
//! | `victims-deleted`, `eviction-failed`, `binding-failed POD` | the result of the writes of a decision |
//! | `queue` | prints the lengths of the queues: active, backoff, unschedulable, gated |
//! | `nominated NODE`, `requested NODE`, `deadline`, `delete KIND/NAME`, `now +60s` | |

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::Change;
use corten_meta::{Key, Object, Value};
use jiff::Timestamp;
use testkit_fixture::{NOW, duration, named, split};

use crate::Config;
use crate::cycle::{Rotation, schedule, search};
use crate::framework::Effect;
use crate::preemption;
use crate::rows::PodRow;
use crate::rows::tests::completed;
use crate::scheduler::{Decision, Placed, Scheduler, Unplaced};
use crate::task::watches::{Watched, hear};

/// The state of one case.
struct Scene {
    scheduler: Scheduler,
    objects: BTreeMap<(String, Key), Arc<Object>>,
    now: Timestamp,
    unplaced: Option<Unplaced>,
    placed: BTreeMap<String, Placed>,
}

impl Default for Scene {
    fn default() -> Scene {
        let config = Config { seed: 7, ..Config::default() };
        Scene {
            scheduler: Scheduler::new(&config),
            objects: BTreeMap::new(),
            now: *NOW,
            unplaced: None,
            placed: BTreeMap::new(),
        }
    }
}

fn run(scene: &mut Scene, command: &str) -> String {
    scene.run(command).unwrap_or_else(|error| format!("error: {error}"))
}

impl Scene {
    fn run(&mut self, command: &str) -> Result<String, String> {
        let words = split(command)?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let rest = command.split_once(' ').map_or("", |(_, rest)| rest);
        match words.as_slice() {
            ["schedule", ..] => self.schedule(rest),
            ["preempt", ..] => self.preempt(rest),
            ["feasible", ..] => self.feasible(rest),
            ["explain", ..] => {
                let row = self.row(rest)?;
                let profile = self.scheduler.profile(&row);
                Ok(crate::explain::of_pod(&mut self.scheduler.snapshot, profile.as_deref(), &row).to_string())
            }
            ["requests", ..] => requests(rest),
            ["decide"] => self.decide(),
            ["next"] => {
                let due = std::iter::from_fn(|| self.scheduler.next(self.now)).map(|entry| entry.pod.name.clone());
                Ok(or_nothing(due.collect()))
            }
            ["fail"] => {
                let entry = self.scheduler.next(self.now).ok_or("no pod is due")?;
                self.scheduler.failed(entry);
                Ok(String::new())
            }
            ["binding-failed", name] => {
                let placed = self.placed.remove(*name).ok_or("no such pod was placed")?;
                self.scheduler.binding_failed(placed, self.now);
                Ok(String::new())
            }
            ["victims-deleted"] => {
                let unplaced = self.unplaced.as_ref().ok_or("no pod was rejected")?;
                let victims = unplaced.preemption.iter().flat_map(|room| room.victims.clone()).collect::<Vec<_>>();
                victims.iter().for_each(|victim| self.scheduler.pod_gone(&victim.uid, self.now));
                Ok(String::new())
            }
            ["eviction-failed"] => {
                let unplaced = self.unplaced.take().ok_or("no pod was rejected")?;
                let room = unplaced.preemption.ok_or("nothing was preempted")?;
                self.scheduler.eviction_failed(&unplaced.pod, &room);
                Ok(String::new())
            }
            ["queue"] => Ok(format!("{:?}", self.scheduler.lengths())),
            ["deadline"] => {
                let deadline = self.scheduler.next_deadline();
                Ok(deadline.map_or("nothing".to_owned(), |at| format!("in {:#}", at.duration_since(self.now))))
            }
            ["nominated", node] => {
                let nominated = self.scheduler.snapshot.nominated.on(node).iter().map(|pod| pod.name.clone());
                Ok(or_nothing(nominated.collect()))
            }
            ["requested", node] => {
                let node = self.scheduler.snapshot.find(node).ok_or("no such node")?;
                Ok(format!("{} pods, cpu {}m", node.pods.len(), node.requested.milli_cpu))
            }
            ["now", later] => {
                let later = duration(later.trim_start_matches('+')).ok_or("a duration")?;
                self.now = self.now.checked_add(later).map_err(|error| error.to_string())?;
                Ok(String::new())
            }
            ["delete", object] => self.delete(object),
            _ => self.put(command),
        }
    }

    /// Reports an object to the scheduler.
    fn put(&mut self, line: &str) -> Result<String, String> {
        let mut value = testkit_fixture::parse(line)?;
        if value["kind"] == "Node" {
            value = completed(value);
        }
        let kind = value["kind"].as_str().unwrap_or_default().to_owned();
        let revision = self.objects.len() as u64 + 1;
        let new = Arc::new(Object::from_value(&value, revision).map_err(|error| error.to_string())?);
        let old = self.objects.insert((kind.clone(), new.key()), new.clone());
        if kind == "Pod" {
            let row = self.row_of(value)?;
            self.scheduler.pod_changed(row, self.now);
            return Ok(String::new());
        }
        let change = Change { key: new.key(), old, new: Some(new) };
        hear(&mut self.scheduler, watched(&kind)?, &change, self.now);
        Ok(String::new())
    }

    fn delete(&mut self, object: &str) -> Result<String, String> {
        let (kind, name) = object.split_once('/').ok_or("KIND/NAME")?;
        let kind = named(kind)?;
        let key = Key::new(if kind.namespaced { "default" } else { "" }, name);
        let old = self.objects.remove(&(kind.kind.clone(), key.clone())).ok_or("no such object")?;
        if kind.kind == "Pod" {
            self.scheduler.pod_gone(&old.header.uid, self.now);
            return Ok(String::new());
        }
        hear(&mut self.scheduler, watched(&kind.kind)?, &Change { key, old: Some(old), new: None }, self.now);
        Ok(String::new())
    }

    fn row_of(&mut self, pod: Value) -> Result<PodRow, String> {
        let pod = Pod::from_value(pod).map_err(|error| error.to_string())?;
        Ok(self.scheduler.snapshot.row(pod))
    }

    fn row(&mut self, line: &str) -> Result<PodRow, String> {
        self.row_of(testkit_fixture::parse(line)?)
    }

    fn schedule(&mut self, line: &str) -> Result<String, String> {
        let row = self.row(line)?;
        let profile = self.scheduler.profile(&row).ok_or("no profile")?;
        let snapshot = &mut self.scheduler.snapshot;
        match schedule(snapshot, &profile, &row, &mut Rotation::new(7)) {
            Ok(slot) => Ok(format!("node {}", snapshot.node(slot).name)),
            Err(rejection) => Ok(rejection.message()),
        }
    }

    fn preempt(&mut self, line: &str) -> Result<String, String> {
        let row = self.row(line)?;
        let profile = self.scheduler.profile(&row).ok_or("no profile")?;
        let rejection = schedule(&mut self.scheduler.snapshot, &profile, &row, &mut Rotation::new(7)).err();
        let room = preemption::best(rejection.ok_or("a node is feasible")?.candidates);
        Ok(room.map_or("nothing".to_owned(), |room| victims(&room)))
    }

    fn feasible(&mut self, line: &str) -> Result<String, String> {
        let row = self.row(line)?;
        let profile = self.scheduler.profile(&row).ok_or("no profile")?;
        let snapshot = &mut self.scheduler.snapshot;
        let found = search(snapshot, &profile, &row, &mut Rotation::new(7));
        let mut names: Vec<String> = found.feasible.iter().map(|slot| snapshot.node(*slot).name.clone()).collect();
        names.sort_unstable();
        Ok(or_nothing(names))
    }

    fn decide(&mut self) -> Result<String, String> {
        let Some(entry) = self.scheduler.next(self.now) else { return Ok("nothing".to_owned()) };
        let mut lines = Vec::new();
        match self.scheduler.decide(entry).ok_or("no profile")? {
            Decision::Place(placed) => {
                lines.push(format!("pod {} on node {}", placed.row.name, placed.row.node_name));
                lines.extend(placed.effects.iter().map(written));
                self.placed.insert(placed.row.name.clone(), placed);
            }
            Decision::Reject(unplaced) => {
                lines.push(format!("pod {}: {}", unplaced.pod.name, unplaced.message));
                lines.extend(unplaced.preemption.iter().map(|room| format!("preempt {}", victims(room))));
                lines.extend(unplaced.displaced.iter().map(|pod| format!("displace {}", pod.name)));
                lines.extend(unplaced.effects.iter().map(written));
                self.unplaced = Some(unplaced);
            }
        }
        Ok(lines.join("\n"))
    }
}

fn watched(kind: &str) -> Result<Watched, String> {
    Ok(match kind {
        "Node" => Watched::Node,
        "Namespace" => Watched::Namespace,
        "Service" => Watched::Service,
        "PodDisruptionBudget" => Watched::Budget,
        "StorageClass" => Watched::StorageClass,
        "CSIDriver" => Watched::CsiDriver,
        "CSINode" => Watched::CsiNode,
        "CSIStorageCapacity" => Watched::Capacity,
        "PersistentVolume" => Watched::Volume,
        "PersistentVolumeClaim" => Watched::Claim,
        "DeviceClass" => Watched::DeviceClass,
        "ResourceSlice" => Watched::ResourceSlice,
        "ResourceClaim" => Watched::ResourceClaim,
        other => return Err(format!("the scheduler does not watch {other}")),
    })
}

fn or_nothing(names: Vec<String>) -> String {
    if names.is_empty() { "nothing".to_owned() } else { names.join(" ") }
}

fn victims(room: &preemption::Preemption) -> String {
    let names = room.victims.iter().map(|victim| victim.name.as_str());
    format!("{}: {}", room.node, names.collect::<Vec<_>>().join(" "))
}

fn requests(line: &str) -> Result<String, String> {
    let pod = Pod::from_value(testkit_fixture::parse(line)?).map_err(|error| error.to_string())?;
    let demands = crate::resources::of_pod(pod.spec.as_ref().ok_or("a spec")?, pod.status.as_ref());
    let write = |resources: &crate::resources::Resources| {
        let gpus = resources.get("example.com/gpu");
        let gpus = if gpus == 0 { String::new() } else { format!(" example.com/gpu={gpus}") };
        format!("cpu={}m memory={}{gpus}", resources.milli_cpu, resources.memory)
    };
    let scored = [&demands.scoring, &demands.placed_scoring].map(write);
    Ok(format!("{}\nscored {}\nplaced {}", write(&demands.requests), scored[0], scored[1]))
}

/// Writes an effect as a line.
fn written(effect: &Effect) -> String {
    let devices = |allocation: &corten_api::k8s_openapi::api::resource::v1::AllocationResult| {
        let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        let one = |result: &corten_api::k8s_openapi::api::resource::v1::DeviceRequestAllocationResult| {
            let consumed =
                result.consumed_capacity.iter().flatten().map(|(name, value)| format!(" {name}={}", value.0));
            let shared = if result.share_id.is_some() { " shared" } else { "" };
            format!(" {}={}{shared}{}", result.request, result.device, consumed.collect::<String>())
        };
        let selector = if allocation.node_selector.is_some() { " node-selector" } else { "" };
        format!("{}{selector}", results.map(one).collect::<String>())
    };
    match effect {
        Effect::BindVolume { volume, claim, .. } => format!("bind pv {volume} to pvc {}", claim.name),
        Effect::Provision { claim, .. } => format!("provision pvc {}", claim.name),
        Effect::AllocateClaim { claim, allocation } => {
            format!("allocate resourceclaim {}{}", claim.name, allocation.as_deref().map(devices).unwrap_or_default())
        }
        Effect::CreateClaim { claim, allocation, mappings, .. } => {
            let prefix = claim.metadata.generate_name.as_deref().unwrap_or_default();
            let requests = claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
            let asked = requests.map(|one| {
                let count = one.exactly.as_ref().and_then(|exactly| exactly.count).unwrap_or_default();
                format!(" {}×{count}", one.name)
            });
            let mapped = mappings.iter().map(|one| format!(" {}:{}", one.container_name, one.request_name));
            let (asked, mapped) = (asked.collect::<String>(), mapped.collect::<String>());
            format!("create resourceclaim {prefix}*{asked} for{mapped}:{}", devices(allocation))
        }
        Effect::DeallocateClaim { claim } => format!("deallocate resourceclaim {}", claim.name),
        Effect::DeleteClaim { claim } => format!("delete resourceclaim {}", claim.name),
    }
}

testkit_fixture::scripts! {
    Scene::default, run;
    cycle
    devices
    explain
    nomination
    queue
    resources
    volumes
}
