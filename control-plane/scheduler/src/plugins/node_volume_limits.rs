//! NodeVolumeLimits: a node attaches no more volumes of a driver than its CSINode allows.

use std::collections::{BTreeMap, HashMap, HashSet};

use corten_meta::Key;

use super::volume_restrictions::{not_found, uses_claim};
use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict};
use crate::rows::storage::{ClaimRow, Storage};
use crate::rows::{NodeRow, PodRow, Snapshot, VolumeUse};

pub struct NodeVolumeLimits;

/// A volume by driver and handle.
type Attached = (String, String);

impl Plugin for NodeVolumeLimits {
    fn pre_filter(&self, pod: &PodRow, _: &mut Snapshot) -> PreFilter {
        let claims = pod.demand.volumes.iter().any(|volume| matches!(volume, VolumeUse::Claim { .. }));
        if claims { PreFilter::Continue(Box::new(())) } else { PreFilter::Skip }
    }

    fn filter(&self, _: &State, pod: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        let storage = &snapshot.storage;
        let mut new = match volumes_of(pod, storage) {
            Ok(volumes) => volumes,
            Err(claim) => {
                let why = format!("looking up PVC {}/{claim}: {}", pod.namespace(), not_found(&claim));
                return Verdict::unresolvable_because(why);
            }
        };
        let Some(limits) = storage.limits.get(&node.name).filter(|_| !new.is_empty()) else { return Verdict::Fits };
        if limits.values().all(Option::is_none) {
            return Verdict::Fits;
        }
        let attached = attached_to(node, storage);
        new.retain(|volume| !attached.contains(volume));
        let mut counts: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        new.iter().for_each(|(driver, _)| counts.entry(driver).or_default().0 += 1);
        attached.iter().for_each(|(driver, _)| counts.entry(driver).or_default().1 += 1);
        let exceeded = counts.iter().any(|(driver, (new, attached))| {
            limits.get(*driver).copied().flatten().is_some_and(|most| *new > 0 && new + attached > most)
        });
        match exceeded {
            true => Verdict::unschedulable("node(s) exceed max volume count"),
            false => Verdict::Fits,
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::CsiNodeChanged | ClusterEvent::AttachmentRemoved => true,
            ClusterEvent::PodRemoved(other) => !other.demand.volumes.is_empty(),
            ClusterEvent::ClaimChanged(key) => uses_claim(pod, key),
            _ => false,
        }
    }
}

/// Returns the volumes that a pod attaches, or will attach; an error with the name of a missing claim.
fn volumes_of(pod: &PodRow, storage: &Storage) -> Result<HashSet<Attached>, String> {
    let mut volumes = HashSet::new();
    for volume in &pod.demand.volumes {
        let VolumeUse::Claim { name, .. } = volume else { continue };
        let key = Key { namespace: pod.namespace().to_owned(), name: name.clone() };
        let claim = storage.claims.get(&key).ok_or_else(|| name.clone())?;
        volumes.extend(attached_by(claim, storage));
    }
    Ok(volumes)
}

/// Returns the volume of a claim. A claim without one will get one of its class's driver, identified by the claim until
/// then.
fn attached_by(claim: &ClaimRow, storage: &Storage) -> Option<Attached> {
    match storage.volumes.get(&claim.volume) {
        Some(volume) => volume.csi.clone(),
        None => {
            let class = storage.classes.get(&claim.class)?;
            Some((class.provisioner.clone(), format!("claim {}", claim.key)))
        }
    }
}

fn attached_to(node: &NodeRow, storage: &Storage) -> HashSet<Attached> {
    let mut attached = HashSet::new();
    let mut handles: HashMap<&str, Option<&Attached>> = HashMap::new();
    for pod in node.pods.iter().filter(|pod| !pod.demand.volumes.is_empty()) {
        attached.extend(volumes_of(pod, storage).unwrap_or_default());
    }
    for (_, driver, volume) in storage.attachments.values().filter(|(at, _, _)| *at == node.name) {
        let csi = handles.entry(volume).or_insert_with(|| storage.volumes.get(volume).and_then(|v| v.csi.as_ref()));
        let handle = csi.map_or_else(|| volume.clone(), |(_, handle)| handle.clone());
        attached.insert((driver.clone(), handle));
    }
    attached
}
