//! Devices, their classes and the claims to them, and the allocated devices.
//!
//! Invariant: a device in an allocation, written or assumed, is offered to no other claim (except for admin access),
//! and devices that share counters never consume more than there is. The inventory is rebuilt when it is used after the
//! pools changed; allocations are counted claim by claim.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::NodeSelector;
use corten_api::k8s_openapi::api::resource::v1::{
    AllocationResult, Device, DeviceClass, ResourceClaim, ResourceSlice, ResourceSliceSpec,
};
use corten_meta::{Key, Quantity};

use super::PodRow;
use super::extended::CLASS_PREFIX;
use super::node::NodeRow;

/// The annotation of a claim that was created for the extended resources of the pod that owns it.
pub const EXTENDED_CLAIM: &str = "resource.kubernetes.io/extended-resource-claim";

/// A device by driver, pool and name.
type DeviceId = (String, String, String);

/// A device that a node can use, with its driver and pool.
#[derive(Clone, Copy)]
pub struct Offered<'a> {
    /// The number in the inventory, valid while the pools do not change.
    pub number: usize,
    pub driver: &'a str,
    pub pool: &'a str,
    pub device: &'a Device,
    /// Whether only this node can use the device.
    pub on_one_node: bool,
    /// The nodes that can use it, if not all and not one.
    pub nodes: Option<&'a NodeSelector>,
    /// The counters that it consumes: their numbers, and the quantities.
    pub consumes: &'a [(usize, i128)],
}

impl Offered<'_> {
    /// Reports whether several claims can share it.
    pub fn is_shared(&self) -> bool {
        self.device.allow_multiple_allocations == Some(true)
    }

    /// Returns the total of a capacity.
    pub fn capacity(&self, name: &str) -> i128 {
        let capacity = self.device.capacity.as_ref().and_then(|capacity| capacity.get(name));
        capacity.map_or(0, |capacity| milli_value(&capacity.value.0))
    }
}

/// A device in the inventory.
struct Listed {
    slice: Arc<ResourceSliceSpec>,
    place: usize,
    consumes: Vec<(usize, i128)>,
}

impl Listed {
    fn device(&self) -> Option<&Device> {
        self.slice.devices.as_ref()?.get(self.place)
    }
}

/// All devices of complete pools, and their remaining capacity.
#[derive(Default)]
struct Inventory {
    devices: Vec<Listed>,
    numbers: HashMap<DeviceId, usize>,
    /// The number of allocations of each device.
    busy: Vec<u32>,
    /// The remaining quantity of each counter.
    left: Vec<i128>,
    /// The consumed capacities of shared devices, by device and name.
    shared: HashMap<(usize, String), i128>,
    /// The devices of one node, by its name; and all others.
    by_node: HashMap<String, Vec<usize>>,
    elsewhere: Vec<usize>,
}

#[derive(Default)]
pub struct Devices {
    slices: BTreeMap<String, Arc<ResourceSliceSpec>>,
    pub classes: HashMap<String, DeviceClass>,
    claims: HashMap<Key, ResourceClaim>,
    promised: HashMap<Key, AllocationResult>,
    inventory: Option<Inventory>,
    /// Incremented whenever devices get new numbers.
    pub epoch: u64,
}

impl Devices {
    pub fn set_slice(&mut self, name: &str, slice: Option<ResourceSlice>) {
        match slice {
            Some(slice) => drop(self.slices.insert(name.to_owned(), Arc::new(slice.spec))),
            None => drop(self.slices.remove(name)),
        }
        self.inventory = None;
    }

    pub fn claim(&self, key: &Key) -> Option<&ResourceClaim> {
        self.claims.get(key)
    }

    /// Returns the DeviceClass of an extended resource: the newest that names it, or the class in the resource's own
    /// name.
    pub fn class_of(&self, resource: &str) -> Option<&str> {
        if let Some(name) = resource.strip_prefix(CLASS_PREFIX) {
            return self.classes.get_key_value(name).map(|(name, _)| name.as_str());
        }
        let is_named = |class: &DeviceClass| class.spec.extended_resource_name.as_deref() == Some(resource);
        let created = |class: &DeviceClass| class.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let named = self.classes.iter().filter(|(_, class)| is_named(class));
        let newest = named.max_by(|one, other| created(one.1).cmp(&created(other.1)).then_with(|| other.0.cmp(one.0)));
        newest.map(|(name, _)| name.as_str())
    }

