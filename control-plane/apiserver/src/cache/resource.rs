//! One resource in the watch cache: its present objects, and a window of its last changes.
//!
//! Objects are in a persistent ordered map, so a list takes a snapshot for free and no reader holds a lock while it
//! works. Watchers read changes from the one window, by revision: nothing is queued or copied for any of them, and a
//! watcher that falls out of the window gets an error and ends. Watchers of one object or of one node have mailboxes
//! instead, so that other changes do not wake them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, RwLock};

use bytes::Bytes;
use corten_api::{Kind, Projection};
use corten_meta::{FieldSelector, Header, Object, Selector};
use corten_store::Revision;
use imbl::OrdMap;
use tokio::sync::watch;

use super::feed::Feed;
use super::fields::{ByNode, Fields};
use super::groups::Groups;
use super::pacer::FEW;
use super::pins::Pins;
use super::subscribers::Subscribers;
use crate::metrics::StorageSeries;

/// The most changes a window holds.
pub const WINDOW: usize = 4096;
/// The most bytes that the objects of a window take, once it holds a few changes.
const WINDOW_BYTES: usize = 4 * 1024 * 1024;
const WINDOW_MIN: usize = 128;
/// The field by which the agents of a node select its objects.
pub const NODE_FIELD: &str = "spec.nodeName";

/// An object as clients see it and its selectable fields, read once for all watchers.
pub struct Item {
    pub object: Arc<Object>,
    /// The object as it is stored, where that differs.
    stored: Option<Arc<Object>>,
    fields: OnceLock<Arc<Fields>>,
    projected: OnceLock<Projected>,
}

/// An object as a projection shows it.
struct Projected {
    kind: Arc<Kind>,
    object: Arc<Object>,
}

impl Item {
    pub fn new(object: Object) -> Item {
        Item::of(Arc::new(object))
    }

    pub fn of(object: Arc<Object>) -> Item {
        Item { object, stored: None, fields: OnceLock::new(), projected: OnceLock::new() }
    }

    /// Makes the item of an object that was read from the store.
    pub fn read(kind: &Kind, stored: Object) -> Item {
        let stored = Arc::new(stored);
        match shown(kind, &stored) {
            Some(object) => Item { stored: Some(stored), ..Item::of(object) },
            None => Item::of(stored),
        }
    }

    /// Returns the object as a projection shows it, made for the first reader and shared with the others.
    pub fn projected(&self, kind: &Arc<Kind>, project: Projection) -> Arc<Object> {
        let make = || projected(project, &self.object);
        let first = self.projected.get_or_init(|| Projected { kind: Arc::clone(kind), object: make() });
        // Only one projection is kept: another projection of the same object is made anew.
        if Arc::ptr_eq(&first.kind, kind) { Arc::clone(&first.object) } else { make() }
    }

    /// Returns the value of a selectable field.
    pub(super) fn field(&self, kind: &Kind, field: &str) -> Option<String> {
        match field {
            "metadata.name" => Some(self.object.header.name.clone()),
            "metadata.namespace" => Some(self.object.header.namespace.clone()),
            _ => {
                let read = self.fields.get_or_init(|| self.read_fields(kind)).get(field).map(str::to_owned);
                // Another version of the resource may have other selectable fields.
                read.or_else(|| kind.behaviour.fields(&self.object.value(), field))
            }
        }
    }

    fn read_fields(&self, kind: &Kind) -> Arc<Fields> {
        let value = self.object.value();
        let fields = kind
            .selectable_fields
            .iter()
            .filter_map(|field| Some((field.as_str(), kind.behaviour.fields(&value, field)?)));
        Arc::new(Fields::new(fields))
    }

    /// Returns the node that the object is bound to, for its agents.
    pub(super) fn node(&self, kind: &Kind) -> Option<String> {
        self.field(kind, NODE_FIELD).filter(|node| !node.is_empty())
    }
}

/// Returns a stored object as readers see it, if parts of it are hidden from them.
pub fn shown(kind: &Kind, stored: &Object) -> Option<Arc<Object>> {
    let shown = kind.behaviour.shown(&stored.bytes)?;
    Object::from_value(&shown, stored.revision).ok().map(Arc::new)
}

