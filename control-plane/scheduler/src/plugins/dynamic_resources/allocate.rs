//! Allocates devices of a node's pools to the claims of a pod, by backtracking search.

use std::collections::{BTreeMap, HashMap, HashSet};

use corten_api::k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};
use corten_api::k8s_openapi::api::resource::v1::{
    AllocationResult, CapacityRequirements, DeviceAllocationConfiguration, DeviceAllocationResult, DeviceAttribute,
    DeviceConstraint, DeviceRequestAllocationResult, DeviceSelector, DeviceTaint, DeviceToleration, ResourceClaim,
};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::capacity::{self, Taken};
use super::select::Selectors;
use crate::rows::devices::{Devices, Offered};

/// The search on a node is aborted after this many steps: pools are small, and a pod must not block all others.
const MOST_TRIES: usize = 100_000;

/// One alternative of a request: a number of devices of a class.
#[derive(Clone)]
struct Wanted<'a> {
    claim: usize,
    /// `request`, or `request/subrequest`.
    name: String,
    class: &'a str,
    selectors: Vec<&'a DeviceSelector>,
    /// None means all devices.
    count: Option<usize>,
    admin: bool,
    tolerations: &'a [DeviceToleration],
    /// The requested part of a device's capacities.
    capacity: Option<&'a CapacityRequirements>,
}

/// The alternatives of a request: the first that works is used.
type Ways<'a> = Vec<Wanted<'a>>;

struct Search<'a> {
    claims: &'a [&'a ResourceClaim],
    requests: Vec<Ways<'a>>,
    devices: &'a Devices,
    offered: Vec<Offered<'a>>,
    /// The numbers of the chosen devices, and the counters they consume.
    taken: HashSet<usize>,
    used: HashMap<usize, i128>,
    /// The chosen shares of shareable devices, by number: how many, and the capacity they consume.
    parts: HashMap<usize, (usize, HashMap<String, i128>)>,
    chosen: Vec<(Wanted<'a>, Offered<'a>)>,
    tries: usize,
    selectors: &'a Selectors,
}

/// Returns the allocations of all claims, in their order; none if the node cannot satisfy them all. An error is a
/// failed CEL expression.
pub fn allocate<'a>(
    claims: &'a [&'a ResourceClaim],
    devices: &'a Devices,
    offered: Vec<Offered<'a>>,
    selectors: &'a Selectors,
    node: &str,
) -> Result<Option<Vec<AllocationResult>>, String> {
    let mut requests = Vec::new();
    for (number, claim) in claims.iter().enumerate() {
        requests.extend(ways(number, claim, devices));
    }
    let mut search = Search {
        claims,
        requests,
        devices,
        offered,
        taken: HashSet::new(),
        used: HashMap::new(),
        parts: HashMap::new(),
        chosen: Vec::new(),
        tries: 0,
        selectors,
    };
    if !search.satisfy(0)? {
        return Ok(None);
    }
    let chosen = search.chosen;
    let result = |number: usize| allocation(number, claims[number], &chosen, devices, node);
    Ok(Some((0..claims.len()).map(result).collect()))
}

fn ways<'a>(number: usize, claim: &'a ResourceClaim, devices: &'a Devices) -> Vec<Ways<'a>> {
    let class_selectors = |class: &str| {
        let class = devices.classes.get(class);
        class.and_then(|class| class.spec.selectors.as_deref()).unwrap_or_default()
    };
    let count = |mode: Option<&str>, count: Option<i64>| match mode {
        Some("All") => None,
        _ => Some(usize::try_from(count.unwrap_or(1)).unwrap_or(1)),
    };
    let mut requests = Vec::new();
    for request in claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten()) {
        if let Some(exactly) = &request.exactly {
            let own = exactly.selectors.as_deref().unwrap_or_default();
            requests.push(vec![Wanted {
                claim: number,
                name: request.name.clone(),
                class: &exactly.device_class_name,
                selectors: class_selectors(&exactly.device_class_name).iter().chain(own).collect(),
                count: count(exactly.allocation_mode.as_deref(), exactly.count),
                admin: exactly.admin_access == Some(true),
                tolerations: exactly.tolerations.as_deref().unwrap_or_default(),
                capacity: exactly.capacity.as_ref(),
            }]);
            continue;
        }
        let sub = request.first_available.iter().flatten().map(|sub| {
            let own = sub.selectors.as_deref().unwrap_or_default();
            Wanted {
                claim: number,
                name: format!("{}/{}", request.name, sub.name),
                class: &sub.device_class_name,
                selectors: class_selectors(&sub.device_class_name).iter().chain(own).collect(),
                count: count(sub.allocation_mode.as_deref(), sub.count),
                admin: false,
                tolerations: sub.tolerations.as_deref().unwrap_or_default(),
                capacity: sub.capacity.as_ref(),
            }
        });
        requests.push(sub.collect());
    }
    requests
}

