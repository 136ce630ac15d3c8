//! The files of the store with content that no store has written.

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "store-frames", seeds: frame_seeds, run: frames },
    Target { name: "store-items", seeds: item_seeds, run: items },
    Target { name: "store-recovery", seeds: item_seeds, run: recovery },
    Target { name: "store-snapshot", seeds: snapshot_seeds, run: snapshot },
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
