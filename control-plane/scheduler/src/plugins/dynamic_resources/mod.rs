//! DynamicResources: the devices that a pod's ResourceClaims ask for can be had on the node, and are written into the
//! claims before the pod is bound.

mod allocate;
mod select;
#[cfg(test)]
mod tests;

use std::collections::HashSet;

use corten_api::k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim};
use corten_meta::Key;

use self::allocate::allocate;
use self::select::Selectors;
use crate::framework::{ClusterEvent, Effect, Plugin, Point, PreFilter, State, Verdict, state};
use crate::rows::devices::Devices;
use crate::rows::{NodeRow, PodRow, Snapshot};

/// No claim serves more pods than this.
const MOST_CONSUMERS: usize = 256;

#[derive(Default)]
pub struct DynamicResources {
    selectors: Selectors,
}

/// The pod's claims.
struct Claims {
    allocated: Vec<Key>,
    to_allocate: Vec<Key>,
}

impl Plugin for DynamicResources {
    fn name(&self) -> &'static str {
        "DynamicResources"
    }

    fn points(&self) -> &'static [Point] {
        &[Point::PreFilter, Point::Filter, Point::Reserve, Point::PreBind]
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        match claims(pod, &snapshot.devices) {
            Err(why) => PreFilter::Reject(Verdict::unresolvable_because(why)),
            Ok(claims) if claims.allocated.is_empty() && claims.to_allocate.is_empty() => PreFilter::Skip,
            Ok(claims) => PreFilter::Continue(Box::new(claims)),
        }
    }

    fn filter(&self, claims: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        let Some(claims) = state::<Claims>(claims) else { return Verdict::Fits };
        for key in &claims.allocated {
            let allocation = snapshot.devices.claims.get(key).and_then(allocation_of);
            if !allocation.is_none_or(|allocation| usable(allocation, node)) {
                return Verdict::unresolvable("resourceclaim not available on the node");
            }
        }
        match self.allocate(claims, node, &snapshot.devices) {
            Ok(Some(_)) => Verdict::Fits,
            Ok(None) => Verdict::unresolvable("cannot allocate all claims"),
            Err(why) => Verdict::unresolvable_because(why),
        }
    }

    fn reserve(&self, pod: &PodRow, slot: usize, snapshot: &mut Snapshot) -> Result<Vec<Effect>, Verdict> {
        let claims = claims(pod, &snapshot.devices).map_err(Verdict::unresolvable_because)?;
        let node = snapshot.node(slot);
        let allocations = self.allocate(&claims, node, &snapshot.devices).map_err(Verdict::unresolvable_because)?;
        let allocations = allocations.ok_or_else(|| Verdict::unresolvable("cannot allocate all claims"))?;
        let mut effects = Vec::new();
        for (claim, allocation) in claims.to_allocate.into_iter().zip(allocations) {
            snapshot.devices.promise(&claim, allocation.clone());
            effects.push(Effect::AllocateClaim { claim, allocation: Some(Box::new(allocation)) });
        }
        let reserved =
            |claim: &Key| snapshot.devices.claims.get(claim).is_some_and(|claim| is_reserved_for(claim, pod));
        let others: Vec<Key> = claims.allocated.into_iter().filter(|claim| !reserved(claim)).collect();
        effects.extend(others.into_iter().map(|claim| Effect::AllocateClaim { claim, allocation: None }));
        Ok(effects)
    }

    fn unreserve(&self, pod: &PodRow, snapshot: &mut Snapshot) {
        let names = pod.demand.claims.iter().filter_map(|claim| claim.claim_name.as_deref());
        let claims: HashSet<Key> = names.map(|name| key(pod, name)).collect();
        snapshot.devices.release(&claims);
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(_) | ClusterEvent::DevicesChanged => !pod.demand.claims.is_empty(),
            ClusterEvent::NodeUpdated(_, change) => change.labels,
            _ => false,
        }
    }
}

impl DynamicResources {
    fn allocate(
        &self,
        claims: &Claims,
        node: &NodeRow,
        devices: &Devices,
    ) -> Result<Option<Vec<AllocationResult>>, String> {
        let to_allocate: Vec<&ResourceClaim> =
            claims.to_allocate.iter().filter_map(|key| devices.claims.get(key)).collect();
        if to_allocate.is_empty() {
            return Ok(Some(Vec::new()));
        }
        allocate(&to_allocate, devices, devices.offered_to(node), &self.selectors, &node.name)
    }
}

fn key(pod: &PodRow, name: &str) -> Key {
    Key { namespace: pod.namespace().to_owned(), name: name.to_owned() }
}

fn allocation_of(claim: &ResourceClaim) -> Option<&AllocationResult> {
    claim.status.as_ref()?.allocation.as_ref()
}

fn is_reserved_for(claim: &ResourceClaim, pod: &PodRow) -> bool {
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default();
    reserved.iter().any(|consumer| *consumer.uid == *pod.uid)
}

fn usable(allocation: &AllocationResult, node: &NodeRow) -> bool {
    let selects = |term| corten_api::placement::node_term_matches(term, &node.name, &node.labels);
    let selector = allocation.node_selector.as_ref();
    selector.is_none_or(|selector| selector.node_selector_terms.iter().any(selects))
}

/// The pod's claims, or what is in the way on any node.
fn claims(pod: &PodRow, devices: &Devices) -> Result<Claims, String> {
    let mut found = Claims { allocated: Vec::new(), to_allocate: Vec::new() };
    for used in &pod.demand.claims {
        let Some(name) = &used.claim_name else {
            return Err(format!("pod \"{}\": ResourceClaim not created yet", pod.key()));
        };
        let key = key(pod, name);
        let missing = || format!("resourceclaim.resource.k8s.io {name:?} not found");
        let claim = devices.claims.get(&key).ok_or_else(missing)?;
        if claim.metadata.deletion_timestamp.is_some() {
            return Err(format!("resourceclaim {name:?} is being deleted"));
        }
        let owner = claim.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
        if used.from_template && owner.is_none_or(|owner| *owner.uid != *pod.uid) {
            return Err(format!("ResourceClaim {key} was not created for Pod {} (Pod is not owner)", pod.key()));
        }
        if allocation_of(claim).is_some() {
            let consumers = claim.status.as_ref().and_then(|status| status.reserved_for.as_ref()).map_or(0, Vec::len);
            if consumers >= MOST_CONSUMERS && !is_reserved_for(claim, pod) {
                return Err("resourceclaim in use".to_owned());
            }
            found.allocated.push(key);
            continue;
        }
        if devices.is_promised(&key) {
            return Err(format!("resource claim {key} is in the process of being allocated"));
        }
        classes_exist(claim, devices)?;
        found.to_allocate.push(key);
    }
    Ok(found)
}

fn classes_exist(claim: &ResourceClaim, devices: &Devices) -> Result<(), String> {
    let missing = |request: &str, class: &str| {
        (!devices.classes.contains_key(class))
            .then(|| format!("request {request}: device class {class} does not exist"))
    };
    for request in claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten()) {
        let exactly = request.exactly.iter().find_map(|one| missing(&request.name, &one.device_class_name));
        let mut sub = request.first_available.iter().flatten();
        let sub = sub.find_map(|one| missing(&format!("{}/{}", request.name, one.name), &one.device_class_name));
        if let Some(why) = exactly.or(sub) {
            return Err(why);
        }
    }
    Ok(())
}
