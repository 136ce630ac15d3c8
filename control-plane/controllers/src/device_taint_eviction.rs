//! Device taint eviction: deletes a pod that uses a tainted device, unless its claim tolerates the taint, or when the
//! toleration has expired.
//!
//! It corresponds to taint eviction for nodes. The device with the shortest toleration decides for the pod.

use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, DeviceTaint, DeviceToleration, ResourceClaim, ResourceSlice,
};
use corten_client::Change;
use corten_meta::{Key, Object};
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Plan, View, Watch, decode};
use crate::workload::condition::{disruption_target, mark_pod};
use crate::workload::pods;
use crate::workload::resource_claims::{Named, claims_of, named, names_claims};

pub struct DeviceTaintEvictionController;

/// A taint of a device that the pod uses, with the tolerations of the claim.
struct Met {
    taint: DeviceTaint,
    since: Timestamp,
    tolerations: Vec<DeviceToleration>,
}

pub struct Observed {
    pod: Pod,
    met: Vec<Met>,
}

impl Controller for DeviceTaintEvictionController {
    type Observed = Observed;

    const NAME: &'static str = "device-taint-eviction-controller";

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::mapped::<Pod>(of_pod),
            Watch::mapped::<ResourceClaim>(of_claim),
            Watch::mapped::<ResourceSlice>(of_slice),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let pod: Pod = view.typed(key).filter(pods::is_active)?;
        let uid = pod.metadata.uid.clone()?;
        let claim = |name: String| view.typed::<ResourceClaim>(&Key::new(key.namespace.clone(), name));
        let listed = claims_of(&pod).filter_map(|one| match named(&pod, one) {
            Named::As(name, _) => claim(name),
            _ => None,
        });
        let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
        let extended = extended.and_then(|status| claim(status.resource_claim_name.clone()));
        let results: Vec<DeviceRequestAllocationResult> =
            listed.chain(extended).filter(|claim| is_reserved(claim, &uid)).flat_map(|claim| results(&claim)).collect();
        if results.is_empty() {
            return None;
        }
        let slices: Vec<ResourceSlice> = view.all("");
        let met = results.iter().flat_map(|result| met(result, &slices)).collect();
        Some(Observed { pod, met })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let waits = observed.met.iter().filter_map(|met| goes_after(met, now));
        match waits.min() {
            None => Plan::nothing(),
            Some(wait) if !wait.is_zero() => Plan::later(wait),
            Some(_) => {
                let mut plan = evict(&observed.pod, now);
                plan.count(&metrics::DEVICE_DELETIONS, [], 1.0);
                if let Some(since) = observed.met.iter().map(|met| met.since).min() {
                    let passed = now.duration_since(since).as_secs_f64().max(0.0);
                    plan.count(&metrics::DEVICE_DELETION_SECONDS, [], passed);
                }
                plan
            }
        }
    }
}

fn is_reserved(claim: &ResourceClaim, uid: &str) -> bool {
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    reserved.into_iter().any(|one| one.uid == uid)
}

fn results(claim: &ResourceClaim) -> Vec<DeviceRequestAllocationResult> {
    let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
    allocation.and_then(|allocation| allocation.devices.as_ref()?.results.clone()).unwrap_or_default()
}

/// Returns the NoExecute taints of the device in the newest generation of its pool.
fn met(result: &DeviceRequestAllocationResult, slices: &[ResourceSlice]) -> Vec<Met> {
    let of_pool = |slice: &&ResourceSlice| slice.spec.driver == result.driver && slice.spec.pool.name == result.pool;
    let newest = slices.iter().filter(of_pool).map(|slice| slice.spec.pool.generation).max();
    let current = slices.iter().filter(of_pool).filter(|slice| Some(slice.spec.pool.generation) == newest);
    let mut all = Vec::new();
    for slice in current {
        let created = slice.metadata.creation_timestamp.as_ref().map_or(Timestamp::UNIX_EPOCH, |time| time.0);
        let devices = slice.spec.devices.iter().flatten().filter(|device| device.name == result.device);
        let taints = devices.flat_map(|device| device.taints.iter().flatten());
        all.extend(taints.filter(|taint| taint.effect == "NoExecute").map(|taint| Met {
            since: taint.time_added.as_ref().map_or(created, |time| time.0),
            taint: taint.clone(),
            tolerations: result.tolerations.clone().unwrap_or_default(),
        }));
    }
    all
}

