//! The addresses of the API servers on one store, which become the endpoints of the `kubernetes` Service.
//!
//! On a store of its own a server is alone. On a shared store each server writes its address under a lease that lives a
//! little longer than the interval of renewals, where upstream's servers do the same: the address of a server that died
//! expires, and that of a server that stops is removed first of all.

use std::net::IpAddr;
use std::time::Duration;

use corten_meta::{Status, Value};
use corten_store::{Expect, Op, Outcome};
use serde_json::json;

use crate::core::Core;
use crate::error::store_status;
use crate::registry::Unserved;

/// The time to live of an address; upstream's.
const TTL: Duration = Duration::from_secs(15);
/// The attempts to write the own address, which no other server writes.
const ATTEMPTS: usize = 5;

fn own_key(core: &Core, of: &Unserved) -> String {
    format!("{}/{}", of.path, core.config.advertise_address)
}

/// Renews the address of this server. Nothing has to be done on a store of its own.
pub async fn renew(core: &Core) -> Result<(), Status> {
    let store = &core.registry.store;
    if !store.is_shared() {
        return Ok(());
    }
    let of = Unserved::server_addresses();
    let key = own_key(core, &of);
    let lease = store.grant(TTL, 0).await.map_err(store_status)?;
    for _ in 0..ATTEMPTS {
        let found = core.registry.read_unserved(&of, &key).await?;
        let expect = found.as_ref().map_or(Expect::Absent, |found| Expect::ModRevision(found.revision));
        let generation = found.map_or(0, |found| corten_meta::generation(&found.value)) + 1;
        let address = core.config.advertise_address.to_string();
        let object = json!({
            "apiVersion": "v1",
            "kind": "Endpoints",
            "metadata": { "generation": generation },
            "subsets": [{ "addresses": [{ "ip": address }] }],
        });
        let operation = core.registry.put_unserved(&of, &key, &object, expect, lease)?;
        if let Outcome::Committed { .. } = store.commit(vec![operation]).await.map_err(store_status)? {
            return Ok(());
        }
    }
    Err(Status::internal("another server writes the address of this one".to_owned()))
}

/// Removes the address of this server, which stops.
pub async fn remove(core: &Core) -> Result<(), Status> {
    let store = &core.registry.store;
    if store.is_shared() {
        let key = core.registry.caches.root().key(&own_key(core, &Unserved::server_addresses()));
        store.commit(vec![Op::delete(key, Expect::Any)]).await.map_err(store_status)?;
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