/// Returns the part of a stored object that a projection shows: its metadata has no owners and no finalizers.
pub fn projected(project: Projection, stored: &Object) -> Arc<Object> {
    let bytes = corten_meta::encode_object(&project(stored));
    let header = Header { owners: Vec::new(), finalizers: Vec::new(), generation: 0, ..stored.header.clone() };
    Arc::new(Object { bytes, revision: stored.revision, header })
}

/// The type of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    Added,
    Modified,
    Deleted,
}

/// One change of the window.
pub struct Change {
    pub revision: Revision,
    pub kind: ChangeKind,
    /// The object after the change; for a deletion, its last state with the deletion's revision.
    pub item: Arc<Item>,
    pub previous: Option<Arc<Item>>,
    frame: OnceLock<Bytes>,
}

impl Change {
    fn new(revision: Revision, kind: ChangeKind, item: Arc<Item>, previous: Option<Arc<Item>>) -> Change {
        Change { revision, kind, item, previous, frame: OnceLock::new() }
    }

    /// Returns the encoded change, made for the first watcher and shared with the others.
    pub fn frame(&self, encode: impl FnOnce() -> Bytes) -> Bytes {
        self.frame.get_or_init(encode).clone()
    }
}

/// The selection of a reader.
#[derive(Clone)]
pub struct Filter {
    /// The namespace; empty is all namespaces.
    pub namespace: String,
    pub labels: Selector,
    pub fields: FieldSelector,
}

impl Filter {
    /// Returns the node whose objects alone can match.
    pub fn node(&self) -> Option<&str> {
        // An empty value selects objects without a node.
        self.fields.requires_exact_match(NODE_FIELD).filter(|node| !node.is_empty())
    }

    /// Returns whether every object of the namespace matches.
    pub fn is_everything(&self) -> bool {
        self.labels.is_empty() && self.fields.requirements().is_empty()
    }

    /// Returns the part of the filter that no conversion of an object affects: its namespace and its name.
    pub fn by_name(&self) -> Filter {
        let name = self.fields.requires_exact_match("metadata.name");
        let fields = name.map(|name| FieldSelector::equals("metadata.name", name)).unwrap_or_default();
        Filter { namespace: self.namespace.clone(), labels: Selector::everything(), fields }
    }

    /// Returns whether an item matches as a version shows it. The fields of the item are reused if that is the same
    /// object.
    pub fn matches_as(&self, kind: &Kind, item: &Item, shown: &Arc<Object>) -> bool {
        if Arc::ptr_eq(&item.object, shown) {
            return self.matches(kind, item);
        }
        self.matches(kind, &Item::of(Arc::clone(shown)))
    }

    pub fn matches(&self, kind: &Kind, item: &Item) -> bool {
        let header = &item.object.header;
        (self.namespace.is_empty() || header.namespace == self.namespace)
            && self.labels.matches(&header.labels)
            && (self.fields.requirements().is_empty() || self.fields.matches(|field| item.field(kind, field)))
    }
}

/// The objects of a resource at a revision.
#[derive(Clone)]
pub struct Snapshot {
    pub items: OrdMap<String, Arc<Item>>,
    pub revision: Revision,
}

impl Snapshot {
    /// Returns the items of a namespace (of all, if it is empty), in key order, from `start` on if there is one.
    pub fn namespace(&self, namespace: &str, start: Option<&str>) -> impl Iterator<Item = (&String, &Arc<Item>)> {
        let prefix = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
        let from = start.map_or_else(|| prefix.clone(), str::to_owned);
        self.items.range(from..).take_while(move |(key, _)| key.starts_with(&prefix))
    }
}

#[derive(Default)]
struct State {
    items: OrdMap<String, Arc<Item>>,
    /// The objects of each node, from the first list of one node on.
    by_node: Option<ByNode<Arc<Item>>>,
    /// The bytes of the items' objects.
    bytes: usize,
    window: VecDeque<Arc<Change>>,
    window_bytes: usize,
    /// Every change after this revision is in the window.
    window_from: Revision,
    revision: Revision,
    /// The number of times that the cache was filled anew: watchers of an older filling end.
    generation: u64,
}

