//! The rules of a Service.

use std::collections::BTreeSet;

use corten_meta::field::FieldError;
use corten_meta::names::address::parse_sloppy;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::rules;
use crate::validation::{endpoint_ip, legacy_cidr, legacy_ip};

const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";

/// Validates everything but the change. Addresses and ranges of the old Service may stay.
pub(super) fn validate_service(service: &Value, old: Option<&Value>) -> Errors {
    let service = At::object(service);
    let spec = service.get("spec");
    let old = old.map(At::object);
    let known = |field: &str| -> Vec<&str> {
        let old = old.as_ref().map(|old| old.get("spec").get(field));
        old.map(|list| list.texts().collect()).unwrap_or_default()
    };
    let kind = spec.get("type");
    let mut errors = Errors::new();
    validate_topology_annotations(&service, &mut errors);
    if spec.get("ports").is_empty() && !is_headless(&spec) && kind.text() != "ExternalName" {
        errors.push(spec.get("ports").required(""));
    }
    validate_type(&spec, &mut errors);
    rules::check(".core.v1.ServiceSpec/ports", &spec, &mut errors);
    validate_cluster_ips(&spec, &known("clusterIPs"), &mut errors);
    for address in spec.get("externalIPs").items() {
        let before = errors.len();
        legacy_ip(&address, &known("externalIPs"), &mut errors);
        if errors.len() == before {
            endpoint_ip(&address, &mut errors);
        }
    }
    kind.must_be_one_of(&mut errors, &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"]);
    validate_unique_ports(&spec, &mut errors);
    validate_balancer(&service, old.as_ref(), &mut errors);
    validate_policies(&spec, &mut errors);
    errors
}

fn is_headless(spec: &At<'_>) -> bool {
    let ips: Vec<&str> = spec.get("clusterIPs").texts().collect();
    ips == ["None"]
}

fn validate_topology_annotations(service: &At<'_>, errors: &mut Errors) {
    const HINTS: &str = "service.kubernetes.io/topology-aware-hints";
    const MODE: &str = "service.kubernetes.io/topology-mode";
    let annotations = service.get("metadata").get("annotations");
    if let (Some(mode), Some(hints)) = (annotations.value.get(MODE), annotations.value.get(HINTS))
        && mode != hints
    {
        let detail = format!("must match annotations[{HINTS}] when both are specified");
        errors.push(FieldError::invalid(&annotations.path.key(MODE), mode.clone(), detail));
    }
}

fn validate_type(spec: &At<'_>, errors: &mut Errors) {
    let first = spec.get("clusterIPs").items().next();
    match (spec.get("type").text(), first) {
        (kind @ ("LoadBalancer" | "NodePort"), Some(first)) if is_headless(spec) => {
            errors.push(first.invalid(format!("may not be set to 'None' for {kind} services")));
        }
        ("ExternalName", _) => {
            let detail = "may not be set for ExternalName services";
            spec.forbids(errors, &["clusterIPs", "ipFamilies"], detail);
            let policy = spec.get("ipFamilyPolicy");
            if policy.is_set() {
                errors.push(policy.forbidden(detail));
            }
            let name = spec.get("externalName");
            let text = name.text().strip_suffix('.').unwrap_or(name.text());
            if text.is_empty() {
                errors.push(name.required(""));
            } else {
                let messages = names::dns1123_subdomain(text).into_iter();
                errors.extend(messages.map(|m| FieldError::invalid(&name.path, text, m)));
            }
        }
        _ => {}
    }
}

/// Validates the addresses and families of a Service alone, before the server completes them.
pub fn validate_service_addresses(service: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let before = old.map(|old| At::object(old).get("spec").get("clusterIPs").texts().collect::<Vec<_>>());
    let mut errors = Errors::new();
    validate_cluster_ips(&At::object(service).get("spec"), &before.unwrap_or_default(), &mut errors);
    errors
}

/// Validates that the cluster IP and the list agree, and that the list fits the families; `before` are the old
/// addresses.
fn validate_cluster_ips(spec: &At<'_>, before: &[&str], errors: &mut Errors) {
    if spec.get("type").text() == "ExternalName" {
        return;
    }
    let one = spec.get("clusterIP");
    let all = spec.get("clusterIPs");
    let families = spec.get("ipFamilies");
    let first = all.texts().next().unwrap_or_default();
    match (one.is_empty(), all.is_empty()) {
        (false, true) => errors.push(all.required("")),
        (false, false) if first != one.text() => errors.push(all.invalid("first value must match `clusterIP`")),
        (true, false) => errors.push(all.invalid("must be empty when `clusterIP` is not specified")),
        _ => {}
    }
    families.each_once(errors, |family, e| family.one_of(e, &["IPv4", "IPv6"]));
    spec.get("ipFamilyPolicy").one_of(errors, &["PreferDualStack", "RequireDualStack", "SingleStack"]);
    let found = errors.len();
    for (at, address) in all.items().enumerate() {
        if at > 0 || address.text() != "None" {
            legacy_ip(&address, before, errors);
        } else if all.len() > 1 {
            errors.push(all.invalid("'None' must be the first and only value"));
        }
    }
    let readable = errors.len() == found;
    if all.len() > 2 {
        errors.push(all.invalid("may only hold up to 2 values"));
    }
    if !readable || is_headless(spec) {
        return;
    }
    // Invalid addresses may be known ones.
    let unread = all.texts().enumerate().find(|(_, text)| parse_sloppy(text).is_none());
    if let Some((at, text)) = unread.filter(|_| all.len() > 1) {
        let detail = format!("failed to check for dual stack with error:invalid IP[{at}]: {text}");
        errors.push(FieldError::internal(&all.path, detail));
    }
    let is_v6 = |text: &str| parse_sloppy(text).is_some_and(|a| a.to_canonical().is_ipv6());
    let kinds: Vec<bool> = all.texts().map(is_v6).collect();
    if kinds.len() > 1 && !(kinds.contains(&true) && kinds.contains(&false)) {
        errors.push(all.invalid("may specify no more than one IP for each IP family"));
    }
    for (at, (address, family)) in all.items().zip(families.texts()).enumerate() {
        if (family == "IPv6") != is_v6(address.text()) && ["IPv4", "IPv6"].contains(&family) {
            let detail = format!("expected an {family} value as indicated by `ipFamilies[{at}]`");
            errors.push(address.invalid(detail));
        }
    }
}

fn validate_unique_ports(spec: &At<'_>, errors: &mut Errors) {
    let ports = spec.get("ports");
    let mut nodes = BTreeSet::new();
    let mut own = BTreeSet::new();
    let node_port = |port: &At<'_>| port.get("nodePort").number().filter(|n| *n != 0);
    for port in ports.items().filter(|p| node_port(p).is_some() && spec.get("type").text() == "ClusterIP") {
        errors.push(port.get("nodePort").forbidden("may not be used when `type` is 'ClusterIP'"));
    }
    for port in ports.items() {
        let node = node_port(&port);
        if node.is_some() && !nodes.insert((port.get("protocol").text(), node)) {
            errors.push(port.get("nodePort").duplicate());
        }
    }
    for port in ports.items() {
        let protocol = port.get("protocol").text();
        let number = port.get("port").number().unwrap_or_default();
        if !own.insert((protocol, number)) {
            let key = serde_json::json!({"protocol": protocol, "port": number, "targetPort": 0});
            errors.push(FieldError::duplicate(&port.path, key));
        }
    }
}

fn validate_balancer(service: &At<'_>, old: Option<&At<'_>>, errors: &mut Errors) {
    const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    let annotated =
        |service: &At<'_>| service.value.pointer("/metadata/annotations").and_then(|a| a.get(RANGES)).cloned();
    let spec = service.get("spec");
    let balanced = spec.get("type").text() == "LoadBalancer";
    // Upstream writes this field with a capital letter.
    let ranges = spec.get("loadBalancerSourceRanges").with(spec.path.child("LoadBalancerSourceRanges"));
    let annotation = service.get("metadata").get("annotations").get(RANGES);
    let annotation = annotation.with(service.get("metadata").get("annotations").path.key(RANGES));
    if !ranges.is_empty() {
        if !balanced {
            errors.push(ranges.forbidden(ONLY_BALANCED));
        }
        let before = old.map(|old| old.get("spec").get("loadBalancerSourceRanges"));
        let before: Vec<&str> = before.iter().flat_map(At::texts).map(str::trim).collect();
        for range in ranges.items() {
            let text = Value::from(range.text().trim());
            legacy_cidr(&At::new(&text, &range.path), &before, errors);
        }
    } else if annotation.is_set() {
        if !balanced {
            errors.push(annotation.forbidden(ONLY_BALANCED));
        }
        let is_checked =
            !annotation.text().trim().is_empty() && old.is_none_or(|old| annotated(old) != annotated(service));
        for range in annotation.text().split(',').map(str::trim).filter(|_| is_checked) {
            legacy_cidr(&At::new(&Value::from(range), &annotation.path), &[], errors);
        }
    }
    rules::check(".core.v1.ServiceSpec/balancer", &spec, errors);
}

fn validate_policies(spec: &At<'_>, errors: &mut Errors) {
    const POLICIES: &[&str] = &["Cluster", "Local"];
    let kind = spec.get("type").text();
    let external = spec.get("externalTrafficPolicy");
    let reachable =
        matches!(kind, "NodePort" | "LoadBalancer") || (kind == "ClusterIP" && !spec.get("externalIPs").is_empty());
    if reachable {
        external.must_be_one_of(errors, POLICIES);
    } else if !external.is_empty() {
        errors.push(external.invalid("may only be set for externally-accessible services").as_json());
    }
    let health = spec.get("healthCheckNodePort");
    let checked = needs_health_check(spec);
    match health.number().unwrap_or_default() {
        0 => {}
        _ if checked => health.port(errors),
        _ => {
            let detail = "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'";
            errors.push(health.invalid(detail));
        }
    }
    rules::check(".core.v1.ServiceSpec/traffic", spec, errors);
}

fn needs_health_check(spec: &At<'_>) -> bool {
    spec.get("type").text() == "LoadBalancer" && spec.get("externalTrafficPolicy").text() == "Local"
}

/// Validates an update. Addresses and families stay, unless the type has none; the second of each may be added and
/// removed.
pub(super) fn validate_service_update(new: &Value, old: &Value) -> Errors {
    let spec = At::object(new).get("spec");
    let before = At::object(old).get("spec");
    let mut errors = Errors::new();
    let named = |spec: &At<'_>| spec.get("type").text() == "ExternalName";
    if !named(&spec) && !named(&before) {
        let headless = (is_headless(&spec), is_headless(&before));
        if headless != (true, true) {
            validate_kept(&spec, &before, "clusterIPs", "clusterIP", &mut errors);
        }
        if headless == (false, false) {
            validate_kept(&spec, &before, "ipFamilies", "ipFamily", &mut errors);
        }
    }
    let balanced = |spec: &At<'_>| spec.get("type").text() == "LoadBalancer";
    let class = spec.get("loadBalancerClass");
    if balanced(&spec) && balanced(&before) && class.value != before.get("loadBalancerClass").value {
        errors.push(class.invalid("may not change once set"));
    }
    // Upstream validates this of an update once more.
    rules::check(".core.v1.ServiceSpec/class", &spec, &mut errors);
    let health = spec.get("healthCheckNodePort");
    if needs_health_check(&spec)
        && needs_health_check(&before)
        && health.value != before.get("healthCheckNodePort").value
    {
        errors.push(health.forbidden("field is immutable"));
    }
    errors.extend(validate_service(new, Some(old)));
    errors
}

/// Validates that the first of a list stays; the second may be added, and removed if the policy allows.
fn validate_kept(spec: &At<'_>, before: &At<'_>, field: &str, one: &str, errors: &mut Errors) {
    let now = spec.get(field);
    let then = before.get(field);
    let (new, old): (Vec<&str>, Vec<&str>) = (now.texts().collect(), then.texts().collect());
    let at = |index: usize| now.with(now.path.index(index));
    if new.len() == old.len() {
        for index in (0..new.len()).filter(|index| new[*index] != old[*index]) {
            let shown = if field == "ipFamilies" { 0 } else { index };
            errors.push(at(shown).invalid("may not change once set"));
        }
        return;
    }
    if new.is_empty() {
        errors.push(at(0).invalid(format!("primary {one} can not be unset")));
    }
    if let (Some(new), Some(old)) = (new.first(), old.first())
        && new != old
    {
        errors.push(at(0).invalid("may not change once set"));
    }
    let policy = spec.get("ipFamilyPolicy");
    if new.len() == 1 && old.len() > 1 && policy.text() != "SingleStack" {
        let detail = format!("must be set to 'SingleStack' when releasing the secondary {one}");
        errors.push(policy.invalid(detail));
    }
}

/// Validates the addresses of a load balancer in a status.
pub(super) fn validate_service_status_update(new: &Value, old: &Value) -> Errors {
    let service = At::object(new);
    let before = At::object(old);
    let mut errors = Errors::new();
    let ingress = service.get("status").get("loadBalancer").get("ingress");
    if !ingress.is_empty() && service.get("spec").get("type").text() != "LoadBalancer" {
        errors.push(ingress.forbidden("may only be used when `spec.type` is 'LoadBalancer'"));
        return errors;
    }
    let old = before.get("status").get("loadBalancer").get("ingress");
    let old: Vec<&str> = old.items().map(|i| i.get("ip").text()).collect();
    for point in ingress.items() {
        let ip = point.get("ip");
        let mode = point.get("ipMode");
        let host = point.get("hostname");
        if !ip.is_empty() {
            legacy_ip(&ip, &old, &mut errors);
        }
        match (ip.is_empty(), mode.is_set()) {
            (false, false) => errors.push(mode.required("must be specified when `ip` is set")),
            (true, true) => errors.push(mode.forbidden("may not be specified when `ip` is not set")),
            _ => mode.one_of(&mut errors, &["Proxy", "VIP"]),
        }
        host.follows(&mut errors, names::dns1123_subdomain);
        if parse_sloppy(host.text()).is_some() {
            errors.push(host.invalid("must be a DNS name, not an IP address"));
        }
    }
    errors
}
