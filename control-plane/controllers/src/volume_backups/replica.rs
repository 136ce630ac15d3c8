//! VolumeReplicas: chooses the node that has the copy of a volume, promotes it when the primary is gone, and moves the
//! volume's label with it.
//!
//! The nodes move the data ([ADR 52](../../../docs/adr/0052-a-second-copy-by-epochs.md)). This controller alone writes the
//! spec: primary, standby and epoch.
//!
//! *Invariants: an epoch has one primary for ever. A promotion needs a copy that its node has reported whole in this epoch,
//! and the proof that the primary is gone: its Node is out of service and not ready, or has not existed for a while, or an
//! administrator says so for this epoch.*

use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, TopologySelectorTerm};
use corten_api::k8s_openapi::api::storage::v1::StorageClass;
use corten_client::Change;
use corten_meta::time::rfc3339;
use corten_meta::{Key, Value};
use corten_snapshots::{
    BACKUP_DRIVER, INTERVAL_ATTRIBUTE, LABEL_FORMER, LABEL_PRIMARY, PROMOTE_REQUEST, REPLICA_FINALIZER, REPLICA_LABEL,
    REPLICAS_ATTRIBUTE, SYNCED, VolumeReplica, with_condition,
};
use jiff::Timestamp;
use serde_json::json;

use crate::metrics;
use crate::runtime::{Action, Controller, Plan, ResourceType, View, Watch, key_of};
use crate::snapshots::finalizers;

/// The service account of the controller.
pub const ACCOUNT: &str = "volume-replica-controller";
/// The label of nodes that run the storage driver.
const DRIVER_LABEL: &str = "topology.storage.corten.dev/node";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The time after which a Node that does not exist is gone, and not just registering again.
const GONE_AFTER: Duration = Duration::from_secs(60);
/// The time by which a copy may be older than its interval before it is late.
const SLACK: Duration = Duration::from_secs(30);

/// The message while no node may get a copy.
const NO_STANDBY: &str =
    "no other node is ready, takes pods, runs the storage driver and is allowed by the StorageClass";

pub struct ReplicaController;

/// A node as far as copies are concerned.
#[derive(Clone, Debug)]
struct Place {
    name: String,
    is_ready: bool,
    is_out_of_service: bool,
    /// Whether it may get a copy: it is ready, runs the driver, takes pods, and is in a topology that the class allows.
    is_usable: bool,
    /// The number of copies that it has.
    copies: usize,
    /// The value of this volume's label.
    label: Option<String>,
    node: Node,
}

pub struct Observed {
    volume: Option<PersistentVolume>,
    replica: Option<VolumeReplica>,
    /// The nodes in the order of their names.
    places: Vec<Place>,
}

impl Controller for ReplicaController {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        let of_all =
            |view: &dyn View, _: &Change| -> Vec<Key> { view.all::<VolumeReplica>("").iter().map(key_of).collect() };
        vec![
            Watch::own::<VolumeReplica>(),
            Watch::mapped::<PersistentVolume>(|_, change| vec![change.key.clone()]),
            Watch::mapped::<Node>(of_all),
            Watch::mapped::<StorageClass>(of_all),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let replica: Option<VolumeReplica> = view.typed(key);
        let volume: Option<PersistentVolume> = view.typed(key);
        let is_wanted = volume.as_ref().is_some_and(|volume| interval(volume).is_some());
        if replica.is_none() && !is_wanted {
            return None;
        }
        let handle = match (&replica, &volume) {
            (Some(replica), _) => replica.spec.volume_handle.clone(),
            (None, volume) => volume.as_ref().and_then(handle).unwrap_or_default().to_owned(),
        };
        let mut copies: BTreeMap<String, usize> = BTreeMap::new();
        for one in view.all::<VolumeReplica>("") {
            *copies.entry(one.spec.standby_node).or_default() += 1;
        }
        let class = volume.as_ref().and_then(|volume| class_of(view, volume)).unwrap_or_default();
        let allowed = class.allowed_topologies.unwrap_or_default();
        let nodes: Vec<Node> = view.all("");
        let mut places: Vec<Place> = nodes.into_iter().map(|node| place(node, &handle, &copies, &allowed)).collect();
        places.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        Some(Observed { volume, replica, places })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        match (&observed.volume, &observed.replica) {
            (None, None) => Plan::nothing(),
            (None, Some(replica)) => observed.remove(replica),
            (Some(volume), None) => Plan::from(observed.create(volume)),
            (Some(volume), Some(replica)) => observed.care(volume, replica, now),
        }
    }
}