impl State {
    /// Takes a change over into the objects of each node, if these are read.
    fn index(&mut self, kind: &Kind, change: &Change) {
        let Some(by_node) = &mut self.by_node else { return };
        if let Some(previous) = &change.previous
            && let Some(node) = previous.node(kind)
        {
            by_node.remove(&node, |item| Arc::ptr_eq(item, previous));
        }
        if change.kind != ChangeKind::Deleted
            && let Some(node) = change.item.node(kind)
        {
            by_node.insert(node, Arc::clone(&change.item));
        }
    }

    /// Adds a change to the window, and drops the oldest ones while it has too many changes or bytes.
    fn push(&mut self, change: Arc<Change>) {
        self.window_bytes += change.item.object.bytes.len();
        self.window.push_back(change);
        while self.window.len() > WINDOW || (self.window_bytes > WINDOW_BYTES && self.window.len() > WINDOW_MIN) {
            let Some(oldest) = self.window.pop_front() else { return };
            self.window_bytes -= oldest.item.object.bytes.len();
            self.window_from = oldest.revision;
        }
    }
}

/// The result of a watcher's read of the window.
pub enum Window {
    Changes(Vec<Arc<Change>>),
    /// The revision is older than the window.
    TooOld {
        oldest: Revision,
    },
}

/// The encoded changes of a span of revisions, shared by all watchers of a whole namespace.
pub struct Chunk {
    pub namespace: String,
    pub after: Revision,
    pub upto: Revision,
    pub frames: Bytes,
    /// The size of each frame.
    pub sizes: Vec<usize>,
}

pub struct ResourceCache {
    /// The kind as it is stored.
    pub kind: Arc<Kind>,
    /// The feed of its store.
    pub feed: Arc<Feed>,
    state: RwLock<State>,
    pub(super) groups: Groups,
    pub(super) subscribers: Subscribers,
    /// The snapshots of lists that are read in pages.
    pub pins: Pins,
    /// The last chunk that was encoded for many watchers.
    chunk: Mutex<Option<Chunk>>,
    /// The metrics of this resource.
    pub storage: StorageSeries,
    /// Whether the CustomResourceDefinition is deleting its objects: an object that is created after that must not
    /// stay.
    pub is_terminating: AtomicBool,
}

impl ResourceCache {
    pub fn new(kind: Arc<Kind>, feed: Arc<Feed>) -> ResourceCache {
        ResourceCache {
            kind,
            feed,
            state: RwLock::default(),
            groups: Groups::default(),
            subscribers: Subscribers::default(),
            pins: Pins::default(),
            chunk: Mutex::default(),
            storage: StorageSeries::default(),
            is_terminating: AtomicBool::new(false),
        }
    }

    /// Returns whether it has so many watchers that they share encoded chunks.
    pub(super) fn is_watched_by_many(&self) -> bool {
        self.groups.watchers() > FEW
    }

    pub(super) fn chunk(&self) -> MutexGuard<'_, Option<Chunk>> {
        self.chunk.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Returns the key of an object inside this resource.
    pub fn key(&self, namespace: &str, name: &str) -> String {
        if self.kind.namespaced { format!("{namespace}/{name}") } else { name.to_owned() }
    }

    /// Returns the present objects. `at_least` is a revision that the feed is known to have reached.
    pub fn snapshot(&self, at_least: Revision) -> Snapshot {
        let state = self.read();
        Snapshot { items: state.items.clone(), revision: state.revision.max(at_least) }
    }

