//! Patches of each type, applied to a document.

use corten_meta::patch;
use serde_json::Value;

use super::{joined, json, parts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "json-patch", seeds: json_patch_seeds, run: json_patch },
    Target { name: "merge-patch", seeds: merge_patch_seeds, run: merge_patch },
    Target { name: "strategic-patch", seeds: strategic_seeds, run: strategic },
];

const POD: &str = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"},"finalizers":["f"]},
"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"E","value":"v"}],"ports":[{"containerPort":80}]}],
"tolerations":[{"key":"t"}],"volumes":[{"name":"v","emptyDir":{}}]}}"#;

fn json_patch_seeds() -> Vec<Vec<u8>> {
    let patch = r#"[{"op":"add","path":"/metadata/labels/a~1b","value":1},{"op":"test","path":"/kind","value":"Pod"},
        {"op":"copy","from":"/spec","path":"/spec/containers/0/x"},{"op":"move","from":"/metadata","path":"/m~0"},
        {"op":"replace","path":"/spec/containers/-","value":[]},{"op":"remove","path":"/spec/containers/0"}]"#;
    vec![joined(&[POD, patch])]
}

fn json_patch(input: &[u8]) {
    let Some([mut document, patch]) = documents(input) else { return };
    let _ = patch::json_patch(&mut document, &patch);
}

fn merge_patch_seeds() -> Vec<Vec<u8>> {
    vec![joined(&[POD, r#"{"metadata":{"labels":{"x":null,"z":{"a":null}}},"spec":{"containers":[]}}"#])]
}

fn merge_patch(input: &[u8]) {
    let Some([mut document, patch]) = documents(input) else { return };
    let difference = patch::merge_diff(&document, &patch);
    let mut made = document.clone();
    patch::merge_patch(&mut made, &difference);
    patch::merge_patch(&mut document, &patch);
    patch::discard_nulls(&mut document);
}

fn strategic_seeds() -> Vec<Vec<u8>> {
    let patch = r#"{"spec":{"containers":[{"name":"c","env":[{"name":"E","$patch":"delete"},{"name":"F","value":"g"}]},
        {"$patch":"replace"}],"$setElementOrder/containers":[{"name":"c"}],"$retainKeys":["containers"],"tolerations":null},
        "metadata":{"$deleteFromPrimitiveList/finalizers":["f"],"finalizers":["g"]}}"#;
    vec![joined(&[POD, patch])]
}

fn strategic(input: &[u8]) {
    let Some([document, patch]) = documents(input) else { return };
    let mut original = document.clone();
    let _ = corten_api::strategic_merge("io.k8s.api.core.v1.Pod", &mut original, &patch);
    let mut again = patch;
    let _ = corten_api::strategically_merged("io.k8s.api.core.v1.Pod", document, &mut again);
}

fn documents(input: &[u8]) -> Option<[Value; 2]> {
    let [document, patch] = parts::<2>(input);
    Some([json(document)?, json(patch)?])
}
