//! The informer of one resource: maps its changes to the keys of every controller that watches it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, Pod, Service};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_client::{Cache, Caches, InformerSeries, Metrics, Part, Resource, WorkQueue};
use corten_meta::{Key, Object};
use tokio::sync::Notify;

use super::Informers;
use super::controller::Keys;
use super::memory::Seen;
use super::plan::ResourceType;
use super::rows::{Facts, NodeFacts, NodeRow, PodFacts, PodRow, Row, Rows};
use super::scale::{ScaleAnswer, ScaleQuestion};
use super::view::{Failure, View, claim_of_volume, is_unready, node_of_pod, selector_of_service};

/// Pods by the node they are bound to.
const NODE_INDEX: &str = "spec.nodeName";

/// Objects without a controller, by namespace.
const ORPHAN_INDEX: &str = "orphan";

/// Objects by namespace and label, for the kinds that are often selected by labels.
const LABEL_INDEX: &str = "label";
/// Services by namespace and the first label of their selector.
const SELECTOR_INDEX: &str = "selector";
/// Volumes by the claim they are bound to.
const CLAIM_INDEX: &str = "claim";

/// Nodes that are not ready, all by one value.
const UNREADY_INDEX: &str = "unready";

/// Adds the keys of changes to the queue of one controller.
pub struct EventHandler {
    pub queue: WorkQueue<Key>,
    pub keys: Keys,
}

/// The informer of one watched resource.
pub struct Informer {
    pub cache: Arc<Cache>,
    handlers: Vec<EventHandler>,
    /// The parsed facts of the objects, if they are pods or nodes.
    pods: Rows<PodFacts>,
    nodes: Rows<NodeFacts>,
    counted: InformerSeries,
    /// A revision that the cache has certainly reached: events arrive in the order of revisions.
    pub reached: Reached,
}

/// The progress of a cache. Every change wakes the waiting workers, because a deletion may have no revision of its own.
#[derive(Default)]
pub struct Reached {
    revision: AtomicU64,
    changed: Notify,
}

impl Reached {
    fn advance(&self, revision: u64) {
        self.revision.fetch_max(revision, Ordering::Relaxed);
        self.changed.notify_waiters();
    }

    /// Waits until a condition holds; evaluates it again after every change.
    pub async fn until(&self, holds: impl Fn(u64) -> bool) {
        loop {
            let changed = self.changed.notified();
            if holds(self.revision.load(Ordering::Relaxed)) {
                return;
            }
            changed.await;
        }
    }
}

/// Opens a cache for every resource and waits until all are synced: no controller reconciles on an incomplete view.
pub async fn open(
    caches: &Caches,
    handlers: BTreeMap<ResourceType, Vec<EventHandler>>,
    metrics: &Metrics,
) -> BTreeMap<ResourceType, Arc<Informer>> {
    let mut informers = BTreeMap::new();
    for (resource, handlers) in handlers {
        let cache = caches.dynamic(&address(resource));
        index(resource, &cache);
        let (pods, nodes, reached) = (Rows::default(), Rows::default(), Reached::default());
        let counted = metrics.informer(crate::MANAGER, &address(resource));
        informers.insert(resource, Arc::new(Informer { cache, handlers, pods, nodes, counted, reached }));
    }
    for informer in informers.values() {
        informer.cache.synced().await;
    }
    informers
}

/// Adds the indexes of a resource.
fn index(resource: ResourceType, cache: &Cache) {
    let orphan = |object: &Object| object.controller().is_none().then(|| object.header.namespace.clone());
    cache.add_index(ORPHAN_INDEX, move |object| orphan(object).into_iter().collect());
    if resource == ResourceType::of::<Pod>() {
        cache.add_index(NODE_INDEX, |pod| node_of_pod(pod).into_iter().collect());
    }
    if resource == ResourceType::of::<Pod>() || resource == ResourceType::of::<EndpointSlice>() {
        cache.add_index(LABEL_INDEX, |object| {
            let header = &object.header;
            header.labels.iter().map(|(key, value)| label_key(&header.namespace, key, value)).collect()
        });
    }
    if resource == ResourceType::of::<Node>() {
        cache.add_index(UNREADY_INDEX, |node| is_unready(node).then(String::new).into_iter().collect());
    }
    if resource == ResourceType::of::<PersistentVolume>() {
        cache.add_index(CLAIM_INDEX, |volume| vec![claim_of_volume(volume)]);
    }
    if resource == ResourceType::of::<Service>() {
        cache.add_index(SELECTOR_INDEX, |service| {
            let selector = selector_of_service(service);
            selector
                .iter()
                .next()
                .map(|(key, value)| label_key(&service.header.namespace, key, value))
                .into_iter()
                .collect()
        });
    }
}

/// Returns the index value of a label in a namespace.
fn label_key(namespace: &str, key: &str, value: &str) -> String {
    format!("{namespace}/{key}={value}")
}

/// Returns the resource as the client addresses it.
pub fn address(resource: ResourceType) -> Resource {
    Resource::new(resource.group, resource.version, resource.plural, resource.namespaced)
}