impl Observed {
    /// Makes the VolumeReplica of a volume: its node is the primary of the first epoch.
    fn create(&self, volume: &PersistentVolume) -> Vec<Action> {
        let (Some(handle), Some(interval), Some(primary)) = (handle(volume), interval(volume), origin(volume)) else {
            return Vec::new();
        };
        let object = json!({
            "apiVersion": VolumeReplica::API_VERSION,
            "kind": VolumeReplica::KIND,
            "metadata": {"name": volume.name(), "finalizers": [REPLICA_FINALIZER]},
            "spec": {
                "volumeHandle": handle,
                "intervalSeconds": interval,
                "primaryNode": primary,
                "standbyNode": self.best(&[&primary]).unwrap_or_default(),
                "epoch": 1,
            },
        });
        vec![Action::Create { resource: ResourceType::of::<VolumeReplica>(), object, report: None }]
    }

    /// Removes the VolumeReplica of a volume that is gone, and the labels of its nodes. The standby then removes its copy.
    fn remove(&self, replica: &VolumeReplica) -> Plan {
        let mut plan = Plan::nothing();
        for place in self.places.iter().filter(|place| place.label.is_some()) {
            plan.push(labelled(place, &replica.label(), &Value::Null));
        }
        if replica.metadata.deletion_timestamp.is_none() {
            plan.push(Action::delete(replica));
        } else if let Some(action) = finalizers(replica, &[], &[REPLICA_FINALIZER]) {
            plan.push(action);
        }
        plan
    }

    /// Keeps a copy, and promotes it when the primary is gone.
    fn care(&self, volume: &PersistentVolume, replica: &VolumeReplica, now: Timestamp) -> Plan {
        if let Some(action) = self.lost_time(replica, now) {
            return Plan::from(action);
        }
        let mut plan = Plan::nothing();
        let change = self.promotion(replica, now).or_else(|| self.replacement(replica));
        if let Some(actions) = change {
            // The labels and conditions follow from the changed spec.
            plan.actions.extend(actions);
            return plan;
        }
        plan.actions.extend(self.labels(volume, replica));
        self.report_age(replica, now, &mut plan);
        if let Some(since) = lost_since(replica) {
            plan.requeue(GONE_AFTER.saturating_sub(elapsed(since, now)) + Duration::from_secs(1));
        }
        plan
    }

    fn place(&self, name: &str) -> Option<&Place> {
        self.places.iter().find(|place| place.name == name)
    }

    /// Returns the node with the fewest copies that may get one.
    fn best(&self, others: &[&str]) -> Option<String> {
        let usable = self.places.iter().filter(|place| place.is_usable && !others.contains(&place.name.as_str()));
        usable.min_by_key(|place| (place.copies, place.name.as_str())).map(|place| place.name.clone())
    }

    /// Records since when the primary's Node does not exist.
    fn lost_time(&self, replica: &VolumeReplica, now: Timestamp) -> Option<Action> {
        let time = match (self.place(&replica.spec.primary_node), lost_since(replica)) {
            (None, None) => json!(rfc3339(now)),
            (Some(_), Some(_)) => Value::Null,
            _ => return None,
        };
        Some(Action::patch_status(replica, json!({"status": {"primaryLostTime": time}})))
    }

