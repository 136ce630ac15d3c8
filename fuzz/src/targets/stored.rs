//! The files of the store, stored objects, and backups, with content that no store, server or backup has written.

use std::io::Write;

use corten_backup::container::{Header, Sealer};
use corten_backup::{Opened, Secret};
use corten_storage_backup::Manifest;

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "store-frames", seeds: frame_seeds, run: frames },
    Target { name: "store-items", seeds: item_seeds, run: items },
    Target { name: "store-recovery", seeds: item_seeds, run: recovery },
    Target { name: "store-snapshot", seeds: snapshot_seeds, run: snapshot },
    Target { name: "stored-objects", seeds: object_seeds, run: objects },
    Target { name: "backup-file", seeds: backup_seeds, run: backup },
    Target { name: "backup-content", seeds: backup_content_seeds, run: backup_content },
    Target { name: "volume-backup-manifest", seeds: manifest_seeds, run: manifest },
];

fn secret() -> Secret {
    Secret::key_file(vec![7; 32]).expect("a key of the right length")
}

/// Seals content as a backup.
fn sealed(content: &[u8]) -> Vec<u8> {
    let header = Header::new(Default::default(), "0", "0", &secret()).expect("a header");
    let mut sealer = Sealer::new(Vec::new(), &header, &secret()).expect("memory takes every write");
    sealer.write_all(content).expect("memory takes every write");
    sealer.finish().expect("memory takes every write")
}

/// The content of a backup: a manifest, a file, an empty snapshot.
fn backup_content_seeds() -> Vec<Vec<u8>> {
    let mut content = Vec::new();
    for (kind, name, text) in
        [(1, "manifest.json", "{}"), (2, "pki/ca.crt", "text"), (3, "snapshot.db", ""), (0, "", "")]
    {
        content.push(kind);
        content.extend_from_slice(&(name.len() as u16).to_le_bytes());
        content.extend_from_slice(name.as_bytes());
        content.extend_from_slice(&(text.len() as u64).to_le_bytes());
        content.extend_from_slice(text.as_bytes());
    }
    vec![content]
}

/// Manifests of a volume of one chunk, and of one of zeros.
fn manifest_seeds() -> Vec<Vec<u8>> {
    let header = corten_storage_backup::Header { bytes: 1 << 20, ..Default::default() };
    let manifest = |chunk| Manifest { header: header.clone(), chunks: vec![chunk] };
    [Some([7; 32]), None].map(|chunk| manifest(chunk).encode().expect("a short header")).to_vec()
}

fn manifest(input: &[u8]) {
    let Ok(decoded) = Manifest::decode("manifest", input) else { return };
    // A header near the limit may be longer when it is written with all fields.
    if let Ok(encoded) = decoded.encode() {
        assert_eq!(Manifest::decode("manifest", &encoded).expect("what was encoded"), decoded);
    }
}

fn backup_seeds() -> Vec<Vec<u8>> {
    backup_content_seeds().iter().map(|content| sealed(content)).collect()
}

fn backup(input: &[u8]) {
    if let Ok(opened) = Opened::new(input, &secret()) {
        let _ = opened.copy_snapshot(&mut std::io::sink());
    }
}

fn backup_content(input: &[u8]) {
    backup(&sealed(input));
}

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
