//! Resolves a Service and a port to the address of a ready endpoint.

use corten_meta::quote::quote;
use corten_meta::{GroupResource, Object, Status, Value};

use super::Outbound;

impl Outbound {
    /// Returns the host and port of a random ready endpoint of a Service.
    pub fn resolve(&self, namespace: &str, name: &str, port: u16) -> Result<(String, u16), Status> {
        // The API itself is a Service too, and may be called before any of its endpoints is reachable.
        if (namespace, name, port) == ("default", "kubernetes", 443) {
            return Ok(self.own.clone());
        }
        let resource = GroupResource { group: String::new(), resource: "service".to_owned() };
        let service = self.services.get(namespace, name).ok_or_else(|| Status::not_found(&resource, name))?.value();
        let kind = service.pointer("/spec/type").and_then(Value::as_str).unwrap_or("ClusterIP");
        if kind == "ExternalName" {
            return Err(Status::internal(format!("unsupported service type {}", quote(kind))));
        }
        let ports = service.pointer("/spec/ports").and_then(Value::as_array).cloned().unwrap_or_default();
        let port = ports.iter().find(|p| p["port"] == u64::from(port)).ok_or_else(|| {
            Status::service_unavailable(format!("no service port {port} found for service {}", quote(name)))
        })?;
        let port_name = port["name"].as_str().unwrap_or_default();
        let slices = self.endpoint_slices.list(namespace);
        let of_service = slices.iter().filter(|slice| is_of(slice, name));
        let candidates: Vec<(String, u16)> = of_service.flat_map(|slice| ready(&slice.value(), port_name)).collect();
        let chosen = uuid::Uuid::new_v4().as_u64_pair().1 as usize % candidates.len().max(1);
        let unavailable = || Status::service_unavailable(format!("no endpoints available for service {}", quote(name)));
        candidates.into_iter().nth(chosen).ok_or_else(unavailable)
    }
}

fn is_of(slice: &Object, service: &str) -> bool {
    slice.header.labels.get("kubernetes.io/service-name").is_some_and(|name| name == service)
}

/// Returns the ready endpoints of a slice, with the port of this name.
fn ready(slice: &Value, port_name: &str) -> Vec<(String, u16)> {
    let list = |key: &str| slice[key].as_array().cloned().unwrap_or_default();
    let port = list("ports").into_iter().find(|p| p["name"].as_str().unwrap_or_default() == port_name);
    let Some(port) = port.and_then(|p| p["port"].as_u64()).and_then(|p| u16::try_from(p).ok()) else {
        return Vec::new();
    };
    let is_ready = |e: &Value| e.pointer("/conditions/ready").and_then(Value::as_bool).unwrap_or(true);
    let address = |e: &Value| e.pointer("/addresses/0").and_then(Value::as_str).map(str::to_owned);
    list("endpoints").iter().filter(|e| is_ready(e)).filter_map(address).map(|host| (host, port)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_ready_endpoints_of_the_port_are_used() {
        let slice = json!({
            "ports": [{ "name": "https", "port": 8443 }, { "name": "", "port": 80 }],
            "endpoints": [
                { "addresses": ["10.0.0.1"], "conditions": { "ready": true } },
                { "addresses": ["10.0.0.2"], "conditions": { "ready": false } },
                { "addresses": ["10.0.0.3"] },
            ],
        });
        let at = |port: u16| vec![("10.0.0.1".to_owned(), port), ("10.0.0.3".to_owned(), port)];
        assert_eq!(ready(&slice, "https"), at(8443));
        assert_eq!(ready(&slice, ""), at(80));
        assert_eq!(ready(&slice, "other"), []);
    }
}
