//! The rules of Ingress and NetworkPolicy beyond their fields.

use corten_meta::field::{FieldError, Path};
use corten_meta::names::address;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::rules::{self, Site};
use crate::validation::{legacy_ip, port, port_number_or_name};

/// Validates the rules of an Ingress. If the old object has invalid paths of wildcard hosts, those of all wildcard hosts
/// may be.
pub(crate) fn ingress_rules(site: &Site<'_, '_>, errors: &mut Errors) {
    const PATHS: &str = ".networking.v1.IngressRule/paths";
    let is_wild = |rule: &At<'_>| rule.get("host").text().contains('*');
    let is_invalid = |rule: &At<'_>| {
        let mut errors = Errors::new();
        rules::check(PATHS, rule, &mut errors);
        !errors.is_empty()
    };
    let spares_wild =
        site.old.is_some_and(|old| At::object(old).items().any(|rule| is_wild(&rule) && is_invalid(&rule)));
    for rule in site.at.items() {
        let host = rule.get("host");
        if address::parse_sloppy(host.text()).is_some() {
            errors.push(host.invalid("must be a DNS name, not an IP address"));
        }
        if !host.is_empty() {
            ingress_host(&host, errors);
        }
        if !spares_wild || !is_wild(&rule) {
            rules::check(PATHS, &rule, errors);
        }
    }
}

/// Validates the name of a host, or of all hosts of a domain.
pub(crate) fn ingress_host(host: &At<'_>, errors: &mut Errors) {
    let is_wild = host.text().contains('*');
    host.follows_also_empty(errors, if is_wild { names::wildcard_dns1123_subdomain } else { names::dns1123_subdomain });
}

pub(crate) fn ingress_path(site: &Site<'_, '_>, errors: &mut Errors) {
    let kind = site.of.get("pathType").text();
    let path = site.at.text();
    let mut refuse = |detail: &str| errors.push(FieldError::invalid(&site.at.path, path, detail));
    let is_strict = kind == "Exact" || kind == "Prefix";
    let is_lenient = kind == "ImplementationSpecific" && !path.is_empty();
    if !path.starts_with('/') && (is_strict || is_lenient) {
        refuse("must be an absolute path");
    }
    if is_strict {
        for sequence in ["//", "/./", "/../", "%2f", "%2F"].iter().filter(|s| path.contains(**s)) {
            refuse(&format!("must not contain '{sequence}'"));
        }
        for suffix in ["/..", "/."].iter().filter(|s| path.ends_with(**s)) {
            refuse(&format!("cannot end with '{suffix}'"));
        }
    }
}

/// Validates that the class is named in one field, or in both the same.
pub(super) fn validate_ingress_create(object: &Value) -> Errors {
    const CLASS: &str = "kubernetes.io/ingress.class";
    let annotation = object["metadata"]["annotations"].get(CLASS);
    let (Some(annotation), Some(class)) = (annotation, object["spec"]["ingressClassName"].as_str()) else {
        return Errors::new();
    };
    if annotation == class {
        return Errors::new();
    }
    let path = Path::root("annotations").child(CLASS);
    vec![FieldError::invalid(&path, annotation.clone(), "must match `ingressClassName` when both are specified")]
}

/// Validates the load balancer's addresses in the status of an Ingress.
pub(super) fn validate_ingress_status(new: &Value, old: &Value) -> Errors {
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

/// Validates a port of a policy, and the end of its range.
pub(crate) fn policy_ports(site: &Site<'_, '_>, errors: &mut Errors) {
    let first = site.at;
    let end = site.of.get("endPort");
    if first.value.is_string() && end.is_set() {
        errors.push(end.invalid("may not be specified when `port` is non-numeric"));
    }
    errors.extend(port_number_or_name(first.value, &first.path));
    if let (Some(first), Some(last)) = (first.number(), end.number()) {
        if last < first {
            errors.push(FieldError::invalid(&end.path, first, "must be greater than or equal to `port`"));
        }
        errors.extend(port(last, &end.path));
    }
}

/// Validates that the exceptions of a block are inside of it.
pub(crate) fn strict_subsets(site: &Site<'_, '_>, errors: &mut Errors) {
    let Some((outer, outer_bits)) = address::parse_cidr(site.of.get("cidr").text()) else { return };
    for except in site.at.items() {
        except.follows_also_empty(errors, address::cidr_legacy);
        let Some((inner, inner_bits)) = address::parse_cidr(except.text()) else { continue };
        let inside = inner.is_ipv4() == outer.is_ipv4()
            && address::masked(inner, outer_bits) == address::masked(outer, outer_bits)
            && inner_bits > outer_bits;
        if !inside {
            errors.push(except.invalid("must be a strict subset of `cidr`"));
        }
    }
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
