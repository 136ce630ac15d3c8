//! EndpointSlice.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, first_three, list, name, or, text};
use crate::check::{At, Errors, TextRule};
use crate::defaulting::{absent, default_at, items, put};
use crate::kind::{Behaviour, Kind};
use crate::validation::{endpoint_ip, legacy_ip};

struct EndpointSlice;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        .generation()
        .counts_gated()
        .table("Name, AddressType, Ports, Endpoints, Age")
        .behaviour(EndpointSlice)
}

impl Behaviour for EndpointSlice {
    /// Counts changed labels as a change of the spec: they name the Service.
    fn prepare_update(&self, new: &mut Value, old: &Value) {
        let labels = |object: &Value| object.pointer("/metadata/labels").filter(|l| !l.is_null()).cloned();
        if labels(new) != labels(old) {
            put(new, "/metadata/generation", crate::cells::number(old, "/metadata/generation") + 1);
        }
    }

    fn default(&self, object: &mut Value) {
        for port in items(object, "/ports") {
            if absent(port, "/name") {
                put(port, "/name", "");
            }
            default_at(port, "/protocol", "TCP");
        }
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let slice = At::object(object);
        let kind = slice.get("addressType");
        let mut errors = Errors::new();
        kind.must_be_one_of(&mut errors, &["FQDN", "IPv4", "IPv6"]);
        validate_ports(&slice.get("ports"), &mut errors);
        let endpoints = slice.get("endpoints");
        if endpoints.len() > 1000 {
            endpoints.at_most(&mut errors, 1000);
            return errors;
        }
        endpoints.each(&mut errors, |endpoint, e| validate_endpoint(endpoint, kind.text(), e));
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        if new["addressType"] == old["addressType"] {
            return Vec::new();
        }
        vec![FieldError::invalid(&Path::root("addressType"), new["addressType"].clone(), "field is immutable")]
    }

    /// Skips objects of our own controllers, which were checked before.
    fn warnings(&self, object: &Value, old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        let labels = object.pointer("/metadata/labels");
        let kind = text(object, "/addressType");
        let manager =
            labels.and_then(|labels| labels.get("endpointslice.kubernetes.io/managed-by")).and_then(Value::as_str);
        if old.is_none() && kind == "FQDN" {
            out.push("spec.addressType: FQDN endpoints are deprecated".to_owned());
        }
        if !matches!(manager, Some("endpointslice-controller.k8s.io" | "endpointslicemirroring-controller.k8s.io")) {
            let addresses = At::object(object).get("endpoints").items().flat_map(|one| one.get("addresses").items());
            addresses.for_each(|address| crate::address_warnings::ip(&address, &mut out));
        }
        out
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let port = |p: &Value| match p.get("port").and_then(Value::as_i64) {
            Some(port) => port.to_string(),
            None if p.get("name").is_some_and(Value::is_string) => text(p, "/name").to_string(),
            None => "*".to_string(),
        };
        let ports: Vec<String> = list(object, "/ports").iter().map(port).collect();
        let addresses: Vec<String> = list(object, "/endpoints")
            .iter()
            .flat_map(|e| list(e, "/addresses"))
            .filter_map(|a| a.as_str().map(str::to_string))
            .collect();
        vec![
            name(object),
            text(object, "/addressType").into(),
            or(&first_three(&ports), "<unset>").into(),
            or(&first_three(&addresses), "<unset>").into(),
            age(object, now),
        ]
    }
}

fn validate_ports(ports: &At<'_>, errors: &mut Errors) {
    if ports.len() > 20_000 {
        ports.at_most(errors, 20_000);
        return;
    }
    let mut taken = BTreeSet::new();
    for port in ports.items() {
        let name = port.get("name");
        name.follows(errors, names::dns1123_label);
        if !taken.insert(name.text()) {
            errors.push(FieldError::duplicate(&name.path, name.text()));
        }
        port.get("protocol").must_be_set_to_one_of(errors, &["SCTP", "TCP", "UDP"]);
        port.get("appProtocol").follows_when_set(errors, names::qualified_name);
    }
}

fn validate_endpoint(endpoint: &At<'_>, kind: &str, errors: &mut Errors) {
    let addresses = endpoint.get("addresses");
    addresses.must_say(errors, "must contain at least 1 address");
    addresses.at_most(errors, 100);
    addresses.each(errors, |address, e| validate_address(address, &addresses, kind, e));
    endpoint.get("nodeName").follows_when_set(errors, names::dns1123_subdomain);
    endpoint.get("hostname").follows_when_set(errors, names::dns1123_label);
    let rules: [(&str, TextRule); 2] = [("forZones", names::label_value), ("forNodes", names::dns1123_subdomain)];
    for (field, rule) in rules {
        let hints = endpoint.get("hints").get(field);
        hints.at_most(errors, 8);
        let mut seen = BTreeSet::new();
        for name in hints.items().map(|hint| hint.get("name")) {
            if !seen.insert(name.text()) {
                errors.push(name.duplicate());
            }
            name.follows_also_empty(errors, rule);
        }
    }
}

/// Validates that an address has the type of its slice, and is reachable.
fn validate_address(address: &At<'_>, addresses: &At<'_>, kind: &str, errors: &mut Errors) {
    let before = errors.len();
    match kind {
        "IPv4" => legacy_ip(address, &[], errors),
        "IPv6" => address.follows_also_empty(errors, names::address::ip),
        "FQDN" => {
            let name = address.text().strip_suffix('.').unwrap_or(address.text());
            let messages = names::dns1123_subdomain(name);
            if !messages.is_empty() {
                errors.push(FieldError::invalid(&address.path, name, messages.join(",")));
            } else if !name.contains('.') {
                let detail = "should be a domain with at least two segments separated by dots";
                errors.push(FieldError::invalid(&address.path, name, detail));
            }
            return;
        }
        _ => return,
    }
    if errors.len() > before {
        return;
    }
    if address.text().contains(':') != (kind == "IPv6") {
        let detail = format!("must be an {kind} address");
        errors.push(FieldError::invalid(&addresses.path, address.text(), detail));
    }
    endpoint_ip(address, errors);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn addresses_are_of_the_slices_type() {
        let check = |kind: &str, address: &str| {
            EndpointSlice.validate(&json!({"addressType": kind, "endpoints": [{"addresses": [address]}]})).len()
        };
        assert_eq!(check("IPv4", "10.0.0.1"), 0);
        assert_eq!(check("IPv4", "fd00::1"), 1);
        assert_eq!(check("IPv6", "fd00::1"), 0);
        assert_eq!(check("FQDN", "a.b"), 0);
        assert_eq!(check("FQDN", "a"), 1);
        assert_eq!(check("IPv4", "127.0.0.1"), 1);
        assert_eq!(check("IPv4", "x"), 1);
        assert_eq!(check("Odd", "10.0.0.1"), 1);
    }
}
