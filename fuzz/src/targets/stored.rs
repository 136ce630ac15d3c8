//! The files of the store, and backups, with content that no store and no backup has written.

use std::io::Write;

use corten_backup::container::{Header, Sealer};
use corten_backup::{Opened, Secret};

use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "store-frames", seeds: frame_seeds, run: frames },
    Target { name: "store-items", seeds: item_seeds, run: items },
    Target { name: "store-recovery", seeds: item_seeds, run: recovery },
    Target { name: "store-snapshot", seeds: snapshot_seeds, run: snapshot },
    Target { name: "backup-file", seeds: backup_seeds, run: backup },
    Target { name: "backup-content", seeds: backup_content_seeds, run: backup_content },
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
