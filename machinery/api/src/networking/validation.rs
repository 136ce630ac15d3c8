//! The rules of Ingress and NetworkPolicy.

use corten_meta::field::{FieldError, Path};
use corten_meta::names::address;
use corten_meta::{Value, names};

use crate::cells::{list, number, text};
use crate::check::{At, Errors};
use crate::validation::{invalid_each, label_selector, legacy_ip, port, port_number_or_name};

/// Validates an Ingress. If the old object has invalid paths of wildcard hosts, those of all wildcard hosts may be.
pub(super) fn validate_ingress(object: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let is_wild = |rule: &Value| text(rule, "/host").contains('*');
    let rules_of = |object| list(object, "/spec/rules").iter();
    let invalid = |rule: &&Value| is_wild(rule) && !validate_rule(rule, &Path::root("spec")).is_empty();
    let spares_wild = old.is_some_and(|old| rules_of(old).any(|rule| invalid(&rule)));
    let path = Path::root("spec");
    let spec = &object["spec"];
    let rules = list(spec, "/rules");
    let mut errors = Vec::new();
    if rules.is_empty() && !spec["defaultBackend"].is_object() {
        let detail = "either `defaultBackend` or `rules` must be specified";
        errors.push(FieldError::invalid(&path, spec["rules"].clone(), detail));
    }
    if spec["defaultBackend"].is_object() {
        errors.extend(validate_backend(&spec["defaultBackend"], &path.child("defaultBackend")));
    }
    for (at, rule) in rules.iter().enumerate() {
        let path = path.child("rules").index(at);
        let host = text(rule, "/host");
        if !host.is_empty() {
            errors.extend(validate_host(host, &path.child("host")));
        }
        if !spares_wild || !is_wild(rule) {
            errors.extend(validate_rule(rule, &path));
        }
    }
    for (at, tls) in list(spec, "/tls").iter().enumerate() {
        for (host_at, host) in list(tls, "/hosts").iter().filter_map(Value::as_str).enumerate() {
            errors.extend(validate_name(host, &path.child("tls").index(at).child("hosts").index(host_at)));
        }
        let secret = At::new(&tls["secretName"], &path.child("tls").index(at).child("secretName"));
        secret.follows(&mut errors, names::dns1123_subdomain);
    }
    let class = At::new(&spec["ingressClassName"], &path.child("ingressClassName"));
    if class.is_set() {
        class.follows_also_empty(&mut errors, names::dns1123_subdomain);
    }
    errors
}

/// Validates the paths of a host.
fn validate_rule(rule: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if !rule["http"].is_object() {
        return errors;
    }
    let path = path.child("http").child("paths");
    let paths = list(rule, "/http/paths");
    if paths.is_empty() {
        errors.push(FieldError::required(&path, ""));
    }
    for (at, item) in paths.iter().enumerate() {
        errors.extend(validate_path(item, &path.index(at)));
    }
    errors
}

/// Validates that the class is named in one field, or in both the same.
pub(super) fn validate_ingress_create(object: &Value) -> Vec<FieldError> {
    const CLASS: &str = "kubernetes.io/ingress.class";
    let annotation = object["metadata"]["annotations"].get(CLASS);
    let (Some(annotation), Some(class)) = (annotation, object["spec"]["ingressClassName"].as_str()) else {
        return Vec::new();
    };
    if annotation == class {
        return Vec::new();
    }
    let path = Path::root("annotations").child(CLASS);
    vec![FieldError::invalid(&path, annotation.clone(), "must match `ingressClassName` when both are specified")]
}

/// Validates the load balancer's addresses in the status of an Ingress.
pub(super) fn validate_ingress_status(new: &Value, old: &Value) -> Vec<FieldError> {
    let ingress = |object| At::object(object).get("status").get("loadBalancer").get("ingress");
    let before: Vec<&str> = ingress(old).items().map(|i| i.get("ip").text()).collect();
    let mut errors = Errors::new();
    for point in ingress(new).items() {
        if !point.get("ip").is_empty() {
            legacy_ip(&point.get("ip"), &before, &mut errors);
        }
        let host = point.get("hostname");
        host.follows(&mut errors, names::dns1123_subdomain);
        if address::parse_sloppy(host.text()).is_some() {
            errors.push(host.invalid("must be a DNS name, not an IP address"));
        }
    }
    errors
}

