//! Service.

use std::collections::BTreeSet;

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;
use serde_json::json;

use super::service_validation;
use crate::cells::{age, format_labels, list, name, number, text};
use crate::defaulting::{absent, default_at, items, put, remove};
use crate::kind::{Behaviour, Kind, NameRule};

struct Service;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Service", "services")
        .short(&["svc"])
        .category("all")
        .proxy("ServiceProxyOptions")
        .status()
        .stored_at("/registry/services/specs")
        .create_on_update()
        .name_rule(NameRule::Label)
        .selectable(&["spec.clusterIP", "spec.type"])
        .table("Name, Type, Cluster-IP, External-IP, Port(s), Age; Selector")
        .returns_deleted()
        .behaviour(Service)
}

impl Behaviour for Service {
    fn default(&self, service: &mut Value) {
        default_affinity(service);
        let is_of_unknown_type = absent(service, "/spec/type");
        default_at(service, "/spec/type", "ClusterIP");
        for port in items(service, "/spec/ports") {
            default_at(port, "/protocol", "TCP");
            if absent(port, "/targetPort") || port["targetPort"] == 0 || port["targetPort"] == "" {
                put(port, "/targetPort", number(port, "/port"));
            }
        }
        let kind = text(service, "/spec/type").to_string();
        let external = matches!(kind.as_str(), "NodePort" | "LoadBalancer")
            || (kind == "ClusterIP" && !list(service, "/spec/externalIPs").is_empty());
        if external {
            default_at(service, "/spec/externalTrafficPolicy", "Cluster");
        }
        if kind != "ExternalName" {
            default_at(service, "/spec/internalTrafficPolicy", "Cluster");
        }
        if kind == "LoadBalancer" {
            default_at(service, "/spec/allocateLoadBalancerNodePorts", true);
        }
        // A write of the status may lack the spec; only load balancers may have these fields.
        if kind == "LoadBalancer" || is_of_unknown_type {
            for ingress in items(service, "/status/loadBalancer/ingress").filter(|i| !absent(i, "/ip")) {
                default_at(ingress, "/ipMode", "VIP");
            }
        }
    }

    /// Keeps the cluster IP and the list of cluster IPs consistent.
    fn prepare_create(&self, service: &mut Value) {
        normalize_cluster_ips(service, None);
        put(service, "/status", json!({"loadBalancer": {}}));
    }

    /// Keeps allocated fields that the client leaves out.
    fn prepare_update(&self, new: &mut Value, old: &Value) {
        keep_service_allocations(new, old);
        drop_fields_of_other_types(new, old);
    }

    /// Hides the internal traffic policy of an ExternalName Service, which is stored.
    fn shown(&self, stored: &[u8]) -> Option<Value> {
        let says = |text: &str| stored.windows(text.len()).any(|part| part == text.as_bytes());
        if !says("\"type\":\"ExternalName\"") || !says("\"internalTrafficPolicy\":\"") {
            return None;
        }
        let mut service: Value = serde_json::from_slice(stored).ok()?;
        let is_outside = text(&service, "/spec/type") == "ExternalName";
        (is_outside && remove(&mut service, "/spec/internalTrafficPolicy").is_some()).then_some(service)
    }

