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
/// The attempts to write the own address, which no other server writes.
const ATTEMPTS: usize = 5;

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
    let object = json!({ "metadata": {}, "subsets": [{ "addresses": [{ "ip": ip }] }] });
    let mut all = vec![Published { of, key, object }];
    if let Some(hostname) = &core.config.hostname {
        let identity = super::identity::name(hostname);
        let of = Unserved::peer_addresses();
        let key = format!("{}/{identity}", of.path);
        let ports = json!([{ "name": "https", "port": core.config.port, "protocol": "TCP" }]);
        let object = json!({
            "metadata": { "labels": { "apiserverIdentity": identity } },
            "subsets": [{ "addresses": [{ "ip": ip }], "ports": ports }],
        });
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
pub async fn list(core: &Core) -> Result<Vec<IpAddr>, Status> {
    if !core.registry.store.is_shared() {
        return Ok(vec![core.config.advertise_address]);
    }
    let values = core.registry.list_unserved(&Unserved::server_addresses()).await?;
    let mut addresses: Vec<IpAddr> = values.iter().filter_map(address_of).collect();
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

fn address_of(endpoints: &Value) -> Option<IpAddr> {
    endpoints.pointer("/subsets/0/addresses/0/ip")?.as_str()?.parse().ok()
}
