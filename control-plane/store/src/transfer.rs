//! The move of a store's keys into another store that is in use, such as a running etcd cluster.
//!
//! The other store counts its own revisions, which no client can set. They are raised above those of the old store, and
//! its history is compacted at the end: every resourceVersion that a client has is then too old, and the client lists
//! again, in place of resuming a watch that would miss deletions.
//!
//! Invariant: the old store is only read. While [`MARKER`] exists, the new one may lack something and must not be served;
//! every write of the move changes the marker, so that of two moves at the same time one fails. A move that was
//! interrupted is begun anew: the marker proves whose the keys are.

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{FuturesUnordered, StreamExt};

use crate::{Entry, Error, Expect, LeaseId, NO_LEASE, Op, Outcome, Range, Revision, Store};

/// The key that exists while a move is not complete.
pub const MARKER: &str = "corten.dev/migration";
/// The key whose changes raise the revision.
const REVISIONS: &str = "corten.dev/migration-revisions";
/// The entries of one page.
const PAGE: usize = 500;
/// The bytes of one commit, well below etcd's limit of a request.
const COMMIT_BYTES: usize = 1 << 20;
/// The commits that raise the revision at the same time: etcd syncs those that wait together.
const RAISING: usize = 128;

/// A move into a store, which has begun.
pub struct Transfer<'a> {
    target: &'a dyn Store,
    prefix: Bytes,
    /// The last revision of the marker.
    fence: Revision,
}

/// A copy that is the same as the old store, and still marked as incomplete.
pub struct Copied<'a> {
    transfer: Transfer<'a>,
    pub transferred: Transferred,
}

/// The result of a move.
#[derive(Debug, PartialEq, Eq)]
pub struct Transferred {
    pub keys: u64,
    /// The revision of the old store.
    pub from: Revision,
    /// The revision of the new one, before which everything is compacted.
    pub to: Revision,
}

/// Reports whether a move into a store was interrupted, or is under way.
pub async fn is_unfinished(store: &dyn Store) -> Result<bool, Error> {
    Ok(store.get(MARKER.as_bytes()).await?.1.is_some())
}

fn unsuitable(reason: String) -> Error {
    Error::Unsuitable { reason: reason.into() }
}

