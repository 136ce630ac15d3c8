//! EndpointSlice.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, first_three, list, name, or, text};
use crate::defaulting::{absent, default_at, items, put};
use crate::kind::{Behaviour, Kind};
use crate::validation::{invalid_each, required_word};

struct EndpointSlice;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices")
        .generation()
        .table("Name, AddressType, Ports, Endpoints, Age")
        .behaviour(EndpointSlice)
}

impl Behaviour for EndpointSlice {
    fn default(&self, object: &mut Value) {
        for port in items(object, "/ports") {
            if absent(port, "/name") {
                put(port, "/name", "");
            }
            default_at(port, "/protocol", "TCP");
        }
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let kind = text(object, "/addressType");
        let mut errors = Vec::new();
        errors.extend(required_word(&object["addressType"], &Path::root("addressType"), &["FQDN", "IPv4", "IPv6"]));
        for (at, endpoint) in list(object, "/endpoints").iter().enumerate() {
            let path = Path::root("endpoints").index(at).child("addresses");
            let addresses = list(endpoint, "/addresses");
            if addresses.is_empty() {
                errors.push(FieldError::required(&path, "must contain at least 1 address"));
            }
            for (at, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
                errors.extend(invalid_each(&path.index(at), address, address_errors(kind, address)));
            }
        }
        errors
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        if new["addressType"] == old["addressType"] {
            return Vec::new();
        }
        vec![FieldError::invalid(&Path::root("addressType"), new["addressType"].clone(), "field is immutable")]
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

/// The messages against an address of a slice of this type.
fn address_errors(kind: &str, address: &str) -> Vec<String> {
    let ip = names::address::parse_sloppy(address);
    match (kind, ip) {
        ("FQDN", _) => names::dns1123_subdomain(address),
        ("IPv4" | "IPv6", None) => names::address::ip_legacy(address),
        ("IPv4", Some(ip)) if !ip.is_ipv4() => vec!["must be an IPv4 address".to_string()],
        ("IPv6", Some(ip)) if ip.is_ipv4() => vec!["must be an IPv6 address".to_string()],
        _ => Vec::new(),
    }
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
        assert_eq!(check("IPv4", "x"), 1);
        assert_eq!(check("Odd", "10.0.0.1"), 1);
    }
}
