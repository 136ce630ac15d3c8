//! VolumeBinding: the node can use the volumes of the pod's claims, or volumes can be bound or provisioned for it.
//!
//! Claims of a class with WaitForFirstConsumer are bound here: a matching volume is assumed for the claim, or the claim
//! is annotated with the node to provision for. Both are written before the pod is bound, and waited for.

mod find;

use std::collections::HashSet;

use corten_meta::Key;

use super::volume_restrictions::{not_found, uses_claim};
use crate::framework::{ClusterEvent, Effect, Plugin, PreFilter, State, Verdict, state};
use crate::rows::storage::{ClaimRow, Storage};
use crate::rows::{NodeRow, PodRow, Snapshot, VolumeUse};

/// The time that the binding of a pod's claims may take.
pub type BindTimeout = std::time::Duration;

pub struct VolumeBinding {
    pub timeout: BindTimeout,
}

impl Default for VolumeBinding {
    fn default() -> VolumeBinding {
        VolumeBinding { timeout: BindTimeout::from_secs(600) }
    }
}

/// The pod's claims by the action they need.
#[derive(Debug, Default)]
struct Claims {
    bound: Vec<Key>,
    /// Claims to bind or provision once a node is selected, the smallest first.
    waiting: Vec<Key>,
}

impl Plugin for VolumeBinding {
    fn patience(&self) -> Option<BindTimeout> {
        Some(self.timeout)
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        match claims(pod, &snapshot.storage) {
            Err(verdict) => PreFilter::Reject(verdict),
            Ok(claims) if claims.bound.is_empty() && claims.waiting.is_empty() => PreFilter::Skip,
            Ok(claims) => PreFilter::Continue(Box::new(claims)),
        }
    }

    fn filter(&self, claims: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        let Some(claims) = state::<Claims>(claims) else { return Verdict::Fits };
        match find::plan(claims, node, &snapshot.storage) {
            Ok(_) => Verdict::Fits,
            Err(reasons) => Verdict::Unresolvable(reasons),
        }
    }

    fn reserve(&self, pod: &PodRow, slot: usize, snapshot: &mut Snapshot) -> Result<Vec<Effect>, Verdict> {
        let claims = claims(pod, &snapshot.storage)?;
        if claims.waiting.is_empty() {
            return Ok(Vec::new());
        }
        let node = snapshot.node(slot);
        let name = node.name.clone();
        let plan = find::plan(&claims, node, &snapshot.storage).map_err(Verdict::Unresolvable)?;
        for effect in &plan {
            match effect {
                Effect::BindVolume { volume, claim, .. } => snapshot.storage.promise(volume, claim),
                Effect::Provision { claim, .. } => snapshot.storage.select(claim, &name),
                _ => {}
            }
        }
        Ok(plan)
    }

    fn unreserve(&self, pod: &PodRow, snapshot: &mut Snapshot) {
        snapshot.storage.release(&claim_keys(pod).collect::<HashSet<Key>>());
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(_)
            | ClusterEvent::VolumeChanged
            | ClusterEvent::StorageClassChanged
            | ClusterEvent::StorageCapacityChanged
            | ClusterEvent::CsiNodeChanged
            | ClusterEvent::CsiDriverChanged => true,
            ClusterEvent::NodeUpdated(_, change) => change.labels,
            ClusterEvent::ClaimChanged(key) => uses_claim(pod, key),
            _ => false,
        }
    }
}

fn claim_keys(pod: &PodRow) -> impl Iterator<Item = Key> {
    pod.demand.volumes.iter().filter_map(|volume| match volume {
        VolumeUse::Claim { name, .. } => Some(Key { namespace: pod.namespace().to_owned(), name: name.clone() }),
        _ => None,
    })
}

fn claims(pod: &PodRow, storage: &Storage) -> Result<Claims, Verdict> {
    let mut claims = Claims::default();
    let mut immediate = false;
    for volume in &pod.demand.volumes {
        let VolumeUse::Claim { name, ephemeral } = volume else { continue };
        let key = Key { namespace: pod.namespace().to_owned(), name: name.clone() };
        let claim = usable(pod, storage.claims.get(&key), name, *ephemeral)?;
        let waits = || storage.classes.get(&claim.class).is_some_and(|class| class.waits_for_consumer);
        if claim.is_bound() {
            claims.bound.push(key);
        } else if claim.volume.is_empty() && waits() {
            claims.waiting.push(key);
        } else {
            immediate = true;
        }
    }
    if immediate {
        return Err(Verdict::unresolvable("pod has unbound immediate PersistentVolumeClaims"));
    }
    claims.waiting.sort_by_key(|key| storage.claims.get(key).map_or(0, |claim| claim.request));
    Ok(claims)
}

/// Returns a claim that a pod can be started with, or the error.
fn usable<'a>(pod: &PodRow, claim: Option<&'a ClaimRow>, name: &str, ephemeral: bool) -> Result<&'a ClaimRow, Verdict> {
    let refuse = |why: String| Err(Verdict::unresolvable_because(why));
    let Some(claim) = claim else {
        return refuse(match ephemeral {
            true => format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}"),
            false => not_found(name),
        });
    };
    if claim.lost {
        let volume = &claim.volume;
        return refuse(format!("persistentvolumeclaim {name:?} bound to non-existent persistentvolume {volume:?}"));
    }
    if claim.deleting {
        return refuse(format!("persistentvolumeclaim {name:?} is being deleted"));
    }
    if ephemeral && claim.owner.as_deref() != Some(&*pod.uid) {
        let (namespace, pod) = (pod.namespace(), &pod.name);
        return refuse(format!("PVC {namespace}/{name} was not created for pod {namespace}/{pod} (pod is not owner)"));
    }
    Ok(claim)
}

#[cfg(test)]
mod tests;
