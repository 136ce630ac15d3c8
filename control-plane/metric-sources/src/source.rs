//! A MetricSource as it is used: where the metrics come from, and which there are.

use corten_meta::Value;
use serde::Deserialize;
use serde_json::json;

use crate::definition::{GROUP, PLURAL};
use crate::{CUSTOM_METRICS, Cluster, EXTERNAL_METRICS};

/// The port of an adapter whose source names none.
const ADAPTER_PORT: u16 = 443;

/// A MetricSource.
#[derive(Clone, Debug, PartialEq)]
pub struct Source {
    pub name: String,
    pub spec: Spec,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Spec {
    pub prometheus: Option<Prometheus>,
    pub adapter: Option<Adapter>,
    pub metrics: Vec<Metric>,
}

/// A Prometheus server, or another server with its API.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Prometheus {
    pub url: Option<String>,
    pub service: Option<Service>,
    /// The name of the Secret with the credentials.
    pub secret_name: Option<String>,
    pub timeout_seconds: Option<u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Service {
    pub namespace: String,
    pub name: String,
    pub port: u16,
    pub scheme: String,
    pub path: String,
}

/// Another server of the same API, such as KEDA's or prometheus-adapter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Adapter {
    pub service: AdapterService,
    pub ca_bundle: Option<String>,
    #[serde(rename = "insecureSkipTLSVerify")]
    pub insecure_skip_tls_verify: bool,
    /// The groups that it serves; both if it names none.
    pub groups: Vec<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AdapterService {
    pub namespace: String,
    pub name: String,
    pub port: Option<u16>,
}

/// A named query.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Metric {
    pub name: String,
    /// The resource that the metric is of, as `plural` or `plural.group`. Without one, the metric is external.
    pub resource: Option<String>,
    pub query: String,
    /// The label of a series that has the object's name; the resource's singular name by default.
    pub label: Option<String>,
}

/// A resource, by its plural name and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResourceName<'a> {
    pub plural: &'a str,
    pub group: &'a str,
}

impl<'a> ResourceName<'a> {
    /// Splits `plural` or `plural.group`.
    pub fn parse(text: &'a str) -> ResourceName<'a> {
        let (plural, group) = text.split_once('.').unwrap_or((text, ""));
        ResourceName { plural, group }
    }
}

impl Adapter {
    pub fn serves(&self, group: &str) -> bool {
        self.groups.is_empty() || self.groups.iter().any(|one| one == group)
    }

    /// Returns the spec of the APIService by which the adapter would be registered.
    pub fn api_service(&self, group: &str, version: &str) -> Value {
        let service = &self.service;
        let port = service.port.unwrap_or(ADAPTER_PORT);
        let mut spec = json!({
            "group": group,
            "version": version,
            "service": {"namespace": service.namespace, "name": service.name, "port": port},
        });
        if let Some(bundle) = &self.ca_bundle {
            spec["caBundle"] = json!(bundle);
        }
        if self.insecure_skip_tls_verify {
            spec["insecureSkipTLSVerify"] = json!(true);
        }
        spec
    }
}

impl Spec {
    /// Reports whether the source may have metrics of a group.
    pub fn serves(&self, group: &str) -> bool {
        let of_adapter = self.adapter.as_ref().is_some_and(|adapter| adapter.serves(group));
        let is_of_group = |metric: &Metric| group_of(metric) == group;
        of_adapter || self.prometheus.is_some() && self.metrics.iter().any(is_of_group)
    }
}

/// Returns the group that a metric is in.
pub fn group_of(metric: &Metric) -> &'static str {
    if metric.resource.is_some() { CUSTOM_METRICS } else { EXTERNAL_METRICS }
}

/// Returns the MetricSources of a cluster, by name. One that is being deleted has no metrics any more.
pub fn sources(cluster: &dyn Cluster) -> Vec<Source> {
    let listed = cluster.list(GROUP, PLURAL, "").unwrap_or_default();
    let present = listed.objects.iter().filter(|object| object.header.deletion_timestamp.is_none());
    let mut sources: Vec<Source> = present
        .filter_map(|object| {
            let spec = serde_json::from_value(object.value().get("spec")?.clone()).ok()?;
            Some(Source { name: object.header.name.clone(), spec })
        })
        .collect();
    sources.sort_by(|a, b| a.name.cmp(&b.name));
    sources
}
