//! A quick look at a pod that is already known: most changes of a running pod mean nothing to scheduling, and a look
//! costs a fifth of decoding it whole.

use std::borrow::Cow;
use std::sync::Arc;

use corten_meta::Object;
use serde::Deserialize;

use crate::rows::PodRow;

#[derive(Deserialize)]
struct Glance<'a> {
    #[serde(borrow, default)]
    spec: Spec<'a>,
    #[serde(borrow, default)]
    status: Status<'a>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec<'a> {
    #[serde(borrow)]
    node_name: Cow<'a, str>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Status<'a> {
    #[serde(borrow)]
    phase: Cow<'a, str>,
    #[serde(borrow)]
    start_time: Option<Cow<'a, str>>,
}

/// Whether the change of a placed pod can be passed over: the same spec and labels, on the same node, neither ended
/// nor being deleted, and its start known. A pod whose spec was changed is always read whole, for then its status
/// says what it holds.
pub fn unchanged(known: &Arc<PodRow>, object: &Object) -> bool {
    let header = &object.header;
    if header.generation > 1
        || header.deletion_timestamp.is_some() != known.terminating
        || header.labels != *known.labels()
        || *header.uid != *known.uid
    {
        return false;
    }
    let Ok(glance) = serde_json::from_slice::<Glance<'_>>(&object.bytes) else { return false };
    glance.spec.node_name == known.node_name
        && !matches!(&*glance.status.phase, "Succeeded" | "Failed")
        && glance.status.start_time.is_some() == known.started.is_some()
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
    }
}
