//! AddressPools: which of them are valid, and the controller that reports it in their status.
//!
//! A pool that overlaps an older pool, or the pool of the configuration, gives no addresses: two Services could get the
//! same one. Addresses that Services have already are kept.

use corten_api::k8s_openapi::api::core::v1::Service;
use corten_api::{AddressPool, AddressRange};
use corten_client::Change;
use corten_meta::{Key, Value};
use jiff::Timestamp;
use serde_json::json;

use super::{CONFIGURED_POOL, POOLS, ingress, is_of_type};
use crate::runtime::{Action, Controller, Event, Plan, Reference, View, Watch};

/// The pools of the cluster that give addresses, in the order in which they are tried: the configured one, then by
/// priority, then the oldest.
pub(super) fn usable(
    configured: Option<AddressPool>,
    objects: &[Value],
    reserved: &[AddressRange],
) -> Vec<AddressPool> {
    let mut pools: Vec<AddressPool> = configured.into_iter().collect();
    let first = pools.len();
    for object in by_age(objects) {
        if let Ok(pool) = AddressPool::of(object)
            && conflict(&pool, &pools, reserved).is_none()
        {
            pools.push(pool);
        }
    }
    pools[first..].sort_by_key(|pool| (pool.priority == 0, pool.priority));
    pools
}

fn by_age(objects: &[Value]) -> Vec<&Value> {
    let mut sorted: Vec<&Value> = objects.iter().collect();
    let created = |one: &Value| one["metadata"]["creationTimestamp"].as_str().unwrap_or_default().to_owned();
    sorted.sort_by_key(|one| (created(one), corten_meta::name(one).to_owned()));
    sorted
}

/// Returns the sentence about addresses that an older pool or another part of the cluster has.
fn conflict(pool: &AddressPool, older: &[AddressPool], reserved: &[AddressRange]) -> Option<String> {
    let overlap = older.iter().find_map(|other| Some((other, pool.overlap(other)?)));
    if let Some((other, range)) = overlap {
        let name = match other.name.as_str() {
            CONFIGURED_POOL => format!("the pool of {CONFIGURED_POOL}"),
            name => format!("the older pool {name}"),
        };
        return Some(format!("the addresses {range} overlap {name}"));
    }
    let reserved = reserved.iter().find(|one| pool.ranges.iter().any(|range| range.overlaps(one)))?;
    Some(format!("the addresses overlap those of pods, {reserved}"))
}

/// Reports in the status of each AddressPool whether it is valid, and how many of its addresses are assigned.
pub struct AddressPoolController {
    pub configured: Option<Vec<AddressRange>>,
    /// The ranges that no pool may have: the pod CIDRs.
    pub reserved: Vec<AddressRange>,
}

pub struct ObservedPool {
    object: Value,
    others: Vec<Value>,
    services: Vec<Service>,
}

impl Controller for AddressPoolController {
    type Observed = ObservedPool;

    const NAME: &'static str = "address-pool-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch { resource: POOLS, keys: all_pools }, Watch::mapped::<Service>(of_service)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<ObservedPool> {
        let object = view.get(POOLS, key)?.value();
        let others = view.list(POOLS, "").iter().map(|pool| pool.value()).collect();
        let services: Vec<Service> = view.all("");
        Some(ObservedPool { object, others, services })
    }

    fn reconcile(&self, observed: &ObservedPool, now: Timestamp) -> Plan {
        let object = &observed.object;
        let verdict = self.verdict(observed);
        let (status, reason, message) = match &verdict {
            Ok(_) => ("True", "Valid", ""),
            Err(message) => ("False", "Invalid", message.as_str()),
        };
        let old = object.pointer("/status/conditions/0").cloned().unwrap_or_default();
        let since = match old["status"] == status {
            true => old["lastTransitionTime"].clone(),
            false => corten_meta::time::rfc3339(now).into(),
        };
        let condition = json!({"type": "Accepted", "status": status, "reason": reason, "message": message,
            "observedGeneration": corten_meta::generation(object), "lastTransitionTime": since});
        let mut wanted = json!({"conditions": [condition]});
        if let Ok(pool) = &verdict {
            let assigned = assigned(pool, &observed.services);
            let available = pool.size().saturating_sub(assigned.into());
            wanted["assigned"] = assigned.into();
            wanted["available"] = i64::try_from(available).unwrap_or(i64::MAX).into();
        }
        let is_same = |field: &str| object["status"].get(field) == wanted.get(field);
        if ["conditions", "assigned", "available"].into_iter().all(is_same) {
            return Plan::nothing();
        }
        let mut plan = Plan::nothing();
        if let Err(message) = &verdict
            && old["message"] != message.as_str()
        {
            plan.push(refused(object, message.clone()));
        }
        plan.push(patch_status(object, wanted));
        plan
    }
}

impl AddressPoolController {
    /// Returns the pool, or the sentence about its fault.
    fn verdict(&self, observed: &ObservedPool) -> Result<AddressPool, String> {
        let pool = AddressPool::of(&observed.object)?;
        let sorted = by_age(&observed.others);
        let older: Vec<Value> =
            sorted.into_iter().take_while(|other| corten_meta::name(other) != pool.name).cloned().collect();
        let configured = self.configured.clone().map(|ranges| AddressPool::of_ranges(CONFIGURED_POOL, ranges));
        match conflict(&pool, &usable(configured, &older, &self.reserved), &self.reserved) {
            Some(message) => Err(message),
            None => Ok(pool),
        }
    }
}

/// Returns the number of addresses of a pool that Services have.
fn assigned(pool: &AddressPool, services: &[Service]) -> u64 {
    let addresses = services.iter().filter(|service| is_of_type(service)).flat_map(ingress);
    let distinct: std::collections::BTreeSet<_> = addresses.filter(|address| pool.contains(*address)).collect();
    distinct.len() as u64
}

fn refused(object: &Value, message: String) -> Action {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let about = Reference {
        resource: POOLS,
        key: key(object),
        uid: text("/metadata/uid"),
        resource_version: text("/metadata/resourceVersion"),
    };
    Action::Event(Event { about, warning: true, reason: "InvalidPool".to_owned(), message })
}

fn key(object: &Value) -> Key {
    Key::new(corten_meta::namespace(object), corten_meta::name(object))
}

/// Returns a merge patch of the status; fields that are not wanted any more are removed.
fn patch_status(object: &Value, mut status: Value) -> Action {
    for field in ["assigned", "available"] {
        if status.get(field).is_none() {
            status[field] = Value::Null;
        }
    }
    let patch = json!({"metadata": {"uid": object["metadata"]["uid"]}, "status": status});
    Action::Patch { resource: POOLS, key: key(object), patch, subresource: Some("status") }
}

/// Returns all pools: one that changed may be in the way of others.
fn all_pools(view: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys: Vec<Key> = view.list(POOLS, "").iter().map(|pool| pool.key()).collect();
    keys.push(change.key.clone());
    keys.sort();
    keys.dedup();
    keys
}

/// Returns all pools if the addresses of a Service changed.
fn of_service(view: &dyn View, change: &Change) -> Vec<Key> {
    let addresses = |object: &Option<std::sync::Arc<corten_meta::Object>>| {
        let object = object.as_ref()?.value();
        object.pointer("/status/loadBalancer/ingress").cloned()
    };
    if addresses(&change.old) == addresses(&change.new) {
        return Vec::new();
    }
    view.list(POOLS, "").iter().map(|pool| pool.key()).collect()
}