impl<'a> Search<'a> {
    /// Satisfies the requests from this one on.
    fn satisfy(&mut self, request: usize) -> Result<bool, String> {
        let Some(ways) = self.requests.get(request).cloned() else { return Ok(true) };
        for wanted in ways {
            let before = self.chosen.len();
            let suiting = self.suiting(&wanted)?;
            let done = match wanted.count {
                None => !suiting.is_empty() && self.take_all(&wanted, &suiting) && self.satisfy(request + 1)?,
                Some(count) => self.take(&wanted, &suiting, 0, count, request)?,
            };
            if done {
                return Ok(true);
            }
            self.give_back(before);
        }
        Ok(false)
    }

    /// Returns the positions of the devices that match, allocated or not.
    fn suiting(&self, wanted: &Wanted<'a>) -> Result<Vec<usize>, String> {
        let mut suiting = Vec::new();
        for (place, offered) in self.offered.iter().enumerate() {
            let taints = offered.device.taints.as_deref().unwrap_or_default();
            if !wanted.admin && !tolerated(taints, wanted.tolerations) {
                continue;
            }
            if self.selectors.match_all(&wanted.selectors, offered, self.devices.epoch)? {
                suiting.push(place);
            }
        }
        Ok(suiting)
    }

    fn is_free(&self, wanted: &Wanted<'a>, place: usize) -> bool {
        let offered = &self.offered[place];
        let enough = |(counter, quantity): &(usize, i128)| {
            self.used.get(counter).copied().unwrap_or(0) + quantity <= self.devices.left(*counter)
        };
        let has_room = match (&offered.device.capacity, wanted.capacity) {
            (None, None) => true,
            _ => taken_of(wanted, offered).is_some_and(|taken| self.has_room(offered, &taken)),
        };
        let untouched = self.devices.is_free(offered.number);
        let free = match offered.is_shared() {
            // The counters are consumed once, with the first share.
            true if !untouched || self.parts.contains_key(&offered.number) => return has_room,
            true => true,
            false => untouched && !self.taken.contains(&offered.number),
        };
        has_room && (wanted.admin || (free && offered.consumes.iter().all(enough)))
    }

    /// Reports whether the remaining capacity of the device suffices.
    fn has_room(&self, offered: &Offered<'a>, taken: &Taken) -> bool {
        let chosen = |name: &String| self.parts.get(&offered.number).and_then(|(_, of)| of.get(name)).copied();
        taken.iter().all(|(name, quantity)| {
            let others = self.devices.shared(offered.number, name) + chosen(name).unwrap_or(0);
            others + quantity.as_milli() <= offered.capacity(name)
        })
    }

    /// Takes a share of a device, or gives it back; reports whether the device's counters change with it.
    fn account_part(&mut self, wanted: &Wanted<'a>, offered: &Offered<'a>, taken: bool) -> bool {
        let by = if taken { 1 } else { -1 };
        let (parts, of) = self.parts.entry(offered.number).or_default();
        let before = *parts;
        *parts = parts.saturating_add_signed(by as isize);
        for (name, quantity) in taken_of(wanted, offered).unwrap_or_default() {
            *of.entry(name).or_default() += by * quantity.as_milli();
        }
        let ends = before.max(*parts) == 1;
        if *parts == 0 {
            self.parts.remove(&offered.number);
        }
        ends && self.devices.is_free(offered.number)
    }

    /// Takes a device and its counters, or gives them back.
    fn account(&mut self, wanted: &Wanted<'a>, offered: &Offered<'a>, taken: bool) {
        match (offered.is_shared(), taken) {
            (true, _) => {
                if !self.account_part(wanted, offered, taken) {
                    return;
                }
            }
            (false, true) => drop(self.taken.insert(offered.number)),
            (false, false) => drop(self.taken.remove(&offered.number)),
        }
        for (counter, quantity) in offered.consumes {
            *self.used.entry(*counter).or_default() += if taken { *quantity } else { -quantity };
        }
    }