    /// Returns the present objects of a node, in key order, and their revision. `at_least` is a revision that the feed is
    /// known to have reached. The first call reads the nodes of all objects.
    pub fn of_node(&self, node: &str, at_least: Revision) -> (Vec<(String, Arc<Item>)>, Revision) {
        if self.read().by_node.is_none() {
            let mut state = self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner);
            let mut by_node = ByNode::default();
            for item in state.items.values() {
                if let Some(node) = item.node(&self.kind) {
                    by_node.insert(node, Arc::clone(item));
                }
            }
            state.by_node = Some(by_node);
        }
        let state = self.read();
        let found = state.by_node.as_ref().map_or(&[][..], |by_node| by_node.get(node));
        let key = |item: &Item| self.key(&item.object.header.namespace, &item.object.header.name);
        let mut items: Vec<(String, Arc<Item>)> = found.iter().map(|item| (key(item), Arc::clone(item))).collect();
        items.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        (items, state.revision.max(at_least))
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let state = self.read();
        state.items.get(&self.key(namespace, name)).map(|item| Arc::clone(&item.object))
    }

    /// Returns an object as it is stored.
    pub fn stored(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let state = self.read();
        let item = state.items.get(&self.key(namespace, name))?;
        Some(Arc::clone(item.stored.as_ref().unwrap_or(&item.object)))
    }

    /// Returns all objects of a namespace, or of all namespaces.
    pub fn list(&self, namespace: &str) -> Vec<Arc<Object>> {
        let snapshot = self.snapshot(0);
        snapshot.namespace(namespace, None).map(|(_, item)| Arc::clone(&item.object)).collect()
    }

    /// Returns the objects that match a filter. Their fields are read once for each object, not once for each call.
    pub fn select(&self, filter: &Filter) -> Vec<Arc<Object>> {
        let snapshot = self.snapshot(0);
        let items = snapshot.namespace(&filter.namespace, None).filter(|(_, item)| filter.matches(&self.kind, item));
        items.map(|(_, item)| Arc::clone(&item.object)).collect()
    }

    /// Returns the number of objects.
    pub fn count(&self) -> usize {
        self.read().items.len()
    }

    /// Returns the bytes of all objects.
    pub fn bytes(&self) -> usize {
        self.read().bytes
    }

    /// Returns the revision of the last change of this resource.
    pub fn revision(&self) -> Revision {
        self.read().revision
    }

    pub fn generation(&self) -> u64 {
        self.read().generation
    }

    /// Returns a receiver that is notified when the resource changes.
    pub fn changes(&self) -> watch::Receiver<Revision> {
        self.groups.join()
    }

    /// Returns the changes after `revision`, up to another.
    pub fn since(&self, revision: Revision, upto: Revision) -> Window {
        let state = self.read();
        if revision < state.window_from {
            return Window::TooOld { oldest: state.window_from };
        }
        let first = state.window.partition_point(|change| change.revision <= revision);
        let wanted = state.window.range(first..).take_while(|change| change.revision <= upto);
        Window::Changes(wanted.cloned().collect())
    }

    /// Applies one change of the feed. Only the feed calls this, in order of revision.
    pub(super) fn apply(&self, revision: Revision, key: &str, item: Option<Arc<Item>>) {
        let mut state = self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let change = match item {
            Some(item) => {
                let previous = state.items.insert(key.to_owned(), Arc::clone(&item));
                state.bytes += item.object.bytes.len();
                state.bytes -= previous.as_ref().map_or(0, |previous| previous.object.bytes.len());
                let kind = if previous.is_some() { ChangeKind::Modified } else { ChangeKind::Added };
                Change::new(revision, kind, item, previous)
            }
            None => {
                let Some(previous) = state.items.remove(key) else { return };
                state.bytes -= previous.object.bytes.len();
                let last =
                    Object { bytes: previous.object.bytes.clone(), revision, header: previous.object.header.clone() };
                let item = Arc::new(Item { fields: previous.fields.clone(), ..Item::new(last) });
                Change::new(revision, ChangeKind::Deleted, item, Some(previous))
            }
        };
        let change = Arc::new(change);
        state.index(&self.kind, &change);
        state.revision = revision;
        state.push(Arc::clone(&change));
        drop(state);
        // A watcher that subscribes now finds the change in the window.
        self.subscribers.deliver(&self.kind, &change);
        self.pins.expire();
        self.storage.events_received.fetch_add(1, Ordering::Relaxed);
    }

    /// Empties the window after a (re)load: the present objects are the state, not a series of changes.
    pub(super) fn begin_window(&self, revision: Revision) {
        let mut state = self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        state.window.clear();
        state.window_bytes = 0;
        state.window_from = revision;
    }

    pub(super) fn clear(&self) {
        let mut state = self.state.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        let generation = state.generation + 1;
        *state = State { generation, ..State::default() };
        drop(state);
        self.groups.wake_all(0);
        self.subscribers.wake_all(0);
    }

    fn read(&self) -> std::sync::RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
