//! The volumes that the pods of a node need attached, and the nodes that a change concerns.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod};
use corten_api::k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use corten_client::Change;
use corten_meta::{Key, Object};

use super::attachment_name;
use crate::runtime::{View, decode, key_of, mentions, node_of_pod};
use crate::workload::owner::is_controlled_by;
use crate::workload::pods;

/// A volume that pods of the node use.
pub struct Wanted {
    pub volume: PersistentVolume,
    pub attachment_name: String,
    /// The pods of this node that use the volume, by name.
    pub pods: Vec<Pod>,
    /// The other nodes that the volume is attached to.
    pub elsewhere: Vec<String>,
    /// The pods on those nodes that use the volume.
    pub users_elsewhere: Vec<Key>,
}

impl Wanted {
    /// Reports whether only one node may attach the volume. A volume without access modes is left to its driver.
    pub fn is_exclusive(&self) -> bool {
        let modes = self.volume.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
        !modes.is_empty() && !modes.iter().any(|mode| matches!(mode.as_str(), "ReadWriteMany" | "ReadOnlyMany"))
    }
}

pub fn csi_of(volume: &PersistentVolume) -> Option<&CSIPersistentVolumeSource> {
    volume.spec.as_ref()?.csi.as_ref()
}

/// Returns the volumes that the pods of a node use and that a driver must attach, by name.
pub fn on_node(view: &dyn View, node: &str, attachments: &[VolumeAttachment]) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = Vec::new();
    let mut users: Vec<Pod> = view.pods_on(node).iter().filter(|pod| names_claims(pod)).filter_map(decode).collect();
    users.retain(|pod| !has_ended(pod));
    users.sort_unstable_by_key(key_of);
    for pod in users {
        for volume in bound_volumes(view, &pod) {
            let name = volume.name().to_owned();
            match wanted.iter_mut().find(|one| one.volume.name() == name) {
                Some(one) => one.pods.push(pod.clone()),
                None => wanted.extend(new_wanted(view, node, attachments, volume, pod.clone())),
            }
        }
    }
    wanted.sort_by(|a, b| a.volume.name().cmp(b.volume.name()));
    wanted
}

fn new_wanted(
    view: &dyn View,
    node: &str,
    attachments: &[VolumeAttachment],
    volume: PersistentVolume,
    pod: Pod,
) -> Option<Wanted> {
    let csi = csi_of(&volume)?;
    if needs_no_attachment(view, &csi.driver) {
        return None;
    }
    let attachment_name = attachment_name(&csi.volume_handle, &csi.driver, node);
    let of_volume = |one: &&VolumeAttachment| one.spec.source.persistent_volume_name.as_deref() == Some(volume.name());
    let mut elsewhere: Vec<String> = attachments
        .iter()
        .filter(of_volume)
        .map(|one| one.spec.node_name.clone())
        .filter(|name| name != node)
        .collect();
    elsewhere.sort_unstable();
    let mut users_elsewhere: Vec<Key> = Vec::new();
    if !elsewhere.is_empty() {
        let users = users_of_volume(view, &volume);
        let there = |pod: &&Pod| elsewhere.iter().any(|name| name == pods::node_name(pod)) && !has_ended(pod);
        users_elsewhere = users.iter().filter(there).map(key_of).collect();
        users_elsewhere.sort_unstable();
    }
    Some(Wanted { volume, attachment_name, pods: vec![pod], elsewhere, users_elsewhere })
}

/// Reports whether the volumes of a driver need not be attached.
pub fn needs_no_attachment(view: &dyn View, driver: &str) -> bool {
    let driver: Option<CSIDriver> = view.typed(&Key::new("", driver));
    driver.is_some_and(|driver| driver.spec.attach_required == Some(false))
}

