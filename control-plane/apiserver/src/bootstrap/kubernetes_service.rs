//! The `kubernetes` Service: pods reach the API by it, at the endpoints that the servers advertise.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use corten_admission::allocation::{AddressRange, ip_address};
use corten_meta::quote::quote;
use corten_meta::{Status, Value};
use corten_store::{Expect, Op};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::Wanted;
use super::server_addresses::{self, PORT_NAME, ServerAddress};
use crate::config::Config;
use crate::core::Core;
use crate::error::Error;

/// The label of an EndpointSlice's Service.
const SERVICE_LABEL: &str = "kubernetes.io/service-name";
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
pub fn wanted(config: &Config, servers: &[ServerAddress]) -> Result<Vec<Wanted>, Status> {
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
            "ports": [{ "name": PORT_NAME, "port": 443, "protocol": "TCP", "targetPort": config.port }],
        },
    });
    let mut address_object = ip_address(&ip, "default", "kubernetes", jiff::Timestamp::now());
    address_object["metadata"]["uid"] = Value::Null;
    let mut wanted = vec![
        Wanted {
            allocated: json!({ "clusterIPs": [ip], "ipFamilies": [family] }),
            ..Wanted::new("", "v1", "services", service)
        },
        Wanted::new("networking.k8s.io", "v1", "ipaddresses", address_object),
        Wanted::new("", "v1", "endpoints", endpoints(servers))
            .repaired_by(|present, wanted| repair(present, wanted, &["subsets"])),
    ];
    wanted.extend(slices(config.advertise_address, servers).into_iter().map(|slice| {
        Wanted::new("discovery.k8s.io", "v1", "endpointslices", slice)
            .repaired_by(|present, wanted| repair(present, wanted, &["endpoints", "ports"]))
    }));
    Ok(wanted)
}

/// Returns the addresses of the servers by their ports, the lowest first.
fn by_port(servers: &[ServerAddress]) -> BTreeMap<u16, Vec<IpAddr>> {
    let mut ports: BTreeMap<u16, Vec<IpAddr>> = BTreeMap::new();
    for server in servers {
        ports.entry(server.port).or_default().push(server.ip);
    }
    ports
}

/// Returns the Endpoints, with a subset for every port.
fn endpoints(servers: &[ServerAddress]) -> Value {
    let subset = |(port, addresses): (u16, Vec<IpAddr>)| {
        let addresses: Vec<Value> = addresses.iter().map(|ip| json!({ "ip": ip.to_string() })).collect();
        json!({ "addresses": addresses, "ports": [{ "name": PORT_NAME, "port": port, "protocol": "TCP" }] })
    };
    json!({
        "metadata": { "name": "kubernetes", "namespace": "default",
                      "labels": { "endpointslice.kubernetes.io/skip-mirror": "true" } },
        "subsets": by_port(servers).into_iter().map(subset).collect::<Vec<_>>(),
    })
}

/// Returns the EndpointSlices, one for every port, because the ports of a slice are those of all its endpoints. Every server
/// gives them the same names.
fn slices(own: IpAddr, servers: &[ServerAddress]) -> Vec<Value> {
    // A slice has addresses of one family.
    let of_family: Vec<ServerAddress> =
        servers.iter().filter(|server| server.ip.is_ipv4() == own.is_ipv4()).copied().collect();
    let slice = |(index, (port, addresses)): (usize, (u16, Vec<IpAddr>))| {
        let ready = |ip: &IpAddr| json!({ "addresses": [ip.to_string()], "conditions": { "ready": true } });
        json!({
            "metadata": {
                "name": if index == 0 { "kubernetes".to_owned() } else { format!("kubernetes-{port}") },
                "namespace": "default",
                "labels": { SERVICE_LABEL: "kubernetes" },
            },
            "addressType": if own.is_ipv4() { "IPv4" } else { "IPv6" },
            "endpoints": addresses.iter().map(ready).collect::<Vec<_>>(),
            "ports": [{ "name": PORT_NAME, "port": port, "protocol": "TCP" }],
        })
    };
    by_port(&of_family).into_iter().enumerate().map(slice).collect()
}

/// Returns the operations that delete the slices of ports that no server has any more.
pub fn obsolete_slices(core: &Core, servers: &[ServerAddress]) -> Result<Vec<Op>, Status> {
    let wanted = slices(core.config.advertise_address, servers);
    let resource = core.registry.required("discovery.k8s.io", "v1", "endpointslices")?;
    let mut operations = Vec::new();
    for object in resource.storage()?.cache.list("default") {
        let value = object.value();
        let name = corten_meta::name(&value);
        let port = name.strip_prefix("kubernetes-").and_then(|port| port.parse::<u16>().ok());
        let is_ours = port.is_some() && value["metadata"]["labels"][SERVICE_LABEL] == "kubernetes";
        if is_ours && wanted.iter().all(|slice| corten_meta::name(slice) != name) {
            let expect = Expect::ModRevision(object.revision);
            operations.push(core.registry.remove(&resource, "default", name, expect)?);
        }
    }
    Ok(operations)
}

/// Restores the fields of the servers' addresses.
fn repair(present: &Value, wanted: &Value, fields: &[&str]) -> Option<Value> {
    let mut object = present.clone();
    for field in fields {
        object[*field] = wanted[*field].clone();
    }
    (object != *present).then_some(object)
}
