//! The availability of APIServices, and its condition.

use corten_meta::Value;
use corten_meta::quote::quote;
use serde_json::json;

use super::Remote;
use crate::registry::Registry;

/// The `Available` condition.
#[derive(Debug, PartialEq, Eq)]
pub struct Condition {
    pub status: &'static str,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    /// Returns the condition of a group version that this server serves itself.
    pub fn local() -> Condition {
        Condition { status: "True", reason: "Local", message: "Local APIServices are always available".to_owned() }
    }

    fn no(reason: &'static str, message: String) -> Condition {
        Condition { status: "False", reason, message }
    }

    /// Returns the APIService with this condition; `None` if it is up to date.
    pub fn set_in(&self, api_service: &Value, now: jiff::Timestamp) -> Option<Value> {
        let mut conditions =
            api_service.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        let mut new = json!({ "type": "Available", "status": self.status, "reason": self.reason,
                              "message": self.message, "lastTransitionTime": corten_meta::time::rfc3339(now) });
        let present = conditions.iter_mut().find(|c| c["type"] == "Available");
        match present {
            Some(old) => {
                let same = |key: &str| old[key] == new[key];
                if same("status") && same("reason") && same("message") {
                    return None;
                }
                if same("status") {
                    new["lastTransitionTime"] = old["lastTransitionTime"].clone();
                }
                *old = new;
            }
            None => conditions.push(new),
        }
        let mut written = api_service.clone();
        corten_meta::set(&mut written, "/status/conditions", json!(conditions));
        Some(written)
    }
}

/// Checks a remote server: its Service, its endpoints, and whether it answers.
pub async fn check(registry: &Registry, remote: &Remote) -> Condition {
    let namespace = &remote.namespace;
    let name = &remote.service;
    let Some(service) = registry.cached("", "v1", "services", namespace, name) else {
        return Condition::no("ServiceNotFound", format!("service/{name} in {} is not present", quote(namespace)));
    };
    let service = service.value();
    if service.pointer("/spec/type").and_then(Value::as_str) == Some("ClusterIP") {
        let ports = service.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
        let Some(port) = ports.iter().find(|p| p["port"] == u64::from(remote.port)) else {
            let message = format!(
                "service/{name} in {namespace} is not listening on port {}",
                remote.port,
                namespace = quote(namespace)
            );
            return Condition::no("ServicePortError", message);
        };
        let slices = registry.cached_list("discovery.k8s.io", "v1", "endpointslices", namespace);
        let label = "kubernetes.io/service-name";
        if !slices.iter().any(|slice| slice.header.labels.get(label) == Some(name)) {
            let message = format!("cannot find endpointslices for service/{name} in {}", quote(namespace));
            return Condition::no("EndpointsNotFound", message);
        }
        if registry.outbound.resolve(namespace, name, remote.port).is_err() {
            let port = port["name"].as_str().unwrap_or_default();
            let message = format!(
                "endpointslices for service/{name} in {} have no addresses with port name {}",
                quote(namespace),
                quote(port)
            );
            return Condition::no("MissingEndpoints", message);
        }
    }
    match remote.fetch(&registry.outbound, &remote.path()).await {
        Ok(_) => Condition { status: "True", reason: "Passed", message: "all checks passed".to_owned() },
        Err(message) => Condition::no("FailedDiscoveryCheck", message),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transition_is_a_change_of_status() {
        let at = |second| jiff::Timestamp::from_second(second).unwrap();
        let service = json!({ "spec": {} });
        let down = Condition::no("ServiceNotFound", "a".to_owned()).set_in(&service, at(1)).unwrap();
        assert_eq!(Condition::no("ServiceNotFound", "a".to_owned()).set_in(&down, at(2)), None);
        let still = Condition::no("MissingEndpoints", "b".to_owned()).set_in(&down, at(2)).unwrap();
        assert_eq!(still["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:01Z");
        let up = Condition::local().set_in(&still, at(3)).unwrap();
        assert_eq!(up["status"]["conditions"][0]["lastTransitionTime"], "1970-01-01T00:00:03Z");
        assert_eq!(up["status"]["conditions"].as_array().unwrap().len(), 1);
    }
}
