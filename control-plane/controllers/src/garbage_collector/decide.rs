//! The decision about one object, given the states of its owners. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use corten_client::Propagation;
use corten_meta::Object;

pub const FOREGROUND: &str = "foregroundDeletion";
pub const ORPHAN: &str = "orphan";

/// The state of the object that an owner reference names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerState {
    /// The owner exists, or its state cannot be known: its kind is not served, or it cannot own this object. Never a
    /// reason to delete.
    Solid,
    /// No object with this uid exists.
    Absent,
    /// The owner is being deleted in the foreground, and waits for this object to be deleted first.
    WaitingForDependents,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Nothing,
    /// At least one owner is solid: only the references to the others are removed. By uid.
    DropReferences(Vec<String>),
    Delete(Propagation),
    /// Release the dependents, then remove the finalizer.
    Orphan,
    /// Wait for blocking dependents; without any, remove the finalizer.
    Foreground,
}

/// Decides about an object. `owners` are the states of its owner references, in their order.
pub fn decide(object: &Object, owners: &[OwnerState], has_dependents: bool) -> Decision {
    let has = |finalizer: &str| object.header.finalizers.iter().any(|name| name == finalizer);
    if object.header.deletion_timestamp.is_some() {
        return match (has(ORPHAN), has(FOREGROUND)) {
            (true, _) => Decision::Orphan,
            (_, true) => Decision::Foreground,
            _ => Decision::Nothing,
        };
    }
    if owners.is_empty() {
        return Decision::Nothing;
    }
    if owners.contains(&OwnerState::Solid) {
        let gone = object.header.owners.iter().zip(owners).filter(|(_, state)| **state != OwnerState::Solid);
        let gone: Vec<String> = gone.map(|(owner, _)| owner.uid.clone()).collect();
        return if gone.is_empty() { Decision::Nothing } else { Decision::DropReferences(gone) };
    }
    if owners.contains(&OwnerState::WaitingForDependents) && has_dependents {
        return Decision::Delete(Propagation::Foreground);
    }
    match (has(ORPHAN), has(FOREGROUND)) {
        (true, _) => Decision::Delete(Propagation::Orphan),
        (_, true) => Decision::Delete(Propagation::Foreground),
        _ => Decision::Delete(Propagation::Background),
    }
}

pub fn waits_for_dependents(object: &Object) -> bool {
    object.header.deletion_timestamp.is_some() && object.header.finalizers.iter().any(|name| name == FOREGROUND)
}

/// Reports whether the object blocks the deletion of the owner with this uid.
pub fn blocks(object: &Object, owner: &str) -> bool {
    object.header.owners.iter().any(|one| one.uid == owner && one.block_owner_deletion)
}

/// Returns the owners that a waiting object blocks while it waits for them itself, directly or through others: in such
/// a circle nothing would ever be deleted. By uid.
pub fn circular_owners(object: &Object, dependents: impl Fn(&str) -> Vec<Arc<Object>>) -> Vec<String> {
    let mut behind: BTreeSet<String> = BTreeSet::new();
    let mut open = vec![object.header.uid.clone()];
    while let Some(uid) = open.pop() {
        for held in dependents(&uid).into_iter().filter(|held| waits_for_dependents(held) && blocks(held, &uid)) {
            if behind.insert(held.header.uid.clone()) {
                open.push(held.header.uid.clone());
            }
        }
    }
    let owners = object.header.owners.iter().filter(|owner| owner.block_owner_deletion && behind.contains(&owner.uid));
    owners.map(|owner| owner.uid.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use OwnerState::{Absent, Solid, WaitingForDependents};
    use serde_json::json;

    fn object(finalizers: &[&str], deleting: bool, owners: usize) -> Object {
        let owners: Vec<_> = (0..owners)
            .map(|n| json!({"apiVersion": "v1", "kind": "A", "name": "a", "uid": format!("u{n}")}))
            .collect();
        let mut metadata = json!({"name": "x", "finalizers": finalizers, "ownerReferences": owners});
        if deleting {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        Object::from_value(&json!({"apiVersion": "v1", "kind": "B", "metadata": metadata}), 1).unwrap()
    }

    #[test]
    fn decisions_by_owners_and_finalizers() {
        let background = Decision::Delete(Propagation::Background);
        for (name, object, owners, dependents, expected) in [
            ("no owner", object(&[], false, 0), &[][..], false, Decision::Nothing),
            ("owner is there", object(&[], false, 1), &[Solid], false, Decision::Nothing),
            ("owner is gone", object(&[], false, 1), &[Absent], true, background.clone()),
            ("all owners are gone", object(&[], false, 2), &[Absent, Absent], false, background.clone()),
            (
                "one owner is left",
                object(&[], false, 2),
                &[Solid, Absent],
                false,
                Decision::DropReferences(vec!["u1".into()]),
            ),
            ("owner waits, leaf", object(&[], false, 1), &[WaitingForDependents], false, background),
            (
                "owner waits, inner",
                object(&[], false, 1),
                &[WaitingForDependents],
                true,
                Decision::Delete(Propagation::Foreground),
            ),
            (
                "owner gone, orphaning",
                object(&[ORPHAN], false, 1),
                &[Absent],
                true,
                Decision::Delete(Propagation::Orphan),
            ),
            ("orphans its own", object(&[ORPHAN], true, 0), &[], true, Decision::Orphan),
            ("waits for its own", object(&[FOREGROUND], true, 1), &[Absent], true, Decision::Foreground),
            ("is being deleted", object(&["other"], true, 1), &[Absent], false, Decision::Nothing),
        ] {
            assert_eq!(decide(&object, owners, dependents), expected, "{name}");
        }
    }

    #[test]
    fn only_who_waits_for_its_own_owner_is_in_a_circle() {
        let waiting = |uid: &str, owner: &str, blocking: bool, deleting: bool| {
            let owners =
                json!([{"apiVersion": "v1", "kind": "A", "name": owner, "uid": owner, "blockOwnerDeletion": blocking}]);
            let mut metadata = json!({"name": uid, "uid": uid, "finalizers": [FOREGROUND], "ownerReferences": owners});
            if deleting {
                metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            Arc::new(Object::from_value(&json!({"apiVersion": "v1", "kind": "A", "metadata": metadata}), 1).unwrap())
        };
        for (name, blocking, deleting, last_owner, expected) in [
            ("a circle of three", true, true, "3", vec!["3".to_owned()]),
            ("one that nobody waits for", false, true, "3", vec![]),
            ("one that is not being deleted", true, false, "3", vec![]),
            ("a chain", true, true, "none", vec![]),
        ] {
            let all = [
                waiting("1", last_owner, true, true),
                waiting("2", "1", blocking, true),
                waiting("3", "2", true, deleting),
            ];
            let dependents = |uid: &str| {
                all.iter().filter(|one| one.header.owners.iter().any(|owner| owner.uid == uid)).cloned().collect()
            };
            assert_eq!(circular_owners(&all[0], dependents), expected, "{name}");
        }
    }
}
