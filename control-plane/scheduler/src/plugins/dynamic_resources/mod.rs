//! DynamicResources: checks that a node can satisfy the pod's ResourceClaims, and writes their allocation before the
//! pod is bound.

mod allocate;
mod capacity;
mod extended;
mod select;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashSet};

use corten_api::k8s_openapi::api::resource::v1::{AllocationResult, DeviceRequest, ResourceClaim};
use corten_meta::Key;

use self::allocate::allocate;
use self::select::Selectors;
use crate::framework::{
    Aftermath, ClusterEvent, Effect, Plugin, PreFilter, PreScore, Search, State, Verdict, normalize, state,
};
use crate::rows::devices::Devices;
use crate::rows::{NodeRow, PodRow, Snapshot};

/// The most pods that can share a claim.
const MOST_CONSUMERS: usize = 256;
/// The most alternatives of a request.
const MOST_ALTERNATIVES: i64 = 8;

#[derive(Default)]
pub struct DynamicResources {
    selectors: Selectors,
}

/// The pod's claims.
struct Claims {
    allocated: Vec<Key>,
    to_allocate: Vec<Key>,
    /// The DeviceClasses of the pod's extended resources.
    extended: BTreeMap<String, String>,
    /// A claim for these resources from an earlier attempt that fits no node.
    stale: Option<Key>,
}

impl Claims {
    fn is_empty(&self) -> bool {
        self.allocated.is_empty() && self.to_allocate.is_empty() && self.extended.is_empty()
    }
}

impl Plugin for DynamicResources {
    /// A pod whose claims have yet to be made is not tried, and nothing is said about it: its status tells when they are.
    fn pre_enqueue(&self, pod: &PodRow) -> Verdict {
        match pod.demand.claims.iter().any(|used| used.claim_name.is_none()) {
            true => Verdict::unresolvable_because(not_created(pod)),
            false => Verdict::Fits,
        }
    }

    fn pre_filter(&self, pod: &PodRow, snapshot: &mut Snapshot) -> PreFilter {
        if !asks_for_devices(pod) {
            return PreFilter::Skip;
        }
        snapshot.devices.refresh();
        match claims(pod, &snapshot.devices) {
            Err(why) => PreFilter::Reject(Verdict::unresolvable_because(why)),
            Ok(claims) if claims.is_empty() => PreFilter::Skip,
            Ok(claims) => PreFilter::Continue(Box::new(claims)),
        }
    }

