//! Delivers changes to subscribers without ever waiting for one.

use corten_meta::{Key, Object};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tokio::sync::Notify;

/// The number of pending changes whose room an empty mailbox keeps.
const ROOM: usize = 64;

/// The change of one object since the subscriber's last change of it.
///
/// `old` is the state that the subscriber knew (or the last state of an object that was created and deleted in
/// between); `new` is the current state, `None` if the object is deleted.
#[derive(Debug, Clone)]
pub struct Change {
    pub key: Key,
    pub old: Option<Arc<Object>>,
    pub new: Option<Arc<Object>>,
}

impl Change {
    /// Returns the newest state.
    pub fn object(&self) -> Option<&Arc<Object>> {
        self.new.as_ref().or(self.old.as_ref())
    }

    /// Splits a change by uid: an object that replaced another of the same name is a deletion and an addition.
    pub fn steps(self) -> impl Iterator<Item = Change> {
        let uid = |object: &Option<Arc<Object>>| object.as_ref().map(|object| object.header.uid.clone());
        let replaced = self.old.is_some() && self.new.is_some() && uid(&self.old) != uid(&self.new);
        let end = replaced.then(|| Change { new: None, ..self.clone() });
        let rest = Change { old: self.old.filter(|_| !replaced), ..self };
        end.into_iter().chain(std::iter::once(rest))
    }
}

/// One subscriber's view of a cache. Dropping it unsubscribes.
pub struct Subscription {
    mailbox: Arc<Mailbox>,
}

impl Subscription {
    /// Returns the next change; `None` after the cache is shut down.
    pub async fn next(&mut self) -> Option<Change> {
        loop {
            let arrived = self.mailbox.arrived.notified();
            {
                let mut pending = self.mailbox.lock();
                if let Some(change) = pending.pop() {
                    return Some(change);
                }
                if pending.closed {
                    return None;
                }
            }
            arrived.await;
        }
    }

    /// Returns the number of pending changes.
    pub fn waiting(&self) -> usize {
        self.mailbox.lock().order.len()
    }

    /// Returns the next change if one is pending.
    pub fn try_next(&mut self) -> Option<Change> {
        self.mailbox.lock().pop()
    }
}

/// The pending changes of one subscriber: at most one per object.
struct Mailbox {
    pending: Mutex<Pending>,
    /// Notified when a change arrives; several subscriptions may share it.
    arrived: Arc<Notify>,
}

#[derive(Default)]
struct Pending {
    order: VecDeque<Key>,
    changes: HashMap<Key, Merged>,
    closed: bool,
}

/// The pending change of one object: the state that the subscriber knows, and the newest.
struct Merged {
    old: Option<Arc<Object>>,
    new: Option<Arc<Object>>,
}

impl Pending {
    fn pop(&mut self) -> Option<Change> {
        let key = self.order.pop_front()?;
        let Merged { old, new } = self.changes.remove(&key)?;
        // The first list of thousands of objects leaves no room behind.
        if self.order.is_empty() {
            self.order.shrink_to(ROOM);
            self.changes.shrink_to(ROOM);
        }
        Some(Change { key, old, new })
    }

    /// Adds a change, merging it with a pending one: the subscriber's `old` stays, the newest `new` wins.
    fn push(&mut self, change: &Change) {
        if let Some(Merged { old, new }) = self.changes.get_mut(&change.key) {
            if old.is_none() && change.new.is_none() {
                *old = new.take();
            }
            new.clone_from(&change.new);
            return;
        }
        self.order.push_back(change.key.clone());
        let merged = Merged { old: change.old.clone(), new: change.new.clone() };
        self.changes.insert(change.key.clone(), merged);
    }
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The subscribers of one cache.
#[derive(Default)]
pub(super) struct Subscribers {
    mailboxes: Mutex<Audience>,
}

#[derive(Default)]
struct Audience {
    mailboxes: Vec<Weak<Mailbox>>,
    closed: bool,
}

impl Subscribers {
    /// Adds a subscriber, which receives `objects` first.
    pub(super) fn subscribe(&self, objects: Vec<Arc<Object>>, bell: &Arc<Notify>) -> Subscription {
        let mailbox = Arc::new(Mailbox { pending: Mutex::default(), arrived: bell.clone() });
        let mut audience = self.lock();
        {
            let mut pending = mailbox.lock();
            for object in objects {
                pending.push(&Change { key: object.key(), old: None, new: Some(object) });
            }
            pending.closed = audience.closed;
        }
        bell.notify_one();
        audience.mailboxes.push(Arc::downgrade(&mailbox));
        Subscription { mailbox }
    }

    pub(super) fn tell(&self, change: Change) {
        self.lock().mailboxes.retain(|mailbox| {
            let Some(mailbox) = mailbox.upgrade() else { return false };
            mailbox.lock().push(&change);
            mailbox.arrived.notify_one();
            true
        });
    }

    pub(super) fn close(&self) {
        let mut audience = self.lock();
        audience.closed = true;
        for mailbox in audience.mailboxes.iter().filter_map(Weak::upgrade) {
            mailbox.lock().closed = true;
            mailbox.arrived.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Audience> {
        self.mailboxes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
