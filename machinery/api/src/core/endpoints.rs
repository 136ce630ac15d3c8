//! Endpoints.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, list, name, number, text};
use crate::defaulting::{default_at, items};
use crate::kind::{Behaviour, Kind};

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

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        vec![name(object), format_endpoints(object).into(), age(object, now)]
    }

    fn warnings(&self, _new: &Value, _old: Option<&Value>) -> Vec<String> {
        vec!["v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice".to_string()]
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
