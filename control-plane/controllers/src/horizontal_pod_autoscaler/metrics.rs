//! The resource usage of pods, from the resource metrics API.

use std::collections::BTreeMap;
use std::time::Duration;

use corten_client::Client;
use corten_meta::{Quantity, Value};
use jiff::Timestamp;

/// The usage of one pod: by container, then by resource, in thousandths.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodMetrics {
    pub at: Option<Timestamp>,
    pub window: Duration,
    pub containers: BTreeMap<String, BTreeMap<String, i64>>,
}

/// Reads the metrics of the pods that a selector matches, by pod.
pub async fn read(client: &Client, namespace: &str, selector: &str) -> Result<BTreeMap<String, PodMetrics>, String> {
    let encoded: String = selector.bytes().map(escape).collect();
    let path = format!("/apis/metrics.k8s.io/v1beta1/namespaces/{namespace}/pods?labelSelector={encoded}");
    let failed = |why: String| format!("unable to fetch metrics from resource metrics API: {why}");
    let bytes = client.get_raw(&path).await.map_err(|error| match error.is_not_found() {
        true => failed("the server could not find the requested resource (get pods.metrics.k8s.io)".to_owned()),
        false => failed(error.to_string()),
    })?;
    let list: Value = serde_json::from_slice(&bytes).map_err(|error| failed(error.to_string()))?;
    let metrics = parse(&list);
    if metrics.is_empty() {
        return Err("no metrics returned from resource metrics API".to_owned());
    }
    Ok(metrics)
}

/// Escapes a byte of a query, so that it is not taken for a delimiter.
pub fn escape(byte: u8) -> String {
    match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    }
}

pub fn parse(list: &Value) -> BTreeMap<String, PodMetrics> {
    let items = list["items"].as_array().into_iter().flatten();
    items.map(|item| (corten_meta::name(item).to_owned(), pod(item))).collect()
}

fn pod(item: &Value) -> PodMetrics {
    let usage = |container: &Value| {
        let usage = container["usage"].as_object().into_iter().flatten();
        let milli = |value: &Value| i64::try_from(Quantity::from_json(value).ok()?.as_milli()).ok();
        usage.filter_map(|(name, value)| Some((name.clone(), milli(value)?))).collect()
    };
    let containers = item["containers"].as_array().into_iter().flatten();
    let named = |one: &Value| Some((one["name"].as_str()?.to_owned(), usage(one)));
    let window = item["window"].as_str().and_then(|text| text.trim_end_matches('s').parse::<f64>().ok());
    PodMetrics {
        at: item["timestamp"].as_str().and_then(|text| text.parse().ok()),
        window: window.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(Duration::from_secs(60)),
        containers: containers.filter_map(named).collect(),
    }
}
