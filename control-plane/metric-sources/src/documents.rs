//! The documents of both groups: the resources of discovery, and lists of values.

use corten_meta::quantity::Format;
use corten_meta::{Quantity, Value, time};
use serde_json::json;

use crate::prometheus::Sample;
use crate::source::{Metric, ResourceName, Source, group_of, sources};
use crate::{CUSTOM_METRICS, Cluster, EXTERNAL_METRICS, Listed};

/// The versions of both groups, the preferred one first.
const VERSIONS: [(&str, &str); 3] =
    [(CUSTOM_METRICS, "v1beta2"), (CUSTOM_METRICS, "v1beta1"), (EXTERNAL_METRICS, "v1beta1")];

/// A group version that has a source.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedVersion {
    pub group: String,
    pub version: String,
    /// The resources, in the form of aggregated discovery.
    pub resources: Vec<Value>,
}

/// Returns the group versions that have a source.
pub fn served(cluster: &dyn Cluster) -> Vec<ServedVersion> {
    let sources = sources(cluster);
    let has_source = |group: &str| sources.iter().any(|source| source.spec.serves(group));
    let served = VERSIONS.iter().filter(|(group, _)| has_source(group));
    served
        .map(|(group, version)| ServedVersion {
            group: (*group).to_owned(),
            version: (*version).to_owned(),
            resources: aggregated(cluster, &sources, group, version),
        })
        .collect()
}

/// A metric of a resource, as discovery shows it.
struct Shown {
    /// The resource for a custom metric, else the metric.
    resource: String,
    metric: Option<String>,
    namespaced: bool,
}

fn shown(cluster: &dyn Cluster, sources: &[Source], group: &str) -> Vec<Shown> {
    let metrics = sources.iter().filter(|source| source.spec.prometheus.is_some()).flat_map(|one| &one.spec.metrics);
    let mut shown: Vec<Shown> = metrics
        .filter(|metric| group_of(metric) == group)
        .map(|Metric { name, resource, .. }| match resource {
            None => Shown { resource: name.clone(), metric: None, namespaced: true },
            Some(resource) => {
                let named = ResourceName::parse(resource);
                let namespaced = cluster.list(named.group, named.plural, "").is_some_and(|listed| listed.namespaced);
                Shown { resource: resource.clone(), metric: Some(name.clone()), namespaced }
            }
        })
        .collect();
    shown.sort_by(|a, b| (&a.resource, &a.metric).cmp(&(&b.resource, &b.metric)));
    shown.dedup_by(|a, b| (&a.resource, &a.metric) == (&b.resource, &b.metric));
    shown
}

fn kind_of(group: &str) -> &'static str {
    if group == CUSTOM_METRICS { "MetricValueList" } else { "ExternalMetricValueList" }
}

fn aggregated(cluster: &dyn Cluster, sources: &[Source], group: &str, version: &str) -> Vec<Value> {
    let kind = json!({"group": group, "version": version, "kind": kind_of(group)});
    let scope = |namespaced: bool| if namespaced { "Namespaced" } else { "Cluster" };
    let mut resources: Vec<Value> = Vec::new();
    for Shown { resource, metric, namespaced } in shown(cluster, sources, group) {
        let Some(metric) = metric else {
            resources.push(json!({
                "resource": resource, "responseKind": kind, "scope": scope(namespaced), "singularResource": "",
                "verbs": ["get"],
            }));
            continue;
        };
        let metric = json!({"subresource": metric, "responseKind": kind, "verbs": ["get"]});
        // The parent of metrics is no resource of its own; clients expect it without a kind.
        match resources.last_mut().filter(|last| last["resource"] == resource.as_str()) {
            Some(last) => {
                if let Some(list) = last["subresources"].as_array_mut() {
                    list.push(metric);
                }
            }
            None => resources.push(json!({
                "resource": resource, "responseKind": {"group": "", "version": "", "kind": ""},
                "scope": scope(namespaced), "singularResource": "", "verbs": [], "subresources": [metric],
            })),
        }
    }
    resources
}

/// Returns the APIResourceList of a group version.
pub fn resource_list(cluster: &dyn Cluster, group: &str, version: &str) -> Value {
    let resources: Vec<Value> = shown(cluster, &sources(cluster), group)
        .into_iter()
        .map(|Shown { resource, metric, namespaced }| {
            let name = metric.map_or_else(|| resource.clone(), |metric| format!("{resource}/{metric}"));
            json!({
                "name": name, "singularName": "", "namespaced": namespaced, "kind": kind_of(group), "verbs": ["get"],
            })
        })
        .collect();
    json!({
        "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{group}/{version}"),
        "resources": resources,
    })
}

/// The values of a custom metric, and what they are of.
pub struct CustomValues<'a> {
    pub version: &'a str,
    pub metric: &'a str,
    pub namespace: &'a str,
    pub group: &'a str,
    pub listed: &'a Listed,
    pub selector: Value,
    /// The name of the object, and its sample.
    pub values: Vec<(&'a str, &'a Sample)>,
}

impl CustomValues<'_> {
    /// Returns the MetricValueList.
    pub fn list(&self) -> Value {
        let items: Vec<Value> = self.values.iter().map(|(name, sample)| self.item(name, sample)).collect();
        json!({
            "kind": "MetricValueList", "apiVersion": format!("{CUSTOM_METRICS}/{}", self.version), "metadata": {},
            "items": items,
        })
    }

    fn item(&self, name: &str, sample: &Sample) -> Value {
        // Upstream's adapters write the core group's version with a slash before it.
        let api_version = format!("{}/{}", self.group, self.listed.version);
        let mut object = json!({"kind": self.listed.kind, "name": name, "apiVersion": api_version});
        if self.listed.namespaced {
            object["namespace"] = json!(self.namespace);
        }
        let mut item = json!({
            "describedObject": object,
            "timestamp": time::rfc3339(sample.time),
            "value": quantity(sample.value),
        });
        match self.version {
            "v1beta1" => {
                item["metricName"] = json!(self.metric);
                item["selector"] = self.selector.clone();
            }
            _ => item["metric"] = json!({"name": self.metric, "selector": self.selector}),
        }
        item
    }
}

/// Returns the ExternalMetricValueList of the samples of a metric.
pub fn external_list(metric: &str, samples: &[Sample]) -> Value {
    let items: Vec<Value> = samples
        .iter()
        .map(|sample| {
            json!({
                "metricName": metric,
                "metricLabels": sample.labels,
                "timestamp": time::rfc3339(sample.time),
                "value": quantity(sample.value),
            })
        })
        .collect();
    json!({
        "kind": "ExternalMetricValueList", "apiVersion": format!("{EXTERNAL_METRICS}/v1beta1"), "metadata": {},
        "items": items,
    })
}

/// Returns a value in thousandths. The quotient of zero by zero is none, and counts as zero.
fn quantity(value: f64) -> String {
    // The conversion of a float saturates, and makes zero of what is no number.
    let milli = (value * 1000.0) as i64;
    Quantity::from_milli(i128::from(milli), Format::DecimalSi).to_string()
}