    /// Returns the claim that was created for the extended resources of a pod.
    pub fn made_for(&self, pod: &PodRow) -> Option<Key> {
        let is_made = |claim: &ResourceClaim| {
            let mark = claim.metadata.annotations.as_ref().and_then(|all| all.get(EXTENDED_CLAIM));
            let mut owners = claim.metadata.owner_references.iter().flatten();
            mark.is_some_and(|mark| mark == "true")
                && owners.any(|owner| owner.controller == Some(true) && *owner.uid == *pod.uid)
        };
        self.claims.iter().find(|(_, claim)| is_made(claim)).map(|(key, _)| key.clone())
    }

    pub fn set_claim(&mut self, key: &Key, claim: Option<ResourceClaim>) {
        self.count(key, false);
        match claim {
            Some(claim) => drop(self.claims.insert(key.clone(), claim)),
            None => drop(self.claims.remove(key)),
        }
        self.count(key, true);
    }

    pub fn promise(&mut self, key: &Key, allocation: AllocationResult) {
        self.count(key, false);
        self.promised.insert(key.clone(), allocation);
        self.count(key, true);
    }

    pub fn is_promised(&self, claim: &Key) -> bool {
        self.promised.contains_key(claim)
    }

    pub fn release(&mut self, claims: &HashSet<Key>) {
        for key in claims.iter().filter(|key| self.promised.contains_key(*key)).cloned().collect::<Vec<_>>() {
            self.count(&key, false);
            self.promised.remove(&key);
            self.count(&key, true);
        }
    }

    /// Adds or removes the allocation of a claim.
    fn count(&mut self, key: &Key, taken: bool) {
        let written = self.claims.get(key).and_then(|claim| claim.status.as_ref()?.allocation.as_ref());
        if let (Some(inventory), Some(allocation)) = (&mut self.inventory, written.or(self.promised.get(key))) {
            inventory.count(allocation, taken);
        }
    }

    /// Rebuilds the inventory if pools changed; call it before any other use.
    pub fn refresh(&mut self) {
        if self.inventory.is_some() {
            return;
        }
        let mut inventory = Inventory::of(self.slices.values());
        let written = self.claims.values().filter_map(|claim| claim.status.as_ref()?.allocation.as_ref());
        written.for_each(|allocation| inventory.count(allocation, true));
        let has =
            |key: &Key| self.claims.get(key).is_some_and(|c| c.status.as_ref().is_some_and(|s| s.allocation.is_some()));
        let promised = self.promised.iter().filter(|(key, _)| !has(key));
        promised.for_each(|(_, allocation)| inventory.count(allocation, true));
        self.inventory = Some(inventory);
        self.epoch += 1;
    }

    pub fn is_free(&self, number: usize) -> bool {
        self.inventory.as_ref().is_some_and(|inventory| inventory.busy.get(number) == Some(&0))
    }

    /// Returns the consumed part of a device's capacity.
    pub fn shared(&self, number: usize, name: &str) -> i128 {
        let shared = self.inventory.as_ref().map(|inventory| &inventory.shared).filter(|shared| !shared.is_empty());
        shared.and_then(|shared| shared.get(&(number, name.to_owned())).copied()).unwrap_or(0)
    }

    /// Returns the remaining quantity of a counter.
    pub fn left(&self, counter: usize) -> i128 {
        self.inventory.as_ref().and_then(|inventory| inventory.left.get(counter).copied()).unwrap_or(0)
    }

    /// Returns the devices that the newest complete generation of each pool offers to a node.
    pub fn offered_to(&self, node: &NodeRow) -> Vec<Offered<'_>> {
        let Some(inventory) = &self.inventory else { return Vec::new() };
        let own = inventory.by_node.get(&node.name).into_iter().flatten();
        let mut numbers: Vec<usize> = own.chain(&inventory.elsewhere).copied().collect();
        numbers.sort_unstable();
        numbers.into_iter().filter_map(|number| offer(number, &inventory.devices[number], node)).collect()
    }
}

