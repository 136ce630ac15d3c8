//! Endpoints.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};
use jiff::Timestamp;

use crate::cells::{age, list, name, number, text};
use crate::defaulting::{default_at, items};
use crate::kind::{Behaviour, Kind};
use crate::validation::{invalid_each, port, required_word};

struct Endpoints;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "Endpoints", "endpoints")
        .short(&["ep"])
        .stored_at("/registry/services/endpoints")
        .create_on_update()
        .table("Name, Endpoints, Age")
        .behaviour(Endpoints)
}

impl Behaviour for Endpoints {
    fn default(&self, object: &mut Value) {
        for subset in items(object, "/subsets") {
            items(subset, "/ports").for_each(|port| default_at(port, "/protocol", "TCP"));
        }
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        let path = Path::root("subsets");
        let subsets = list(object, "/subsets").iter().enumerate();
        subsets.flat_map(|(at, subset)| validate_subset(subset, &path.index(at))).collect()
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), format_endpoints(object).into(), age(object, now)]
    }

    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_string()]
    }
}

fn validate_subset(subset: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let (ready, others) = (list(subset, "/addresses"), list(subset, "/notReadyAddresses"));
    if ready.is_empty() && others.is_empty() {
        errors.push(FieldError::required(path, "must specify `addresses` or `notReadyAddresses`"));
    }
    for (field, addresses) in [("addresses", ready), ("notReadyAddresses", others)] {
        for (at, address) in addresses.iter().enumerate() {
            let (path, ip) = (path.child(field).index(at).child("ip"), text(address, "/ip"));
            errors.extend(invalid_each(&path, ip, names::address::ip_legacy(ip)));
        }
    }
    let ports = list(subset, "/ports");
    for (at, endpoint_port) in ports.iter().enumerate() {
        let (path, name) = (path.child("ports").index(at), text(endpoint_port, "/name"));
        if name.is_empty() && ports.len() > 1 {
            errors.push(FieldError::required(&path.child("name"), ""));
        } else if !name.is_empty() {
            errors.extend(invalid_each(&path.child("name"), name, names::dns1123_label(name)));
        }
        errors.extend(port(number(endpoint_port, "/port"), &path.child("port")));
        errors.extend(required_word(&endpoint_port["protocol"], &path.child("protocol"), &["SCTP", "TCP", "UDP"]));
    }
    errors
}

fn format_endpoints(object: &Value) -> String {
    let subsets = list(object, "/subsets");
    if subsets.is_empty() {
        return "<none>".to_string();
    }
    let mut all = Vec::new();
    for subset in subsets {
        let addresses = list(subset, "/addresses").iter().map(|a| text(a, "/ip"));
        let ports = list(subset, "/ports");
        if ports.is_empty() {
            all.extend(addresses.map(str::to_string));
            continue;
        }
        for port in ports {
            let port = number(port, "/port");
            all.extend(list(subset, "/addresses").iter().map(|a| join_host_port(text(a, "/ip"), port)));
        }
    }
    crate::cells::first_three(&all)
}

fn join_host_port(host: &str, port: i64) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
