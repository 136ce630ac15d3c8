//! The `kubernetes` Service: pods reach the API by it, at the endpoints that this server advertises.

use std::time::Duration;

use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Wanted;
use crate::allocation::{AddressRange, ip_address};
use crate::config::Config;
use crate::core::Core;

/// The interval of checking the Service without events; upstream's.
const INTERVAL: Duration = Duration::from_secs(10);

/// Restores the Service until shutdown: after a `kubectl delete services --all` no pod would reach the API.
pub async fn keep(core: &Core, shutdown: &CancellationToken) {
    let Some(mut services) = core.registry.cache("", "v1", "services").map(|cache| cache.changes()) else { return };
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        tokio::select! {
            () = shutdown.cancelled() => return,
            changed = services.changed() => if changed.is_err() { return },
            _ = tick.tick() => {}
        }
        if let Err(error) = super::restore_service(core).await {
            tracing::warn!(%error, "the kubernetes Service could not be restored");
        }
    }
}

pub fn wanted(config: &Config) -> Result<Vec<Wanted>, Status> {
    let ranges = AddressRange::parse_list(&config.service_cidr)
        .ok_or_else(|| Status::internal(format!("{} is not a CIDR", quote(&config.service_cidr))))?;
    let range = ranges[0];
    let ip = range.first().to_string();
    let family = if range.is_v4() { "IPv4" } else { "IPv6" };
    let labels = json!({ "component": "apiserver", "provider": "kubernetes" });
    let service = json!({
        "metadata": { "name": "kubernetes", "namespace": "default", "labels": labels },
        "spec": {
            "type": "ClusterIP",
            "clusterIP": ip,
            "ipFamilyPolicy": "SingleStack",
            "internalTrafficPolicy": "Cluster",
            "sessionAffinity": "None",
            "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": config.port }],
        },
    });
    let address = config.advertise_address.to_string();
    let endpoints = json!({
        "metadata": { "name": "kubernetes", "namespace": "default",
                      "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" } },
        "subsets": [{ "addresses": [{ "ip": address }], "ports": [{ "name": "https", "port": config.port, "protocol": "TCP" }] }],
    });
    let slice = json!({
        "metadata": { "name": "kubernetes", "namespace": "default", "labels": { "kubernetes.io/service-name": "kubernetes" } },
        "addressType": if config.advertise_address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": [{ "addresses": [address], "conditions": { "ready": true } }],
        "ports": [{ "name": "https", "port": config.port, "protocol": "TCP" }],
    });
    let mut address_object = ip_address(&ip, "default", "kubernetes", jiff::Timestamp::now());
    address_object["metadata"]["uid"] = Value::Null;
    Ok(vec![
        Wanted {
            allocated: json!({ "clusterIPs": [ip], "ipFamilies": [family] }),
            ..Wanted::new("", "v1", "services", service)
        },
        Wanted::new("networking.k8s.io", "v1", "ipaddresses", address_object),
        Wanted::new("", "v1", "endpoints", endpoints)
            .repaired_by(|present, wanted| repair(present, wanted, &["subsets"])),
        Wanted::new("discovery.k8s.io", "v1", "endpointslices", slice)
            .repaired_by(|present, wanted| repair(present, wanted, &["endpoints", "ports"])),
    ])
}

/// Restores the fields of this server's address.
fn repair(present: &Value, wanted: &Value, fields: &[&str]) -> Option<Value> {
    let mut object = present.clone();
    for field in fields {
        object[*field] = wanted[*field].clone();
    }
    (object != *present).then_some(object)
}
