//! Whether an object has arrived where its spec wants it.

use corten_meta::Value;

/// Reports whether nothing more is to be done for an object.
pub fn is_settled(object: &Value) -> bool {
    let status = &object["status"];
    let count = |value: &Value| value.as_i64().unwrap_or(0);
    let is_true = |kind: &str| {
        let mut conditions = status["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
    };
    let observed = count(&status["observedGeneration"]) >= count(&object["metadata"]["generation"]);
    let wanted = object["spec"]["replicas"].as_i64().unwrap_or(1);
    match object["kind"].as_str() {
        Some("Deployment") => {
            let counts = ["replicas", "updatedReplicas", "availableReplicas"];
            observed && counts.iter().all(|name| count(&status[*name]) == wanted)
        }
        Some("StatefulSet") => {
            observed
                && count(&status["readyReplicas"]) == wanted
                && (count(&status["updatedReplicas"]) == wanted
                    || status["currentRevision"] == status["updateRevision"])
        }
        Some("ReplicaSet" | "ReplicationController") => observed && count(&status["readyReplicas"]) == wanted,
        Some("DaemonSet") => {
            let desired = count(&status["desiredNumberScheduled"]);
            observed && desired == count(&status["numberReady"]) && desired == count(&status["updatedNumberScheduled"])
        }
        Some("Job") => is_true("Complete") || is_true("Failed"),
        Some("Pod") => is_true("Ready") || matches!(status["phase"].as_str(), Some("Succeeded" | "Failed")),
        Some("PersistentVolumeClaim") => status["phase"] == "Bound",
        _ => true,
    }
}
