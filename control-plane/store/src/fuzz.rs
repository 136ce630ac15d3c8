//! Entry points for the fuzz targets: the store's files with untrusted content. Nothing else may use this.

use std::path::Path;

use crate::embedded::{frame, recovery, segment};
use crate::snapshot::{self, Contents, Grant, Member};
use crate::{Config, Error};

/// The salt of the files that these functions write.
const SALT: u64 = 36;

/// Searches bytes of any kind for frames; returns the number of their items.
pub fn frames(bytes: &[u8], salt: u64) -> usize {
    let mut found = 0;
    let mut offset = 0;
    while let Some(frame) = frame::find(bytes, offset, salt) {
        found += frame::items(frame.payload).flatten().count();
        offset = frame.end;
    }
    found
}

/// Reads the items of a payload with a valid checksum; returns their number.
pub fn items(payload: &[u8]) -> usize {
    frame::items(payload).flatten().count()
}

/// Writes a log of one frame with this payload into a new directory, as a store would, and recovers it.
pub fn recover(dir: &Path, payload: &[u8]) -> Result<u64, Error> {
    let failed = |error| Error::io("write", dir, error);
    let mut log = segment::header(1, SALT).to_vec();
    let mut sealed = Vec::new();
    frame::begin(&mut sealed);
    sealed.extend_from_slice(payload);
    frame::seal(&mut sealed, SALT, 1);
    log.extend_from_slice(&sealed);
    std::fs::write(dir.join("FORMAT"), "corten-store 1\n").map_err(failed)?;
    std::fs::write(dir.join(format!("{:020}.log", 1)), log).map_err(failed)?;
    let recovered = recovery::recover(&Config::new(dir))?;
    Ok(recovered.index.snapshot().revision)
}

/// Reads a database of etcd; returns its number of keys.
pub fn snapshot(bytes: &[u8]) -> Result<usize, String> {
    let database = snapshot::bolt::Database::open(bytes, bytes.len() as u64)?;
    let contents = snapshot::decode(&database)?;
    // Everything that is read can be written, and is read again as it was.
    let written = write_snapshot(&contents);
    let database = snapshot::bolt::Database::open(written.as_slice(), written.len() as u64)?;
    assert_eq!(snapshot::decode(&database)?, contents, "a snapshot is read as it was written");
    Ok(contents.current().len())
}

/// Returns a small database of etcd, for a target to begin with.
pub fn sample_snapshot() -> Vec<u8> {
    let entry = crate::Entry {
        key: bytes::Bytes::from_static(b"/registry/pods/a"),
        value: bytes::Bytes::from_static(b"{}"),
        create_revision: 2,
        mod_revision: 2,
        version: 1,
        lease: 7,
    };
    let entry = std::sync::Arc::new(entry);
    let put = crate::Event { kind: crate::EventKind::Put, entry, previous: None };
    write_snapshot(&Contents {
        revision: 2,
        compacted: 0,
        base: Vec::new(),
        history: vec![crate::Batch { revision: 2, events: [put].into() }],
        leases: vec![Grant { id: 7, ttl: std::time::Duration::from_secs(60) }],
    })
}

fn write_snapshot(contents: &Contents) -> Vec<u8> {
    let member = Member { id: 1, name: String::new(), peer_urls: Vec::new(), client_urls: Vec::new(), applied: 1 };
    let written = snapshot::encode(contents, &member, std::io::Cursor::new(Vec::new()));
    written.map(|(file, _)| file.into_inner()).unwrap_or_default()
}

/// Returns a payload with every kind of item, for a target to begin with.
pub fn sample() -> Vec<u8> {
    let mut payload = Vec::new();
    let entry = crate::Entry {
        key: bytes::Bytes::from_static(b"/registry/pods/a"),
        value: bytes::Bytes::from_static(b"{}"),
        create_revision: 1,
        mod_revision: 1,
        version: 1,
        lease: 7,
    };
    frame::push_grant(&mut payload, 7, std::time::Duration::from_secs(60));
    let put = crate::Event { kind: crate::EventKind::Put, entry: std::sync::Arc::new(entry), previous: None };
    frame::push_commit(&mut payload, 1, &[put]);
    frame::push_compact(&mut payload, 1);
    frame::push_revoke(&mut payload, 7);
    payload
}
