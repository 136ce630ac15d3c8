//! Namespaces, PriorityClasses, the ServiceCIDR, and the CAs that extension API servers trust.

use corten_meta::Value;
use serde_json::json;

use super::Wanted;
use crate::config::Config;

const NAMESPACES: &[&str] = &["default", "kube-node-lease", "kube-public", "kube-system"];

/// Name, value and description of the classes.
const PRIORITY_CLASSES: &[(&str, i64, &str)] = &[
    (
        "system-cluster-critical",
        2_000_000_000,
        "Used for system critical pods that must run in the cluster, but can be moved to another node if necessary.",
    ),
    (
        "system-node-critical",
        2_000_001_000,
        "Used for system critical pods that must not be moved from their current node.",
    ),
];

pub fn wanted(config: &Config) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> = NAMESPACES
        .iter()
        .map(|name| Wanted::new("", "v1", "namespaces", json!({ "metadata": { "name": name } })))
        .collect();
    wanted.extend(PRIORITY_CLASSES.iter().map(|(name, value, description)| {
        let class = json!({ "metadata": { "name": name }, "value": value, "description": description,
                            "preemptionPolicy": "PreemptLowerPriority" });
        Wanted::new("scheduling.k8s.io", "v1", "priorityclasses", class)
    }));
    wanted.push(service_cidr(config));
    wanted.push(kubelet_api_admin());
    wanted.push(authorities(config, &config.client_ca, config.requestheader_ca.as_deref()));
    wanted.push(Wanted::new("", "v1", "configmaps", token_tracking()).repaired_by(repair_day));
    wanted
}

/// Makes the binding that allows this server to access kubelets, and nothing else.
fn kubelet_api_admin() -> Wanted {
    let group = "rbac.authorization.k8s.io";
    let binding = json!({
        "metadata": { "name": "corten:kubelet-api-admin" },
        "roleRef": { "apiGroup": group, "kind": "ClusterRole", "name": "system:kubelet-api-admin" },
        "subjects": [{ "apiGroup": group, "kind": "User", "name": "kube-apiserver-kubelet-client" }],
    });
    Wanted::new(group, "v1", "clusterrolebindings", binding)
}

fn service_cidr(config: &Config) -> Wanted {
    let now = corten_meta::time::rfc3339(jiff::Timestamp::now());
    let object = json!({
        "metadata": { "name": "kubernetes" },
        "spec": { "cidrs": config.service_cidr.split(',').collect::<Vec<_>>() },
        "status": { "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": now,
                                      "message": "Kubernetes default Service CIDR is ready" }] },
    });
    let status_author = Some("kubernetes-service-cidr-controller");
    Wanted { status_author, ..Wanted::new("networking.k8s.io", "v1", "servicecidrs", object) }
}

/// Returns the ConfigMap with the date since which this server tracks the uses of legacy tokens.
fn token_tracking() -> Value {
    json!({
        "metadata": { "namespace": "kube-system", "name": "kube-apiserver-legacy-service-account-token-tracking" },
        "data": { "since": crate::authentication::today() },
    })
}

/// Keeps a valid date: it is the first.
fn repair_day(present: &Value, wanted: &Value) -> Option<Value> {
    let since = present["data"]["since"].as_str().unwrap_or_default();
    if since.parse::<jiff::civil::Date>().is_ok() { None } else { repair_data(present, wanted) }
}

/// Returns the ConfigMap by which an extension API server authenticates users that this server forwards.
pub fn authorities(config: &Config, client_ca: &str, requestheader_ca: Option<&str>) -> Wanted {
    let mut data = json!({});
    if !client_ca.is_empty() {
        data["client-ca-file"] = client_ca.into();
    }
    if let Some(ca) = requestheader_ca {
        data["requestheader-client-ca-file"] = ca.into();
        data["requestheader-allowed-names"] = json!(config.requestheader_allowed_names).to_string().into();
        data["requestheader-username-headers"] = "[\"X-Remote-User\"]".into();
        data["requestheader-uid-headers"] = "[\"X-Remote-Uid\"]".into();
        data["requestheader-group-headers"] = "[\"X-Remote-Group\"]".into();
        data["requestheader-extra-headers-prefix"] = "[\"X-Remote-Extra-\"]".into();
    }
    let metadata = json!({ "name": "extension-apiserver-authentication", "namespace": "kube-system" });
    let object = json!({ "metadata": metadata, "data": data });
    Wanted::new("", "v1", "configmaps", object).repaired_by(repair_data)
}

fn repair_data(present: &Value, wanted: &Value) -> Option<Value> {
    if present["data"] == wanted["data"] {
        return None;
    }
    let mut object = present.clone();
    object["data"] = wanted["data"].clone();
    Some(object)
}
