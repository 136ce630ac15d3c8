//! The metrics that autoscalers read beside CPU and memory: `custom.metrics.k8s.io` and `external.metrics.k8s.io`,
//! answered from the sources that MetricSources name.
//!
//! A MetricSource is a Prometheus server with named queries, or an adapter, which is another server of the same API.
//! Any number of them can be in a cluster: the metric's name decides which one answers. Nothing is asked unless a
//! client asks.
//!
//! - [`definition`]: the CustomResourceDefinition.
//! - [`served`]: the group versions that have a source, for discovery.
//! - [`answer`]: one request.
//!
//! Invariant: a string of a request or an object reaches a query only inside of a quoted string, escaped (`template`).
//! Must never: read the store, or repeat a query by itself.

mod definition;
mod documents;
mod prometheus;
mod router;
mod source;
mod template;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use corten_meta::{Object, Value};

pub use definition::{GROUP, PLURAL, VERSION, definition};
pub use documents::{ServedVersion, served};
pub use router::answer;

/// The group of metrics of objects.
pub const CUSTOM_METRICS: &str = "custom.metrics.k8s.io";
/// The group of metrics of systems outside of the cluster.
pub const EXTERNAL_METRICS: &str = "external.metrics.k8s.io";
/// The namespace of the Secrets that MetricSources name.
pub const SECRET_NAMESPACE: &str = "kube-system";

/// The objects of a resource, and the names of their kind.
#[derive(Clone, Debug, Default)]
pub struct Listed {
    pub kind: String,
    pub version: String,
    pub singular: String,
    pub namespaced: bool,
    pub objects: Vec<Arc<Object>>,
}

/// The cluster that metrics are about.
pub trait Cluster: Send + Sync {
    /// Returns the objects of a resource; `None` if the cluster has no such resource.
    fn list(&self, group: &str, plural: &str, namespace: &str) -> Option<Listed>;

    /// Returns an object of the core group.
    fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value>;

    /// Returns the host and port of a ready endpoint of a Service.
    fn resolve(&self, namespace: &str, service: &str, port: u16) -> Result<Address, String>;

    /// Returns the CAs, in PEM, that verify servers without a CA of their own.
    fn roots(&self) -> &str;
}

/// The host and port of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    pub host: String,
    pub port: u16,
}

/// A request for one of the groups.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub group: String,
    pub version: String,
    pub namespace: String,
    /// The parts of the path after the version and the namespace.
    pub parts: Vec<String>,
    /// The selector of objects for custom metrics, and of series for external ones.
    pub label_selector: String,
    /// The selector of series for custom metrics.
    pub metric_label_selector: String,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum Answered {
    Document(Value),
    /// The specs of the APIServices of adapters that may have the metric. The first whose answer is not 404 has it.
    Adapters(Vec<Value>),
}

/// The reason why a metric cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    BadRequest(String),
    #[error("{0}")]
    Unavailable(String),
}
