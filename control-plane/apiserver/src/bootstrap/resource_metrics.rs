//! The APIService and the reader role of `metrics.k8s.io/v1beta1`, which a server with access to kubelets serves
//! itself.

use std::collections::BTreeMap;

use corten_meta::time;
use serde_json::json;

use super::Wanted;

const GROUP: &str = "metrics.k8s.io";
const VERSION: &str = "v1beta1";

/// Returns the group's APIService, and the role that lets users who may view pods read their metrics.
pub fn wanted() -> Vec<Wanted> {
    let service = json!({
        "metadata": {"name": format!("{VERSION}.{GROUP}")},
        "spec": {"group": GROUP, "version": VERSION, "groupPriorityMinimum": 100, "versionPriority": 100},
        "status": {"conditions": [{
            "type": "Available", "status": "True", "reason": "Local",
            "message": "Local APIServices are always available",
            "lastTransitionTime": time::rfc3339(jiff::Timestamp::now()),
        }]},
    });
    let labels: BTreeMap<String, &str> = ["view", "edit", "admin"]
        .map(|role| (format!("rbac.authorization.k8s.io/aggregate-to-{role}"), "true"))
        .into_iter()
        .collect();
    let reader = json!({
        "metadata": {"name": "system:aggregated-metrics-reader", "labels": labels},
        "rules": [{"apiGroups": [GROUP], "resources": ["pods", "nodes"], "verbs": ["get", "list", "watch"]}],
    });
    vec![
        Wanted::new("apiregistration.k8s.io", "v1", "apiservices", service),
        Wanted::new("rbac.authorization.k8s.io", "v1", "clusterroles", reader),
    ]
}