    fn take_all(&mut self, wanted: &Wanted<'a>, places: &[usize]) -> bool {
        for place in places {
            if !self.is_free(wanted, *place) || !self.choose(wanted, *place) {
                return false;
            }
        }
        true
    }

    /// Takes this many of the matching devices, each later in the list than the one before, and then satisfies the
    /// remaining requests.
    fn take(
        &mut self,
        wanted: &Wanted<'a>,
        suiting: &[usize],
        from: usize,
        count: usize,
        request: usize,
    ) -> Result<bool, String> {
        if count == 0 {
            return self.satisfy(request + 1);
        }
        for at in from..suiting.len() {
            self.tries += 1;
            if self.tries > MOST_TRIES {
                return Ok(false);
            }
            let before = self.chosen.len();
            if !self.is_free(wanted, suiting[at]) || !self.choose(wanted, suiting[at]) {
                continue;
            }
            // One request may have two shares of a shareable device.
            let next = if self.offered[suiting[at]].is_shared() { at } else { at + 1 };
            if self.take(wanted, suiting, next, count - 1, request)? {
                return Ok(true);
            }
            self.give_back(before);
        }
        Ok(false)
    }

    /// Chooses a device unless a constraint of its claim forbids it together with those already chosen.
    fn choose(&mut self, wanted: &Wanted<'a>, place: usize) -> bool {
        let offered = self.offered[place];
        let constraints = self.claims[wanted.claim].spec.devices.iter();
        let constraints = constraints.flat_map(|devices| devices.constraints.iter().flatten());
        if !constraints.into_iter().all(|constraint| self.holds(constraint, wanted, &offered)) {
            return false;
        }
        if !wanted.admin {
            self.account(wanted, &offered, true);
        }
        self.chosen.push((wanted.clone(), offered));
        true
    }

    fn holds(&self, constraint: &DeviceConstraint, wanted: &Wanted<'a>, offered: &Offered<'a>) -> bool {
        let concerns = |name: &str| {
            let request = name.split('/').next().unwrap_or(name);
            let named = constraint.requests.as_deref().unwrap_or_default();
            named.is_empty() || named.iter().any(|one| one == name || one == request)
        };
        if !concerns(&wanted.name) {
            return true;
        }
        let (attribute, same) = match (&constraint.match_attribute, &constraint.distinct_attribute) {
            (Some(attribute), _) => (attribute, true),
            (None, Some(attribute)) => (attribute, false),
            (None, None) => return false,
        };
        let Some(value) = attribute_of(offered, attribute) else { return false };
        let others = self.chosen.iter().filter(|(other, _)| other.claim == wanted.claim && concerns(&other.name));
        others.into_iter().all(|(_, device)| (attribute_of(device, attribute) == Some(value)) == same)
    }

    fn give_back(&mut self, to: usize) {
        while self.chosen.len() > to {
            let Some((wanted, offered)) = self.chosen.pop() else { return };
            if !wanted.admin {
                self.account(&wanted, &offered, false);
            }
        }
    }
}

fn taken_of(wanted: &Wanted<'_>, offered: &Offered<'_>) -> Option<Taken> {
    capacity::taken(offered.device, wanted.capacity)
}

/// Returns an attribute by its qualified name; one without a domain has the driver's.
fn attribute_of<'a>(offered: &Offered<'a>, name: &str) -> Option<&'a DeviceAttribute> {
    let attributes = offered.device.attributes.as_ref()?;
    attributes.get(name).or_else(|| {
        let (domain, short) = name.split_once('/')?;
        attributes.get(short).filter(|_| domain == offered.driver)
    })
}

fn tolerated(taints: &[DeviceTaint], tolerations: &[DeviceToleration]) -> bool {
    let covers = |toleration: &DeviceToleration, taint: &DeviceTaint| {
        let same = |given: Option<&str>, own: &str| given.is_none_or(|given| given.is_empty() || given == own);
        let value = toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default();
        same(toleration.effect.as_deref(), &taint.effect)
            && same(toleration.key.as_deref(), &taint.key)
            && (toleration.operator.as_deref() == Some("Exists") || value)
    };
    let binding = taints.iter().filter(|taint| taint.effect != "None");
    binding.into_iter().all(|taint| tolerations.iter().any(|toleration| covers(toleration, taint)))
}