/// Validates a reference to an object in the same namespace.
pub(super) fn validate_reference(at: &At<'_>, errors: &mut Errors) {
    if at.get("apiGroup").is_set() {
        at.get("apiGroup").follows_also_empty(errors, names::dns1123_subdomain);
    }
    at.get("kind").must_follow(errors, names::path_segment_name);
    at.get("name").must_follow(errors, names::path_segment_name);
}

fn validate_host(host: &str, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if address::parse_sloppy(host).is_some() {
        errors.push(FieldError::invalid(path, host, "must be a DNS name, not an IP address"));
    }
    errors.extend(validate_name(host, path));
    errors
}

/// Validates the name of a host, or of all hosts of a domain.
fn validate_name(host: &str, path: &Path) -> Vec<FieldError> {
    let messages =
        if host.contains('*') { names::wildcard_dns1123_subdomain(host) } else { names::dns1123_subdomain(host) };
    invalid_each(path, host, messages)
}

fn validate_path(item: &Value, path: &Path) -> Vec<FieldError> {
    let kind = text(item, "/pathType");
    let target = text(item, "/path");
    let target_path = path.child("path");
    if item["pathType"].is_null() {
        return vec![FieldError::required(&path.child("pathType"), "pathType must be specified")];
    }
    let mut errors = Vec::new();
    let types = ["Exact", "ImplementationSpecific", "Prefix"];
    At::new(&item["pathType"], &path.child("pathType")).one_of(&mut errors, &types);
    let strict = kind == "Exact" || kind == "Prefix";
    let lenient = kind == "ImplementationSpecific" && !target.is_empty();
    if !target.starts_with('/') && (strict || lenient) {
        errors.push(FieldError::invalid(&target_path, target, "must be an absolute path"));
    }
    if strict {
        for sequence in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|s| target.contains(**s)) {
            errors.push(FieldError::invalid(&target_path, target, format!("must not contain '{sequence}'")));
        }
        for suffix in ["/..", "/."].iter().filter(|s| target.ends_with(**s)) {
            errors.push(FieldError::invalid(&target_path, target, format!("cannot end with '{suffix}'")));
        }
    }
    errors.extend(validate_backend(&item["backend"], &path.child("backend")));
    errors
}

fn validate_backend(backend: &Value, path: &Path) -> Vec<FieldError> {
    match (backend["resource"].is_object(), backend["service"].is_object()) {
        (true, true) => return vec![FieldError::invalid(path, "", "cannot set both resource and service backends")],
        (false, false) => return vec![FieldError::invalid(path, "", "resource or service backend is required")],
        (true, false) => {
            let mut errors = Errors::new();
            validate_reference(&At::new(&backend["resource"], &path.child("resource")), &mut errors);
            return errors;
        }
        (false, true) => {}
    }
    let service = path.child("service");
    let mut errors = match text(backend, "/service/name") {
        "" => vec![FieldError::required(&service.child("name"), "")],
        name => invalid_each(&service.child("name"), name, names::dns1123_label(name)),
    };
    let name = text(backend, "/service/port/name");
    let port_ = number(backend, "/service/port/number");
    match (name.is_empty(), port_ == 0) {
        (false, false) => errors.push(FieldError::invalid(path, "", "cannot set both port name & port number")),
        (false, true) => {
            errors.extend(invalid_each(&service.child("port").child("name"), name, names::port_name(name)));
        }
        (true, false) => errors.extend(port(port_, &service.child("port").child("number"))),
        (true, true) => errors.push(FieldError::required(path, "port name or number is required")),
    }
    errors
}

pub(super) fn validate_network_policy(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let spec = &object["spec"];
    let mut errors = label_selector(&spec["podSelector"], &path.child("podSelector"));
    for (direction, peers) in [("ingress", "from"), ("egress", "to")] {
        for (at, rule) in list(spec, &format!("/{direction}")).iter().enumerate() {
            let path = path.child(direction).index(at);
            for (at, port) in list(rule, "/ports").iter().enumerate() {
                errors.extend(validate_policy_port(port, &path.child("ports").index(at)));
            }
            for (at, peer) in list(rule, &format!("/{peers}")).iter().enumerate() {
                errors.extend(validate_peer(peer, &path.child(peers).index(at)));
            }
        }
    }
    let types = list(spec, "/policyTypes");
    if types.len() > 2 {
        let detail = "may not specify more than two policyTypes";
        errors.push(FieldError::invalid(&path.child("policyTypes"), Value::from(types.to_vec()), detail));
        return errors;
    }
    for (at, kind) in list(spec, "/policyTypes").iter().enumerate() {
        At::new(kind, &path.child("policyTypes").index(at)).one_of(&mut errors, &["Ingress", "Egress"]);
    }
    errors
}

