//! The APIServices of the group versions that this server serves itself, one each.

use std::collections::BTreeSet;
use std::sync::Arc;

use corten_meta::Value;
use serde_json::json;

use super::Wanted;
use crate::registry::Resource;

/// The groups, with their priority and the priority of their first version.
const PRIORITIES: &[(&str, i64)] = &[
    ("", 18000),
    ("apps", 17800),
    ("events.k8s.io", 17750),
    ("authentication.k8s.io", 17700),
    ("authorization.k8s.io", 17600),
    ("autoscaling", 17500),
    ("batch", 17400),
    ("certificates.k8s.io", 17300),
    ("networking.k8s.io", 17200),
    ("policy", 17100),
    ("rbac.authorization.k8s.io", 17000),
    ("storage.k8s.io", 16800),
    ("apiextensions.k8s.io", 16700),
    ("admissionregistration.k8s.io", 16700),
    ("scheduling.k8s.io", 16600),
    ("coordination.k8s.io", 16500),
    ("node.k8s.io", 16300),
    ("discovery.k8s.io", 16200),
    ("flowcontrol.apiserver.k8s.io", 16100),
    ("resource.k8s.io", 16200),
];

pub fn wanted(resources: &[Arc<Resource>]) -> Vec<Wanted> {
    let versions: BTreeSet<(&str, &str)> =
        resources.iter().map(|r| (r.kind.group.as_str(), r.kind.version.as_str())).collect();
    versions
        .into_iter()
        // The API of APIServices itself is not registered with itself.
        .filter(|(group, _)| *group != "apiregistration.k8s.io")
        .map(|(group, version)| Wanted::new("apiregistration.k8s.io", "v1", "apiservices", api_service(group, version)))
        .collect()
}

fn api_service(group: &str, version: &str) -> Value {
    let priority = PRIORITIES.iter().find(|(name, _)| *name == group).map_or(2000, |(_, priority)| *priority);
    let version_priority = match (group, version) {
        ("", _) => 1,
        ("autoscaling", "v2") => 30,
        ("flowcontrol.apiserver.k8s.io" | "resource.k8s.io", "v1") => 21,
        _ => 15,
    };
    json!({
        "metadata": {
            "name": format!("{version}.{group}"),
            "labels": { "kube-aggregator.kubernetes.io/automanaged": "onstart" },
        },
        "spec": { "group": group, "version": version, "groupPriorityMinimum": priority, "versionPriority": version_priority },
        "status": { "conditions": [{
            "type": "Available", "status": "True", "reason": "Local", "message": "Local APIServices are always available",
            "lastTransitionTime": corten_meta::time::rfc3339(jiff::Timestamp::now()),
        }] },
    })
}
