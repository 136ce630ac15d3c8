//! The downward API: fields and resources of a pod as strings, for environment variables and volumes. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use corten_api::k8s_openapi::api::core::v1::{Container, ObjectFieldSelector, Pod, ResourceFieldSelector};

use super::resources::{self, ResourceList};
use super::spec;
use crate::error::{Error, Result};

/// The values of the downward API that are not in the spec.
#[derive(Clone, Debug, Default)]
pub struct Downward {
    pub pod_ips: Vec<String>,
    pub host_ips: Vec<IpAddr>,
    /// The node's allocatable resources: the limit of a container that has none.
    pub allocatable: ResourceList,
}

/// Returns the value of a `fieldRef`.
pub fn field(pod: &Pod, downward: &Downward, selector: &ObjectFieldSelector) -> Result<String> {
    let path = selector.field_path.as_str();
    if let Some((map, key)) = subscript(path) {
        let entries = match map {
            "metadata.labels" => pod.metadata.labels.as_ref(),
            "metadata.annotations" => pod.metadata.annotations.as_ref(),
            _ => return Err(unsupported(path)),
        };
        return Ok(entries.and_then(|entries| entries.get(key)).cloned().unwrap_or_default());
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    Ok(match path {
        "metadata.name" => spec::name(pod).to_owned(),
        "metadata.namespace" => spec::namespace(pod).to_owned(),
        "metadata.uid" => spec::uid(pod).to_owned(),
        "metadata.labels" => format_map(pod.metadata.labels.as_ref()),
        "metadata.annotations" => format_map(pod.metadata.annotations.as_ref()),
        "spec.nodeName" => text(&spec::spec(pod).node_name),
        "spec.serviceAccountName" => text(&spec::spec(pod).service_account_name),
        "status.hostIP" => downward.host_ips.first().map(IpAddr::to_string).unwrap_or_default(),
        "status.hostIPs" => join(downward.host_ips.iter().map(IpAddr::to_string)),
        "status.podIP" => downward.pod_ips.first().cloned().unwrap_or_default(),
        "status.podIPs" => join(downward.pod_ips.iter().cloned()),
        _ => return Err(unsupported(path)),
    })
}

fn unsupported(path: &str) -> Error {
    Error::pod(format!("unsupported fieldPath: {path}"))
}

fn join(values: impl Iterator<Item = String>) -> String {
    values.collect::<Vec<_>>().join(",")
}

/// Parses `metadata.labels['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    Some((map, key))
}

/// Formats one `key="value"` per line, sorted by key.
fn format_map(entries: Option<&BTreeMap<String, String>>) -> String {
    let lines: Vec<String> = entries
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", corten_meta::quote::quote(value)))
        .collect();
    lines.join("\n")
}

/// Returns the value of a `resourceFieldRef`, in units of its divisor, rounded up.
pub fn resource(
    pod: &Pod,
    own: Option<&Container>,
    downward: &Downward,
    selector: &ResourceFieldSelector,
) -> Result<String> {
    let declared;
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => {
            declared = spec::container(pod, name).ok_or_else(|| Error::pod(format!("container {name} not found")))?;
            declared.container.as_ref()
        }
        None => own.ok_or_else(|| Error::pod("resourceFieldRef without a containerName"))?,
    };
    let (kind, name) = selector.resource.split_once('.').unwrap_or(("", &selector.resource));
    let limits;
    let quantity = match kind {
        "limits" => {
            let own = container.resources.clone().unwrap_or_default();
            limits = resources::effective_limits(spec::spec(pod).resources.as_ref(), &own);
            limits.get(name).or_else(|| downward.allocatable.get(name))
        }
        "requests" => resources::requests(container).and_then(|list| list.get(name)),
        _ => return Err(Error::pod(format!("Unsupported container resource : {}", selector.resource))),
    };
    let divisor = selector.divisor.as_ref();
    Ok(if name == "cpu" {
        let divisor = divisor.map_or(0, resources::milli);
        divide(quantity.map_or(0, resources::milli), if divisor == 0 { 1000 } else { divisor })
    } else {
        let divisor = divisor.map_or(0, resources::value);
        divide(quantity.map_or(0, resources::value), if divisor == 0 { 1 } else { divisor })
    }
    .to_string())
}

fn divide(value: i64, divisor: i64) -> i64 {
    value / divisor + i64::from(value % divisor != 0)
}

#[cfg(test)]
mod tests {
    use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    use super::*;
    use crate::fixtures;

    fn example() -> (Pod, Downward) {
        let mut pod = fixtures::pod(
            r#"{"nodeName":"n1","serviceAccountName":"sa","containers":[{"name":"c","resources":{"limits":{"cpu":"1500m"},"requests":{"memory":"100Mi"}}}]}"#,
        );
        pod.metadata.labels = Some([("b".into(), "two \"q\"".into()), ("a".into(), "1".into())].into());
        let downward = Downward {
            pod_ips: vec!["10.244.0.5".into()],
            host_ips: vec![IpAddr::from([10, 0, 0, 1])],
            allocatable: [("memory".to_owned(), Quantity("1Gi".into()))].into(),
        };
        (pod, downward)
    }

    #[test]
    fn fields_by_path() {
        let (pod, downward) = example();
        for (path, expected) in [
            ("metadata.name", "p"),
            ("metadata.namespace", "ns"),
            ("metadata.uid", "pod-uid"),
            ("metadata.labels['a']", "1"),
            ("metadata.labels['none']", ""),
            ("metadata.labels", "a=\"1\"\nb=\"two \\\"q\\\"\""),
            ("spec.nodeName", "n1"),
            ("spec.serviceAccountName", "sa"),
            ("status.podIP", "10.244.0.5"),
            ("status.hostIPs", "10.0.0.1"),
        ] {
            let selector = ObjectFieldSelector { field_path: path.into(), ..ObjectFieldSelector::default() };
            assert_eq!(field(&pod, &downward, &selector).unwrap(), expected, "{path}");
        }
        let selector = ObjectFieldSelector { field_path: "spec.containers".into(), ..ObjectFieldSelector::default() };
        assert!(field(&pod, &downward, &selector).is_err());
    }

    #[test]
    fn resources_round_up_and_default_to_the_node() {
        let (pod, downward) = example();
        for (resource_name, divisor, expected) in [
            ("limits.cpu", "", "2"),
            ("limits.cpu", "1m", "1500"),
            ("limits.memory", "1Mi", "1024"),
            ("requests.memory", "1Mi", "100"),
            ("requests.memory", "", "104857600"),
            ("requests.cpu", "", "0"),
        ] {
            let selector = ResourceFieldSelector {
                resource: resource_name.into(),
                divisor: (!divisor.is_empty()).then(|| Quantity(divisor.into())),
                container_name: Some("c".into()),
            };
            assert_eq!(resource(&pod, None, &downward, &selector).unwrap(), expected, "{resource_name}/{divisor}");
        }
    }
}