    /// Returns why the primary is gone for certain.
    fn is_gone(&self, replica: &VolumeReplica, now: Timestamp) -> Option<&'static str> {
        let request = replica.metadata.annotations.as_ref().and_then(|all| all.get(PROMOTE_REQUEST));
        if request.is_some_and(|epoch| *epoch == replica.spec.epoch.to_string()) {
            return Some("an administrator asked for it");
        }
        match self.place(&replica.spec.primary_node) {
            Some(place) => (place.is_out_of_service && !place.is_ready).then_some("the primary is out of service"),
            None => {
                let is_over = lost_since(replica).is_some_and(|since| elapsed(since, now) >= GONE_AFTER);
                is_over.then_some("the primary's Node was deleted")
            }
        }
    }

    /// Makes the standby the primary of the next epoch.
    fn promotion(&self, replica: &VolumeReplica, now: Timestamp) -> Option<Vec<Action>> {
        let why = self.is_gone(replica, now)?;
        let synced = replica.standby()?.synced_time.as_deref()?;
        let standby = self.place(&replica.spec.standby_node).filter(|place| place.is_ready)?;
        let former = replica.spec.primary_node.as_str();
        let next = self.best(&[&standby.name, former]);
        let next = next.or_else(|| self.place(former).map(|place| place.name.clone())).unwrap_or_default();
        let epoch = replica.spec.epoch + 1;
        let message = format!("node {} has the volume in epoch {epoch} as of {synced}: {why}", standby.name);
        // The version guards the epoch: a promotion is decided on what is stored, and once.
        let patch = json!({
            "metadata": {
                "resourceVersion": replica.metadata.resource_version,
                "annotations": {PROMOTE_REQUEST: null},
            },
            "spec": {"primaryNode": standby.name, "standbyNode": next, "epoch": epoch},
        });
        Some(vec![Action::patch(replica, patch), Action::warning(replica, "Promoted", message)])
    }

    /// Chooses another standby if there is none, or if its Node is gone or out of service.
    fn replacement(&self, replica: &VolumeReplica) -> Option<Vec<Action>> {
        let current = replica.spec.standby_node.as_str();
        let is_kept = self.place(current).is_some_and(|place| !place.is_out_of_service || place.is_ready);
        if is_kept || self.is_lost(&replica.spec.primary_node) {
            return None;
        }
        let next = self.best(&[&replica.spec.primary_node, current]);
        let next = match next {
            Some(next) => next,
            None if self.place(current).is_some() => return None,
            None => String::new(),
        };
        if next == current {
            return None;
        }
        let patch = json!({
            "metadata": {"resourceVersion": replica.metadata.resource_version},
            "spec": {"standbyNode": next},
        });
        Some(vec![Action::patch(replica, patch)])
    }

    /// Reports whether a primary serves no increments to another standby.
    fn is_lost(&self, primary: &str) -> bool {
        self.place(primary).is_none_or(|place| place.is_out_of_service && !place.is_ready)
    }

    /// Moves the label by which the volume follows its primary. Until the first promotion no node has one.
    fn labels(&self, volume: &PersistentVolume, replica: &VolumeReplica) -> Vec<Action> {
        if replica.spec.epoch <= 1 {
            return Vec::new();
        }
        let origin = origin(volume).unwrap_or_default();
        let wanted = |place: &Place| match place.name == replica.spec.primary_node {
            true => Some(LABEL_PRIMARY),
            false => (place.label.is_some() || place.name == origin).then_some(LABEL_FORMER),
        };
        let mut changed: Vec<&Place> =
            self.places.iter().filter(|place| place.label.as_deref() != wanted(place)).collect();
        // A former primary loses the volume before another node gets it.
        changed.sort_by_key(|place| place.name == replica.spec.primary_node);
        changed.into_iter().map(|place| labelled(place, &replica.label(), &json!(wanted(place)))).collect()
    }

    /// Reports the age of the copy as a metric, and whether it is in time as a condition.
    fn report_age(&self, replica: &VolumeReplica, now: Timestamp, plan: &mut Plan) {
        let interval = Duration::from_secs(replica.spec.interval_seconds);
        let synced: Option<Timestamp> = replica.standby().and_then(|report| report.synced_time.as_ref()?.parse().ok());
        let age = synced.map(|synced| elapsed(synced, now));
        let age_seconds = age.map_or(-1.0, |age| age.as_secs_f64());
        plan.count(&metrics::REPLICA_AGE, [replica.name().into()], age_seconds);
        let failure = replica.standby().map(|report| report.message.as_str()).filter(|message| !message.is_empty());
        let failure = failure.or_else(|| replica.primary().map(|report| report.message.as_str()));
        let failure = failure.filter(|message| !message.is_empty()).map(|message| format!(": {message}"));
        let failure = failure.unwrap_or_default();
        let standby = &replica.spec.standby_node;
        let limit = interval * 2 + SLACK;
        let (is_synced, reason, message) = match age {
            _ if standby.is_empty() => (false, "NoStandby", NO_STANDBY.to_owned()),
            None => (false, "Copying", format!("node {standby} has no whole copy yet{failure}")),
            Some(age) if age > limit => (false, "Late", format!("the copy on node {standby} is too old{failure}")),
            Some(_) => (true, "Synced", format!("node {standby} has a copy")),
        };
        if let Some(conditions) = with_condition(replica.conditions(), SYNCED, is_synced, reason, &message, now) {
            let was = replica.conditions().iter().find(|one| one.type_ == SYNCED).map(|one| one.reason.as_str());
            if !is_synced && was != Some(reason) && reason != "Copying" {
                plan.push(Action::warning(replica, reason, message));
            }
            plan.push(Action::patch_status(replica, json!({"status": {"conditions": conditions}})));
        }
        plan.requeue(interval.max(Duration::from_secs(15)));
    }
}

