//! The router: finds the source of a metric, and asks it.

use corten_meta::Value;
use corten_meta::labels::{Operator, Requirement, Selector};
use serde_json::{Map, json};

use crate::documents::{CustomValues, external_list, resource_list};
use crate::prometheus::{self, Sample};
use crate::source::{Metric, Prometheus, ResourceName, Source, sources};
use crate::template::{Variables, expand};
use crate::{Answered, CUSTOM_METRICS, Cluster, Error, Listed, Request};

/// The name that stands for all objects that the selector matches.
const ALL: &str = "*";

/// A metric that a request names.
struct Named<'a> {
    metric: &'a str,
    /// The resource of a custom metric, as `plural` or `plural.group`.
    resource: Option<&'a str>,
    /// The name of the object, or `*`.
    object: &'a str,
}

/// Answers a request.
pub async fn answer(cluster: &dyn Cluster, request: &Request) -> Result<Answered, Error> {
    if request.parts.is_empty() && request.namespace.is_empty() {
        return Ok(Answered::Document(resource_list(cluster, &request.group, &request.version)));
    }
    let named =
        named(request).ok_or_else(|| Error::NotFound("the server could not find the requested resource".to_owned()))?;
    let sources = sources(cluster);
    let found = sources.iter().find_map(|source| {
        let metric = source
            .spec
            .metrics
            .iter()
            .find(|metric| metric.name == named.metric && metric.resource.as_deref() == named.resource)?;
        Some((source, source.spec.prometheus.as_ref()?, metric))
    });
    let Some((source, server, metric)) = found else {
        return elsewhere(&sources, request, &named);
    };
    let question = Question { cluster, request, named: &named, source, server, metric };
    let document = match named.resource {
        Some(resource) => question.custom(resource).await?,
        None => question.external().await?,
    };
    Ok(Answered::Document(document))
}

/// Reads the metric and the object of a path.
fn named(request: &Request) -> Option<Named<'_>> {
    let parts: Vec<&str> = request.parts.iter().map(String::as_str).collect();
    if request.group != CUSTOM_METRICS {
        return match parts[..] {
            [metric] if !request.namespace.is_empty() => Some(Named { metric, resource: None, object: "" }),
            _ => None,
        };
    }
    match parts[..] {
        ["metrics", metric] if !request.namespace.is_empty() => {
            Some(Named { metric, resource: Some("namespaces"), object: &request.namespace })
        }
        [resource, object, metric] => Some(Named { metric, resource: Some(resource), object }),
        _ => None,
    }
}

/// Returns the adapters that may have a metric that no Prometheus server has.
fn elsewhere(sources: &[Source], request: &Request, named: &Named<'_>) -> Result<Answered, Error> {
    let adapters = sources.iter().filter_map(|source| source.spec.adapter.as_ref());
    let specs: Vec<Value> = adapters
        .filter(|adapter| adapter.serves(&request.group))
        .map(|adapter| adapter.api_service(&request.group, &request.version))
        .collect();
    if specs.is_empty() { Err(not_found(named)) } else { Ok(Answered::Adapters(specs)) }
}

fn not_found(named: &Named<'_>) -> Error {
    let metric = named.metric;
    Error::NotFound(match (named.resource, named.object) {
        (None, _) => format!("the server could not find the metric {metric}"),
        (Some(resource), ALL | "") => format!("the server could not find the metric {metric} for {resource}"),
        (Some(resource), object) => {
            format!("the server could not find the metric {metric} for {resource} {object}")
        }
    })
}

fn selector(text: &str) -> Result<Selector, Error> {
    Selector::parse(text).map_err(|error| Error::BadRequest(error.to_string()))
}

/// A request whose source is found.
struct Question<'a> {
    cluster: &'a dyn Cluster,
    request: &'a Request,
    named: &'a Named<'a>,
    source: &'a Source,
    server: &'a Prometheus,
    metric: &'a Metric,
}

