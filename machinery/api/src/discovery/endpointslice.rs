//! EndpointSlice.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, first_three, list, name, or, text};
use crate::defaulting::{absent, default_at, items, put};
use crate::kind::{Behaviour, Kind};

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
        let path = Path::root("addressType");
        match text(object, "/addressType") {
            "" => vec![FieldError::required(&path, "")],
            "IPv4" | "IPv6" | "FQDN" => Vec::new(),
            other => vec![FieldError::not_supported(&path, other, &["FQDN", "IPv4", "IPv6"])],
        }
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