/// Passes changes to the handlers until the cache closes.
pub async fn dispatch(informer: Arc<Informer>, informers: Informers) {
    let view = CachedView::new(informers, None);
    let mut subscription = informer.cache.subscribe();
    while let Some(change) = subscription.next().await {
        let began = Instant::now();
        let revision = change.object().map_or(0, |object| object.revision);
        for change in change.steps() {
            for handler in &informer.handlers {
                for key in (handler.keys)(&view, &change) {
                    handler.queue.add(key);
                }
            }
            if let (None, Some(gone)) = (&change.new, &change.old) {
                informer.pods.forget(&gone.header.uid);
                informer.nodes.forget(&gone.header.uid);
            }
        }
        informer.reached.advance(revision);
        informer.counted.passed_on(began.elapsed(), subscription.waiting());
    }
}

/// The view of a controller in the cluster: the shared caches.
pub struct CachedView {
    pub informers: Informers,
    pub failure: Option<Failure>,
    /// The scales that the server returned for this reconcile.
    pub scales: BTreeMap<ScaleQuestion, ScaleAnswer>,
    /// The parts of the caches that were read, if they are recorded.
    seen: Option<Mutex<Seen>>,
}

impl CachedView {
    pub fn new(informers: Informers, failure: Option<Failure>) -> CachedView {
        CachedView { informers, failure, scales: BTreeMap::new(), seen: None }
    }

    /// Returns a view that records which parts of the caches are read.
    pub fn noting(informers: Informers) -> CachedView {
        CachedView { seen: Some(Mutex::default()), ..CachedView::new(informers, None) }
    }

    /// Takes the recorded reads; none if they were not recorded.
    pub fn seen(&mut self) -> Option<Seen> {
        self.seen.take().map(|seen| seen.into_inner().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns the cache of a resource of which a part is about to be read. Every read goes through here.
    fn cache(&self, resource: ResourceType, part: Part<'_>) -> Option<&Arc<Cache>> {
        let cache = &self.informers.get(&resource)?.cache;
        if let Some(seen) = &self.seen {
            seen.lock().unwrap_or_else(PoisonError::into_inner).note(cache, part);
        }
        Some(cache)
    }

    fn by_index(&self, resource: ResourceType, index: &'static str, value: &str) -> Vec<Arc<Object>> {
        let cache = self.cache(resource, Part::Index(index, value));
        cache.map(|cache| cache.by_index(index, value)).unwrap_or_default()
    }
}

impl View for CachedView {
    fn get(&self, resource: ResourceType, key: &Key) -> Option<Arc<Object>> {
        self.cache(resource, Part::Object(key))?.get(key)
    }

    fn list(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>> {
        let cache = self.cache(resource, Part::Namespace(namespace));
        cache.map(|cache| cache.list(namespace)).unwrap_or_default()
    }

    fn owned(&self, resource: ResourceType, uid: &str) -> Vec<Arc<Object>> {
        self.cache(resource, Part::Owner(uid)).map(|cache| cache.by_owner(uid)).unwrap_or_default()
    }

    fn orphans(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>> {
        self.by_index(resource, ORPHAN_INDEX, namespace)
    }

    fn labelled(&self, resource: ResourceType, namespace: &str, (key, value): (&str, &str)) -> Vec<Arc<Object>> {
        self.by_index(resource, LABEL_INDEX, &label_key(namespace, key, value))
    }

    fn services_for(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<Object>> {
        let selecting = |(key, value): (&String, &String)| {
            self.by_index(ResourceType::of::<Service>(), SELECTOR_INDEX, &label_key(namespace, key, value))
        };
        labels.iter().flat_map(selecting).collect()
    }

    fn volumes_for(&self, claim: &Key) -> Vec<Arc<Object>> {
        let volumes = ResourceType::of::<PersistentVolume>();
        let mut found = self.by_index(volumes, CLAIM_INDEX, &claim.to_string());
        found.extend(self.by_index(volumes, CLAIM_INDEX, ""));
        found
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        self.by_index(ResourceType::of::<Pod>(), NODE_INDEX, node)
    }

    fn rows(&self, pods: Vec<Arc<Object>>) -> Vec<PodRow> {
        let informer = self.informers.get(&ResourceType::of::<Pod>());
        rows(informer.map(|informer| &informer.pods), pods)
    }

    fn node_rows(&self, nodes: Vec<Arc<Object>>) -> Vec<NodeRow> {
        let informer = self.informers.get(&ResourceType::of::<Node>());
        rows(informer.map(|informer| &informer.nodes), nodes)
    }

    fn unready_nodes(&self) -> Vec<Arc<Object>> {
        self.by_index(ResourceType::of::<Node>(), UNREADY_INDEX, "")
    }

    fn scale(&self, question: &ScaleQuestion) -> Option<ScaleAnswer> {
        self.scales.get(question).cloned()
    }

    fn last_failure(&self) -> Option<Failure> {
        self.failure.clone()
    }
}

/// Returns rows from the parsed facts, or parses the objects.
fn rows<F: Facts>(kept: Option<&Rows<F>>, objects: Vec<Arc<Object>>) -> Vec<Row<F>> {
    match kept {
        Some(kept) => kept.of(objects),
        None => objects.into_iter().map(Row::new).collect(),
    }
}
