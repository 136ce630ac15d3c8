//! The addresses of the API servers on one store, which become the endpoints of the `kubernetes` Service.
//!
//! On a store of its own a server is alone. On a shared store each server writes its address under a lease that lives a
//! little longer than the interval of renewals, where upstream's servers do the same: the address of a server that died
//! expires, and that of a server that stops is removed first of all.

use std::net::IpAddr;
use std::time::Duration;

use corten_meta::{Status, Value};
use corten_store::{Expect, LeaseId, Op, Outcome};
use serde_json::json;

use crate::core::Core;
use crate::error::store_status;
use crate::registry::Unserved;

/// The time to live of an address; upstream's.
const TTL: Duration = Duration::from_secs(15);
/// The name of the port of the API.
pub const PORT_NAME: &str = "https";
/// The attempts to write the own address, which no other server writes.
const ATTEMPTS: usize = 5;

/// The address of one API server. Servers may listen at different ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerAddress {
    pub ip: IpAddr,
    pub port: u16,
}

/// An object by which this server is found.
struct Published {
    of: Unserved,
    key: String,
    object: Value,
}

/// Returns the objects by which this server is found: by the endpoints of the `kubernetes` Service, and by its peers.
fn published(core: &Core) -> Vec<Published> {
    let ip = core.config.advertise_address.to_string();
    let of = Unserved::server_addresses();
    let key = format!("{}/{ip}", of.path);
    let ports = json!([{ "name": PORT_NAME, "port": core.config.port, "protocol": "TCP" }]);
    // Upstream's servers read the address alone.
    let subsets = json!([{ "addresses": [{ "ip": ip }], "ports": ports }]);
    let object = json!({ "metadata": {}, "subsets": subsets });
    let mut all = vec![Published { of, key, object }];
    if let Some(hostname) = &core.config.hostname {
        let identity = super::identity::name(hostname);
        let of = Unserved::peer_addresses();
        let key = format!("{}/{identity}", of.path);
        let object = json!({ "metadata": { "labels": { "apiserverIdentity": identity } }, "subsets": subsets });
        all.push(Published { of, key, object });
    }
    all
}

/// Renews the addresses of this server. Nothing has to be done on a store of its own.
pub async fn renew(core: &Core) -> Result<(), Status> {
    let store = &core.registry.store;
    if !store.is_shared() {
        return Ok(());
    }
    let lease = store.grant(TTL, 0).await.map_err(store_status)?;
    for one in published(core) {
        write(core, one, lease).await?;
    }
    Ok(())
}

/// Writes an object with the next generation: that is how upstream's servers renew it.
async fn write(core: &Core, Published { of, key, mut object }: Published, lease: LeaseId) -> Result<(), Status> {
    object["apiVersion"] = "v1".into();
    object["kind"] = "Endpoints".into();
    for _ in 0..ATTEMPTS {
        let found = core.registry.read_unserved(&of, &key).await?;
        let expect = found.as_ref().map_or(Expect::Absent, |found| Expect::ModRevision(found.revision));
        let generation = found.map_or(0, |found| corten_meta::generation(&found.value)) + 1;
        object["metadata"]["generation"] = generation.into();
        let operation = core.registry.put_unserved(&of, &key, &object, expect, lease)?;
        if let Outcome::Committed { .. } = core.registry.store.commit(vec![operation]).await.map_err(store_status)? {
            return Ok(());
        }
    }
    Err(Status::internal("another server writes the address of this one".to_owned()))
}

/// Removes the addresses of this server, which stops.
pub async fn remove(core: &Core) -> Result<(), Status> {
    let store = &core.registry.store;
    if store.is_shared() {
        let key = |one: Published| Op::delete(core.registry.caches.root().key(&one.key), Expect::Any);
        store.commit(published(core).into_iter().map(key).collect()).await.map_err(store_status)?;
    }
    Ok(())
}

/// Returns the addresses of the servers, in order; those of a server alone are its own.
pub async fn list(core: &Core) -> Result<Vec<ServerAddress>, Status> {
    let own = ServerAddress { ip: core.config.advertise_address, port: core.config.port };
    if !core.registry.store.is_shared() {
        return Ok(vec![own]);
    }
    let values = core.registry.list_unserved(&Unserved::server_addresses()).await?;
    let mut addresses: Vec<ServerAddress> =
        values.iter().filter_map(|endpoints| address_of(endpoints, own.port)).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// Returns the address that a server wrote. Upstream's servers write no port: all of them have the same.
fn address_of(endpoints: &Value, usual_port: u16) -> Option<ServerAddress> {
    let subset = endpoints.pointer("/subsets/0")?;
    let ip = subset.pointer("/addresses/0/ip")?.as_str()?.parse().ok()?;
    let port = subset.pointer("/ports/0/port").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    Some(ServerAddress { ip, port: port.unwrap_or(usual_port) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_without_a_port_has_the_usual_one() {
        let address = |subset: Value| address_of(&json!({ "subsets": [subset] }), 6443);
        let ip = IpAddr::from([10, 0, 0, 1]);
        let addresses = json!([{ "ip": "10.0.0.1" }]);
        for (ports, port) in
            [(json!([{ "port": 7443 }]), 7443), (Value::Null, 6443), (json!([{ "port": 70_000 }]), 6443)]
        {
            assert_eq!(address(json!({ "addresses": addresses, "ports": ports })), Some(ServerAddress { ip, port }));
        }
        assert_eq!(address(json!({ "addresses": [{ "ip": "nonsense" }] })), None);
        assert_eq!(address(json!({})), None);
    }
}
