//! Custom and external metrics: of pods, of one object, or of systems outside the cluster.

use std::collections::BTreeMap;
use std::time::Duration;

use corten_api::k8s_openapi::api::autoscaling::v2::{CrossVersionObjectReference, MetricIdentifier, MetricSpec};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use corten_client::{Client, Error, Resource};
use corten_meta::{Quantity, Value};

use super::metrics::{PodMetrics, escape};
use super::usage::total;
use crate::runtime::discovery;

/// The versions of the custom metrics API, newest first.
const CUSTOM: [&str; 2] = ["/apis/custom.metrics.k8s.io/v1beta2", "/apis/custom.metrics.k8s.io/v1beta1"];
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";
/// The name of the single value of a pod.
pub const VALUE: &str = "value";

/// The measured values, in thousandths.
#[derive(Clone, Debug, PartialEq)]
pub enum Measured {
    Pods(BTreeMap<String, PodMetrics>),
    One(i64),
}

/// Reads the values of a metric; none for a resource metric, since those are read once for all.
pub async fn read(
    client: &Client,
    namespace: &str,
    metric: &MetricSpec,
    pods: &str,
) -> Option<Result<Measured, String>> {
    if let Some(source) = &metric.pods {
        return Some(of_pods(client, namespace, &source.metric, pods).await);
    }
    if let Some(source) = &metric.object {
        return Some(of_object(client, namespace, &source.metric, &source.described_object).await);
    }
    let source = metric.external.as_ref()?;
    Some(external(client, namespace, &source.metric).await)
}

async fn of_pods(client: &Client, namespace: &str, metric: &MetricIdentifier, pods: &str) -> Result<Measured, String> {
    let path = format!("/namespaces/{namespace}/pods/*/{}?labelSelector={}", metric.name, escaped(pods));
    let list =
        custom(client, &path, metric).await.map_err(|why| format!("unable to get metric {}: {why}", metric.name))?;
    Ok(by_pod(&list))
}

/// Returns the values of a list, by pod.
pub fn by_pod(list: &Value) -> Measured {
    let items = list["items"].as_array().into_iter().flatten();
    let named = |item: &Value| {
        let usage = BTreeMap::from([(VALUE.to_owned(), milli(item)?)]);
        let found = PodMetrics {
            at: item["timestamp"].as_str().and_then(|text| text.parse().ok()),
            window: item["windowSeconds"].as_u64().map_or(Duration::from_secs(60), Duration::from_secs),
            containers: BTreeMap::from([(String::new(), usage)]),
        };
        Some((item["describedObject"]["name"].as_str()?.to_owned(), found))
    };
    Measured::Pods(items.filter_map(named).collect())
}

async fn of_object(
    client: &Client,
    namespace: &str,
    metric: &MetricIdentifier,
    object: &CrossVersionObjectReference,
) -> Result<Measured, String> {
    let failed = |why: String| {
        format!("unable to get metric {}: {} on {namespace} {}/{why}", metric.name, object.kind, object.name)
    };
    let api_version = object.api_version.as_deref().unwrap_or_default();
    let resource = resource_of(client, api_version, &object.kind).await.map_err(failed)?;
    let mut plural = resource.plural.clone();
    if !resource.group.is_empty() {
        plural = format!("{plural}.{}", resource.group);
    }
    let path = match (resource.namespaced, plural.as_str()) {
        (true, _) => format!("/namespaces/{namespace}/{plural}/{}/{}?", object.name, metric.name),
        (false, "namespaces") => format!("/namespaces/{}/metrics/{}?", object.name, metric.name),
        (false, _) => format!("/{plural}/{}/{}?", object.name, metric.name),
    };
    let list = custom(client, &path, metric).await.map_err(failed)?;
    let value = list["items"].get(0).and_then(milli);
    value.map(Measured::One).ok_or_else(|| failed("no metrics returned from custom metrics API".to_owned()))
}

/// Returns the sum of all series that the selector matches.
async fn external(client: &Client, namespace: &str, metric: &MetricIdentifier) -> Result<Measured, String> {
    let failed =
        |why: String| format!("unable to get external metric {namespace}/{}/{}: {why}", metric.name, described(metric));
    let selector = metric.selector.as_ref().map(text).unwrap_or_default();
    let path = format!("{EXTERNAL}/namespaces/{namespace}/{}?labelSelector={}", metric.name, escaped(&selector));
    let list = fetch(client, &path)
        .await
        .map_err(|error| failed(format!("unable to fetch metrics from external metrics API: {}", why(&error))))?;
    sum(&list).ok_or_else(|| failed("no metrics returned from external metrics API".to_owned()))
}

