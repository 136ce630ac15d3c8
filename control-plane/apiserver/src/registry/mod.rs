//! Objects and the store: key paths, reading, and writing under optimistic concurrency.
//!
//! This is the only room that builds store keys and commits. Values are converted to their storage version, encoded
//! canonically and encrypted here; nothing above handles bytes of the store, and no kind is named.

mod conversion;
mod conversion_cache;
pub mod conversion_webhook;
mod lease;
pub mod request_conversions;
mod resource;
mod stores;
mod table;
mod unserved;

use std::sync::Arc;
use std::time::Instant;

use arc_swap::ArcSwap;
use bytes::Bytes;
use corten_api::Kind;
use corten_meta::quote::quote;
use corten_meta::{Object, Status, Value, names};
use corten_store::{Entry, Expect, NO_LEASE, Op, Outcome, Range, Revision, Store};
use tokio_util::sync::CancellationToken;

use crate::cache::{Caches, Feed, PendingHeader, ResourceCache, Sources};
use crate::config::Config;
use crate::encryption::Transformer;
use crate::error::Error;
pub use crate::error::store_status;
use crate::metrics::StorageOperation;
use crate::outbound::Outbound;
use crate::storage_format::{Root, StorageFormat};
use crate::tasks::Tasks;
use lease::EventLease;
pub use resource::{Resource, Stored};
pub use stores::{StoreOverride, Stores};
pub use table::Resources;
use table::{hubs, table};
pub use unserved::Unserved;

/// The result of one write attempt.
pub enum Written {
    Done(Arc<Object>),
    /// Another writer wrote the object first.
    Conflict,
    /// Another object holds a companion, such as an address, of this one.
    CompanionConflict,
}

/// An encoded object and its key's parts.
struct Encoded<'a> {
    namespace: &'a str,
    name: &'a str,
    bytes: Bytes,
}

/// All resources and the access to the store.
pub struct Registry {
    pub store: Arc<dyn Store>,
    pub caches: Arc<Caches>,
    /// The client of servers that objects name.
    pub outbound: Arc<Outbound>,
    pub transformer: Arc<Transformer>,
    resources: ArcSwap<Resources>,
    built_in: Vec<Arc<Kind>>,
    event_lease: EventLease,
    shutdown: CancellationToken,
}

/// The biggest stored object: etcd's default limit, so that every object can be moved to etcd.
pub const MAX_OBJECT_BYTES: usize = 1536 * 1024;

/// The prefix of objects that expire.
const EXPIRING_PREFIX: &str = "/registry/events";

impl Registry {
    pub async fn start(
        stores: Stores,
        kinds: &[Arc<Kind>],
        transformer: Arc<Transformer>,
        config: &Config,
        tasks: &Tasks,
    ) -> Result<Registry, Error> {
        let hubs = hubs(kinds);
        let shutdown = tasks.shutdown.clone();
        let overrides = stores.overridden_prefixes(kinds)?;
        let store = stores.main;
        let format = StorageFormat::new(config.storage_media_type, store.is_shared(), kinds);
        let sources = Sources {
            store: Arc::clone(&store),
            overrides,
            transformer: Arc::clone(&transformer),
            format: Arc::new(format),
            root: Root::new(&config.etcd_prefix),
        };
        let caches = Caches::start(sources, hubs.clone(), tasks).await?;
        let outbound = Arc::new(Outbound::new(config, &caches, kinds, tasks.clone())?);
        let none = Resources::default();
        let resources = ArcSwap::from_pointee(table(&caches, kinds, &hubs, &outbound, &none, &shutdown)?);
        let built_in = kinds.to_vec();
        let event_lease = EventLease::new(config.event_ttl);
        Ok(Registry { store, caches, outbound, transformer, resources, built_in, event_lease, shutdown })
    }

