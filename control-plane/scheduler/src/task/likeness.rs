//! Pods that resemble one that was decoded before: replicas differ only in their names, status and node. Such a pod
//! need not be decoded, which is most of the work of receiving it.
//!
//! Invariant: the row equals the one that decoding the pod would give.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use corten_meta::Object;
use corten_meta::Owner;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::glance::{Spec, Status};
use crate::rows::PodRow;

/// The most known pods; beyond that all are dropped.
const MOST: usize = 256;
/// The largest spec whose bytes are kept.
const LARGEST: usize = 8 * 1024;
/// After this many consecutive pods without a match, as those of a DaemonSet, only one in this many is compared.
const IN_VAIN: usize = 256;
const SAMPLE: usize = 64;

#[derive(Default)]
pub struct Likeness {
    known: HashMap<u64, Known>,
    /// The number of pods since the last match.
    in_vain: usize,
    offered: usize,
}

/// A decoded pod, and the parts that others must share with it.
struct Known {
    spec: String,
    owners: Vec<Owner>,
    row: Arc<PodRow>,
}

#[derive(Deserialize)]
struct Parts<'a> {
    #[serde(borrow)]
    spec: &'a RawValue,
    #[serde(borrow, default)]
    status: Status<'a>,
}

/// A spec without the pod's node.
struct Likened {
    spec: String,
    node_name: String,
}

impl Likened {
    fn new(text: &str) -> Option<Likened> {
        let node_name: String = match text.contains("\"nodeName\":\"") {
            true => serde_json::from_str::<Spec<'_>>(text).ok()?.node_name.into(),
            false => String::new(),
        };
        // The position of the field is part of the comparison: the node's name is cut out, and its quotes stay.
        let spec = match node_name.is_empty() {
            true => text.to_owned(),
            false => text.replacen(&format!("\"nodeName\":\"{node_name}\""), "\"nodeName\":\"\"", 1),
        };
        Some(Likened { spec, node_name })
    }

    fn number(&self, object: &Object) -> u64 {
        let mut hasher = DefaultHasher::new();
        (&self.spec, &object.header.namespace, &object.header.labels).hash(&mut hasher);
        hasher.finish()
    }
}

impl Likeness {
    /// Returns the row of a pod that resembles a known one.
    pub fn row(&mut self, object: &Object) -> Option<PodRow> {
        self.in_vain += 1;
        if self.known.is_empty()
            || !is_plain(object)
            || (self.in_vain > IN_VAIN && !self.in_vain.is_multiple_of(SAMPLE))
        {
            return None;
        }
        let row = self.alike(object)?;
        self.in_vain = 0;
        Some(row)
    }

    fn alike(&self, object: &Object) -> Option<PodRow> {
        let Parts { spec, status } = serde_json::from_slice(&object.bytes).ok()?;
        let likened = Likened::new(spec.get())?;
        let known = self.known.get(&likened.number(object))?;
        let (header, row) = (&object.header, &known.row);
        let alike = known.spec == likened.spec
            && known.owners == header.owners
            && header.namespace == row.namespace()
            && *header.labels == *row.labels();
        alike.then(|| PodRow {
            name: header.name.clone(),
            uid: header.uid.as_str().into(),
            class: row.class.clone(),
            demand: row.demand.clone(),
            nodes: row.nodes.clone(),
            node_name: likened.node_name,
            nominated: status.nominated_node_name.clone().into(),
            priority: row.priority,
            revision: object.revision,
            generation: header.generation,
            terminating: header.deletion_timestamp.is_some(),
            terminal: status.is_terminal(),
            preempted: status.is_preempted(),
            started: status.started(),
            condition: status.scheduled(),
        })
    }

    /// Remembers a decoded pod. One whose volumes contain its name, or whose status names its claims, resembles no
    /// other.
    pub fn learn(&mut self, object: &Object, row: &PodRow) {
        self.offered += 1;
        if self.in_vain > IN_VAIN && !self.offered.is_multiple_of(SAMPLE) {
            return;
        }
        if !is_plain(object) || !row.demand.volumes.is_empty() || !row.demand.claims.is_empty() {
            return;
        }
        let Ok(Parts { spec, .. }) = serde_json::from_slice(&object.bytes) else { return };
        let Some(likened) = Likened::new(spec.get()).filter(|likened| likened.spec.len() <= LARGEST) else { return };
        if self.known.len() >= MOST {
            self.known.clear();
        }
        let number = likened.number(object);
        let (owners, row) = (object.header.owners.clone(), Arc::new(row.clone()));
        self.known.insert(number, Known { spec: likened.spec, owners, row });
    }
}

