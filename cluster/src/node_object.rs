//! Properties of a machine in its Node object.

use corten_meta::Value;

/// The label and the taint of the nodes that run the control plane.
pub const CONTROL_PLANE: &str = "node-role.kubernetes.io/control-plane";

/// The label of the nodes of servers, whose addresses are those of the API. Kubelets may not set it, and no user needs to
/// remove it, unlike the label of the role.
pub const SERVER: &str = "node-restriction.kubernetes.io/corten-server";

/// Reports whether the Node's condition Ready is True.
pub fn is_ready(node: &Value) -> bool {
    let conditions = node.pointer("/status/conditions").and_then(Value::as_array);
    conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Ready" && c["status"] == "True"))
}

/// Reports whether the node runs the control plane.
pub fn is_control_plane(node: &Value) -> bool {
    node.pointer("/metadata/labels").is_some_and(|labels| labels.get(CONTROL_PLANE).is_some())
}

#[cfg(test)]
mod tests {
    use super::is_ready;

    #[test]
    fn readiness_is_the_condition_ready() {
        let node = |status: &str| serde_json::json!({"status": {"conditions": [{"type": "Ready", "status": status}]}});
        assert!(is_ready(&node("True")));
        assert!(!is_ready(&node("Unknown")));
        assert!(!is_ready(&serde_json::json!({})));
    }
}