impl Inventory {
    /// Builds the inventory. A pool that is being rewritten offers nothing until it is complete.
    fn of<'a>(slices: impl Iterator<Item = &'a Arc<ResourceSliceSpec>>) -> Inventory {
        let slices: Vec<&Arc<ResourceSliceSpec>> = slices.collect();
        let mut newest: HashMap<(&str, &str), (i64, i64, i64)> = HashMap::new();
        for slice in &slices {
            let pool = newest.entry((slice.driver.as_str(), slice.pool.name.as_str())).or_insert((i64::MIN, 0, 0));
            if slice.pool.generation > pool.0 {
                *pool = (slice.pool.generation, slice.pool.resource_slice_count, 0);
            }
            pool.2 += i64::from(slice.pool.generation == pool.0);
        }
        let is_complete = |slice: &&&Arc<ResourceSliceSpec>| {
            let pool = newest.get(&(slice.driver.as_str(), slice.pool.name.as_str()));
            pool.is_some_and(|(generation, count, seen)| slice.pool.generation == *generation && seen >= count)
        };
        let mut inventory = Inventory::default();
        let mut counters = HashMap::new();
        for slice in slices.iter().filter(is_complete) {
            inventory.add_counters(slice, &mut counters);
        }
        for slice in slices.iter().filter(is_complete) {
            inventory.add_devices(slice, &counters);
        }
        inventory
    }

    fn add_counters(&mut self, slice: &ResourceSliceSpec, counters: &mut HashMap<CounterId, usize>) {
        for set in slice.shared_counters.iter().flatten() {
            for (name, counter) in &set.counters {
                counters.insert(counter_id(slice, &set.name, name), self.left.len());
                self.left.push(milli_value(&counter.value.0));
            }
        }
    }

    fn add_devices(&mut self, slice: &Arc<ResourceSliceSpec>, counters: &HashMap<CounterId, usize>) {
        for (place, device) in slice.devices.iter().flatten().enumerate() {
            let mut consumes = Vec::new();
            for set in device.consumes_counters.iter().flatten() {
                for (name, counter) in &set.counters {
                    let number = counters.get(&counter_id(slice, &set.counter_set, name));
                    consumes.extend(number.map(|number| (*number, milli_value(&counter.value.0))));
                }
            }
            let number = self.devices.len();
            let node = match slice.per_device_node_selection {
                Some(true) => &device.node_name,
                _ => &slice.node_name,
            };
            match node {
                Some(node) => self.by_node.entry(node.clone()).or_default().push(number),
                None => self.elsewhere.push(number),
            }
            let id = (slice.driver.clone(), slice.pool.name.clone(), device.name.clone());
            self.numbers.insert(id, number);
            self.devices.push(Listed { slice: slice.clone(), place, consumes });
            self.busy.push(0);
        }
    }

    fn count(&mut self, allocation: &AllocationResult, taken: bool) {
        let results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        for result in results.filter(|result| result.admin_access != Some(true)) {
            let id = (result.driver.clone(), result.pool.clone(), result.device.clone());
            let Some(number) = self.numbers.get(&id).copied() else { continue };
            for (name, quantity) in result.consumed_capacity.iter().flatten() {
                let by = if taken { milli_value(&quantity.0) } else { -milli_value(&quantity.0) };
                let key = (number, name.clone());
                let used = self.shared.get(&key).copied().unwrap_or(0) + by;
                match used {
                    0 => drop(self.shared.remove(&key)),
                    _ => drop(self.shared.insert(key, used)),
                }
            }
            let before = self.busy[number];
            self.busy[number] = if taken { before + 1 } else { before.saturating_sub(1) };
            // The counters are consumed once, by the first allocation of the device.
            let change = match (before, self.busy[number]) {
                (0, 1) => -1,
                (1, 0) => 1,
                _ => continue,
            };
            for (counter, used) in &self.devices[number].consumes {
                self.left[*counter] += change * used;
            }
        }
    }
}

/// A counter by driver, pool, set and name.
type CounterId = (String, String, String, String);

fn counter_id(slice: &ResourceSliceSpec, set: &str, name: &str) -> CounterId {
    (slice.driver.clone(), slice.pool.name.clone(), set.to_owned(), name.to_owned())
}

