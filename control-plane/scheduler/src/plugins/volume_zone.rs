//! VolumeZone: a bound volume with zone or region labels restricts its pods to matching nodes.

use std::collections::BTreeMap;

use corten_meta::Key;

use super::volume_restrictions::{not_found, uses_claim};
use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict, state};
use crate::rows::{NodeRow, PodRow, Snapshot, VolumeUse};

const ZONE: &str = "topology.kubernetes.io/zone";
const REGION: &str = "topology.kubernetes.io/region";
const OLD_ZONE: &str = "failure-domain.beta.kubernetes.io/zone";
const OLD_REGION: &str = "failure-domain.beta.kubernetes.io/region";

pub struct VolumeZone;

/// A label and its allowed values.
type Bounds = Vec<(&'static str, Vec<String>)>;

impl Plugin for VolumeZone {
    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        match bounds(pod, snapshot) {
            Err(verdict) => PreFilter::Reject(verdict),
            Ok(bounds) if bounds.is_empty() => PreFilter::Skip,
            Ok(bounds) => PreFilter::Continue(Box::new(bounds)),
        }
    }

    fn filter(&self, bounds: &State, _: &PodRow, node: &NodeRow, _: &Snapshot) -> Verdict {
        // A node without any such label belongs to a single-zone cluster.
        if [ZONE, REGION, OLD_ZONE, OLD_REGION].iter().all(|label| !node.labels.contains_key(*label)) {
            return Verdict::Fits;
        }
        let within = |(key, values): &(&str, Vec<String>)| {
            let value = node.labels.get(*key).or_else(|| node.labels.get(current(key)));
            value.is_some_and(|value| values.contains(value))
        };
        match state::<Bounds>(bounds).is_none_or(|bounds| bounds.iter().all(within)) {
            true => Verdict::Fits,
            false => Verdict::unresolvable("node(s) had no available volume zone"),
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(_) | ClusterEvent::VolumeChanged | ClusterEvent::StorageClassChanged => true,
            ClusterEvent::NodeUpdated(_, change) => change.labels,
            ClusterEvent::ClaimChanged(key) => uses_claim(pod, key),
            _ => false,
        }
    }
}

fn current(label: &str) -> &str {
    match label {
        OLD_ZONE => ZONE,
        OLD_REGION => REGION,
        other => other,
    }
}

fn bounds(pod: &PodRow, snapshot: &Snapshot) -> Result<Bounds, Verdict> {
    let storage = &snapshot.storage;
    let mut bounds = Vec::new();
    for volume in &pod.demand.volumes {
        let VolumeUse::Claim { name, ephemeral: false } = volume else { continue };
        let key = Key { namespace: pod.namespace().to_owned(), name: name.clone() };
        let claim = storage.claims.get(&key).ok_or_else(|| Verdict::unresolvable_because(not_found(name)))?;
        if claim.volume.is_empty() {
            if claim.class.is_empty() {
                let why = "PersistentVolumeClaim had no pv name and storageClass name";
                return Err(Verdict::unresolvable(why));
            }
            let class = storage.classes.get(&claim.class).ok_or_else(|| {
                Verdict::unresolvable_because(format!("storageclass.storage.k8s.io \"{}\" not found", claim.class))
            })?;
            if class.waits_for_consumer {
                continue;
            }
            return Err(match class.binding_mode {
                Some(_) => Verdict::unresolvable("PersistentVolume had no name"),
                None => Verdict::unresolvable_because(format!(
                    "VolumeBindingMode not set for StorageClass {:?}",
                    claim.class
                )),
            });
        }
        let volume = storage
            .volumes
            .get(&claim.volume)
            .ok_or_else(|| Verdict::unresolvable_because(format!("persistentvolume \"{}\" not found", claim.volume)))?;
        bounds.extend(labelled(&volume.labels));
    }
    Ok(bounds)
}

/// Returns the zone labels; several values are separated by `__`.
fn labelled(labels: &BTreeMap<String, String>) -> Bounds {
    let of = |key: &'static str| {
        let values = labels.get(key)?.split("__").map(str::to_owned).collect();
        Some((key, values))
    };
    [OLD_ZONE, OLD_REGION, ZONE, REGION].into_iter().filter_map(of).collect()
}
