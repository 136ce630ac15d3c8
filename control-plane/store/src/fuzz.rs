//! Entry points for the fuzz targets: the store's files with untrusted content. Nothing else may use this.

use std::path::Path;

use crate::embedded::{frame, recovery, segment};
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