    fn filter(&self, claims: &State, pod: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> Verdict {
        let Some(claims) = state::<Claims>(claims) else { return Verdict::Fits };
        if claims.stale.is_some() {
            return Verdict::unschedulable("cannot schedule extended resource claim");
        }
        for key in &claims.allocated {
            let claim = snapshot.devices.claim(key);
            let failed = claim.is_some_and(|claim| is_ready(claim).is_err());
            if failed || !claim.and_then(allocation_of).is_none_or(|allocation| usable(allocation, node)) {
                return Verdict::unresolvable("resourceclaim not available on the node");
            }
        }
        let made = extended::claim(pod, &claims.extended, node);
        match self.allocate(claims, made.as_ref().map(|made| &made.claim), node, &snapshot.devices) {
            Ok(Some(_)) => Verdict::Fits,
            Ok(None) => Verdict::unresolvable("cannot allocate all claims"),
            Err(why) => Verdict::error(why),
        }
    }

    /// Deallocates a claim that no node can use any more, if no other pod uses it.
    fn post_filter(&self, pod: &PodRow, search: &Search, snapshot: &Snapshot) -> Option<Aftermath> {
        let aftermath = |why: &str| Some(Aftermath { why: why.to_owned(), effect: None, ends: false });
        if let Some((plugin, verdict)) = search.refusal() {
            // As upstream does: if another plugin rejected the pod before this one's pre-filter, it has no message of
            // its own.
            let early = plugin != "DynamicResources" && matches!(verdict, Verdict::Unresolvable(_));
            return match early {
                true => Some(Aftermath { why: "not found".to_owned(), effect: None, ends: true }),
                false => aftermath("no new claims to deallocate"),
            };
        }
        let Ok(claims) = claims(pod, &snapshot.devices) else { return aftermath("no new claims to deallocate") };
        if claims.is_empty() {
            return aftermath("no new claims to deallocate");
        }
        if let Some(claim) = claims.stale {
            let why = "deletion of ResourceClaim completed".to_owned();
            return Some(Aftermath { why, effect: Some(Effect::DeleteClaim { claim }), ends: false });
        }
        match claims.allocated.into_iter().find(|key| can_be_given_up(key, pod, search, snapshot)) {
            Some(claim) => Some(Aftermath {
                why: "deallocation of ResourceClaim completed".to_owned(),
                effect: Some(Effect::DeallocateClaim { claim }),
                ends: false,
            }),
            None => aftermath("still not schedulable"),
        }
    }

    /// Only requests with alternatives make a difference between nodes.
    fn pre_score(&self, pod: &PodRow, snapshot: &mut Snapshot, _: &[usize]) -> PreScore {
        if pod.demand.claims.is_empty() {
            return PreScore::Skip;
        }
        let Ok(claims) = claims(pod, &snapshot.devices) else { return PreScore::Skip };
        let keys = claims.allocated.iter().chain(&claims.to_allocate);
        let mut requests = keys.filter_map(|key| snapshot.devices.claim(key)).flat_map(requests);
        match requests.any(|request| request.first_available.is_some()) {
            true => PreScore::Ready(Box::new(claims)),
            false => PreScore::Skip,
        }
    }

    /// The earlier the alternatives that the node satisfies, the higher the score.
    fn score(&self, claims: &State, _: &PodRow, node: &NodeRow, snapshot: &Snapshot) -> i64 {
        let Some(claims) = state::<Claims>(claims) else { return 0 };
        let devices = &snapshot.devices;
        let Ok(Some(allocations)) = self.allocate(claims, None, node, devices) else { return 0 };
        let new = claims.to_allocate.iter().filter_map(|key| devices.claim(key)).zip(&allocations);
        let old = claims.allocated.iter().filter_map(|key| devices.claim(key));
        let old = old.filter_map(|claim| Some((claim, allocation_of(claim)?)));
        new.chain(old).map(|(claim, allocation)| alternatives(claim, allocation)).sum()
    }

    fn normalize(&self, _: &State, scores: &mut [i64]) {
        normalize(scores, false);
    }

    fn reserve(&self, pod: &PodRow, slot: usize, snapshot: &mut Snapshot) -> Result<Vec<Effect>, Verdict> {
        if !asks_for_devices(pod) {
            return Ok(Vec::new());
        }
        snapshot.devices.refresh();
        let claims = claims(pod, &snapshot.devices).map_err(Verdict::unresolvable_because)?;
        let node = snapshot.node(slot);
        let made = extended::claim(pod, &claims.extended, node);
        let allocations = self.allocate(&claims, made.as_ref().map(|made| &made.claim), node, &snapshot.devices);
        let allocations = allocations.map_err(Verdict::unresolvable_because)?;
        let mut allocations = allocations.ok_or_else(|| Verdict::unresolvable("cannot allocate all claims"))?;
        let mut effects = Vec::new();
        if let Some(extended::Made { claim, mappings }) = made
            && let Some(allocation) = allocations.pop()
        {
            snapshot.devices.promise(&extended::promise(pod), allocation.clone());
            let (claim, allocation) = (Box::new(claim), Box::new(allocation));
            effects.push(Effect::CreateClaim { claim, allocation, mappings, written: None });
        }
        for (claim, allocation) in claims.to_allocate.into_iter().zip(allocations) {
            snapshot.devices.promise(&claim, allocation.clone());
            effects.push(Effect::AllocateClaim { claim, allocation: Some(Box::new(allocation)) });
        }
        let reserved = |claim: &Key| snapshot.devices.claim(claim).is_some_and(|claim| is_reserved_for(claim, pod));
        let others: Vec<Key> = claims.allocated.into_iter().filter(|claim| !reserved(claim)).collect();
        effects.extend(others.into_iter().map(|claim| Effect::AllocateClaim { claim, allocation: None }));
        Ok(effects)
    }

    fn unreserve(&self, pod: &PodRow, snapshot: &mut Snapshot) {
        let names = pod.demand.claims.iter().filter_map(|claim| claim.claim_name.as_deref());
        let made = (!pod.demand.extended.is_empty()).then(|| extended::promise(pod));
        let claims: HashSet<Key> = names.map(|name| key(pod, name)).chain(made).collect();
        snapshot.devices.release(&claims);
    }

    fn wakes(&self, pod: &PodRow, event: &ClusterEvent<'_>, _: &Snapshot) -> bool {
        match event {
            ClusterEvent::NodeAdded(_) | ClusterEvent::DevicesChanged => asks_for_devices(pod),
            ClusterEvent::NodeUpdated(_, change) => change.labels,
            _ => false,
        }
    }
}

impl DynamicResources {
    fn allocate(
        &self,
        claims: &Claims,
        made: Option<&ResourceClaim>,
        node: &NodeRow,
        devices: &Devices,
    ) -> Result<Option<Vec<AllocationResult>>, String> {
        let written = claims.to_allocate.iter().filter_map(|key| devices.claim(key));
        let to_allocate: Vec<&ResourceClaim> = written.chain(made).collect();
        if to_allocate.is_empty() {
            return Ok(Some(Vec::new()));
        }
        allocate(&to_allocate, devices, devices.offered_to(node), &self.selectors, &node.name)
    }
}

fn asks_for_devices(pod: &PodRow) -> bool {
    !pod.demand.claims.is_empty() || !pod.demand.extended.is_empty()
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

/// Reports whether all devices of a claim have their binding conditions; an error if they have failed.
pub fn is_ready(claim: &ResourceClaim) -> Result<bool, String> {
    let Some(allocation) = allocation_of(claim) else { return Ok(false) };
    let statuses = claim.status.as_ref().and_then(|status| status.devices.as_deref()).unwrap_or_default();
    let mut ready = true;
    for result in allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten()) {
        let conditions = result.binding_conditions.as_deref().unwrap_or_default();
        if conditions.is_empty() {
            continue;
        }
        let of = statuses.iter().find(|one| {
            (&one.driver, &one.pool, &one.device) == (&result.driver, &result.pool, &result.device)
                && one.share_id == result.share_id
        });
        let holds = |name: &String| {
            let all = of.and_then(|one| one.conditions.as_deref()).unwrap_or_default();
            all.iter().find(|one| one.type_ == *name && one.status == "True")
        };
        if let Some(failed) = result.binding_failure_conditions.iter().flatten().find_map(holds) {
            let (name, reason, message) = (claim.metadata.name.as_deref(), &failed.reason, &failed.message);
            let name = name.unwrap_or_default();
            return Err(format!("device binding failed: claim={name}, reason={reason}, message={message:?}"));
        }
        ready &= conditions.iter().all(|name| holds(name).is_some());
    }
    Ok(ready)
}

fn usable(allocation: &AllocationResult, node: &NodeRow) -> bool {
    let selects = |term| corten_api::placement::node_term_matches(term, &node.name, &node.labels);
    let selector = allocation.node_selector.as_ref();
    selector.is_none_or(|selector| selector.node_selector_terms.iter().any(selects))
}

fn not_created(pod: &PodRow) -> String {
    format!("pod \"{}\": ResourceClaim not created yet", pod.key())
}

/// Returns the pod's claims, or the reason that rejects all nodes.
fn claims(pod: &PodRow, devices: &Devices) -> Result<Claims, String> {
    let extended = extended::classes(pod, devices);
    let stale = if extended.is_empty() { None } else { devices.made_for(pod) };
    let mut found = Claims { allocated: Vec::new(), to_allocate: Vec::new(), extended, stale };
    for used in &pod.demand.claims {
        let Some(name) = &used.claim_name else {
            return Err(not_created(pod));
        };
        let key = key(pod, name);
        let missing = || format!("resourceclaim.resource.k8s.io {name:?} not found");
        let claim = devices.claim(&key).ok_or_else(missing)?;
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

fn requests(claim: &ResourceClaim) -> impl Iterator<Item = &DeviceRequest> {
    claim.spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten())
}

/// Scores how early the chosen alternatives of an allocation are.
fn alternatives(claim: &ResourceClaim, allocation: &AllocationResult) -> i64 {
    let chosen = |name: &str| {
        let mut results = allocation.devices.iter().flat_map(|devices| devices.results.iter().flatten());
        results.any(|result| result.request == name)
    };
    let mut score = 0;
    for request in requests(claim) {
        for (place, sub) in request.first_available.iter().flatten().enumerate() {
            if chosen(&format!("{}/{}", request.name, sub.name)) {
                score += MOST_ALTERNATIVES - place as i64;
            }
        }
    }
    score
}

/// Reports whether a node was rejected for the claim's allocation, and no other pod uses the claim.
fn can_be_given_up(key: &Key, pod: &PodRow, search: &Search, snapshot: &Snapshot) -> bool {
    let Some(claim) = snapshot.devices.claim(key) else { return false };
    let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.as_deref()).unwrap_or_default();
    let ours = reserved.is_empty() || matches!(reserved, [one] if *one.uid == *pod.uid);
    let mut rejected = search.rejected.iter().filter(|rejected| rejected.plugin == "DynamicResources");
    let unusable = |slot: usize| {
        is_ready(claim).is_err() || allocation_of(claim).is_some_and(|has| !usable(has, snapshot.node(slot)))
    };
    ours && rejected.any(|rejected| unusable(rejected.slot))
}

fn classes_exist(claim: &ResourceClaim, devices: &Devices) -> Result<(), String> {
    let missing = |request: &str, class: &str| {
        (!devices.classes.contains_key(class))
            .then(|| format!("request {request}: device class {class} does not exist"))
    };
    for request in requests(claim) {
        let exactly = request.exactly.iter().find_map(|one| missing(&request.name, &one.device_class_name));
        let mut sub = request.first_available.iter().flatten();
        let sub = sub.find_map(|one| missing(&format!("{}/{}", request.name, one.name), &one.device_class_name));
        if let Some(why) = exactly.or(sub) {
            return Err(why);
        }
    }
    Ok(())
}
