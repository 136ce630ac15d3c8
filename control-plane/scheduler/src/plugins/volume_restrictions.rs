//! VolumeRestrictions: disks that only one pod of a node can write, and ReadWriteOncePod claims.

use corten_meta::Key;

use crate::framework::{ClusterEvent, Plugin, PreFilter, State, Verdict, state};
use crate::rows::{NodeRow, PodRow, Snapshot, VolumeUse};

pub struct VolumeRestrictions;

/// The pod's ReadWriteOncePod claims.
struct Exclusive(Vec<Key>);

impl Plugin for VolumeRestrictions {
    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        let (mut exclusive, mut disks) = (Vec::new(), false);
        for volume in &pod.demand.volumes {
            let VolumeUse::Claim { name, ephemeral } = volume else {
                disks = true;
                continue;
            };
            if *ephemeral {
                continue;
            }
            let key = Key { namespace: pod.namespace().to_owned(), name: name.clone() };
            let Some(claim) = snapshot.storage.claims.get(&key) else {
                return PreFilter::Reject(Verdict::unresolvable_because(not_found(name)));
            };
            if claim.access_modes.iter().any(|mode| mode == "ReadWriteOncePod") {
                exclusive.push(key);
            }
        }
        exclusive.retain(|key| snapshot.storage.users.contains_key(key));
        match disks || !exclusive.is_empty() {
            true => PreFilter::Continue(Box::new(Exclusive(exclusive))),
            false => PreFilter::Skip,
        }
    }

    fn filter(&self, exclusive: &State, pod: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        if node.with_disks > 0 && node.pods.iter().any(|other| collide(pod, other)) {
            return Verdict::unschedulable("node(s) had no available disk");
        }
        let mut exclusive = state::<Exclusive>(exclusive).into_iter().flat_map(|exclusive| &exclusive.0);
        match exclusive.any(|key| snapshot.storage.users.contains_key(key)) {
            true => Verdict::unschedulable(
                "node(s) unavailable due to PersistentVolumeClaim with ReadWriteOncePod access mode already in-use by \
                 another pod",
            ),
            false => Verdict::Fits,
        }
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(_) => true,
            ClusterEvent::PodRemoved(other) => collide(pod, other) || shares_claim(pod, other),
            ClusterEvent::ClaimChanged(key) => uses_claim(pod, key),
            _ => false,
        }
    }
}

/// Returns the API server's message.
pub fn not_found(claim: &str) -> String {
    format!("persistentvolumeclaim \"{claim}\" not found")
}

pub fn uses_claim(pod: &PodRow, key: &Key) -> bool {
    let named = |volume: &VolumeUse| matches!(volume, VolumeUse::Claim { name, .. } if *name == key.name);
    pod.namespace() == key.namespace && pod.demand.volumes.iter().any(named)
}

fn shares_claim(pod: &PodRow, other: &PodRow) -> bool {
    let claim = |volume: &&VolumeUse| matches!(volume, VolumeUse::Claim { .. });
    pod.namespace() == other.namespace()
        && pod.demand.volumes.iter().filter(claim).any(|volume| other.demand.volumes.contains(volume))
}

fn collide(pod: &PodRow, other: &PodRow) -> bool {
    pod.demand.volumes.iter().any(|mine| other.demand.volumes.iter().any(|theirs| conflicts(mine, theirs)))
}

/// Reports whether two pods use the same disk, unless both only read it and it supports that.
fn conflicts(a: &VolumeUse, b: &VolumeUse) -> bool {
    use VolumeUse::{AwsElasticBlockStore, GcePersistentDisk, Iscsi, Rbd};
    match (a, b) {
        (GcePersistentDisk { name: a, read_only: ra }, GcePersistentDisk { name: b, read_only: rb }) => {
            a == b && !(*ra && *rb)
        }
        (AwsElasticBlockStore { id: a }, AwsElasticBlockStore { id: b }) => a == b,
        (Iscsi { iqn: a, read_only: ra }, Iscsi { iqn: b, read_only: rb }) => a == b && !(*ra && *rb),
        (
            Rbd { monitors: ma, pool: pa, image: ia, read_only: ra },
            Rbd { monitors: mb, pool: pb, image: ib, read_only: rb },
        ) => ma.iter().any(|monitor| mb.contains(monitor)) && pa == pb && ia == ib && !(*ra && *rb),
        _ => false,
    }
}