/// Returns the sum of the values of a list; `None` if it has none.
pub fn sum(list: &Value) -> Option<Measured> {
    let values: Vec<i64> = list["items"].as_array().into_iter().flatten().filter_map(milli).collect();
    (!values.is_empty()).then(|| Measured::One(total(&values)))
}

/// Reads from the newest served version of the custom metrics API.
async fn custom(client: &Client, path: &str, metric: &MetricIdentifier) -> Result<Value, String> {
    let selector = metric.selector.as_ref().map(text).unwrap_or_default();
    let mut last = String::new();
    for version in CUSTOM {
        match fetch(client, &format!("{version}{path}&metricLabelSelector={}", escaped(&selector))).await {
            Ok(list) => return Ok(list),
            Err(error) if error.is_not_found() => last = why(&error),
            Err(error) => return Err(format!("unable to fetch metrics from custom metrics API: {}", why(&error))),
        }
    }
    Err(format!("unable to fetch metrics from custom metrics API: {last}"))
}

fn why(error: &Error) -> String {
    match error.is_not_found() {
        true => "the server could not find the requested resource".to_owned(),
        false => error.to_string(),
    }
}

async fn fetch(client: &Client, path: &str) -> Result<Value, Error> {
    let bytes = client.get_raw(path).await?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Decode(error.to_string()))
}

fn milli(item: &Value) -> Option<i64> {
    i64::try_from(Quantity::from_json(&item["value"]).ok()?.as_milli()).ok()
}

fn escaped(text: &str) -> String {
    text.bytes().map(escape).collect()
}

/// Returns a label selector in query syntax.
fn text(selector: &LabelSelector) -> String {
    let equal = selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}={value}"));
    let others = selector.match_expressions.iter().flatten().map(|one| {
        let values = one.values.clone().unwrap_or_default().join(",");
        match one.operator.as_str() {
            "Exists" => one.key.clone(),
            "DoesNotExist" => format!("!{}", one.key),
            "NotIn" => format!("{} notin ({values})", one.key),
            _ => format!("{} in ({values})", one.key),
        }
    });
    equal.chain(others).collect::<Vec<_>>().join(",")
}

/// Returns the selector of a metric as messages show it.
pub fn described(metric: &MetricIdentifier) -> String {
    let Some(selector) = &metric.selector else { return "nil".to_owned() };
    let labels: String =
        selector.match_labels.iter().flatten().map(|(key, value)| format!("{key}: {value},")).collect();
    let others: String = selector
        .match_expressions
        .iter()
        .flatten()
        .map(|one| {
            let values = one.values.clone().unwrap_or_default().join(" ");
            format!("LabelSelectorRequirement{{Key:{},Operator:{},Values:[{values}],}},", one.key, one.operator)
        })
        .collect();
    format!(
        "&LabelSelector{{MatchLabels:map[string]string{{{labels}}},MatchExpressions:[]LabelSelectorRequirement{{{others}}},}}"
    )
}

/// Returns the resource of a kind, built-in or custom.
pub async fn resource_of(client: &Client, api_version: &str, kind: &str) -> Result<Resource, String> {
    let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
    if let Some(known) = corten_api::by_gvk(group, version, kind) {
        return Ok(Resource::new(group, version, &known.plural, known.namespaced));
    }
    let (all, _) = discovery::resources(client).await.map_err(|error| error.to_string())?;
    let found = all.into_iter().find(|one| one.kind == kind && one.resource.group == group);
    found.map(|one| one.resource).ok_or_else(|| format!("no matches for kind {kind:?} in version {api_version:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_selector_is_written_for_a_query_and_for_a_message() {
        let metric: corten_api::k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler =
            corten_api::Typed::from_value(json!({"spec": {"metrics": [{"type": "External", "external": {"metric": {"name": "q",
                "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "NotIn", "values": ["d", "e"]}]}}}}]}}))
            .unwrap();
        let metric = metric.spec.metrics.unwrap()[0].external.clone().unwrap().metric;
        assert_eq!(text(metric.selector.as_ref().unwrap()), "a=b,c notin (d,e)");
        assert_eq!(
            described(&metric),
            "&LabelSelector{MatchLabels:map[string]string{a: b,},MatchExpressions:[]LabelSelectorRequirement{LabelSelectorRequirement{Key:c,Operator:NotIn,Values:[d e],},},}"
        );
        assert_eq!(described(&MetricIdentifier::default()), "nil");
    }
}