impl<'a> Transfer<'a> {
    /// Begins a move of the keys below `prefix`. Refuses a store that has such keys, unless an interrupted move left
    /// them there, which are removed.
    pub async fn begin(target: &'a dyn Store, prefix: &[u8]) -> Result<Transfer<'a>, Error> {
        let prefix = Bytes::copy_from_slice(prefix);
        let marker = target.get(MARKER.as_bytes()).await?.1;
        let present = target.range(Range::prefix(&prefix).count_only()).await?.count;
        let shown = String::from_utf8_lossy(&prefix);
        let expect = match &marker {
            Some(marker) => Expect::ModRevision(marker.mod_revision),
            None if present == 0 => Expect::Absent,
            None => {
                return Err(unsuitable(format!(
                    "etcd has {present} keys below {shown}: a store is only moved to where there are none"
                )));
            }
        };
        let mut transfer = Transfer { target, prefix, fence: 0 };
        transfer.fence = transfer.commit(Op::put(MARKER, "", expect), Vec::new()).await?;
        while transfer.remove_page().await? {}
        Ok(transfer)
    }

    /// Commits operations together with a change of the marker. Returns the revision.
    async fn commit(&self, marker: Op, mut ops: Vec<Op>) -> Result<Revision, Error> {
        ops.push(marker);
        match self.target.commit(ops).await? {
            Outcome::Committed { revision, .. } => Ok(revision),
            Outcome::Conflict { current, .. } => {
                let key = current.map_or_else(|| MARKER.to_owned(), |entry| String::from_utf8_lossy(&entry.key).into());
                Err(unsuitable(format!("another program wrote to {key} of etcd during the move; begin it anew")))
            }
        }
    }

    /// Commits operations, unless another move took over.
    async fn write(&mut self, ops: Vec<Op>) -> Result<(), Error> {
        let marker = Op::put(MARKER, "", Expect::ModRevision(self.fence));
        self.fence = self.commit(marker, ops).await?;
        Ok(())
    }

    /// Removes some keys of an interrupted move; false if there are none.
    async fn remove_page(&mut self) -> Result<bool, Error> {
        let most = self.most_ops();
        let page = self.target.range(Range::prefix(&self.prefix).keys_only().limit(most)).await?;
        let ops: Vec<Op> = page.entries.into_iter().map(|entry| Op::delete(entry.key, Expect::Any)).collect();
        if ops.is_empty() {
            return Ok(false);
        }
        self.write(ops).await?;
        Ok(true)
    }

    /// Returns the most operations of a commit beside the marker's.
    fn most_ops(&self) -> usize {
        self.target.max_ops().min(PAGE) - 1
    }

    /// Raises the revision of the new store above `revision`, by as many commits as that needs.
    pub async fn raise(&self, revision: Revision) -> Result<(), Error> {
        let raise = || self.target.commit(vec![Op::put(REVISIONS, "", Expect::Any)]);
        let mut at = self.target.current().await?;
        let mut under_way = FuturesUnordered::new();
        while at <= revision {
            let missing = usize::try_from(revision + 1 - at).unwrap_or(usize::MAX);
            while under_way.len() < RAISING.min(missing) {
                under_way.push(raise());
            }
            match under_way.next().await {
                Some(Ok(Outcome::Committed { revision, .. })) => at = at.max(revision),
                // It happened or not: the next answer shows the revision.
                Some(Err(Error::UnknownOutcome { .. })) | Some(Ok(Outcome::Conflict { .. })) | None => {}
                Some(Err(error)) => return Err(error),
            }
        }
        Ok(())
    }

    /// Copies all keys of the old store, which must not change any more, and compares them. The move is completed when the
    /// old store can never change again: until then a server must not start on the copy.
    pub async fn copy(mut self, source: &dyn Store) -> Result<Copied<'a>, Error> {
        let from = source.current().await?;
        self.raise(from).await?;
        let mut leases = HashMap::new();
        let mut pages = Pages::new(source, &self.prefix, from);
        while let Some(entries) = pages.next().await? {
            self.copy_entries(source, entries, &mut leases).await?;
        }
        let now = source.current().await?;
        if now != from {
            return Err(unsuitable(format!(
                "the old store was changed during the move, from revision {from} to {now}"
            )));
        }
        let keys = self.compare(source, from).await?;
        let to = self.target.current().await?;
        match self.target.compact(to).await {
            Ok(()) | Err(Error::Compacted { .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(Copied { transfer: self, transferred: Transferred { keys, from, to } })
    }

    /// Writes a page of entries, in as few commits as etcd takes.
    async fn copy_entries(
        &mut self,
        source: &dyn Store,
        entries: Vec<Entry>,
        leases: &mut HashMap<LeaseId, LeaseId>,
    ) -> Result<(), Error> {
        let mut ops = Vec::new();
        let mut bytes = 0;
        for entry in entries {
            let Some(lease) = self.lease(source, entry.lease, leases).await? else { continue };
            let size = entry.key.len() + entry.value.len();
            if ops.len() == self.most_ops() || !ops.is_empty() && bytes + size > COMMIT_BYTES {
                self.write(std::mem::take(&mut ops)).await?;
                bytes = 0;
            }
            bytes += size;
            ops.push(Op::Put { key: entry.key, value: entry.value, lease, expect: Expect::Absent });
        }
        if ops.is_empty() { Ok(()) } else { self.write(ops).await }
    }

    /// Returns the lease of a copied key: one that lives as long as that of the old key still does. `None` if it has
    /// expired, and the key with it.
    async fn lease(
        &self,
        source: &dyn Store,
        id: LeaseId,
        leases: &mut HashMap<LeaseId, LeaseId>,
    ) -> Result<Option<LeaseId>, Error> {
        if id == NO_LEASE {
            return Ok(Some(NO_LEASE));
        }
        if let Some(known) = leases.get(&id) {
            return Ok(Some(*known));
        }
        let remaining = match source.time_to_live(id).await {
            Ok(lease) => lease.remaining.max(Duration::from_secs(1)),
            Err(Error::LeaseNotFound(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let granted = self.target.grant(remaining, NO_LEASE).await?;
        leases.insert(id, granted);
        Ok(Some(granted))
    }

    /// Compares both stores key by key, and returns the number of keys. Keys with a lease may expire meanwhile.
    async fn compare(&self, source: &dyn Store, from: Revision) -> Result<u64, Error> {
        let mut olds = Pages::new(source, &self.prefix, from);
        let mut news = Pages::new(self.target, &self.prefix, self.target.current().await?);
        let mut keys = 0;
        loop {
            let old = olds.next_lasting().await?;
            let new = news.next_lasting().await?;
            match (old, new) {
                (None, None) => return Ok(keys),
                (Some(old), Some(new)) if old.key == new.key && old.value == new.value => keys += 1,
                (old, new) => {
                    let key = old.or(new).map_or_else(Bytes::new, |entry| entry.key);
                    let key = String::from_utf8_lossy(&key);
                    return Err(unsuitable(format!("{key} is not the same in both stores; begin the move anew")));
                }
            }
        }
    }
}

impl Copied<'_> {
    /// Completes the move: servers may start on the new store.
    pub async fn complete(self) -> Result<Transferred, Error> {
        let complete = Op::delete(MARKER, Expect::ModRevision(self.transfer.fence));
        self.transfer.commit(complete, vec![Op::delete(REVISIONS, Expect::Any)]).await?;
        Ok(self.transferred)
    }
}

/// The entries of a prefix at one revision, page by page.
struct Pages<'a> {
    store: &'a dyn Store,
    /// The rest; `None` after the last page.
    rest: Option<Range>,
    read: std::vec::IntoIter<Entry>,
}

impl<'a> Pages<'a> {
    fn new(store: &'a dyn Store, prefix: &[u8], revision: Revision) -> Pages<'a> {
        let rest = Some(Range::prefix(prefix).limit(PAGE).at(revision));
        Pages { store, rest, read: Vec::new().into_iter() }
    }

    async fn next(&mut self) -> Result<Option<Vec<Entry>>, Error> {
        let Some(range) = self.rest.take() else { return Ok(None) };
        let page = self.store.range(range.clone()).await?;
        if let Some(last) = page.entries.last().filter(|_| page.more) {
            self.rest = Some(range.from([&last.key, b"\0".as_slice()].concat()));
        }
        Ok(Some(page.entries))
    }

    /// Returns the next entry without a lease.
    async fn next_lasting(&mut self) -> Result<Option<Entry>, Error> {
        loop {
            match self.read.next() {
                Some(entry) if entry.lease == NO_LEASE => return Ok(Some(entry)),
                Some(_) => {}
                None => match self.next().await? {
                    Some(page) => self.read = page.into_iter(),
                    None => return Ok(None),
                },
            }
        }
    }
}
