//! EndpointSlice.

use corten_meta::field::FieldError;
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, first_three, list, name, or, text};
use crate::check::{At, Errors};
use crate::defaulting::{absent, default_at, items, put};
use crate::kind::{Behaviour, Kind};
use crate::rules::Site;
use crate::validation::{endpoint_ip, legacy_ip};

struct EndpointSlice;

pub fn kind() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        .generation()
        .counts_gated()
        .table("Name, AddressType, Ports, Endpoints, Age")
        .behaviour(EndpointSlice)
}

impl Behaviour for EndpointSlice {
    fn rules(&self) -> &'static str {
        ".discovery.v1.EndpointSlice"
    }

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

/// Validates that an address has the type of its slice, and is reachable.
pub(crate) fn slice_address(site: &Site<'_, '_>, errors: &mut Errors) {
    let address = site.at;
    let kind = text(site.root, "/addressType");
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
        errors.push(FieldError::invalid(&site.of.path.child("addresses"), address.text(), detail));
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