fn tolerates(toleration: &DeviceToleration, taint: &DeviceTaint) -> bool {
    let key = toleration.key.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref() {
        Some("Exists") => true,
        _ => toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default(),
    }
}

/// Returns how long one taint is still tolerated; none if forever.
fn goes_after(met: &Met, now: Timestamp) -> Option<Duration> {
    let matching: Vec<&DeviceToleration> = met.tolerations.iter().filter(|one| tolerates(one, &met.taint)).collect();
    if matching.is_empty() {
        return Some(Duration::ZERO);
    }
    let seconds = matching.iter().filter_map(|one| one.toleration_seconds).min()?;
    let passed: Duration = now.duration_since(met.since).try_into().unwrap_or(Duration::ZERO);
    Some(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)).saturating_sub(passed))
}

fn evict(pod: &Pod, now: Timestamp) -> Plan {
    let mut plan = Plan::from(Action::normal(pod, "DeviceTaintManagerEviction", "Marking for deletion"));
    if pods::condition(pod, "DisruptionTarget").is_none() {
        let message = "Device Taint manager: deleting due to NoExecute taint";
        plan.push(mark_pod(pod, disruption_target("DeletionByDeviceTaintManager", message, now), None));
    }
    plan.push(Action::delete(pod));
    plan
}

fn of_pod(_: &dyn View, change: &Change) -> Vec<Key> {
    let concerned = change.new.as_ref().is_some_and(|pod| names_claims(pod));
    if concerned { vec![change.key.clone()] } else { Vec::new() }
}

fn users(claim: &ResourceClaim) -> impl Iterator<Item = Key> {
    let reserved = claim.status.iter().flat_map(|status| status.reserved_for.iter().flatten());
    let pods = reserved.filter(|one| one.resource == Pod::PLURAL);
    pods.map(|one| Key::new(claim.namespace(), one.name.clone()))
}

fn of_claim(_: &dyn View, change: &Change) -> Vec<Key> {
    let claim = change.new.as_ref().and_then(decode::<ResourceClaim>);
    claim.iter().flat_map(users).collect()
}

/// Returns the users of a pool if the taints of its devices changed, or the set of slices that count.
fn of_slice(view: &dyn View, change: &Change) -> Vec<Key> {
    let slice = |object: &Option<Arc<Object>>| object.as_ref().and_then(decode::<ResourceSlice>);
    let (old, new) = (slice(&change.old), slice(&change.new));
    let taints = |slice: &Option<ResourceSlice>| -> Vec<(String, Option<Vec<DeviceTaint>>)> {
        let devices = slice.iter().flat_map(|slice| slice.spec.devices.iter().flatten());
        devices.filter(|one| one.taints.is_some()).map(|one| (one.name.clone(), one.taints.clone())).collect()
    };
    let generation = |slice: &Option<ResourceSlice>| slice.as_ref().map(|slice| slice.spec.pool.generation);
    if generation(&old) == generation(&new) && taints(&old) == taints(&new) {
        return Vec::new();
    }
    let Some(slice) = new.or(old) else { return Vec::new() };
    let uses = |claim: &&ResourceClaim| {
        results(claim).iter().any(|result| result.driver == slice.spec.driver && result.pool == slice.spec.pool.name)
    };
    view.all::<ResourceClaim>("").iter().filter(uses).flat_map(users).collect()
}
