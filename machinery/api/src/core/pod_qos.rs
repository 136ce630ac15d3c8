//! The quality of service class of a pod, from the requests and limits of its containers.

use corten_meta::{Quantity, Value};

use crate::cells::list;

/// Returns `Guaranteed`, `Burstable` or `BestEffort`.
pub(super) fn qos_class(pod: &Value) -> &'static str {
    let pod_level = pod.pointer("/spec/resources").filter(|resources| resources.is_object());
    let resources: Vec<Option<&Value>> = match pod_level {
        Some(resources) => vec![Some(resources)],
        None => ["/spec/containers", "/spec/initContainers"]
            .iter()
            .flat_map(|l| list(pod, l))
            .map(|c| c.get("resources"))
            .collect(),
    };
    let mut best_effort = true;
    let mut guaranteed = true;
    for resources in resources {
        for resource in ["cpu", "memory"] {
            let quantity = |side: &str| {
                let value = resources?.get(side)?.get(resource)?;
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
                Quantity::parse(&text).ok().filter(|q| q.as_milli() != 0)
            };
            let request = quantity("requests");
            let limit = quantity("limits");
            best_effort &= request.is_none() && limit.is_none();
            guaranteed &= limit.is_some() && (request.is_none() || request == limit);
        }
    }
    match (best_effort, guaranteed) {
        (true, _) => "BestEffort",
        (_, true) => "Guaranteed",
        _ => "Burstable",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn classes() {
        let pod = |resources: Value| json!({"spec": {"containers": [{"resources": resources}]}});
        for (resources, wanted) in [
            (json!({}), "BestEffort"),
            (json!({"requests": {"cpu": "1"}}), "Burstable"),
            (json!({"limits": {"cpu": "1", "memory": "1Gi"}}), "Guaranteed"),
            (
                json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "1000m", "memory": "1Gi"}}),
                "Guaranteed",
            ),
            (json!({"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}), "Burstable"),
            (json!({"limits": {"memory": "1Gi"}}), "Burstable"),
        ] {
            assert_eq!(qos_class(&pod(resources.clone())), wanted, "{resources}");
        }
    }
}
