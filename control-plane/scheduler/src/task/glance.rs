//! A partial decoding of a known pod: most changes of a running pod do not matter to scheduling, those of a queued one
//! are our own status updates, and this costs a fifth of full decoding.

use std::borrow::Cow;
use std::sync::Arc;

use corten_api::Typed;
use corten_meta::Object;
use jiff::Timestamp;
use serde::Deserialize;

use crate::rows::PodRow;
use crate::rows::pod::ScheduledCondition;

#[derive(Deserialize)]
struct Glance<'a> {
    #[serde(borrow, default)]
    spec: Spec<'a>,
    #[serde(borrow, default)]
    status: Status<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec<'a> {
    #[serde(borrow)]
    pub node_name: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status<'a> {
    #[serde(borrow)]
    phase: Cow<'a, str>,
    #[serde(borrow)]
    start_time: Option<Cow<'a, str>>,
    #[serde(borrow)]
    pub nominated_node_name: Cow<'a, str>,
    #[serde(borrow)]
    conditions: Vec<Condition<'a>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    status: Cow<'a, str>,
    #[serde(borrow)]
    reason: Cow<'a, str>,
    #[serde(borrow)]
    message: Cow<'a, str>,
    #[serde(borrow)]
    last_transition_time: Option<Cow<'a, str>>,
}

impl Status<'_> {
    pub fn is_terminal(&self) -> bool {
        matches!(&*self.phase, "Succeeded" | "Failed")
    }

    pub fn started(&self) -> Option<Timestamp> {
        self.start_time.as_deref().and_then(|text| corten_meta::time::parse(text).ok())
    }

    /// Reports whether the pod is being deleted because of a preemption.
    pub fn is_preempted(&self) -> bool {
        let says_so = |one: &Condition<'_>| one.status == "True" && one.reason == "PreemptionByScheduler";
        self.conditions.iter().any(|one| one.kind == "DisruptionTarget" && says_so(one))
    }

    /// Returns the PodScheduled condition, if it is false.
    pub fn scheduled(&self) -> Option<Box<ScheduledCondition>> {
        let condition =
            self.conditions.iter().find(|one| one.kind == "PodScheduled").filter(|one| one.status != "True")?;
        let since = condition.last_transition_time.as_deref().and_then(|text| corten_meta::time::parse(text).ok());
        let [status, reason, message] =
            [&condition.status, &condition.reason, &condition.message].map(|text| text.to_string());
        Some(Box::new(ScheduledCondition { status, reason, message, since }))
    }
}

/// Reports whether the change of a scheduled pod can be ignored: the same spec and labels, on the same node, neither
/// terminated nor newly being deleted, and its start time known. A pod whose spec changed is always decoded, because
/// then its status has its resources. A victim is known to be deleted before the cache shows it: earlier events are
/// older.
pub fn unchanged(known: &Arc<PodRow>, object: &Object) -> bool {
    let header = &object.header;
    if header.generation > 1
        || (header.deletion_timestamp.is_some() && !known.terminating)
        || *header.labels != *known.labels()
        || *header.uid != *known.uid
    {
        return false;
    }
    let Ok(glance) = serde_json::from_slice::<Glance<'_>>(&object.bytes) else { return false };
    glance.spec.node_name == known.node_name
        && !glance.status.is_terminal()
        && glance.status.start_time.is_some() == known.started.is_some()
}

/// Returns a queued pod with its new status, if only that can have changed. A pod with resource claims is always
/// decoded, because its status names them.
pub fn restated(known: &PodRow, object: &Object) -> Option<PodRow> {
    let header = &object.header;
    let same = known.demand.claims.is_empty()
        && header.generation == known.generation
        && header.deletion_timestamp.is_none()
        && *header.labels == *known.labels()
        && *header.uid == *known.uid;
    let Glance { spec, status } = serde_json::from_slice::<Glance<'_>>(&object.bytes).ok().filter(|_| same)?;
    if !spec.node_name.is_empty() || status.is_terminal() {
        return None;
    }
    let condition = status.scheduled();
    let nominated = status.nominated_node_name.into();
    Some(PodRow { nominated, condition, revision: object.revision, ..known.clone() })
}

/// Decodes an object without its managedFields: nothing here needs them, and they are a third of the work.
pub fn decoded<K: Typed>(object: &Object) -> Option<K> {
    let mut typed = K::decode(&unowned(&object.bytes)).ok()?;
    typed.meta_mut().resource_version = Some(object.revision.to_string());
    Some(typed)
}

/// Decodes many objects on all CPUs.
pub fn all<K: Typed + Send>(changes: &[&Arc<Object>]) -> Vec<Option<K>> {
    let read = |object: &&Arc<Object>| decoded::<K>(object);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        let share = changes.len().div_ceil(threads).max(1);
        let shares: Vec<_> = changes
            .chunks(share)
            .map(|share| scope.spawn(move || share.iter().map(read).collect::<Vec<_>>()))
            .collect();
        // A thread that panicked has decoded nothing: its objects are decoded again, one by one.
        let joined = shares.into_iter().zip(changes.chunks(share));
        joined.flat_map(|(thread, share)| thread.join().unwrap_or_else(|_| share.iter().map(read).collect())).collect()
    })
}