fn class_of(view: &dyn View, volume: &PersistentVolume) -> Option<StorageClass> {
    let name = volume.spec.as_ref()?.storage_class_name.as_deref()?;
    view.typed(&Key::new("", name))
}

fn place(node: Node, handle: &str, copies: &BTreeMap<String, usize>, allowed: &[TopologySelectorTerm]) -> Place {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
    let spec = node.spec.clone().unwrap_or_default();
    let taints = spec.taints.unwrap_or_default();
    let is_out_of_service = taints.iter().any(|taint| taint.key == OUT_OF_SERVICE);
    let takes_pods = !spec.unschedulable.unwrap_or_default()
        && !taints.iter().any(|taint| taint.effect == "NoSchedule" || taint.effect == "NoExecute");
    let labels = node.metadata.labels.clone().unwrap_or_default();
    let name = node.name().to_owned();
    Place {
        is_ready,
        is_out_of_service,
        is_usable: is_ready && takes_pods && labels.contains_key(DRIVER_LABEL) && is_allowed(allowed, &labels),
        copies: copies.get(&name).copied().unwrap_or_default(),
        label: labels.get(&format!("{REPLICA_LABEL}{handle}")).cloned(),
        name,
        node,
    }
}

/// Reports whether a node with these labels is in one of the topologies that a StorageClass allows; without any, all are.
fn is_allowed(topologies: &[TopologySelectorTerm], labels: &BTreeMap<String, String>) -> bool {
    let has_all = |term: &TopologySelectorTerm| {
        let mut required = term.match_label_expressions.iter().flatten();
        required.all(|one| labels.get(&one.key).is_some_and(|value| one.values.contains(value)))
    };
    topologies.is_empty() || topologies.iter().any(has_all)
}

fn labelled(place: &Place, label: &str, value: &Value) -> Action {
    Action::patch(&place.node, json!({"metadata": {"labels": {label: value}}}))
}

fn lost_since(replica: &VolumeReplica) -> Option<Timestamp> {
    replica.status.as_ref()?.primary_lost_time.as_ref()?.parse().ok()
}

fn elapsed(since: Timestamp, now: Timestamp) -> Duration {
    Duration::try_from(now.duration_since(since)).unwrap_or_default()
}

fn handle(volume: &PersistentVolume) -> Option<&str> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    (csi.driver == BACKUP_DRIVER).then_some(csi.volume_handle.as_str())
}

/// Returns the seconds between two increments of a volume's copy; none of a volume without one.
fn interval(volume: &PersistentVolume) -> Option<u64> {
    handle(volume)?;
    let attributes = volume.spec.as_ref()?.csi.as_ref()?.volume_attributes.as_ref()?;
    let seconds: u64 = attributes.get(INTERVAL_ATTRIBUTE)?.parse().ok()?;
    (attributes.get(REPLICAS_ATTRIBUTE)? == "2").then_some(seconds.clamp(5, 24 * 60 * 60))
}

/// Returns the node on which a volume was made, by its node affinity.
fn origin(volume: &PersistentVolume) -> Option<String> {
    let affinity = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let expressions = affinity.node_selector_terms.iter().flat_map(|term| term.match_expressions.iter().flatten());
    let mut topology = expressions.filter(|one| one.key == DRIVER_LABEL);
    topology.find_map(|one| one.values.as_ref()?.first().cloned())
}