fn allocation(
    number: usize,
    claim: &ResourceClaim,
    chosen: &[(Wanted<'_>, Offered<'_>)],
    devices: &Devices,
    node: &str,
) -> AllocationResult {
    let own: Vec<_> = chosen.iter().filter(|(wanted, _)| wanted.claim == number).collect();
    let result = |(wanted, offered): &&(Wanted<'_>, Offered<'_>)| DeviceRequestAllocationResult {
        request: wanted.name.clone(),
        driver: offered.driver.to_owned(),
        pool: offered.pool.to_owned(),
        device: offered.device.name.clone(),
        admin_access: wanted.admin.then_some(true),
        tolerations: Some(wanted.tolerations.to_vec()).filter(|list| !list.is_empty()),
        share_id: offered.is_shared().then(|| uuid::Uuid::new_v4().to_string()),
        consumed_capacity: consumed(wanted, offered),
        binding_conditions: offered.device.binding_conditions.clone(),
        binding_failure_conditions: offered.device.binding_failure_conditions.clone(),
    };
    let results: Vec<DeviceRequestAllocationResult> = own.iter().map(result).collect();
    let config = config(claim, &own, devices);
    AllocationResult {
        devices: Some(DeviceAllocationResult {
            config: Some(config).filter(|list| !list.is_empty()),
            results: Some(results),
        }),
        node_selector: nodes_of(&own, node),
        allocation_timestamp: None,
    }
}

/// Returns the capacity that a share of a device consumes.
fn consumed(wanted: &Wanted<'_>, offered: &Offered<'_>) -> Option<BTreeMap<String, Quantity>> {
    let taken = taken_of(wanted, offered).filter(|taken| offered.is_shared() && !taken.is_empty())?;
    Some(taken.into_iter().map(|(name, quantity)| (name, Quantity(quantity.to_string()))).collect())
}

/// Returns the configuration for the drivers: the class's for each request, then the claim's own for its requests.
fn config(
    claim: &ResourceClaim,
    own: &[&(Wanted<'_>, Offered<'_>)],
    devices: &Devices,
) -> Vec<DeviceAllocationConfiguration> {
    let mut config: Vec<DeviceAllocationConfiguration> = Vec::new();
    let mut requests: Vec<(&str, &str)> = own.iter().map(|(wanted, _)| (wanted.name.as_str(), wanted.class)).collect();
    requests.dedup();
    for (request, class) in &requests {
        let given = devices.classes.get(*class).and_then(|class| class.spec.config.as_deref()).unwrap_or_default();
        config.extend(given.iter().map(|given| DeviceAllocationConfiguration {
            source: "FromClass".to_owned(),
            requests: Some(vec![(*request).to_owned()]),
            opaque: given.opaque.clone(),
        }));
    }
    let given = claim.spec.devices.iter().flat_map(|devices| devices.config.iter().flatten());
    for given in given {
        let about = given.requests.as_deref().unwrap_or_default();
        let base = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
        let concerned = about.is_empty()
            || requests.iter().any(|(name, _)| about.iter().any(|one| one == name || *one == base(name)));
        if concerned {
            config.push(DeviceAllocationConfiguration {
                source: "FromClaim".to_owned(),
                requests: given.requests.clone(),
                opaque: given.opaque.clone(),
            });
        }
    }
    config
}

/// Returns the nodes where the allocation can be used: one node, those that all devices' selectors match, or all.
fn nodes_of(own: &[&(Wanted<'_>, Offered<'_>)], node: &str) -> Option<NodeSelector> {
    let term = |field: NodeSelectorRequirement| NodeSelectorTerm {
        match_fields: Some(vec![field]),
        ..NodeSelectorTerm::default()
    };
    if own.iter().any(|(_, offered)| offered.on_one_node) {
        let name = NodeSelectorRequirement {
            key: "metadata.name".to_owned(),
            operator: "In".to_owned(),
            values: Some(vec![node.to_owned()]),
        };
        return Some(NodeSelector { node_selector_terms: vec![term(name)] });
    }
    let mut all = NodeSelectorTerm::default();
    for selector in own.iter().filter_map(|(_, offered)| offered.nodes) {
        for part in &selector.node_selector_terms {
            all.match_expressions.get_or_insert_default().extend(part.match_expressions.clone().unwrap_or_default());
            all.match_fields.get_or_insert_default().extend(part.match_fields.clone().unwrap_or_default());
        }
    }
    let empty = |list: &Option<Vec<NodeSelectorRequirement>>| list.as_ref().is_none_or(Vec::is_empty);
    if empty(&all.match_expressions) && empty(&all.match_fields) {
        return None;
    }
    Some(NodeSelector { node_selector_terms: vec![all] })
}
