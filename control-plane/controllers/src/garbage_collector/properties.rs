//! Properties of garbage collection on whole owner graphs: objects without an owner left are deleted, no others are,
//! and the order in which objects are processed does not matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use corten_client::Propagation;
use corten_meta::{Object, Value};
use proptest::prelude::*;
use serde_json::json;

use super::decide::{Decision, FOREGROUND, ORPHAN, OwnerState, blocks, circular_owners, decide, waits_for_dependents};

/// The objects of the API server, by uid.
type Graph = BTreeMap<String, Value>;

fn encoded(value: &Value) -> Arc<Object> {
    Arc::new(Object::from_value(value, 1).unwrap())
}

fn dependents(graph: &Graph, uid: &str) -> Vec<Arc<Object>> {
    let all = graph.values().map(encoded);
    all.filter(|object| object.header.owners.iter().any(|owner| owner.uid == uid)).collect()
}

fn state_of(graph: &Graph, uid: &str) -> OwnerState {
    match graph.get(uid).map(encoded) {
        None => OwnerState::Absent,
        Some(owner) if waits_for_dependents(&owner) => OwnerState::WaitingForDependents,
        Some(_) => OwnerState::Solid,
    }
}

/// Deletes an object as the API server does.
fn delete(graph: &mut Graph, uid: &str, policy: Propagation) {
    let Some(object) = graph.get_mut(uid) else { return };
    let finalizer = match policy {
        Propagation::Foreground => FOREGROUND,
        Propagation::Orphan => ORPHAN,
        Propagation::Background => {
            graph.remove(uid);
            return;
        }
    };
    object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    object["metadata"]["finalizers"] = json!([finalizer]);
}

fn drop_references(graph: &mut Graph, uid: &str, gone: &[String]) {
    let Some(references) = graph.get_mut(uid).and_then(|one| one["metadata"]["ownerReferences"].as_array_mut()) else {
        return;
    };
    references.retain(|reference| !gone.iter().any(|uid| reference["uid"] == uid.as_str()));
}

/// Processes one object; reports whether that changed the graph.
fn collect(graph: &mut Graph, uid: &str) -> bool {
    let Some(object) = graph.get(uid).map(encoded) else { return false };
    let owners: Vec<OwnerState> = object.header.owners.iter().map(|owner| state_of(graph, &owner.uid)).collect();
    let held = dependents(graph, uid);
    match decide(&object, &owners, !held.is_empty()) {
        Decision::Nothing => return false,
        Decision::DropReferences(gone) => drop_references(graph, uid, &gone),
        Decision::Delete(policy) => delete(graph, uid, policy),
        Decision::Orphan => {
            held.iter()
                .for_each(|one| drop_references(graph, &one.header.uid, std::slice::from_ref(&object.header.uid)));
            graph.remove(uid);
        }
        Decision::Foreground if !held.iter().any(|one| blocks(one, uid)) => {
            graph.remove(uid);
        }
        Decision::Foreground => {
            let circular = circular_owners(&object, |uid| dependents(graph, uid));
            let Some(references) = graph.get_mut(uid).and_then(|one| one["metadata"]["ownerReferences"].as_array_mut())
            else {
                return false;
            };
            for reference in references.iter_mut().filter(|one| circular.iter().any(|uid| one["uid"] == uid.as_str())) {
                reference["blockOwnerDeletion"] = json!(false);
            }
            return !circular.is_empty();
        }
    }
    true
}

/// Processes all objects repeatedly, in the given order, until nothing changes.
fn settle(mut graph: Graph, order: &[usize]) -> Graph {
    for _ in 0..200 {
        let mut uids: Vec<String> = graph.keys().cloned().collect();
        uids.sort_by_key(|uid| order[uid[1..].parse::<usize>().unwrap() % order.len()]);
        let mut changed = false;
        for uid in uids {
            changed |= collect(&mut graph, &uid);
        }
        if !changed {
            return graph;
        }
    }
    panic!("it does not come to rest: {graph:#?}");
}

