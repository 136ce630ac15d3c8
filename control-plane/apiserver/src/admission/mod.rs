//! The server's side of admission: the implementations of the traits that plugins use, and the status of policies.

mod policy_status;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corten_access::{Attributes, Rule, User, Verb};
use corten_admission::{Config, Core, Snapshot};
use corten_api::Kind;
use corten_meta::{GroupKind, Object, Status, Value};
use corten_store::{Expect, NO_LEASE, Op, Revision};
use futures::future::BoxFuture;

use crate::authorization::Authorization;
use crate::context::Context;
use crate::outbound::{ClientConfig, Outbound};
use crate::registry::{Registry, Resource, Unserved};
use crate::target::Target;

pub use policy_status::run as follow_policies;

impl<'a> Target<'a> {
    /// Returns the request as admission sees it.
    pub fn for_admission(&self) -> corten_admission::Target<'a> {
        let core = self.core;
        let resource: Arc<dyn corten_admission::Resource> = Arc::clone(self.resource) as _;
        corten_admission::Target {
            core: Core {
                config: Config {
                    advertise_address: core.config.advertise_address,
                    hostname: core.config.hostname.as_deref(),
                    service_cidr: &core.config.service_cidr,
                    node_port_range: core.config.node_port_range,
                    audiences: &core.config.audiences,
                },
                objects: &*core.registry,
                authorizer: &core.authorization,
                outbound: &*core.registry.outbound,
                metrics: &core.metrics.rare,
            },
            context: self.context,
            resource,
            namespace: self.namespace,
            name: self.name,
        }
    }
}

impl corten_admission::Context for Context {
    fn user(&self) -> &User {
        &self.user
    }

    fn verb(&self) -> &Verb {
        &self.info.verb
    }

    fn subresource(&self) -> &str {
        &self.info.subresource
    }

    fn query(&self, key: &str) -> Option<&str> {
        self.info.query.get(key)
    }

    fn is_dry_run(&self) -> bool {
        self.dry_run()
    }

    fn now(&self) -> jiff::Timestamp {
        self.now
    }

    fn deadline(&self) -> Instant {
        self.deadline
    }

    fn warn(&self, warning: String) {
        Context::warn(self, warning);
    }

    fn annotate(&self, key: &str, value: &str) {
        Context::annotate(self, key, value);
    }
}

impl corten_admission::Resource for Resource {
    fn kind(&self) -> &Arc<Kind> {
        &self.kind
    }

    fn group_kind(&self) -> GroupKind {
        Resource::group_kind(self)
    }

    fn is_stored(&self) -> bool {
        self.stored.is_some()
    }

    fn is_converted(&self) -> bool {
        Resource::is_converted(self)
    }

    fn cached(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.stored.as_ref()?.cache.get(namespace, name)
    }

    fn list(&self, namespace: &str) -> Vec<Arc<Object>> {
        self.stored.as_ref().map(|stored| stored.cache.list(namespace)).unwrap_or_default()
    }

    fn serve<'a>(&'a self, object: &'a Arc<Object>) -> BoxFuture<'a, Result<Arc<Object>, Status>> {
        Box::pin(Resource::serve(self, object))
    }

    fn convert<'a>(&'a self, object: Value, to: &'a Kind) -> BoxFuture<'a, Result<Value, Status>> {
        Box::pin(Resource::convert(self, object, to))
    }
}

impl corten_admission::Objects for Registry {
    fn cached(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        Registry::cached(self, group, "v1", plural, namespace, name)
    }

    fn cached_list(&self, group: &str, plural: &str, namespace: &str) -> Vec<Arc<Object>> {
        Registry::cached_list(self, group, "v1", plural, namespace)
    }

    fn revision(&self, group: &str, plural: &str) -> Option<Revision> {
        self.cache(group, "v1", plural).map(|cache| cache.revision())
    }

    fn snapshot(&self, group: &str, plural: &str) -> Option<Snapshot> {
        let snapshot = self.cache(group, "v1", plural)?.snapshot(0);
        let objects = snapshot.items.iter().map(|(name, item)| (name.clone(), Arc::clone(&item.object))).collect();
        Some(Snapshot { revision: snapshot.revision, objects })
    }

