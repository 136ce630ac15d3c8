//! The state that the intact records of a directory give, and the keys that the others cost.
//!
//! The newest intact checkpoint is the base, or the beginning of the log. Only if there is neither, a damaged checkpoint
//! is: its intact records count. Then every intact record of the log is applied in order, also after a gap.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::super::checkpoint;
use super::super::frame::{self, Item, Logged};
use super::super::index::{self, Change};
use super::super::recovery;
use super::super::segment;
use super::Loss;
use super::findings;
use super::scan::{self, Part};
use crate::snapshot::{Contents, Grant};
use crate::{Entry, Error, EventKind, LeaseId, Revision};

/// The state while it is rebuilt.
#[derive(Debug, Default)]
pub struct Salvage {
    current: BTreeMap<Bytes, Arc<Entry>>,
    leases: BTreeMap<LeaseId, Duration>,
    revision: Revision,
    /// The last record in the state.
    sequence: u64,
    /// The keys of lost records that no later record wrote.
    suspects: BTreeSet<Bytes>,
    lost: Vec<(Revision, Revision)>,
    is_incomplete: bool,
    /// Whether a record was lost since the last intact one.
    has_gap: bool,
}

impl Salvage {
    /// Reads a directory.
    pub fn of(dir: &Path) -> Result<Salvage, Error> {
        let files = recovery::list(dir)?;
        let intact = files.checkpoints.iter().rev().find(|path| checkpoint::load(path, |_, _| Ok(())).is_ok());
        let has_beginning = files.segments.first().and_then(|path| segment::index_of(path)) == Some(1);
        let base = match intact {
            Some(path) => Some(path),
            None if has_beginning => None,
            None => files.checkpoints.last(),
        };
        let mut salvage = Salvage { revision: 1, ..Salvage::default() };
        if let Some(path) = base {
            salvage.checkpoint(path)?;
        }
        for path in &files.segments {
            salvage.segment(path)?;
        }
        salvage.close_gap(None);
        Ok(salvage)
    }

    fn checkpoint(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = fs::read(path).map_err(|error| Error::io("read", path, error))?;
        let header: Option<&[u8; checkpoint::HEADER]> =
            bytes.get(..checkpoint::HEADER).and_then(|head| head.try_into().ok());
        let head = header.and_then(checkpoint::parse_head);
        let Some(salt) = findings::salt_at(&bytes, 40, checkpoint::HEADER) else {
            self.is_incomplete = true;
            return Ok(());
        };
        self.revision = head.map_or(1, |head| head.base).max(1);
        for part in scan::parts(&bytes, checkpoint::HEADER, salt) {
            match part {
                Part::Intact { payload, .. } => self.apply(payload),
                Part::Damaged { at } => self.lose(&bytes[at]),
            }
        }
        self.sequence = head.map(|head| head.sequence).or_else(|| checkpoint::sequence_of(path)).unwrap_or_default();
        self.revision = self.revision.max(head.map_or(0, |head| head.revision));
        Ok(())
    }

    fn segment(&mut self, path: &Path) -> Result<(), Error> {
        let bytes = fs::read(path).map_err(|error| Error::io("read", path, error))?;
        let Some(salt) = findings::salt(&bytes) else {
            self.has_gap = true;
            self.is_incomplete = true;
            return Ok(());
        };
        let parts = scan::parts(&bytes, segment::HEADER, salt);
        for (position, part) in parts.iter().enumerate() {
            match part {
                Part::Intact { sequence, .. } if *sequence <= self.sequence => {}
                Part::Intact { sequence, payload, .. } => {
                    if *sequence > self.sequence + 1 && !self.has_gap {
                        self.has_gap = true;
                        self.is_incomplete = true;
                    }
                    self.sequence = *sequence;
                    self.apply(payload);
                }
                // Records before the base cost nothing: one that the base covers is followed by another such, or by the
                // first record after the base.
                Part::Damaged { at } => {
                    let after = parts[position + 1..].iter().find_map(|part| match part {
                        Part::Intact { sequence, .. } => Some(*sequence),
                        Part::Damaged { .. } => None,
                    });
                    if after.is_none_or(|after| after > self.sequence + 1) {
                        self.lose(&bytes[at.clone()]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts a damaged record as lost.
    fn lose(&mut self, damaged: &[u8]) {
        let guess = scan::guess(damaged);
        self.suspects.extend(guess.keys);
        self.is_incomplete |= !guess.is_complete;
        self.has_gap = true;
    }

    /// Notes the revisions of a gap, which ended before `next`; unknown at the end of the log.
    fn close_gap(&mut self, next: Option<Revision>) {
        if std::mem::take(&mut self.has_gap) {
            let last = next.map_or(self.revision + 1, |next| next.saturating_sub(1));
            if last > self.revision {
                self.lost.push((self.revision + 1, last));
            }
        }
    }

    fn apply(&mut self, payload: &[u8]) {
        for item in frame::items(payload).flatten() {
            match item {
                Item::Entry(entry) => {
                    self.current.insert(entry.key.clone(), Arc::new(entry));
                }
                Item::Commit { revision, changes } => {
                    self.close_gap(Some(revision));
                    self.commit(revision, &changes);
                }
                Item::Grant(id, ttl) => {
                    self.leases.insert(id, ttl);
                }
                Item::Revoke(id) => {
                    self.leases.remove(&id);
                }
                Item::Compact(_) | Item::End(_) => {}
            }
        }
    }

    fn commit(&mut self, revision: Revision, changes: &[(&[u8], Logged<'_>)]) {
        for (key, logged) in changes {
            self.suspects.remove(*key);
            let change = match logged {
                Logged::Put { value, lease } => Change::Put { value: Bytes::copy_from_slice(value), lease: *lease },
                Logged::Delete => Change::Delete,
            };
            let event = index::event(self.current.get(*key), Bytes::copy_from_slice(key), change, revision);
            match event {
                Some(event) if event.kind == EventKind::Put => {
                    self.current.insert(event.entry.key.clone(), event.entry);
                }
                _ => {
                    self.current.remove(*key);
                }
            }
        }
        self.revision = self.revision.max(revision);
    }

    /// Returns the cost.
    pub fn loss(&self) -> Loss {
        let now = |key: &Bytes| self.current.get(key).map_or(0, |entry| entry.mod_revision);
        Loss {
            keys: self.suspects.iter().map(|key| (key.clone(), now(key))).collect(),
            revisions: self.lost.clone(),
            is_incomplete: self.is_incomplete,
        }
    }

    /// Returns the state, without history.
    pub fn contents(&self) -> Contents {
        let last = self.lost.last().map_or(0, |(_, last)| *last);
        let revision = self.revision.max(last);
        Contents {
            revision,
            compacted: revision,
            base: self.current.values().cloned().collect(),
            history: Vec::new(),
            leases: self.leases.iter().map(|(id, ttl)| Grant { id: *id, ttl: *ttl }).collect(),
        }
    }
}
