//! The files of the store with content that no store has written, and stored objects that no server has written.

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "store-frames", seeds: frame_seeds, run: frames },
    Target { name: "store-items", seeds: item_seeds, run: items },
    Target { name: "store-recovery", seeds: item_seeds, run: recovery },
    Target { name: "store-snapshot", seeds: snapshot_seeds, run: snapshot },
    Target { name: "stored-objects", seeds: object_seeds, run: objects },
];

fn frame_seeds() -> Vec<Vec<u8>> {
    let mut frame = b"CtnF\x04\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02\x01\x01\x01\0\0\0\0".to_vec();
    frame.extend_from_within(..);
    vec![frame]
}

fn frames(input: &[u8]) {
    let _ = corten_store::fuzz::frames(input, 0);
}

fn item_seeds() -> Vec<Vec<u8>> {
    vec![corten_store::fuzz::sample()]
}

fn items(input: &[u8]) {
    let _ = corten_store::fuzz::items(input);
}

fn snapshot_seeds() -> Vec<Vec<u8>> {
    vec![corten_store::fuzz::sample_snapshot()]
}

fn snapshot(input: &[u8]) {
    let _ = corten_store::fuzz::snapshot(input);
}

fn recovery(input: &[u8]) {
    let directory = tempfile::tempdir().expect("a directory");
    let _ = corten_store::fuzz::recover(directory.path(), input);
}

/// Returns objects as etcd holds them: the number of a kind, then protobuf, JSON of an older version, and YAML.
fn object_seeds() -> Vec<Vec<u8>> {
    let number = |group: &str, kind: &str| {
        let is_it = |known: &std::sync::Arc<corten_api::Kind>| known.group == group && known.kind == kind;
        corten_api::kinds().iter().position(is_it).unwrap_or_default() as u8
    };
    let pod = serde_json::json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "b" },
        "spec": { "containers": [{ "name": "c", "image": "d" }] } });
    let scaler = br#"{"apiVersion":"autoscaling/v1","kind":"HorizontalPodAutoscaler","metadata":{"name":"a"},
        "spec":{"maxReplicas":3,"targetCPUUtilizationPercentage":50}}"#;
    let level =
        b"apiVersion: flowcontrol.apiserver.k8s.io/v1beta3\nkind: PriorityLevelConfiguration\nspec: {type: Exempt}\n";
    let crd =
        br#"{"apiVersion":"apiextensions.k8s.io/v1beta1","kind":"CustomResourceDefinition","spec":{"group":"e.io",
        "version":"v1","names":{"kind":"Foo","plural":"foos"},"validation":{"openAPIV3Schema":{"type":"object"}}}}"#;
    let schema = corten_api::by_gvk("", "v1", "Pod").map(|kind| kind.schema.clone()).unwrap_or_default();
    let seed = |group: &str, kind: &str, stored: &[u8]| [&[number(group, kind)], stored].concat();
    vec![
        seed("", "Pod", &corten_apiserver::fuzz::to_protobuf(&pod, &schema)),
        seed("autoscaling", "HorizontalPodAutoscaler", scaler),
        seed("flowcontrol.apiserver.k8s.io", "PriorityLevelConfiguration", level),
        seed("apiextensions.k8s.io", "CustomResourceDefinition", crd),
    ]
}

fn objects(input: &[u8]) {
    let Some((kind, stored)) = input.split_first() else { return };
    if let Some((written, again)) = corten_apiserver::fuzz::stored(stored, usize::from(*kind)) {
        assert_eq!(written, again, "an object that was written is read as it was");
    }
}