/// Reports whether the pod's spec was never changed: otherwise its status has its resources.
fn is_plain(object: &Object) -> bool {
    object.header.generation <= 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Snapshot;
    use corten_api::decode_object;
    use corten_api::k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn object(change: &Value) -> Object {
        let owner =
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "ru", "controller": true});
        let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}});
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "default", "name": "p", "uid": "u", "labels": {"a": "b"}, "generation": 1,
                "ownerReferences": [owner]},
            "spec": {"containers": [container], "priority": 7, "nodeSelector": {"nodeName": "n"},
                "schedulerName": "default-scheduler"},
            "status": {"phase": "Pending"}});
        corten_meta::patch::merge_patch(&mut pod, change);
        Object::from_value(&pod, 7).unwrap()
    }

    #[test]
    fn what_is_alike_is_known_as_if_it_were_read() {
        let (mut snapshot, mut likeness) = (Snapshot::default(), Likeness::default());
        let first = object(&json!({}));
        assert!(likeness.row(&first).is_none());
        likeness.learn(&first, &snapshot.row(decode_object::<Pod>(&first).unwrap()));
        let condition = |kind: &str, status: &str, reason: &str| {
            json!([{"type": kind, "status": status, "reason": reason, "message": "m",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}])
        };
        for (change, expected) in [
            (json!({}), true),
            (json!({"metadata": {"name": "q", "uid": "v", "annotations": {"x": "\"nodeName\":\"n\""}}}), true),
            (
                json!({"status": {"nominatedNodeName": "m", "conditions": condition("PodScheduled", "False", "R")}}),
                true,
            ),
            (json!({"status": {"conditions": condition("DisruptionTarget", "True", "PreemptionByScheduler")}}), true),
            (json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}), true),
            (json!({"status": {"phase": "Failed", "conditions": condition("PodScheduled", "True", "")}}), true),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), true),
            (json!({"spec": {"nodeName": "n"}}), false),
            (json!({"spec": {"nodeSelector": {"nodeName": "m"}}}), false),
            (json!({"spec": {"priority": 8}}), false),
            (json!({"metadata": {"labels": {"a": "c"}}}), false),
            (json!({"metadata": {"namespace": "other"}}), false),
            (json!({"metadata": {"ownerReferences": null}}), false),
            (json!({"metadata": {"generation": 2}}), false),
        ] {
            let object = object(&change);
            let decoded = snapshot.row(decode_object::<Pod>(&object).unwrap());
            let row = likeness.row(&object).map(|row| format!("{row:?}"));
            assert_eq!(row, expected.then(|| format!("{decoded:?}")), "{change}");
        }
    }

    #[test]
    fn pods_on_nodes_are_alike_wherever_they_are() {
        let (mut snapshot, mut likeness) = (Snapshot::default(), Likeness::default());
        let on = |node: &str, selected: &str| {
            object(&json!({"spec": {"nodeName": node, "nodeSelector": {"nodeName": selected}}}))
        };
        likeness.learn(&on("n", "n"), &snapshot.row(decode_object::<Pod>(&on("n", "n")).unwrap()));
        for (node, selected, expected) in [("n", "n", true), ("m", "n", true), ("m", "m", false), ("n", "m", false)] {
            let row = likeness.row(&on(node, selected));
            assert_eq!(row.map(|row| row.node_name), expected.then(|| node.to_owned()), "{node} {selected}");
        }
    }

    #[test]
    fn where_all_differ_few_are_looked_at_until_some_are_alike_again() {
        let (mut snapshot, mut likeness) = (Snapshot::default(), Likeness::default());
        let mut heard = |likeness: &mut Likeness, priority: usize| {
            let object = object(&json!({"spec": {"priority": priority}}));
            if likeness.row(&object).is_some() {
                return true;
            }
            likeness.learn(&object, &snapshot.row(decode_object::<Pod>(&object).unwrap()));
            false
        };
        assert!((0..2 * IN_VAIN).all(|priority| !heard(&mut likeness, priority)));
        let known = likeness.known.len();
        assert!((0..SAMPLE).all(|priority| !heard(&mut likeness, 1_000 + priority)));
        assert!(likeness.known.len() <= known + 1);
        // A replica is recognised after some pods, and from then on always.
        let looks = (0..).take_while(|_| !heard(&mut likeness, 5_000)).count();
        assert!(looks <= 2 * SAMPLE, "{looks}");
        assert!((0..10).all(|_| heard(&mut likeness, 5_000)));
    }

    #[test]
    fn what_has_its_own_name_inside_is_like_no_other() {
        let (mut snapshot, mut likeness) = (Snapshot::default(), Likeness::default());
        for volume in
            [json!({"name": "v", "ephemeral": {}}), json!({"name": "v", "persistentVolumeClaim": {"claimName": "c"}})]
        {
            let with_volume = object(&json!({"spec": {"volumes": [volume]}}));
            likeness.learn(&with_volume, &snapshot.row(decode_object::<Pod>(&with_volume).unwrap()));
            assert!(likeness.row(&with_volume).is_none());
        }
    }
}
