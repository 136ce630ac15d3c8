//! The volumes that a pod would use on a node: bound ones, available ones that match, or provisioned ones.

use std::collections::HashSet;
use std::sync::Arc;

use super::Claims;
use crate::framework::{Effect, Reasons};
use crate::rows::NodeRow;
use crate::rows::storage::{ClaimRow, ClassRow, NO_PROVISIONER, Storage, VolumeRow};

const NODE_CONFLICT: &str = "node(s) didn't match PersistentVolume's node affinity";
const BIND_CONFLICT: &str = "node(s) didn't find available persistent volumes to bind";
const NOT_ENOUGH_SPACE: &str = "node(s) did not have enough free storage";
const VOLUME_GONE: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";

/// Returns the writes that make the pod's claims usable on the node, or all reasons against it.
pub fn plan(claims: &Claims, node: &NodeRow, storage: &Storage) -> Result<Vec<Effect>, Reasons> {
    let mut problems: Vec<&'static str> = Vec::new();
    for key in &claims.bound {
        let volume = storage.claims.get(key).and_then(|claim| storage.volumes.get(&claim.volume));
        match volume {
            None => problems.push(VOLUME_GONE),
            Some(volume) if !volume.reachable(&node.labels) => problems.push(NODE_CONFLICT),
            Some(_) => continue,
        }
        break;
    }
    let waiting = claims.waiting.iter().filter_map(|key| storage.claims.get(key));
    let effects = match bind_or_provision(waiting, node, storage) {
        Ok(effects) => effects,
        Err(problem) => {
            problems.push(problem);
            Vec::new()
        }
    };
    // The reasons in upstream's order.
    problems.sort_by_key(|problem| {
        [NODE_CONFLICT, BIND_CONFLICT, NOT_ENOUGH_SPACE, VOLUME_GONE].iter().position(|known| known == problem)
    });
    match problems.as_slice() {
        [] => Ok(effects),
        [one] => Err(Reasons::One(one)),
        many => Err(Reasons::Many(many.iter().map(|problem| (*problem).to_owned()).collect::<Arc<[String]>>())),
    }
}

fn bind_or_provision<'a>(
    waiting: impl Iterator<Item = &'a ClaimRow>,
    node: &NodeRow,
    storage: &Storage,
) -> Result<Vec<Effect>, &'static str> {
    let (mut effects, mut to_provision, mut taken) = (Vec::new(), Vec::new(), HashSet::new());
    for claim in waiting {
        match storage.selected_node(claim) {
            Some(selected) if selected != node.name => return Err(BIND_CONFLICT),
            Some(_) => to_provision.push(claim),
            None => match fitting(claim, node, storage, &taken) {
                Some(volume) => {
                    taken.insert(volume.name.as_str());
                    effects.push(Effect::BindVolume {
                        volume: volume.name.clone(),
                        claim: claim.key.clone(),
                        claim_uid: claim.uid.clone(),
                    });
                }
                None => to_provision.push(claim),
            },
        }
    }
    for claim in to_provision {
        let class = storage.classes.get(&claim.class).ok_or(BIND_CONFLICT)?;
        if class.provisioner.is_empty() || class.provisioner == NO_PROVISIONER || !class.allows(&node.labels) {
            return Err(BIND_CONFLICT);
        }
        if !enough_space(claim, class, node, storage) {
            return Err(NOT_ENOUGH_SPACE);
        }
        effects.push(Effect::Provision { claim: claim.key.clone(), written: None });
    }
    Ok(effects)
}

/// Returns the volume that is already reserved for the claim, or the smallest available one that matches.
fn fitting<'a>(claim: &ClaimRow, node: &NodeRow, storage: &'a Storage, taken: &HashSet<&str>) -> Option<&'a VolumeRow> {
    let suits = |volume: &&VolumeRow| {
        !taken.contains(volume.name.as_str())
            && (volume.claim.is_none() || volume.is_for(claim))
            && volume.capacity >= claim.request
            && volume.mode == claim.mode
            && volume.attributes_class == claim.attributes_class
            && !volume.deleting
    };
    let mut candidates: Vec<&VolumeRow> = storage.offered(&claim.class).filter(suits).collect();
    if let Some(meant) = candidates.iter().find(|volume| volume.is_for(claim)) {
        return meant.reachable(&node.labels).then_some(*meant);
    }
    candidates.retain(|volume| {
        volume.available
            && claim.selector.as_ref().is_none_or(|selector| selector.matches(&volume.labels))
            && claim.access_modes.iter().all(|mode| volume.access_modes.contains(mode))
            && volume.reachable(&node.labels)
    });
    // Of equals always the same one: filter and reserve must agree.
    candidates.into_iter().min_by(|a, b| (a.capacity, &a.name).cmp(&(b.capacity, &b.name)))
}

/// Reports whether the driver, if it publishes capacity, has enough for the claim in the node's topology.
fn enough_space(claim: &ClaimRow, class: &ClassRow, node: &NodeRow, storage: &Storage) -> bool {
    let tracks = storage.drivers.get(&class.provisioner).is_some_and(|driver| driver.tracks_capacity);
    if claim.request == 0 || !tracks {
        return true;
    }
    storage.capacities.values().any(|capacity| {
        capacity.class == claim.class
            && capacity.largest.is_some_and(|largest| largest >= claim.request)
            && capacity.nodes.as_ref().is_some_and(|nodes| nodes.matches(&node.labels))
    })
}