/// Returns the nodes that hold volumes of a driver.
pub fn of_driver(view: &dyn View, change: &Change) -> Vec<Key> {
    let attachments: Vec<VolumeAttachment> = view.all("");
    let own = attachments.iter().filter(|attachment| attachment.spec.attacher == change.key.name);
    let mut keys: Vec<Key> = own.map(|attachment| Key::new("", attachment.spec.node_name.clone())).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// Reports whether no container of the pod runs any more, or will.
fn has_ended(pod: &Pod) -> bool {
    let statuses = pod.status.iter().flat_map(|status| {
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
    });
    let idle = |status: &corten_api::k8s_openapi::api::core::v1::ContainerStatus| {
        status.state.as_ref().is_none_or(|state| state.running.is_none())
    };
    pods::is_terminal(pod) || (pods::is_terminating(pod) && statuses.into_iter().all(idle))
}

/// Returns the volumes that are bound to the pod's claims.
fn bound_volumes(view: &dyn View, pod: &Pod) -> Vec<PersistentVolume> {
    let volume = |(name, own): (String, bool)| {
        let claim: PersistentVolumeClaim = view.typed(&Key::new(pod.namespace(), name))?;
        if own && !is_controlled_by(&claim.metadata, pod.metadata.uid.as_deref().unwrap_or_default()) {
            return None;
        }
        let name = claim.spec.as_ref()?.volume_name.clone().filter(|name| !name.is_empty())?;
        let volume: PersistentVolume = view.typed(&Key::new("", name))?;
        let bound = volume.spec.as_ref()?.claim_ref.as_ref()?.uid == claim.metadata.uid;
        bound.then_some(volume)
    };
    claims_of(pod).filter_map(volume).collect()
}

/// Returns the claims of a pod by name, and whether the pod must own each.
fn claims_of(pod: &Pod) -> impl Iterator<Item = (String, bool)> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some((source.claim_name.clone(), false)),
        (None, Some(_)) => Some((format!("{}-{}", pod.name(), volume.name), true)),
        _ => None,
    })
}

/// Reports whether a pod can have claims at all. Searches the JSON, since most pods have none and every pod change
/// asks.
fn names_claims(pod: &Arc<Object>) -> bool {
    mentions(pod, "\"persistentVolumeClaim\"") || mentions(pod, "\"ephemeral\"")
}

fn users_of_claim(view: &dyn View, claim: &Key) -> Vec<Pod> {
    let all = view.list(crate::runtime::ResourceType::of::<Pod>(), &claim.namespace);
    let mut users: Vec<Pod> = all.iter().filter(|pod| names_claims(pod)).filter_map(decode).collect();
    users.retain(|pod| claims_of(pod).any(|(name, _)| name == claim.name));
    users
}

fn users_of_volume(view: &dyn View, volume: &PersistentVolume) -> Vec<Pod> {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let key = claim.and_then(|claim| Some(Key::new(claim.namespace.clone()?, claim.name.clone()?)));
    key.map(|key| users_of_claim(view, &key)).unwrap_or_default()
}

fn nodes_of(users: &[Pod]) -> Vec<Key> {
    let mut keys: Vec<Key> =
        users.iter().map(pods::node_name).filter(|name| !name.is_empty()).map(|name| Key::new("", name)).collect();
    keys.sort_unstable();
    keys.dedup();
    keys
}

pub fn of_pod(_: &dyn View, change: &Change) -> Vec<Key> {
    let with_claims = [&change.old, &change.new].into_iter().flatten().filter(|pod| names_claims(pod));
    let mut keys: Vec<Key> = with_claims.filter_map(|pod| node_of_pod(pod)).map(|node| Key::new("", node)).collect();
    keys.dedup();
    keys
}

pub fn of_claim(view: &dyn View, change: &Change) -> Vec<Key> {
    nodes_of(&users_of_claim(view, &change.key))
}

pub fn of_volume(view: &dyn View, change: &Change) -> Vec<Key> {
    let volume = change.new.as_ref().or(change.old.as_ref()).and_then(decode::<PersistentVolume>);
    volume.map(|volume| nodes_of(&users_of_volume(view, &volume))).unwrap_or_default()
}

/// Returns the node of an attachment. After a deletion also the nodes that may wait for the volume.
pub fn of_attachment(view: &dyn View, change: &Change) -> Vec<Key> {
    let attachment = change.new.as_ref().or(change.old.as_ref()).and_then(decode::<VolumeAttachment>);
    let Some(attachment) = attachment else { return Vec::new() };
    let mut keys = vec![Key::new("", attachment.spec.node_name)];
    let freed = attachment.spec.source.persistent_volume_name.filter(|_| change.new.is_none());
    let volume = freed.and_then(|name| view.typed::<PersistentVolume>(&Key::new("", name)));
    keys.extend(volume.map(|volume| nodes_of(&users_of_volume(view, &volume))).unwrap_or_default());
    keys
}