    fn fresh(&self) -> BoxFuture<'_, Result<(), Status>> {
        Box::pin(self.caches.fresh())
    }

    fn read<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Arc<Object>>, Status>> {
        Box::pin(async move {
            let resource = Registry::required(self, group, "v1", plural)?;
            Registry::read(self, &resource, namespace, name).await
        })
    }

    fn get<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Arc<Object>, Status>> {
        Box::pin(async move {
            let resource = Registry::required(self, group, "v1", plural)?;
            Registry::get(self, &resource, namespace, name).await
        })
    }

    fn is_empty<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        namespace: &'a str,
    ) -> BoxFuture<'a, Result<bool, Status>> {
        Box::pin(async move {
            let resource = Registry::required(self, group, "v1", plural)?;
            Registry::is_empty(self, &resource, namespace).await
        })
    }

    fn put<'a>(
        &'a self,
        group: &'a str,
        plural: &'a str,
        value: &'a Value,
        expect: Expect,
    ) -> BoxFuture<'a, Result<(Op, Bytes), Status>> {
        Box::pin(async move {
            let resource = Registry::required(self, group, "v1", plural)?;
            Registry::put(self, &resource, value, expect).await
        })
    }

    fn remove(&self, group: &str, plural: &str, namespace: &str, name: &str, expect: Expect) -> Result<Op, Status> {
        let resource = Registry::required(self, group, "v1", plural)?;
        Registry::remove(self, &resource, namespace, name, expect)
    }

    fn required(&self, group: &str, plural: &str) -> Result<Arc<dyn corten_admission::Resource>, Status> {
        Ok(Registry::required(self, group, "v1", plural)? as _)
    }

    fn resources(&self) -> Vec<Arc<dyn corten_admission::Resource>> {
        Registry::resources(self).ordered.iter().map(|resource| Arc::clone(resource) as _).collect()
    }

    fn equivalents(&self, kind: &Kind) -> Vec<Arc<dyn corten_admission::Resource>> {
        let resource = self.resource(&kind.group, &kind.version, &kind.plural);
        let others = resource.map(|resource| Registry::equivalents(self, &resource)).unwrap_or_default();
        others.into_iter().map(|resource| resource as _).collect()
    }

    fn read_node_ports(&self) -> BoxFuture<'_, Result<Option<(Value, Revision)>, Status>> {
        Box::pin(async move {
            let node_ports = Unserved::node_ports();
            let found = self.read_unserved(&node_ports, node_ports.path).await?;
            Ok(found.map(|found| (found.value, found.revision)))
        })
    }

    fn put_node_ports(&self, value: &Value, expect: Expect) -> Result<Op, Status> {
        let node_ports = Unserved::node_ports();
        self.put_unserved(&node_ports, node_ports.path, value, expect, NO_LEASE)
    }
}

impl corten_admission::Authorizer for Authorization {
    fn authorize<'a>(&'a self, attributes: &'a Attributes<'_>) -> BoxFuture<'a, Result<String, String>> {
        Box::pin(Authorization::authorize(self, attributes))
    }

    fn authorize_now(&self, attributes: &Attributes<'_>) -> Option<Result<String, String>> {
        Authorization::authorize_now(self, attributes)
    }

    fn role(&self, kind: &str, namespace: &str, name: &str) -> Option<Arc<Vec<Rule>>> {
        self.rbac().role(kind, namespace, name)
    }

    fn rules_for(&self, user: &User, namespace: &str) -> Vec<Rule> {
        self.rbac().rules_for(user, namespace)
    }
}

impl corten_admission::Outbound for Outbound {
    fn post<'a>(
        &'a self,
        to: &'a ClientConfig,
        body: Bytes,
        timeout: Duration,
        limit: usize,
    ) -> BoxFuture<'a, Result<Bytes, String>> {
        Box::pin(Outbound::post(self, to, body, timeout, limit))
    }
}
