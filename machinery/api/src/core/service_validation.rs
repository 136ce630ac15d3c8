//! The rules of a Service.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use crate::cells::{list, number, text};
use crate::defaulting::absent;
use crate::validation::{invalid_each, labels, port, port_number_or_name, required_word, supported};

const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

pub(super) fn validate_service(service: &Value) -> Vec<FieldError> {
    let spec = Path::root("spec");
    let kind = text(service, "/spec/type");
    let headless = text(service, "/spec/clusterIP") == "None";
    let ports = list(service, "/spec/ports");
    let mut errors = Vec::new();
    if ports.is_empty() && !headless && kind != "ExternalName" {
        errors.push(FieldError::required(&spec.child("ports"), ""));
    }
    errors.extend(validate_type(service, kind, headless, &spec));
    errors.extend(validate_ports(ports, headless, &spec.child("ports")));
    errors.extend(labels(&service["spec"]["selector"], &spec.child("selector")));
    errors.extend(required_word(
        &service["spec"]["sessionAffinity"],
        &spec.child("sessionAffinity"),
        &["ClientIP", "None"],
    ));
    errors.extend(required_word(
        &service["spec"]["type"],
        &spec.child("type"),
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
    ));
    errors.extend(validate_addresses(service, &spec));
    errors.extend(validate_policies(service, kind, &spec));
    errors
}

fn validate_type(service: &Value, kind: &str, headless: bool, spec: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match kind {
        "LoadBalancer" if headless => {
            let detail = "may not be set to 'None' for LoadBalancer services";
            errors.push(FieldError::invalid(&spec.child("clusterIPs").index(0), "None", detail));
        }
        "NodePort" if headless => {
            let detail = "may not be set to 'None' for NodePort services";
            errors.push(FieldError::invalid(&spec.child("clusterIPs").index(0), "None", detail));
        }
        "ExternalName" => {
            let path = spec.child("externalName");
            if !list(service, "/spec/clusterIPs").is_empty() {
                let detail = "may not be set for ExternalName services";
                errors.push(FieldError::forbidden(&spec.child("clusterIPs"), detail));
            }
            let name = text(service, "/spec/externalName").trim_end_matches('.');
            if name.is_empty() {
                errors.push(FieldError::required(&path, ""));
            } else {
                errors.extend(invalid_each(&path, name, names::dns1123_subdomain(name)));
            }
        }
        _ => {}
    }
    errors
}

fn validate_ports(ports: &[Value], headless: bool, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut port_names = BTreeSet::new();
    let mut seen = BTreeSet::new();
    for (at, service_port) in ports.iter().enumerate() {
        let path = path.index(at);
        let name = text(service_port, "/name");
        if name.is_empty() {
            if ports.len() > 1 {
                errors.push(FieldError::required(&path.child("name"), ""));
            }
        } else {
            errors.extend(invalid_each(&path.child("name"), name, names::dns1123_label(name)));
            if !port_names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
        }
        errors.extend(port(number(service_port, "/port"), &path.child("port")));
        errors.extend(required_word(&service_port["protocol"], &path.child("protocol"), PROTOCOLS));
        errors.extend(port_number_or_name(&service_port["targetPort"], &path.child("targetPort")));
        if headless && service_port["targetPort"].is_string() {
            continue;
        }
        let key = (text(service_port, "/protocol"), number(service_port, "/port"));
        if !seen.insert(key) {
            let value = serde_json::json!({"protocol": key.0, "port": key.1});
            errors.push(FieldError::duplicate(&path, value));
        }
    }
    errors
}

fn validate_addresses(service: &Value, spec: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (at, address) in list(service, "/spec/clusterIPs").iter().filter_map(Value::as_str).enumerate() {
        if address != "None" && !address.is_empty() {
            errors.extend(invalid_each(&spec.child("clusterIPs").index(at), address, names::ip(address)));
        }
    }
    for (at, address) in list(service, "/spec/externalIPs").iter().filter_map(Value::as_str).enumerate() {
        errors.extend(invalid_each(&spec.child("externalIPs").index(at), address, names::ip(address)));
    }
    let ranges = list(service, "/spec/loadBalancerSourceRanges");
    if !ranges.is_empty() && text(service, "/spec/type") != "LoadBalancer" {
        let detail = "may only be used when `type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden(&spec.child("loadBalancerSourceRanges"), detail));
    }
    errors
}

fn validate_policies(service: &Value, kind: &str, spec: &Path) -> Vec<FieldError> {
    const POLICIES: &[&str] = &["Cluster", "Local"];
    let mut errors = Vec::new();
    let external = !absent(service, "/spec/externalTrafficPolicy");
    let reachable = matches!(kind, "NodePort" | "LoadBalancer") || !list(service, "/spec/externalIPs").is_empty();
    let path = spec.child("externalTrafficPolicy");
    if external && !reachable {
        let detail = "may only be set for externally-accessible services";
        errors.push(FieldError::invalid(&path, service["spec"]["externalTrafficPolicy"].clone(), detail));
    }
    errors.extend(supported(&service["spec"]["externalTrafficPolicy"], &path, POLICIES));
    errors.extend(supported(&service["spec"]["internalTrafficPolicy"], &spec.child("internalTrafficPolicy"), POLICIES));
    if !absent(service, "/spec/loadBalancerClass") && kind != "LoadBalancer" {
        let detail = "may only be used when `type` is 'LoadBalancer'";
        errors.push(FieldError::forbidden(&spec.child("loadBalancerClass"), detail));
    }
    errors
}

/// The cluster address stays, unless the type takes it away.
pub(super) fn validate_service_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let (was, is) = (text(old, "/spec/type"), text(new, "/spec/type"));
    if was == "ExternalName" || is == "ExternalName" {
        return Vec::new();
    }
    let path = Path::root("spec").child("clusterIPs").index(0);
    let (before, after) = (text(old, "/spec/clusterIPs/0"), text(new, "/spec/clusterIPs/0"));
    if before.is_empty() || before == after {
        return Vec::new();
    }
    let value = Value::from(list(new, "/spec/clusterIPs").to_vec());
    vec![FieldError::invalid(&path, value, "may not change once set")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: Value) -> Vec<String> {
        let mut service = json!({ "spec": spec });
        super::super::service::kind().default(&mut service);
        validate_service(&service).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn services() {
        assert!(check(json!({"ports": [{"port": 80}]})).is_empty());
        assert_eq!(check(json!({})), ["spec.ports: Required value"]);
        assert!(check(json!({"clusterIP": "None"})).is_empty());
        assert_eq!(
            check(json!({"ports": [{"port": 80}, {"port": 81}]})),
            ["spec.ports[0].name: Required value", "spec.ports[1].name: Required value"]
        );
        assert_eq!(
            check(json!({"ports": [{"port": 0}]})),
            [
                "spec.ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "spec.ports[0].targetPort: Invalid value: 0: must be between 1 and 65535, inclusive",
            ]
        );
        assert_eq!(
            check(json!({"type": "Odd", "ports": [{"port": 1}]})),
            [
                "spec.type: Unsupported value: \"Odd\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\""
            ]
        );
        assert_eq!(check(json!({"type": "ExternalName"})), ["spec.externalName: Required value"]);
    }
}
