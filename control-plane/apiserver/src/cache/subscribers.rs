//! The watchers of single objects, or of the objects of one node: each hears only of its own.
//!
//! Ten thousand kubelets watch the pods of their nodes, and their own Node objects. To wake all of them for each change
//! would cost more than the changes. So a watcher whose selector requires one name, or one node, subscribes to it: a
//! change is put into the mailboxes of the few that it concerns, and wakes no other.
//!
//! A mailbox holds the changes that its watcher has not taken. A watcher that leaves too many is behind and ends.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use corten_api::Kind;
use corten_store::Revision;
use tokio::sync::watch;

use super::resource::{Change, Filter, Item};

/// The most changes that a mailbox holds.
const MOST: usize = 1024;

/// The objects that a watcher hears of.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Topic {
    /// The objects of a name, in a namespace or in all (empty).
    Name { namespace: String, name: String },
    /// The objects of a node.
    Node(String),
}

/// The watchers of a resource that subscribe to single objects or nodes.
#[derive(Default)]
pub struct Subscribers {
    inner: Mutex<Inner>,
    /// The number of topics, so that a change of a resource without subscribers need not lock.
    count: AtomicUsize,
    /// Whether any topic is a node, so that the field is read.
    has_nodes: AtomicBool,
}

#[derive(Default)]
struct Inner {
    topics: HashMap<Topic, Vec<Weak<Mailbox>>>,
    /// The mailboxes that got changes since the last waking.
    waiting: Vec<Weak<Mailbox>>,
}

/// The changes that one watcher has not taken.
struct Mailbox {
    changes: Mutex<Changes>,
    wake: watch::Sender<Revision>,
}

#[derive(Default)]
struct Changes {
    queue: VecDeque<Arc<Change>>,
    /// Whether the mailbox was full.
    overflowed: bool,
}

/// The subscription of one watcher, which ends with it.
pub struct Subscription {
    topic: Topic,
    mailbox: Arc<Mailbox>,
}

/// The changes of a subscription.
pub enum Received {
    Changes(VecDeque<Arc<Change>>),
    /// The watcher is too far behind.
    Overflow,
}

impl Subscribers {
    /// Subscribes to the objects that a filter can select, if these are of one name or of one node. Returns also the
    /// receiver that is notified of them.
    pub fn subscribe(&self, filter: &Filter) -> Option<(Subscription, watch::Receiver<Revision>)> {
        let topic = topic(filter)?;
        let (wake, woken) = watch::channel(0);
        let mailbox = Arc::new(Mailbox { changes: Mutex::default(), wake });
        let mut inner = self.lock();
        let mailboxes = inner.topics.entry(topic.clone()).or_default();
        mailboxes.retain(|mailbox| mailbox.strong_count() > 0);
        mailboxes.push(Arc::downgrade(&mailbox));
        if matches!(topic, Topic::Node(_)) {
            self.has_nodes.store(true, Ordering::Release);
        }
        self.count.store(inner.topics.len(), Ordering::Release);
        Some((Subscription { topic, mailbox }, woken))
    }

    /// Puts a change into the mailboxes that it concerns: by the object as it is, and as it was.
    pub fn deliver(&self, kind: &Kind, change: &Arc<Change>) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let topics = self.topics_of(kind, change);
        let mut inner = self.lock();
        let Inner { topics: all, waiting } = &mut *inner;
        for topic in topics {
            let Some(mailboxes) = all.get_mut(&topic) else { continue };
            mailboxes.retain(|mailbox| {
                let Some(found) = mailbox.upgrade() else { return false };
                found.put(change);
                waiting.push(mailbox.clone());
                true
            });
            if mailboxes.is_empty() {
                all.remove(&topic);
            }
        }
        self.count.store(all.len(), Ordering::Release);
    }

    /// Returns the topics of a change, each once.
    fn topics_of(&self, kind: &Kind, change: &Change) -> Vec<Topic> {
        let header = &change.item.object.header;
        let name = |namespace: &str| Topic::Name { namespace: namespace.to_owned(), name: header.name.clone() };
        let mut topics = vec![name("")];
        if !header.namespace.is_empty() {
            topics.push(name(&header.namespace));
        }
        if self.has_nodes.load(Ordering::Acquire) {
            let node = |item: &Item| item.node(kind).map(Topic::Node);
            let is = node(&change.item);
            let was = change.previous.as_deref().and_then(node).filter(|was| Some(was) != is.as_ref());
            topics.extend(is.into_iter().chain(was));
        }
        topics
    }

    /// Wakes the watchers that got changes.
    pub fn wake(&self, revision: Revision) {
        if self.count.load(Ordering::Acquire) == 0 {
            return;
        }
        let waiting = std::mem::take(&mut self.lock().waiting);
        for mailbox in waiting.iter().filter_map(Weak::upgrade) {
            mailbox.wake.send_replace(revision);
        }
    }

    /// Wakes all watchers.
    pub fn wake_all(&self, revision: Revision) {
        let inner = self.lock();
        for mailbox in inner.topics.values().flatten().filter_map(Weak::upgrade) {
            mailbox.wake.send_replace(revision);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the topic of a subscription that has ended, unless another watcher has it.
    pub fn leave(&self, subscription: &Subscription) {
        let mut inner = self.lock();
        let ended = Arc::as_ptr(&subscription.mailbox);
        if let Some(mailboxes) = inner.topics.get_mut(&subscription.topic) {
            mailboxes.retain(|mailbox| mailbox.as_ptr() != ended && mailbox.strong_count() > 0);
            if mailboxes.is_empty() {
                inner.topics.remove(&subscription.topic);
            }
        }
        self.count.store(inner.topics.len(), Ordering::Release);
    }
}

/// Returns the topic that has all objects that a filter can select.
fn topic(filter: &Filter) -> Option<Topic> {
    if let Some(name) = filter.fields.requires_exact_match("metadata.name") {
        return Some(Topic::Name { namespace: filter.namespace.clone(), name: name.to_owned() });
    }
    filter.node().map(|node| Topic::Node(node.to_owned()))
}

impl Mailbox {
    fn put(&self, change: &Arc<Change>) {
        let mut changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        if changes.queue.len() >= MOST {
            changes.queue.clear();
            changes.overflowed = true;
        }
        if !changes.overflowed {
            changes.queue.push_back(Arc::clone(change));
        }
    }
}

impl Subscription {
    /// Takes the changes that have arrived.
    pub fn take(&self) -> Received {
        let mut changes = self.mailbox.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match changes.overflowed {
            true => Received::Overflow,
            false => Received::Changes(std::mem::take(&mut changes.queue)),
        }
    }
}