/// Generates up to nine objects; each may have two owners that come before it, so that there is no circle, and may
/// block them.
fn graphs() -> impl Strategy<Value = (Graph, Vec<usize>)> {
    let owners = prop::collection::vec((0usize..9, any::<bool>()), 0..3);
    let objects = prop::collection::vec(owners, 1..10);
    (objects, Just((0..9).collect::<Vec<usize>>()).prop_shuffle()).prop_map(|(objects, order)| {
        let mut graph = Graph::new();
        for (number, owners) in objects.into_iter().enumerate() {
            let owners: BTreeMap<usize, bool> = owners.into_iter().filter(|(owner, _)| *owner < number).collect();
            let references: Vec<Value> = owners
                .iter()
                .map(|(owner, blocking)| {
                    json!({"apiVersion": "v1", "kind": "A", "name": format!("u{owner}"),
                    "uid": format!("u{owner}"), "blockOwnerDeletion": blocking})
                })
                .collect();
            let uid = format!("u{number}");
            let metadata = json!({"name": uid, "uid": uid, "ownerReferences": references});
            graph.insert(uid, json!({"apiVersion": "v1", "kind": "A", "metadata": metadata}));
        }
        (graph, order)
    })
}

/// Returns the objects that must be left after the deletion of the first: those with a path over owners to a root that
/// stays.
fn expected(graph: &Graph, orphaned: bool) -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    // Owners come before their dependents.
    for uid in (0..graph.len()).map(|number| format!("u{number}")) {
        let object = encoded(&graph[&uid]);
        let owners: Vec<&str> = object.header.owners.iter().map(|owner| owner.uid.as_str()).collect();
        let freed = orphaned && owners == ["u0"];
        let kept = owners.is_empty() || freed || owners.iter().any(|owner| left.contains(*owner));
        if uid != "u0" && kept {
            left.insert(uid);
        }
    }
    left
}

proptest! {
    #[test]
    fn what_has_no_owner_left_goes_and_nothing_else((graph, order) in graphs(), policy in 0usize..3) {
        let policy = [Propagation::Background, Propagation::Foreground, Propagation::Orphan][policy];
        let wanted = expected(&graph, policy == Propagation::Orphan);
        let mut deleted = graph;
        delete(&mut deleted, "u0", policy);
        let forwards = settle(deleted.clone(), &(0..9).collect::<Vec<usize>>());
        let shuffled = settle(deleted, &order);
        let left = |graph: &Graph| graph.keys().cloned().collect::<BTreeSet<String>>();
        prop_assert_eq!(left(&forwards), wanted.clone());
        prop_assert_eq!(left(&shuffled), wanted);
    }

    /// The order of owner references does not matter.
    #[test]
    fn the_order_of_owners_does_not_matter(states in prop::collection::vec(0usize..3, 1..4), has_dependents: bool) {
        let states: Vec<OwnerState> = states
            .iter()
            .map(|one| [OwnerState::Solid, OwnerState::Absent, OwnerState::WaitingForDependents][*one])
            .collect();
        let object = |reversed: bool| {
            let mut references: Vec<Value> = (0..states.len())
                .map(|n| json!({"apiVersion": "v1", "kind": "A", "name": "a", "uid": format!("u{n}")}))
                .collect();
            if reversed { references.reverse(); }
            encoded(&json!({"apiVersion": "v1", "kind": "B", "metadata": {"name": "x", "ownerReferences": references}}))
        };
        let sorted = |decision: Decision| match decision {
            Decision::DropReferences(mut uids) => { uids.sort_unstable(); Decision::DropReferences(uids) }
            other => other,
        };
        let backwards: Vec<OwnerState> = states.iter().rev().copied().collect();
        prop_assert_eq!(
            sorted(decide(&object(false), &states, has_dependents)),
            sorted(decide(&object(true), &backwards, has_dependents))
        );
    }
}
