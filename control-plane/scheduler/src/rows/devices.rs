//! Devices, their classes and the claims to them, and which devices are taken.
//!
//! Invariant: a device that an allocation names, written or promised, is offered to no other claim (administrators
//! apart).

use std::collections::{BTreeMap, HashMap, HashSet};

use corten_api::k8s_openapi::api::core::v1::NodeSelector;
use corten_api::k8s_openapi::api::resource::v1::{
    AllocationResult, Device, DeviceClass, ResourceClaim, ResourceSlice, ResourceSliceSpec,
};
use corten_meta::Key;

use super::node::NodeRow;

/// A device by driver, pool and name.
pub type DeviceId = (String, String, String);

/// A device that a node can use, with the driver and pool it belongs to.
#[derive(Clone, Copy)]
pub struct Offered<'a> {
    pub driver: &'a str,
    pub pool: &'a str,
    pub device: &'a Device,
    /// Only this node can use it.
    pub on_one_node: bool,
    /// The nodes that can use it, if not all and not one.
    pub nodes: Option<&'a NodeSelector>,
}

impl Offered<'_> {
    pub fn id(&self) -> DeviceId {
        (self.driver.to_owned(), self.pool.to_owned(), self.device.name.clone())
    }
}

#[derive(Default)]
pub struct Devices {
    pub slices: BTreeMap<String, ResourceSliceSpec>,
    pub classes: HashMap<String, DeviceClass>,
    pub claims: HashMap<Key, ResourceClaim>,
    promised: HashMap<Key, AllocationResult>,
}

impl Devices {
    pub fn set_slice(&mut self, name: &str, slice: Option<ResourceSlice>) {
        match slice {
            Some(slice) => drop(self.slices.insert(name.to_owned(), slice.spec)),
            None => drop(self.slices.remove(name)),
        }
    }

    pub fn promise(&mut self, claim: &Key, allocation: AllocationResult) {
        self.promised.insert(claim.clone(), allocation);
    }

    pub fn is_promised(&self, claim: &Key) -> bool {
        self.promised.contains_key(claim)
    }

    pub fn release(&mut self, claims: &HashSet<Key>) {
        self.promised.retain(|claim, _| !claims.contains(claim));
    }

    /// Devices that allocations have.
    pub fn taken(&self) -> HashSet<DeviceId> {
        let written = self.claims.values().filter_map(|claim| claim.status.as_ref()?.allocation.as_ref());
        let results = written.chain(self.promised.values()).filter_map(|allocation| allocation.devices.as_ref());
        let results = results.flat_map(|devices| devices.results.iter().flatten());
        let exclusive = results.filter(|result| result.admin_access != Some(true));
        exclusive.map(|result| (result.driver.clone(), result.pool.clone(), result.device.clone())).collect()
    }

    /// What the newest complete generation of each pool offers to a node. A pool that is being rewritten offers
    /// nothing until it is whole.
    pub fn offered_to(&self, node: &NodeRow) -> Vec<Offered<'_>> {
        let mut newest: HashMap<(&str, &str), (i64, i64, i64)> = HashMap::new();
        for slice in self.slices.values() {
            let pool = newest.entry((slice.driver.as_str(), slice.pool.name.as_str())).or_insert((i64::MIN, 0, 0));
            if slice.pool.generation > pool.0 {
                *pool = (slice.pool.generation, slice.pool.resource_slice_count, 0);
            }
            pool.2 += i64::from(slice.pool.generation == pool.0);
        }
        let whole = |slice: &&ResourceSliceSpec| {
            let pool = newest.get(&(slice.driver.as_str(), slice.pool.name.as_str()));
            pool.is_some_and(|(generation, count, seen)| slice.pool.generation == *generation && seen >= count)
        };
        let mut offered = Vec::new();
        for slice in self.slices.values().filter(whole) {
            for device in slice.devices.iter().flatten() {
                offered.extend(offer(slice, device, node));
            }
        }
        offered
    }
}

/// A device if the node can use it. Devices that share counters, or that several claims can have parts of, are not
/// offered: what is left of such cannot be told.
fn offer<'a>(slice: &'a ResourceSliceSpec, device: &'a Device, node: &NodeRow) -> Option<Offered<'a>> {
    if device.consumes_counters.is_some() || device.allow_multiple_allocations == Some(true) {
        return None;
    }
    let (name, selector, all) = match slice.per_device_node_selection {
        Some(true) => (&device.node_name, &device.node_selector, device.all_nodes),
        _ => (&slice.node_name, &slice.node_selector, slice.all_nodes),
    };
    let selects = |selector: &NodeSelector| {
        let matches = |term| corten_api::placement::node_term_matches(term, &node.name, &node.labels);
        selector.node_selector_terms.iter().any(matches)
    };
    let usable = match (name, selector, all) {
        (Some(name), _, _) => *name == node.name,
        (None, Some(selector), _) => selects(selector),
        (None, None, all) => all == Some(true),
    };
    usable.then(|| Offered {
        driver: &slice.driver,
        pool: &slice.pool.name,
        device,
        on_one_node: name.is_some() || device.binds_to_node == Some(true),
        nodes: selector.as_ref(),
    })
}