fn validate_policy_port(policy_port: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    At::new(&policy_port["protocol"], &path.child("protocol")).one_of(&mut errors, &["TCP", "UDP", "SCTP"]);
    let end_path = path.child("endPort");
    let end = policy_port.get("endPort").and_then(Value::as_i64);
    match (&policy_port["port"], end) {
        (Value::Null, Some(end)) => {
            errors.push(FieldError::invalid(&end_path, end, "may not be specified when `port` is not specified"));
        }
        (Value::Null, None) => {}
        (first, end) => {
            if let (Value::String(_), Some(end)) = (first, end) {
                errors.push(FieldError::invalid(&end_path, end, "may not be specified when `port` is non-numeric"));
            }
            errors.extend(port_number_or_name(first, &path.child("port")));
            if let (Some(first), Some(end)) = (first.as_i64(), end) {
                if end < first {
                    let detail = "must be greater than or equal to `port`";
                    errors.push(FieldError::invalid(&end_path, first, detail));
                }
                errors.extend(port(end, &end_path));
            }
        }
    }
    errors
}

fn validate_peer(peer: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let selectors: Vec<&str> =
        ["podSelector", "namespaceSelector"].into_iter().filter(|f| peer[*f].is_object()).collect();
    for field in &selectors {
        errors.extend(label_selector(&peer[*field], &path.child(field)));
    }
    let block = peer["ipBlock"].is_object();
    if block {
        errors.extend(validate_block(&peer["ipBlock"], &path.child("ipBlock")));
    }
    match (selectors.is_empty(), block) {
        (true, false) => errors.push(FieldError::required(path, "must specify a peer")),
        (false, true) => {
            errors.push(FieldError::forbidden(path, "may not specify both ipBlock and another peer"));
        }
        _ => {}
    }
    errors
}

fn validate_block(block: &Value, path: &Path) -> Vec<FieldError> {
    let cidr = text(block, "/cidr");
    if cidr.is_empty() {
        return vec![FieldError::required(&path.child("cidr"), "")];
    }
    let mut errors = invalid_each(&path.child("cidr"), cidr, address::cidr_legacy(cidr));
    let Some((outer, outer_bits)) = address::parse_cidr(cidr) else { return errors };
    for (at, except) in list(block, "/except").iter().filter_map(Value::as_str).enumerate() {
        let path = path.child("except").index(at);
        errors.extend(invalid_each(&path, except, address::cidr_legacy(except)));
        let Some((inner, inner_bits)) = address::parse_cidr(except) else { continue };
        let inside = inner.is_ipv4() == outer.is_ipv4()
            && address::masked(inner, outer_bits) == address::masked(outer, outer_bits)
            && inner_bits > outer_bits;
        if !inside {
            errors.push(FieldError::invalid(&path, except, "must be a strict subset of `cidr`"));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    fn check(plural: &str, spec: serde_json::Value) -> Vec<String> {
        let kind = crate::lookup("networking.k8s.io", "v1", plural).expect("kind");
        let mut object = json!({"metadata": {"name": "x", "namespace": "d"}, "spec": spec});
        kind.default(&mut object);
        kind.validate(&object).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn ingresses() {
        let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
        let rule = |path: &str| json!({"rules": [{"host": "a.b", "http": {"paths": [{"path": path, "pathType": "Prefix", "backend": backend}]}}]});
        assert_eq!(check("ingresses", rule("/")), Vec::<String>::new());
        assert_eq!(
            check("ingresses", rule("x")),
            ["spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path"]
        );
        assert_eq!(
            check("ingresses", json!({"defaultBackend": {}})),
            ["spec.defaultBackend: Invalid value: \"\": resource or service backend is required"]
        );
    }

    #[test]
    fn policies() {
        let peer = |peer: serde_json::Value| json!({"podSelector": {}, "ingress": [{"from": [peer]}]});
        let block = |except: &str| peer(json!({"ipBlock": {"cidr": "10.0.0.0/16", "except": [except]}}));
        assert_eq!(check("networkpolicies", block("10.0.1.0/24")), Vec::<String>::new());
        assert_eq!(
            check("networkpolicies", block("10.1.0.0/24")),
            [
                "spec.ingress[0].from[0].ipBlock.except[0]: Invalid value: \"10.1.0.0/24\": must be a strict subset of `cidr`"
            ]
        );
        assert_eq!(
            check("networkpolicies", peer(json!({}))),
            ["spec.ingress[0].from[0]: Required value: must specify a peer"]
        );
    }
}
