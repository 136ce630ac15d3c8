//! The `kubernetes` Service: pods reach the API by it, at the endpoints that the servers advertise.

use std::net::IpAddr;
use std::time::Duration;

use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::{Wanted, server_addresses};
use crate::allocation::{AddressRange, ip_address};
use crate::config::Config;
use crate::core::Core;
use crate::error::Error;

/// The interval of checking the Service without events; upstream's.
const INTERVAL: Duration = Duration::from_secs(10);

/// Restores the Service until shutdown: after a `kubectl delete services --all` no pod would reach the API. Then
/// removes this server from its endpoints.
pub async fn keep(core: &Core, shutdown: &CancellationToken) {
    let Some(mut services) = core.registry.cache("", "v1", "services").map(|cache| cache.changes()) else { return };
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        let is_due = tokio::select! {
            () = shutdown.cancelled() => break,
            () = core.stopping.cancelled() => break,
            changed = services.changed() => {
                if changed.is_err() {
                    break;
                }
                false
            }
            _ = tick.tick() => true,
        };
        if is_due && let Err(status) = server_addresses::renew(core).await {
            tracing::warn!(error = status.message, "the address of this server could not be renewed");
        }
        if let Err(error) = super::restore_service(core).await {
            tracing::warn!(%error, "the kubernetes Service could not be restored");
        }
    }
    leave(core).await;
    core.left.cancel();
}

/// Removes this server from the endpoints, unless it is the last one.
async fn leave(core: &Core) {
    let removed = server_addresses::remove(core).await.map_err(|status| Error::Bootstrap(status.message));
    let restored = match removed {
        Ok(()) if core.registry.store.is_shared() => super::restore_service(core).await,
        removed => removed,
    };
    if let Err(error) = restored {
        tracing::warn!(%error, "this server could not be removed from the endpoints of the kubernetes Service");
    }
}

/// Returns the Service, its address and its endpoints, which are the servers at these addresses.
pub fn wanted(config: &Config, servers: &[IpAddr]) -> Result<Vec<Wanted>, Status> {
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
    let addresses: Vec<Value> = servers.iter().map(|ip| json!({ "ip": ip.to_string() })).collect();
    let endpoints = json!({
        "metadata": { "name": "kubernetes", "namespace": "default",
                      "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" } },
        "subsets": [{ "addresses": addresses, "ports": [{ "name": "https", "port": config.port, "protocol": "TCP" }] }],
    });
    // A slice has addresses of one family.
    let family_of_servers = |ip: &&IpAddr| ip.is_ipv4() == config.advertise_address.is_ipv4();
    let ready = |ip: &IpAddr| json!({ "addresses": [ip.to_string()], "conditions": { "ready": true } });
    let in_slice: Vec<Value> = servers.iter().filter(family_of_servers).map(ready).collect();
    let slice = json!({
        "metadata": { "name": "kubernetes", "namespace": "default", "labels": { "kubernetes.io/service-name": "kubernetes" } },
        "addressType": if config.advertise_address.is_ipv4() { "IPv4" } else { "IPv6" },
        "endpoints": in_slice,
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

/// Restores the fields of the servers' addresses.
fn repair(present: &Value, wanted: &Value, fields: &[&str]) -> Option<Value> {
    let mut object = present.clone();
    for field in fields {
        object[*field] = wanted[*field].clone();
    }
    (object != *present).then_some(object)
}
