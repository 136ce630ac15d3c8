//! The door of admission: the parts of the server that the plugins use, as traits.
//!
//! The API server implements them. Admission reads objects and makes operations through them; it never writes to the
//! store itself.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corten_access::{Rule, User, Verb};
use corten_api::Kind;
use corten_meta::metrics::Registry;
use corten_meta::{GroupKind, GroupResource, Object, Status, Value};
use corten_store::{Expect, Op, Revision};
use futures::future::BoxFuture;

use crate::client_config::ClientConfig;

/// A request together with the resource that it is about, and the doors to the rest of the server.
#[derive(Clone)]
pub struct Target<'a> {
    pub core: Core<'a>,
    pub context: &'a dyn Context,
    pub resource: Arc<dyn Resource>,
    /// Empty for cluster-scoped resources, for requests across namespaces, and where a path names none.
    pub namespace: &'a str,
    pub name: &'a str,
}

/// The parts of the server that all requests share.
#[derive(Clone, Copy)]
pub struct Core<'a> {
    pub config: Config<'a>,
    pub objects: &'a dyn Objects,
    pub authorizer: &'a dyn Authorizer,
    pub outbound: &'a dyn Outbound,
    pub metrics: &'a Registry,
}

/// The server's configuration that plugins decide by.
#[derive(Clone, Copy)]
pub struct Config<'a> {
    pub advertise_address: IpAddr,
    pub hostname: Option<&'a str>,
    pub service_cidr: &'a str,
    pub node_port_range: (u16, u16),
    pub audiences: &'a [String],
}

/// The request.
pub trait Context: Send + Sync {
    fn user(&self) -> &User;
    fn verb(&self) -> &Verb;
    /// Returns the subresource of the path; empty for the object itself.
    fn subresource(&self) -> &str;
    /// Returns the first value of a key of the query, if it is not empty.
    fn query(&self, key: &str) -> Option<&str>;
    fn is_dry_run(&self) -> bool;
    fn now(&self) -> jiff::Timestamp;
    fn deadline(&self) -> Instant;
    /// Adds a warning for the client.
    fn warn(&self, warning: String);
    /// Adds an audit annotation; the first value of a key stays.
    fn annotate(&self, key: &str, value: &str);
}

/// A served resource of one version.
pub trait Resource: Send + Sync {
    fn kind(&self) -> &Arc<Kind>;
    /// Returns the kind that errors name: the stored one, whose rules are validated.
    fn group_kind(&self) -> GroupKind;
    /// Returns whether the resource has stored objects.
    fn is_stored(&self) -> bool;
    /// Returns whether objects may be stored in another version than this one.
    fn is_converted(&self) -> bool;
    /// Returns an object of the cache, in its storage version.
    fn cached(&self, namespace: &str, name: &str) -> Option<Arc<Object>>;
    /// Returns the objects of a namespace (or of all) in the cache, in their storage version.
    fn list(&self, namespace: &str) -> Vec<Arc<Object>>;
    /// Returns a stored object in this version.
    fn serve<'a>(&'a self, object: &'a Arc<Object>) -> BoxFuture<'a, Result<Arc<Object>, Status>>;
    /// Returns an object of this version in another one.
    fn convert<'a>(&'a self, object: Value, to: &'a Kind) -> BoxFuture<'a, Result<Value, Status>>;
}

impl dyn Resource {
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.kind().group.clone(), resource: self.kind().plural.clone() }
    }
}

/// The objects of all resources. Group and plural name a built-in resource, in version v1.
pub trait Objects: Send + Sync {
    /// Returns an object of the cache, in its storage version.
    fn cached(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>>;
    /// Returns the objects of a namespace (or of all) in the cache, in their storage version.
    fn cached_list(&self, group: &str, plural: &str, namespace: &str) -> Vec<Arc<Object>>;
    /// Returns the revision of a resource's cache.
    fn revision(&self, group: &str, plural: &str) -> Option<Revision>;
    /// Returns all objects of a resource that has no namespaces, by name, with the revision of its cache.
    fn snapshot(&self, group: &str, plural: &str) -> Option<Snapshot>;
    /// Waits until the caches have reached the store's revision.
    fn fresh(&self) -> BoxFuture<'_, Result<(), Status>>;
    /// Returns the present object of the store, in its storage version.
    fn read<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Object>>, Status>>;
    /// Returns the present object of the store in the served version, or 404.
    fn get<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<Object>, Status>>;
    /// Returns whether a namespace has no object of the resource in the store now.
    fn is_empty<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<bool, Status>>;
    /// Returns the operation that writes an object of the served version, and its encoding.
    fn put<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        value: &'a Value,
        expect: Expect,
    ) -> BoxFuture<'a, Result<(Op, Bytes), Status>>;
    /// Returns the operation that removes an object.
    fn remove(&self, group: &str, plural: &str, namespace: &str, name: &str, expect: Expect) -> Result<Op, Status>;
    /// Returns a resource that the API always has.
    fn required(&self, group: &str, plural: &str) -> Result<Arc<dyn Resource>, Status>;
    /// Returns all served resources.
    fn resources(&self) -> Vec<Arc<dyn Resource>>;
    /// Returns the resource of a kind in its other served versions.
    fn equivalents(&self, kind: &Kind) -> Vec<Arc<dyn Resource>>;
    /// Reads the allocation of node ports, with its revision.
    fn read_node_ports(&self) -> BoxFuture<'_, Result<Option<(Value, Revision)>, Status>>;
    /// Returns the operation that writes the allocation of node ports.
    fn put_node_ports(&self, value: &Value, expect: Expect) -> Result<Op, Status>;
}

/// The objects of a cache at one revision, in the order of their names.
pub struct Snapshot {
    pub revision: Revision,
    pub objects: Vec<(String, Arc<Object>)>,
}

/// The server's authorizers.
pub trait Authorizer: Send + Sync {
    /// Returns `Ok` with the reason why the request is allowed, or `Err` with the reason why it is not (often empty).
    fn authorize<'a>(&'a self, attributes: &'a corten_access::Attributes<'_>) -> BoxFuture<'a, Result<String, String>>;
    /// Decides as `authorize` does, without waiting; `None` if a webhook would have to be called.
    fn authorize_now(&self, attributes: &corten_access::Attributes<'_>) -> Option<Result<String, String>>;
    /// Returns the rules of a role.
    fn role(&self, kind: &str, namespace: &str, name: &str) -> Option<Arc<Vec<Rule>>>;
    fn rules_for(&self, user: &User, namespace: &str) -> Vec<Rule>;
}

/// The client of webhooks.
pub trait Outbound: Send + Sync {
    /// Posts JSON and returns the body of a successful answer, at most `limit` bytes.
    fn post<'a>(
        &'a self,
        to: &'a ClientConfig,
        body: Bytes,
        timeout: Duration,
        limit: usize,
    ) -> BoxFuture<'a, Result<Bytes, String>>;
}
