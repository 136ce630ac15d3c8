//! NodeDeclaredFeatureValidator: a running pod is not changed in a way that its node's declared features do not
//! support.

use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use super::attributes::Attributes;
use super::operation::Operation;
use super::plugin::Plugin;
use super::pod_resize::node_of_changed;

pub struct NodeDeclaredFeatureValidator;

impl Plugin for NodeDeclaredFeatureValidator {
    fn validate<'a>(&'a self, a: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(async move {
            let is_concerned = a.is("", "pods", "") || a.is("", "pods", "resize");
            let Some(old) = a.old.as_deref().filter(|_| a.operation == Operation::Update && is_concerned) else {
                return Ok(());
            };
            let needed = needed(old, &a.object);
            if needed.is_empty() {
                return Ok(());
            }
            let Some(node) = node_of_changed(a)? else { return Ok(()) };
            let declared = node["status"]["declaredFeatures"].as_array().cloned().unwrap_or_default();
            let lacking: Vec<&str> =
                needed.into_iter().filter(|needed| !declared.iter().any(|d| d == needed)).collect();
            if lacking.is_empty() {
                return Ok(());
            }
            let features = lacking.join(", ");
            let node = quote(corten_meta::name(&node));
            Err(a.forbidden(format!("pod update requires features {features} which are not available on node {node}")))
        })
    }
}

/// Returns the features that a node must declare to support a change. Quantities are in canonical form here, so equal
/// ones compare as equal.
fn needed(old: &Value, new: &Value) -> Vec<&'static str> {
    let inits = |pod: &Value| pod["spec"]["initContainers"].as_array().cloned().unwrap_or_default();
    let asks = |container: &Value| container["resources"].as_object().cloned().unwrap_or_default();
    let is_resized = |(old, new): (&Value, &Value)| old["restartPolicy"] != "Always" && asks(old) != asks(new);
    let mut needed = Vec::new();
    if old["spec"]["resources"] != new["spec"]["resources"] {
        needed.push("InPlacePodLevelResourcesVerticalScaling");
    }
    if inits(old).iter().zip(&inits(new)).any(is_resized) {
        needed.push("InPlacePodVerticalScalingInitContainers");
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_resize_of_the_pod_or_of_an_init_container_needs_a_node_that_can() {
        let pod = |resources: Value, init: Value, policy: &str| {
            json!({ "spec": { "resources": resources, "containers": [{}],
                              "initContainers": [{ "resources": init, "restartPolicy": policy }] } })
        };
        let small = json!({ "requests": { "cpu": "1" } });
        let large = json!({ "requests": { "cpu": "2" } });
        let from = |policy: &str| pod(small.clone(), small.clone(), policy);
        assert_eq!(needed(&from(""), &from("")), [""; 0]);
        assert_eq!(needed(&from("Always"), &pod(small.clone(), large.clone(), "Always")), [""; 0]);
        assert_eq!(
            needed(&from(""), &pod(large.clone(), large.clone(), "")),
            ["InPlacePodLevelResourcesVerticalScaling", "InPlacePodVerticalScalingInitContainers"]
        );
    }
}
