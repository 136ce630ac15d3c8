//! Custom and external metrics: group versions that this server answers from MetricSources, as long as there are any.
//!
//! They are registered, published and routed with the group versions of other servers. A group that an APIService of
//! the user serves is that server's alone.

use std::collections::BTreeSet;
use std::sync::Arc;

use arc_swap::ArcSwap;
use corten_meta::{Status, Value, status};
use corten_metric_sources::{
    Address, Answered, CUSTOM_METRICS, Cluster, EXTERNAL_METRICS, Error, Listed, Request, ServedVersion,
};
use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, StatusCode};
use serde_json::json;

use super::{Aggregation, GROUP, Known, PLURAL, Remote, forward};
use crate::body::{Reply, RequestBody};
use crate::context::Context;
use crate::core::Core;
use crate::discovery::{RemoteDocuments, RemoteVersion};
use crate::negotiation::{Accept, Format, View};
use crate::registry::Registry;
use crate::response;

/// The priority of the groups, as that of custom resources.
const GROUP_PRIORITY: i64 = 1000;
const VERSION_PRIORITY: i64 = 100;

/// The group versions that have a source.
#[derive(Default)]
pub struct Measured {
    served: ArcSwap<Vec<ServedVersion>>,
}

impl Measured {
    /// Returns the group versions that have a source and no server of the user.
    pub fn wanted(registry: &Registry, trusted_roots: &str) -> Vec<ServedVersion> {
        let taken = taken_groups(registry);
        let mut served = corten_metric_sources::served(&Objects { registry, trusted_roots });
        served.retain(|version| !taken.contains(&version.group));
        served
    }

    /// Replaces the group versions; reports whether they changed.
    pub fn replace(&self, served: Vec<ServedVersion>) -> bool {
        let is_changed = **self.served.load() != served;
        if is_changed {
            self.served.store(Arc::new(served));
        }
        is_changed
    }

    /// Returns the group versions as discovery shows them.
    pub fn published(&self) -> Vec<RemoteVersion> {
        let published = |version: &ServedVersion| RemoteVersion {
            group: version.group.clone(),
            version: version.version.clone(),
            group_priority: GROUP_PRIORITY,
            version_priority: VERSION_PRIORITY,
            available: true,
            documents: Arc::new(RemoteDocuments { resources: version.resources.clone(), ..RemoteDocuments::default() }),
        };
        self.served.load().iter().map(published).collect()
    }

    /// Reports whether a path is one of the group versions.
    pub fn has(&self, path: &str) -> bool {
        let served = self.served.load();
        if served.is_empty() {
            return false;
        }
        let mut parts = path.trim_matches('/').split('/');
        let is_api = parts.next() == Some("apis");
        let (Some(group), Some(version)) = (parts.next(), parts.next()) else { return false };
        is_api && served.iter().any(|one| one.group == group && one.version == version)
    }
}

/// Returns those of the groups that a server of the user has.
fn taken_groups(registry: &Registry) -> BTreeSet<String> {
    let services = registry.cached_list(GROUP, "v1", PLURAL, "");
    let of_groups = services.iter().filter_map(|object| {
        let group = [CUSTOM_METRICS, EXTERNAL_METRICS].into_iter().find(|group| object.header.name.ends_with(group))?;
        object.value().pointer("/spec/service").is_some_and(Value::is_object).then(|| group.to_owned())
    });
    of_groups.collect()
}

impl Aggregation {
    /// Answers a request for one of the group versions of metrics. It is boxed: other requests do not carry its room.
    pub fn measure<'a>(&'a self, core: &'a Core, context: &'a Context) -> BoxFuture<'a, Result<Reply, Status>> {
        Box::pin(self.measured(core, context))
    }

    async fn measured(&self, core: &Core, context: &Context) -> Result<Reply, Status> {
        if context.method != Method::GET {
            return Err(Status::method_not_allowed());
        }
        // Writes before this request count: a new pod, a new source.
        core.registry.caches.fresh().await?;
        let objects = Objects { registry: &core.registry, trusted_roots: &self.trusted_roots };
        match corten_metric_sources::answer(&objects, &request(context)).await {
            Ok(Answered::Document(document)) => {
                let accept = Accept { format: Format::Json, view: View::Plain, ..context.accept };
                Ok(response::value(accept, StatusCode::OK, &document))
            }
            Ok(Answered::Adapters(specs)) => self.ask_adapters(core, context, specs).boxed().await,
            Err(error) => Err(status_of(&error)),
        }
    }

    /// Passes the request on to adapters, until one has the metric.
    async fn ask_adapters(&self, core: &Core, context: &Context, specs: Vec<Value>) -> Result<Reply, Status> {
        let mut last = Err(Status::path_not_found());
        for spec in specs {
            let remote = Remote::new(self.client.load_full(), &self.trusted_roots, &json!({"spec": spec}));
            let known = Known { remote: Arc::new(remote), available: true, documents: Arc::default() };
            last = forward(core, context, &known, RequestBody::Full(bytes::Bytes::new())).await;
            if last.as_ref().is_ok_and(|reply| reply.status() != StatusCode::NOT_FOUND) {
                break;
            }
        }
        last
    }
}

/// Reads the metric that a request names from its path.
fn request(context: &Context) -> Request {
    let path = context.info.path.trim_matches('/');
    let mut parts = path.split('/').skip(1);
    let mut next = || parts.next().unwrap_or_default().to_owned();
    let group = next();
    let version = next();
    let mut rest: Vec<String> = parts.map(str::to_owned).collect();
    let mut namespace = String::new();
    if rest.len() > 2 && rest[0] == "namespaces" {
        namespace = rest.remove(1);
        rest.remove(0);
    }
    let query = |key: &str| context.info.query.get(key).unwrap_or_default().to_owned();
    Request {
        group,
        version,
        namespace,
        parts: rest,
        label_selector: query("labelSelector"),
        metric_label_selector: query("metricLabelSelector"),
    }
}

fn status_of(error: &Error) -> Status {
    let message = error.to_string();
    match error {
        Error::NotFound(_) => {
            Status { code: 404, reason: status::REASON_NOT_FOUND.to_owned(), message, ..Status::default() }
        }
        Error::BadRequest(_) => Status::bad_request(message),
        Error::Unavailable(_) => Status::service_unavailable(message),
    }
}

/// The objects of the registry.
struct Objects<'a> {
    registry: &'a Registry,
    trusted_roots: &'a str,
}

impl Cluster for Objects<'_> {
    fn list(&self, group: &str, plural: &str, namespace: &str) -> Option<Listed> {
        let resources = self.registry.resources();
        let is_of_group = |kind: &corten_api::Kind| kind.group == group && !kind.verbs.is_empty();
        let resource = resources.of_plural(plural).iter().find(|resource| is_of_group(&resource.kind))?;
        let kind = &resource.kind;
        let namespace = if kind.namespaced { namespace } else { "" };
        Some(Listed {
            kind: kind.kind.clone(),
            version: kind.version.clone(),
            singular: kind.singular.clone(),
            namespaced: kind.namespaced,
            objects: self.registry.cached_list(group, &kind.version, plural, namespace),
        })
    }

    fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        Some(self.registry.cached("", "v1", plural, namespace, name)?.value())
    }

    fn resolve(&self, namespace: &str, service: &str, port: u16) -> Result<Address, String> {
        let resolved = self.registry.outbound.resolve(namespace, service, port);
        resolved.map(|(host, port)| Address { host, port }).map_err(|status| status.message)
    }

    fn roots(&self) -> &str {
        self.trusted_roots
    }
}