impl Question<'_> {
    async fn custom(&self, resource: &str) -> Result<Value, Error> {
        let request = self.request;
        let resource = ResourceName::parse(resource);
        let listed = self.cluster.list(resource.group, resource.plural, &request.namespace);
        let listed = listed.ok_or_else(|| not_found(self.named))?;
        let objects = selector(&request.label_selector)?;
        let series = selector(&request.metric_label_selector)?;
        let names = self.names(&listed, &objects);
        let samples = match names.is_empty() {
            true => Vec::new(),
            false => self.samples(&names, &series).await?,
        };
        let label = self.metric.label.as_deref().unwrap_or(&listed.singular);
        let values: Vec<(&str, &Sample)> = names
            .iter()
            .filter_map(|name| Some((name.as_str(), sample_of(&samples, label, name, names.len() == 1)?)))
            .collect();
        if values.is_empty() && self.named.object != ALL {
            return Err(not_found(self.named));
        }
        let values = CustomValues {
            version: &request.version,
            metric: self.named.metric,
            namespace: &request.namespace,
            group: resource.group,
            listed: &listed,
            selector: label_selector(&series),
            values,
        };
        Ok(values.list())
    }

    async fn external(&self) -> Result<Value, Error> {
        let series = selector(&self.request.label_selector)?;
        let samples = self.samples(&[], &series).await?;
        Ok(external_list(self.named.metric, &samples))
    }

    /// Returns the names of the objects that the request is about, sorted.
    fn names(&self, listed: &Listed, selector: &Selector) -> Vec<String> {
        if self.named.object != ALL {
            return vec![self.named.object.to_owned()];
        }
        let matching = listed.objects.iter().filter(|object| selector.matches(&object.header.labels));
        let mut names: Vec<String> = matching.map(|object| object.header.name.clone()).collect();
        names.sort_unstable();
        names
    }

    async fn samples(&self, names: &[String], selector: &Selector) -> Result<Vec<Sample>, Error> {
        let variables = Variables { namespace: &self.request.namespace, names, selector };
        let query = expand(&self.metric.query, &variables).map_err(Error::BadRequest)?;
        prometheus::query(self.cluster, self.server, &query).await.map_err(|error| {
            let source = &self.source.name;
            Error::Unavailable(format!("metric {} of MetricSource {source}: {error}", self.metric.name))
        })
    }
}

/// Returns the sample of an object. A series without the label is the object's if the query is about no other.
fn sample_of<'a>(samples: &'a [Sample], label: &str, name: &str, is_alone: bool) -> Option<&'a Sample> {
    samples.iter().find(|sample| match sample.labels.get(label) {
        Some(value) => value == name,
        None => is_alone,
    })
}

/// Returns the selector of series as a LabelSelector; null without requirements.
fn label_selector(selector: &Selector) -> Value {
    if selector.is_empty() {
        return Value::Null;
    }
    let mut labels = Map::new();
    let mut expressions = Vec::new();
    for requirement in selector.requirements() {
        match (requirement.operator(), requirement.values()) {
            (Operator::Equals | Operator::DoubleEquals, [value]) => {
                labels.insert(requirement.key().to_owned(), json!(value));
            }
            _ => expressions.push(expression(requirement)),
        }
    }
    let mut selector = json!({});
    if !labels.is_empty() {
        selector["matchLabels"] = Value::Object(labels);
    }
    if !expressions.is_empty() {
        selector["matchExpressions"] = Value::Array(expressions);
    }
    selector
}

fn expression(requirement: &Requirement) -> Value {
    let operator = match requirement.operator() {
        Operator::NotEquals | Operator::NotIn => "NotIn",
        Operator::Exists => "Exists",
        Operator::DoesNotExist => "DoesNotExist",
        _ => "In",
    };
    let mut expression = json!({"key": requirement.key(), "operator": operator});
    if !requirement.values().is_empty() {
        expression["values"] = json!(requirement.values());
    }
    expression
}
