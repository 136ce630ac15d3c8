//! Endpoints.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, list, name, number, text};
use crate::check::{At, Errors};
use crate::defaulting::{default_at, items};
use crate::kind::{Behaviour, Kind};
use crate::rules::Site;

struct Endpoints;

pub fn kind() -> Kind {
    Kind::new("", "v1", "Endpoints", "endpoints")
        .short(&["ep"])
        .stored_at("/registry/services/endpoints")
        .create_on_update()
        .table("Name, Endpoints, Age")
        .deprecated("v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice")
        .behaviour(Endpoints)
}

impl Behaviour for Endpoints {
    fn rules(&self) -> &'static str {
        ".core.v1.Endpoints"
    }

    fn default(&self, object: &mut Value) {
        for subset in items(object, "/subsets") {
            items(subset, "/ports").for_each(|port| default_at(port, "/protocol", "TCP"));
        }
    }

    /// Skips objects of our own controller, which were checked before.
    fn warnings(&self, object: &Value, _old: Option<&Value>) -> Vec<String> {
        let mut out = Vec::new();
        let labels = object.pointer("/metadata/labels");
        let manager = labels.and_then(|labels| labels.get("endpoints.kubernetes.io/managed-by"));
        if manager.is_some_and(|manager| manager == "endpoint-controller") {
            return out;
        }
        for subset in At::object(object).get("subsets").items() {
            for address in ["addresses", "notReadyAddresses"].iter().flat_map(|list| subset.get(list).items()) {
                crate::address_warnings::ip(&address.get("ip"), &mut out);
            }
        }
        out
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), format_endpoints(object).into(), age(object, now)]
    }
}

/// Validates that a port has a name if there are several.
pub(crate) fn named_if_many(site: &Site<'_, '_>, errors: &mut Errors) {
    let name = site.at.get("name");
    if name.is_empty() && site.of.get("ports").len() > 1 {
        errors.push(name.required(""));
    }
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