/// Returns the bytes of an object without `metadata.managedFields`. A string value cannot be taken for the field: its
/// quotes would be escaped.
fn unowned(bytes: &[u8]) -> Cow<'_, [u8]> {
    const FIELD: &[u8] = b",\"managedFields\":[";
    let Some(from) = bytes.windows(FIELD.len()).position(|window| window == FIELD) else { return bytes.into() };
    let (mut depth, mut text, mut escaped) = (0usize, false, false);
    for (at, byte) in bytes.iter().enumerate().skip(from + FIELD.len() - 1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => text = !text,
            b'[' if !text => depth += 1,
            b']' if !text => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return [&bytes[..from], &bytes[at + 1..]].concat().into();
        }
    }
    bytes.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::Snapshot;
    use corten_api::decode_object;
    use corten_api::k8s_openapi::api::core::v1::Pod;
    use serde_json::{Value, json};

    fn object(change: Value) -> Object {
        let mut pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"namespace": "default", "name": "p", "uid": "u", "labels": {"a": "b"}, "generation": 1},
            "spec": {"nodeName": "n", "containers": []}, "status": {"phase": "Pending"}});
        corten_meta::patch::merge_patch(&mut pod, &change);
        Object::parse(pod.to_string().into(), 7).unwrap()
    }

    #[test]
    fn a_pod_that_waits_is_known_again_by_its_status() {
        let mut snapshot = Snapshot::default();
        let mut row = |change: Value| {
            let mut patched = json!({"spec": {"nodeName": null}});
            corten_meta::patch::merge_patch(&mut patched, &change);
            let object = object(patched);
            (snapshot.row(decode_object::<Pod>(&object).unwrap()), object)
        };
        let (known, _) = row(json!({}));
        let condition = json!([{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "m",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        for (change, expected) in [
            (json!({"status": {"conditions": condition, "nominatedNodeName": "n"}}), true),
            (json!({"status": {"conditions": [{"type": "PodScheduled", "status": "True"}]}}), true),
            (json!({"metadata": {"annotations": {"a": "b"}}}), true),
            (json!({"spec": {"nodeName": "n"}}), false),
            (json!({"metadata": {"generation": 2}}), false),
            (json!({"metadata": {"labels": {"a": "c"}}}), false),
            (json!({"status": {"phase": "Failed"}}), false),
        ] {
            let (decoded, object) = row(change.clone());
            let restated = restated(&known, &object).map(|row| format!("{row:?}"));
            assert_eq!(restated, expected.then(|| format!("{decoded:?}")), "{change}");
        }
    }

    #[test]
    fn the_owners_of_fields_are_left_out_and_nothing_else() {
        let owned =
            json!([{"manager": "a]\\\"[", "fieldsV1": {"f:spec": {"k:{\"name\":\"c\"}": {}}}}, {"x": [[1], []]}]);
        let notes = json!({"a": ",\"managedFields\":[", "b": "]"});
        for with in [json!({}), json!({"managedFields": owned}), json!({"managedFields": []})] {
            let mut expected = object(json!({"metadata": {"annotations": notes}})).value();
            corten_meta::patch::merge_patch(&mut expected, &json!({"metadata": {"z": "after"}}));
            let mut patched = expected.clone();
            corten_meta::patch::merge_patch(&mut patched, &json!({"metadata": with}));
            let left: Value = serde_json::from_slice(&unowned(patched.to_string().as_bytes())).unwrap();
            assert_eq!(left, expected);
        }
        let broken = b"{\"a\":1,\"managedFields\":[{\"b";
        assert_eq!(*unowned(broken), *broken);
    }

    #[test]
    fn only_what_means_nothing_is_passed_over() {
        let mut snapshot = Snapshot::default();
        let known = Arc::new(snapshot.row(decode_object::<Pod>(&object(json!({}))).unwrap()));
        for (change, expected) in [
            (json!({}), true),
            (json!({"status": {"phase": "Running", "podIP": "10.0.0.1"}}), true),
            (json!({"status": {"phase": "Running", "startTime": "2026-01-01T00:00:00Z"}}), false),
            (json!({"status": {"phase": "Failed"}}), false),
            (json!({"metadata": {"labels": {"a": "c"}}}), false),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), false),
            (json!({"metadata": {"generation": 2}}), false),
            (json!({"spec": {"nodeName": "m"}}), false),
        ] {
            assert_eq!(unchanged(&known, &object(change.clone())), expected, "{change}");
        }
        let terminating_row = Arc::new(PodRow { terminating: true, ..(*known).clone() });
        for change in [json!({}), json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}})] {
            assert!(unchanged(&terminating_row, &object(change.clone())), "{change}");
        }
    }
}