fn milli_value(quantity: &str) -> i128 {
    Quantity::parse(quantity).map_or(0, |quantity| quantity.as_milli())
}

/// Returns a device if the node can use it.
fn offer<'a>(number: usize, listed: &'a Listed, node: &NodeRow) -> Option<Offered<'a>> {
    let (slice, device) = (&listed.slice, listed.device()?);
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
        number,
        driver: &slice.driver,
        pool: &slice.pool.name,
        device,
        on_one_node: name.is_some() || device.binds_to_node == Some(true),
        nodes: selector.as_ref(),
        consumes: &listed.consumes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use corten_api::Typed;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// Returns one of three pools, each a card of four units: one device consumes it all, four consume one each.
    fn pool(name: usize) -> ResourceSlice {
        let part = |device: &str, units: u32| json!({"name": device, "consumesCounters": [{"counterSet": "card", "counters": {"units": {"value": units.to_string()}}}]});
        let mut devices: Vec<Value> = (0..4).map(|number| part(&format!("part-{number}"), 1)).collect();
        devices.push(part("whole", 4));
        let spec = json!({"driver": "d", "allNodes": true, "devices": devices,
            "pool": {"name": format!("p{name}"), "generation": 1, "resourceSliceCount": 1},
            "sharedCounters": [{"name": "card", "counters": {"units": {"value": "4"}}}]});
        let slice = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "s"}, "spec": spec});
        ResourceSlice::from_value(slice).unwrap()
    }

    fn allocation(pool: usize, device: usize) -> Value {
        let device = if device == 4 { "whole".to_owned() } else { format!("part-{device}") };
        json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": format!("p{pool}"), "device": device,
            "consumedCapacity": {"memory": format!("{pool}Gi")}}]}})
    }

    fn claim(status: Value) -> ResourceClaim {
        let claim = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
            "spec": {}, "status": status});
        ResourceClaim::from_value(claim).unwrap()
    }

    #[derive(Clone, Debug)]
    enum Step {
        Slice(usize, bool),
        Claim(usize, Option<(usize, usize)>),
        Gone(usize),
        Promise(usize, (usize, usize)),
        Release(usize),
        Refresh,
    }

    fn step() -> impl Strategy<Value = Step> {
        let device = || (0usize..3, 0usize..5);
        prop_oneof![
            (0usize..3, any::<bool>()).prop_map(|(pool, there)| Step::Slice(pool, there)),
            (0usize..4, prop::option::of(device())).prop_map(|(claim, device)| Step::Claim(claim, device)),
            (0usize..4).prop_map(Step::Gone),
            (0usize..4, device()).prop_map(|(claim, device)| Step::Promise(claim, device)),
            (0usize..4).prop_map(Step::Release),
            Just(Step::Refresh),
        ]
    }

    proptest! {
        #[test]
        fn what_is_counted_claim_by_claim_is_what_counting_anew_gives(steps in prop::collection::vec(step(), 1..60)) {
            let mut devices = Devices::default();
            let key = |claim: usize| Key::new("n", format!("c{claim}"));
            for step in steps {
                match step {
                    Step::Slice(name, there) => devices.set_slice(&format!("s{name}"), there.then(|| pool(name))),
                    Step::Claim(number, device) => {
                        let has = device.map_or(json!({}), |(pool, device)| json!({"allocation": allocation(pool, device)}));
                        devices.set_claim(&key(number), Some(claim(has)));
                    }
                    Step::Gone(number) => devices.set_claim(&key(number), None),
                    Step::Promise(number, (pool, device)) => {
                        let status = claim(json!({"allocation": allocation(pool, device)})).status;
                        devices.promise(&key(number), status.unwrap().allocation.unwrap());
                    }
                    Step::Release(number) => devices.release(&HashSet::from([key(number)])),
                    Step::Refresh => devices.refresh(),
                }
                let all = |devices: &Devices| {
                    devices.inventory.as_ref().map(|now| (now.busy.clone(), now.left.clone(), now.shared.clone()))
                };
                let counted = all(&devices);
                if let Some(counted) = counted {
                    devices.inventory = None;
                    devices.refresh();
                    prop_assert_eq!(Some(counted), all(&devices));
                }
            }
        }
    }
}