    fn validate(&self, service: &Value) -> Vec<FieldError> {
        service_validation::validate_service(service, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        service_validation::validate_service_update(new, old)
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        service_validation::validate_service_status_update(new, old)
    }

    fn warnings(&self, service: &Value, _old: Option<&Value>) -> Vec<String> {
        super::service_warnings::warnings(service)
    }

    fn status_warnings(&self, service: &Value) -> Vec<String> {
        crate::address_warnings::load_balancers(service)
    }

    fn cells(&self, service: &Value, now: Timestamp) -> Vec<Value> {
        let cluster_ip = text(service, "/spec/clusterIPs/0");
        let cluster_ip = crate::cells::or(cluster_ip, text(service, "/spec/clusterIP"));
        vec![
            name(service),
            text(service, "/spec/type").into(),
            crate::cells::or(cluster_ip, "<none>").into(),
            external_ip(service).into(),
            ports(service).into(),
            age(service, now),
            format_labels(service.pointer("/spec/selector")).into(),
        ]
    }

    fn fields(&self, service: &Value, field: &str) -> Option<String> {
        match field {
            "spec.clusterIP" => Some(text(service, "/spec/clusterIP").to_string()),
            "spec.type" => Some(text(service, "/spec/type").to_string()),
            _ => None,
        }
    }
}

fn default_affinity(service: &mut Value) {
    default_at(service, "/spec/sessionAffinity", "None");
    match text(service, "/spec/sessionAffinity") {
        "None" => {
            remove(service, "/spec/sessionAffinityConfig");
        }
        "ClientIP" if absent(service, "/spec/sessionAffinityConfig/clientIP/timeoutSeconds") => {
            put(service, "/spec/sessionAffinityConfig", json!({"clientIP": {"timeoutSeconds": 10800}}));
        }
        _ => {}
    }
}

/// Keeps `clusterIP` and `clusterIPs` consistent, as a client may know only the former.
fn normalize_cluster_ips(new: &mut Value, old: Option<&Value>) {
    let ip = text(new, "/spec/clusterIP").to_string();
    let ips = list(new, "/spec/clusterIPs").to_vec();
    let Some(old) = old else {
        if !ip.is_empty() && ips.is_empty() {
            put(new, "/spec/clusterIPs", json!([ip]));
        }
        return;
    };
    let same_ip = text(old, "/spec/clusterIP") == ip;
    // A client that knows only `clusterIP`, and leaves it, leaves all.
    if same_ip && ips.is_empty() && !list(old, "/spec/clusterIPs").is_empty() {
        put(new, "/spec/clusterIPs", old["spec"]["clusterIPs"].clone());
        return;
    }
    let same_ips = list(old, "/spec/clusterIPs") == ips;
    if !same_ip && same_ips {
        if ip.is_empty() {
            remove(new, "/spec/clusterIPs");
        } else {
            put(new, "/spec/clusterIPs", json!([ip]));
        }
    }
}

/// Keeps allocated fields that an update leaves out.
pub fn keep_service_allocations(new: &mut Value, old: &Value) {
    if has_address(new) && has_address(old) {
        // The families are derived again.
        for field in ["/spec/clusterIP", "/spec/clusterIPs", "/spec/ipFamilyPolicy"] {
            // An empty policy is an invalid one, not an absent one.
            let is_word = field == "/spec/ipFamilyPolicy";
            let empty = new.pointer(field).is_none_or(|v| v == "" && !is_word || v.is_null() || *v == json!([]));
            if empty && let Some(value) = old.pointer(field) {
                put(new, field, value.clone());
            }
        }
    }
    if has_node_ports(new) && has_node_ports(old) {
        keep_node_ports(new, old);
    }
    let kept = number(old, "/spec/healthCheckNodePort");
    if is_checked(new) && is_checked(old) && kept != 0 && number(new, "/spec/healthCheckNodePort") == 0 {
        put(new, "/spec/healthCheckNodePort", kept);
    }
    normalize_cluster_ips(new, Some(old));
}

/// Keeps the node port of a port of the same name, unless the update gives it to another.
fn keep_node_ports(new: &mut Value, old: &Value) {
    let taken: Vec<i64> = list(new, "/spec/ports").iter().map(|port| number(port, "/nodePort")).collect();
    for port in items(new, "/spec/ports").filter(|port| number(port, "/nodePort") == 0) {
        let same = |other: &&Value| text(other, "/name") == text(port, "/name");
        let kept = list(old, "/spec/ports").iter().rfind(same).map_or(0, |other| number(other, "/nodePort"));
        if kept != 0 && !taken.contains(&kept) {
            put(port, "/nodePort", kept);
        }
    }
}

fn has_address(service: &Value) -> bool {
    text(service, "/spec/type") != "ExternalName"
}

fn has_node_ports(service: &Value) -> bool {
    match text(service, "/spec/type") {
        "LoadBalancer" => service.pointer("/spec/allocateLoadBalancerNodePorts") != Some(&Value::Bool(false)),
        kind => kind == "NodePort",
    }
}

fn is_balanced(service: &Value) -> bool {
    text(service, "/spec/type") == "LoadBalancer"
}

fn is_checked(service: &Value) -> bool {
    is_balanced(service) && text(service, "/spec/externalTrafficPolicy") == "Local"
}

fn is_reachable(service: &Value) -> bool {
    let has_addresses = !list(service, "/spec/externalIPs").is_empty();
    matches!(text(service, "/spec/type"), "NodePort" | "LoadBalancer")
        || text(service, "/spec/type") == "ClusterIP" && has_addresses
}

/// Reports whether a Service may have a field.
type Has = fn(&Value) -> bool;

/// Drops the fields that the new type does not have, if the client left them unchanged.
fn drop_fields_of_other_types(new: &mut Value, old: &Value) {
    const ADDRESSES: [&str; 2] = ["/spec/clusterIP", "/spec/clusterIPs"];
    const FAMILIES: [&str; 2] = ["/spec/ipFamilies", "/spec/ipFamilyPolicy"];
    const BELONGINGS: [(&str, Has); 4] = [
        ("/spec/healthCheckNodePort", is_checked),
        ("/spec/allocateLoadBalancerNodePorts", is_balanced),
        ("/spec/loadBalancerClass", is_balanced),
        ("/spec/externalTrafficPolicy", is_reachable),
    ];
    let unchanged = |new: &Value, field: &str| new.pointer(field) == old.pointer(field);
    if has_address(old) && !has_address(new) {
        if ADDRESSES.iter().all(|field| unchanged(new, field)) {
            ADDRESSES.iter().for_each(|field| drop(remove(new, field)));
        }
        for field in FAMILIES {
            if unchanged(new, field) {
                remove(new, field);
            }
        }
    }
    let node_ports = |service: &Value| -> BTreeSet<i64> {
        list(service, "/spec/ports").iter().map(|port| number(port, "/nodePort")).filter(|port| *port != 0).collect()
    };
    let may_have = |service: &Value| matches!(text(service, "/spec/type"), "NodePort" | "LoadBalancer");
    if may_have(old) && !may_have(new) && node_ports(old) == node_ports(new) {
        items(new, "/spec/ports").for_each(|port| drop(remove(port, "/nodePort")));
    }
    for (field, belongs) in BELONGINGS {
        if belongs(old) && !belongs(new) && unchanged(new, field) {
            remove(new, field);
        }
    }
    if !is_balanced(new) {
        put(new, "/status/loadBalancer", json!({}));
    }
}

fn external_ip(service: &Value) -> String {
    let external: Vec<&str> = list(service, "/spec/externalIPs").iter().filter_map(Value::as_str).collect();
    match text(service, "/spec/type") {
        "ExternalName" => text(service, "/spec/externalName").to_string(),
        "LoadBalancer" => {
            let balancer = load_balancer(service);
            let all: Vec<&str> =
                balancer.split(',').filter(|s| !s.is_empty()).chain(external.iter().copied()).collect();
            if all.is_empty() { "<pending>".to_string() } else { all.join(",") }
        }
        "ClusterIP" | "NodePort" if external.is_empty() => "<none>".to_string(),
        "ClusterIP" | "NodePort" => external.join(","),
        _ => "<unknown>".to_string(),
    }
}

/// Returns the addresses or names of a load balancer, sorted and without repeats; an Ingress has the same field.
pub(crate) fn load_balancer(object: &Value) -> String {
    let all: std::collections::BTreeSet<&str> = list(object, "/status/loadBalancer/ingress")
        .iter()
        .map(|i| crate::cells::or(text(i, "/ip"), text(i, "/hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    crate::cells::join(all.into_iter())
}

fn ports(service: &Value) -> String {
    let port = |p: &Value| {
        let number_ = number(p, "/port");
        let node_port = number(p, "/nodePort");
        let protocol = text(p, "/protocol");
        if node_port > 0 { format!("{number_}:{node_port}/{protocol}") } else { format!("{number_}/{protocol}") }
    };
    let all: Vec<String> = list(service, "/spec/ports").iter().map(port).collect();
    if all.is_empty() { "<none>".to_string() } else { all.join(",") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaulted(mut service: Value) -> Value {
        kind().default(&mut service);
        service
    }

    #[test]
    fn defaults() {
        let service = defaulted(json!({"spec": {"ports": [{"port": 80}], "type": "LoadBalancer"}}));
        assert_eq!(
            service["spec"],
            json!({
                "ports": [{"port": 80, "targetPort": 80, "protocol": "TCP"}], "type": "LoadBalancer",
                "sessionAffinity": "None", "externalTrafficPolicy": "Cluster", "internalTrafficPolicy": "Cluster",
                "allocateLoadBalancerNodePorts": true,
            })
        );
    }

    #[test]
    fn a_load_balancer_ip_has_a_mode_without_the_spec() {
        let status = |service: Value| defaulted(service)["status"]["loadBalancer"]["ingress"][0].clone();
        let ingress = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
        let wanted = json!({"ip": "192.0.2.1", "ipMode": "VIP"});
        assert_eq!(status(json!({"status": ingress})), wanted);
        assert_eq!(status(json!({"spec": {"type": "LoadBalancer"}, "status": ingress})), wanted);
        assert_eq!(status(json!({"spec": {"type": "ClusterIP"}, "status": ingress})), json!({"ip": "192.0.2.1"}));
    }

    #[test]
    fn an_update_keeps_allocations() {
        let old = json!({"spec": {"type": "NodePort", "clusterIP": "10.96.0.5", "clusterIPs": ["10.96.0.5"],
            "ports": [{"name": "a", "port": 80, "nodePort": 30080}, {"name": "b", "port": 81, "nodePort": 30081}]}});
        let mut new = json!({"spec": {"type": "NodePort", "ports": [
            {"name": "a", "port": 8080}, {"name": "b", "port": 80}, {"name": "c", "port": 82, "nodePort": 30081}]}});
        Service.prepare_update(&mut new, &old);
        assert_eq!(new["spec"]["clusterIP"], "10.96.0.5");
        assert_eq!(new["spec"]["clusterIPs"], json!(["10.96.0.5"]));
        assert_eq!(new["spec"]["ports"][0]["nodePort"], 30080);
        assert_eq!(new["spec"]["ports"][1].get("nodePort"), None);

        let mut back = old.clone();
        back["spec"]["type"] = "ClusterIP".into();
        Service.prepare_update(&mut back, &old);
        assert_eq!(back["spec"]["ports"][0].get("nodePort"), None);

        let mut other = old.clone();
        other["spec"]["clusterIP"] = "10.96.0.6".into();
        other["spec"].as_object_mut().expect("a spec").remove("clusterIPs");
        Service.prepare_update(&mut other, &old);
        assert_eq!(other["spec"]["clusterIPs"], json!(["10.96.0.6"]));

        let mut outside = json!({"spec": {"type": "ExternalName", "externalName": "a", "clusterIP": "10.96.0.5"}});
        Service.prepare_update(&mut outside, &old);
        assert_eq!(outside["spec"].get("clusterIP"), None, "who leaves the first address leaves all");
    }

    #[test]
    fn an_external_name_does_not_show_its_policy() {
        let shown = |service: Value| Service.shown(service.to_string().as_bytes());
        let outside = json!({"spec": {"type": "ExternalName", "internalTrafficPolicy": "Local"}});
        assert_eq!(shown(outside), Some(json!({"spec": {"type": "ExternalName"}})));
        assert_eq!(shown(json!({"spec": {"type": "ExternalName", "externalName": "a"}})), None);
        let messages = json!({"a": "\"type\":\"ExternalName\"", "type": "ExternalName"});
        assert_eq!(
            shown(json!({"b": messages, "spec": {"type": "ClusterIP", "internalTrafficPolicy": "Local"}})),
            None
        );
    }

    #[test]
    fn rows() {
        let now = Timestamp::UNIX_EPOCH;
        let row = |spec: Value, status: Value| {
            Service.cells(&json!({"metadata": {"name": "s"}, "spec": spec, "status": status}), now)
        };
        let cells = row(
            json!({"type": "LoadBalancer", "clusterIPs": ["10.96.0.1"], "selector": {"b": "2", "a": "1"},
                   "ports": [{"port": 80, "nodePort": 30000, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}),
            json!({}),
        );
        assert_eq!(cells[1..5], ["LoadBalancer", "10.96.0.1", "<pending>", "80:30000/TCP,53/UDP"].map(Value::from));
        assert_eq!(cells[6], "a=1,b=2");
    }
}