    /// Returns the resource of a group, version and plural, if it is served.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<Arc<Resource>> {
        let resources = self.resources.load();
        let is_it = |resource: &&Arc<Resource>| resource.kind.group == group && resource.kind.version == version;
        resources.of_plural(plural).iter().find(is_it).cloned()
    }

    /// Returns a resource that the API always has.
    pub fn required(&self, group: &str, version: &str, plural: &str) -> Result<Arc<Resource>, Status> {
        self.resource(group, version, plural)
            .ok_or_else(|| Status::internal(format!("{plural}.{version}.{group} is not served")))
    }

    /// Returns the cache of a resource, if it is served and stored.
    pub fn cache(&self, group: &str, version: &str, plural: &str) -> Option<Arc<ResourceCache>> {
        let resource = self.resource(group, version, plural)?;
        resource.stored.as_ref().map(|stored| Arc::clone(&stored.cache))
    }

    /// Returns an object of the cache, in its storage version.
    pub fn cached(&self, group: &str, version: &str, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.cache(group, version, plural)?.get(namespace, name)
    }

    /// Returns the objects of a namespace (or of all) in the cache, in their storage version.
    pub fn cached_list(&self, group: &str, version: &str, plural: &str, namespace: &str) -> Vec<Arc<Object>> {
        self.cache(group, version, plural).map(|cache| cache.list(namespace)).unwrap_or_default()
    }

    /// Returns the present table of resources.
    pub fn resources(&self) -> Arc<Resources> {
        self.resources.load_full()
    }

    /// Returns the same resource in its other served versions.
    pub fn equivalents(&self, resource: &Resource) -> Vec<Arc<Resource>> {
        let Some(stored) = &resource.stored else { return Vec::new() };
        let own = resource.kind.api_version();
        let beside = |r: &&Arc<Resource>| {
            r.stored.as_ref().is_some_and(|s| s.prefix == stored.prefix)
                && r.kind.api_version() != own
                && !r.kind.verbs.is_empty()
        };
        self.resources.load().of_plural(&resource.kind.plural).iter().filter(beside).cloned().collect()
    }

    /// Returns the built-in kinds that are served as custom resources are.
    pub fn built_in_custom(&self) -> impl Iterator<Item = &Arc<Kind>> {
        self.built_in.iter().filter(|kind| !kind.serving().is_registered)
    }

    /// Returns whether this is a built-in resource.
    pub fn is_built_in(&self, group: &str, plural: &str) -> bool {
        self.built_in.iter().any(|kind| kind.group == group && kind.plural == plural)
    }

    /// Serves the built-in kinds and these custom ones from now on.
    pub async fn set_custom(&self, custom: Vec<Arc<Kind>>) -> Result<(), Status> {
        let all: Vec<Arc<Kind>> = self.built_in.iter().chain(&custom).cloned().collect();
        let hubs = hubs(&all);
        self.caches.hold(&hubs).await?;
        let before = self.resources.load_full();
        let resources = Arc::new(
            table(&self.caches, &all, &hubs, &self.outbound, &before, &self.shutdown)
                .map_err(|e| Status::internal(e.to_string()))?,
        );
        self.resources.store(Arc::clone(&resources));
        self.caches.forget_others(&hubs);
        for old in before.ordered.iter().filter(|old| resources.same(&old.kind).is_none()) {
            old.retired.cancel();
        }
        Ok(())
    }

    /// Returns the store key of an object.
    pub fn key_of(&self, resource: &Resource, namespace: &str, name: &str) -> Result<String, Status> {
        Ok(resource.storage()?.path(namespace, name))
    }

    /// Checks the namespace and the name of a path.
    fn check_key(stored: &Stored, namespace: &str, name: &str) -> Result<(), Status> {
        if stored.hub.namespaced && namespace.is_empty() {
            return Err(Status::bad_request("Namespace parameter required."));
        }
        if name.is_empty() {
            return Err(Status::bad_request("Name parameter required."));
        }
        let errors = names::path_segment_name(name);
        if !errors.is_empty() {
            return Err(Status::bad_request(format!(
                "Name parameter invalid: {name}: {}",
                errors.join(", "),
                name = quote(name)
            )));
        }
        stored.check_namespace(namespace, name)
    }

    fn key(stored: &Stored, namespace: &str, name: &str) -> Bytes {
        stored.path(namespace, name).into()
    }

    /// Returns the present object of the store, in its storage version.
    pub async fn read(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Option<Arc<Object>>, Status> {
        let stored = resource.storage()?;
        Self::check_key(stored, namespace, name)?;
        // Caches that have reached the store's revision have the same objects, already decoded.
        if stored.cache.feed.is_fresh() {
            return Ok(stored.cache.stored(namespace, name));
        }
        let began = Instant::now();
        let key = Self::key(stored, namespace, name);
        let (_, entry) = stored.store().get(&key).await.map_err(store_status)?;
        stored.cache.storage.observe(StorageOperation::Get, began);
        let Some(entry) = entry else { return Ok(None) };
        // Caches that are behind still have this very object nearly always.
        match stored.cache.stored(namespace, name).filter(|cached| cached.revision == entry.mod_revision) {
            Some(cached) => Ok(Some(cached)),
            None => self.decode(&stored.hub, &entry).await.map(|object| Some(Arc::new(object))),
        }
    }

    /// Returns the object in the served version, or 404.
    pub async fn get(&self, resource: &Resource, namespace: &str, name: &str) -> Result<Arc<Object>, Status> {
        match self.read(resource, namespace, name).await? {
            Some(object) => resource.serve(&object).await,
            None => Err(Status::not_found(&resource.group_resource(), name)),
        }
    }

    async fn decode(&self, kind: &Kind, entry: &Entry) -> Result<Object, Status> {
        self.caches.decode(kind, entry).await.map_err(|e| Status::internal(e.to_string()))
    }

    /// Returns whether an object is encrypted with another provider or key than a write would use now.
    pub async fn is_sealed_otherwise(&self, resource: &Resource, object: &Object) -> Result<bool, Status> {
        let stored = resource.storage()?;
        if !self.transformer.seals(&stored.hub) {
            return Ok(false);
        }
        let key = Self::key(stored, &object.header.namespace, &object.header.name);
        let (_, entry) = stored.store().get(&key).await.map_err(store_status)?;
        let opened = entry.and_then(|entry| self.transformer.open(&stored.hub, &entry.key, &entry.value).ok());
        Ok(opened.is_some_and(|opened| opened.stale))
    }

    /// Returns whether an object has not been written since it was created.
    pub async fn is_first(&self, resource: &Resource, object: &Object) -> Result<bool, Status> {
        let stored = resource.storage()?;
        let key = Self::key(stored, &object.header.namespace, &object.header.name);
        let (_, entry) = stored.store().get(&key).await.map_err(store_status)?;
        Ok(entry.is_some_and(|entry| entry.version == 1))
    }

    /// Returns whether a namespace has no object of the resource in the store now.
    pub async fn is_empty(&self, resource: &Resource, namespace: &str) -> Result<bool, Status> {
        let stored = resource.storage()?;
        let prefix = format!("{}/{namespace}/", stored.key_prefix());
        let range = Range::prefix(prefix.as_bytes()).keys_only().limit(1);
        Ok(stored.store().range(range).await.map_err(store_status)?.entries.is_empty())
    }

    /// Returns objects of a resource at a past revision, from `start` (a key inside the resource) on.
    pub async fn range_at(
        &self,
        resource: &Resource,
        namespace: &str,
        start: Option<&str>,
        limit: usize,
        revision: Revision,
    ) -> Result<(Vec<(String, Object)>, bool, u64), corten_store::Error> {
        let Ok(stored) = resource.storage() else { return Ok((Vec::new(), false, 0)) };
        let base = format!("{}/", stored.key_prefix());
        let prefix = if namespace.is_empty() { base.clone() } else { format!("{base}{namespace}/") };
        let mut range = Range::prefix(prefix.as_bytes()).at(revision).limit(limit);
        if let Some(start) = start {
            range = range.from(format!("{base}{start}"));
        }
        let began = Instant::now();
        let result = stored.store().range(range).await?;
        stored.cache.storage.observe(StorageOperation::List, began);
        let mut objects = Vec::with_capacity(result.entries.len());
        for entry in &result.entries {
            let Some(key) = std::str::from_utf8(&entry.key).ok().and_then(|key| key.strip_prefix(&base)) else {
                continue;
            };
            if let Ok(object) = self.decode(&stored.hub, entry).await {
                objects.push((key.to_owned(), object));
            }
        }
        Ok((objects, result.more, result.count))
    }

    /// Returns the operation that writes an object of the served version.
    pub async fn put(&self, resource: &Resource, value: &Value, expect: Expect) -> Result<(Op, Bytes), Status> {
        let stored = resource.storage()?;
        let bytes = if resource.is_converted() {
            resource.stored_object(value.clone()).await?.bytes
        } else {
            corten_meta::encode_object(value)
        };
        let object = Encoded { namespace: corten_meta::namespace(value), name: corten_meta::name(value), bytes };
        self.put_encoded(stored, object, expect).await
    }

    /// Returns the operation that writes an object as it is stored.
    async fn put_encoded(
        &self,
        stored: &Stored,
        Encoded { namespace, name, bytes }: Encoded<'_>,
        expect: Expect,
    ) -> Result<(Op, Bytes), Status> {
        let key = Self::key(stored, namespace, name);
        if bytes.len() > MAX_OBJECT_BYTES {
            return Err(Status::request_too_large(&format!("limit is {MAX_OBJECT_BYTES}")));
        }
        let encoded = self.caches.format().encode(&stored.hub, bytes.clone());
        let sealed = self.transformer.seal(&stored.hub, &key, encoded).map_err(Status::internal)?;
        let lease = match stored.prefix == EXPIRING_PREFIX {
            true => self.event_lease.get(stored.store()).await.map_err(store_status)?,
            false => NO_LEASE,
        };
        Ok((Op::Put { key, value: sealed, lease, expect }, bytes))
    }

    /// Returns the operation that removes an object.
    pub fn remove(&self, resource: &Resource, namespace: &str, name: &str, expect: Expect) -> Result<Op, Status> {
        Ok(Op::Delete { key: Self::key(resource.storage()?, namespace, name), expect })
    }

    /// Writes one object, in the served version, and returns it as served. The companions (objects and keys that it
    /// holds, such as its addresses) are written at the same revision, or nothing is.
    pub async fn write(
        &self,
        resource: &Resource,
        value: &Value,
        expect: Expect,
        companions: Vec<Op>,
    ) -> Result<Written, Status> {
        let object = match resource.is_converted() {
            true => resource.stored_object(value.clone()).await?,
            false => object_of(value)?,
        };
        self.write_object(resource, object, expect, companions).await
    }

    /// Does the same as [`Registry::write`], with the value already encoded in the served version. The value is ten
    /// times as large, so it is dropped before the write becomes durable.
    pub async fn write_encoded(
        &self,
        resource: &Resource,
        value: Value,
        object: Object,
        expect: Expect,
        companions: Vec<Op>,
    ) -> Result<Written, Status> {
        let object = if resource.is_converted() {
            resource.stored_object(value).await?
        } else {
            drop(value);
            object
        };
        self.write_object(resource, object, expect, companions).await
    }

    /// Writes an object as it is stored.
    pub async fn write_object(
        &self,
        resource: &Resource,
        mut object: Object,
        expect: Expect,
        companions: Vec<Op>,
    ) -> Result<Written, Status> {
        let stored = resource.storage()?;
        let header = &object.header;
        let encoded = Encoded { namespace: &header.namespace, name: &header.name, bytes: object.bytes.clone() };
        let (op, _) = self.put_encoded(stored, encoded, expect).await?;
        // An encrypted object, one in protobuf and one from another machine come back as other bytes.
        let is_open = !self.transformer.seals(&stored.hub)
            && !stored.store().is_shared()
            && self.caches.format().is_canonical(&stored.hub);
        let pending = is_open.then(|| self.caches.written_headers.insert(&object.bytes, &object.header));
        match self.commit_put(resource, op, expect, companions).await? {
            Err(conflict) => Ok(conflict),
            Ok(revision) => {
                pending.into_iter().for_each(PendingHeader::keep);
                object.revision = revision;
                Ok(Written::Done(resource.serve(&Arc::new(object)).await?))
            }
        }
    }

    /// Commits the write of an object and its companions. Returns the revision, or the conflict.
    async fn commit_put(
        &self,
        resource: &Resource,
        op: Op,
        expect: Expect,
        companions: Vec<Op>,
    ) -> Result<Result<Revision, Written>, Status> {
        let ops = std::iter::once(op).chain(companions).collect();
        let operation = if expect == Expect::Absent { StorageOperation::Create } else { StorageOperation::Update };
        match self.commit(resource, operation, ops).await? {
            Outcome::Conflict { op, .. } if op > 0 => Ok(Err(Written::CompanionConflict)),
            Outcome::Conflict { .. } => Ok(Err(Written::Conflict)),
            Outcome::Committed { revision, .. } => Ok(Ok(revision)),
        }
    }

    /// Removes an object; `None` means that another writer changed it first.
    pub async fn erase(
        &self,
        resource: &Resource,
        namespace: &str,
        name: &str,
        revision: Revision,
        companions: Vec<Op>,
    ) -> Result<Option<Revision>, Status> {
        let op = self.remove(resource, namespace, name, Expect::ModRevision(revision))?;
        let ops = std::iter::once(op).chain(companions).collect();
        match self.commit(resource, StorageOperation::Delete, ops).await? {
            Outcome::Conflict { .. } => Ok(None),
            Outcome::Committed { revision, .. } => Ok(Some(revision)),
        }
    }

    /// Commits operations on keys of any store, and returns the outcome in the store of the first. Those of one store
    /// happen together; the store of the first comes last, so that nothing refers to a companion that does not exist.
    /// A companion whose object was then refused is found by the repair that upstream needs for all of them.
    pub async fn commit_all(&self, ops: Vec<Op>) -> Result<Outcome, corten_store::Error> {
        let [_, _, ..] = self.caches.feeds() else { return self.store.commit(ops).await };
        let Some(first) = ops.first().map(|op| Arc::clone(self.caches.feed_of(op.key()))) else {
            return self.store.commit(ops).await;
        };
        let is_of = |op: &Op, feed: &Arc<Feed>| Arc::ptr_eq(self.caches.feed_of(op.key()), feed);
        for feed in self.caches.feeds().iter().filter(|feed| !Arc::ptr_eq(feed, &first)) {
            let companions: Vec<Op> = ops.iter().filter(|op| is_of(op, feed)).cloned().collect();
            if companions.is_empty() {
                continue;
            }
            if let Outcome::Conflict { op, current, revision } = feed.store.commit(companions).await? {
                // No companion is the first operation.
                return Ok(Outcome::Conflict { op: op + 1, current, revision });
            }
        }
        first.store.commit(ops.into_iter().filter(|op| is_of(op, &first)).collect()).await
    }

    async fn commit(&self, resource: &Resource, operation: StorageOperation, ops: Vec<Op>) -> Result<Outcome, Status> {
        let began = Instant::now();
        let outcome = self.commit_all(ops).await.map_err(store_status)?;
        resource.storage()?.cache.storage.observe(operation, began);
        Ok(outcome)
    }
}

fn object_of(value: &Value) -> Result<Object, Status> {
    Object::from_value(value, 0).map_err(|e| Status::internal(e.to_string()))
}
