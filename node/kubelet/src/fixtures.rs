//! Objects for the unit tests of this package.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_meta::Value;
use serde_json::json;

/// Returns a pod `ns/p` with the given spec, as JSON.
pub fn pod(spec: &str) -> Pod {
    let spec: Value = serde_json::from_str(spec).expect("the fixture is JSON");
    let pod = json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p", "namespace": "ns", "uid": "pod-uid", "generation": 1},
        "spec": spec,
    });
    Pod::from_value(pod).expect("the fixture is a pod")
}
