//! Deallocates a claim when the last pod with a reservation is done, and deletes generated claims of pods that do not
//! need them.
//!
//! Invariant: a reservation is removed only if the server, not just a cache, confirms that the pod is deleted or done:
//! the scheduler may have reserved the claim a moment ago.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use super::{COMPONENT, CONTROLLER, POD_CLAIM, has_admin_access};
use crate::metrics;
use crate::runtime::{Action, Controller, Plan, View, Watch, decode};
use crate::workload::owner::controller_of;
use crate::workload::resource_claims::{Named, claims_of, is_done, named, names_claims};

/// The finalizer of an allocated claim.
const FINALIZER: &str = "resource.kubernetes.io/delete-protection";

/// The annotation of a claim that the scheduler created for an extended resource.
const EXTENDED: &str = "resource.kubernetes.io/extended-resource-claim";

pub struct ClaimReleaser;

/// The state of a reservation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reservation {
    Kept,
    Lost,
    /// The pod is in no cache: the server must be asked.
    Unknown,
}

pub struct Observed {
    claim: ResourceClaim,
    reservations: Vec<(ResourceClaimConsumerReference, Reservation)>,
    /// Whether the pod of the claim exists and will not run, or is another of the same name.
    is_orphan: bool,
}

impl Controller for ClaimReleaser {
    type Observed = Observed;

    const NAME: &'static str = CONTROLLER;
    const COMPONENT: &'static str = COMPONENT;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<ResourceClaim>(), Watch::mapped::<Pod>(of_pod)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let claim: ResourceClaim = view.typed(key)?;
        let pod = |name: &str| view.typed::<Pod>(&Key::new(key.namespace.clone(), name));
        let state = |one: ResourceClaimConsumerReference| {
            let of_pod = one.api_group.as_deref().unwrap_or_default().is_empty() && one.resource == Pod::PLURAL;
            let state = match pod(&one.name) {
                // Other consumers than pods are released by other controllers.
                _ if !of_pod => Reservation::Kept,
                None => Reservation::Unknown,
                Some(pod) if pod.metadata.uid.as_ref() != Some(&one.uid) || is_done(&pod) => Reservation::Lost,
                Some(_) => Reservation::Kept,
            };
            (one, state)
        };
        let reserved = claim.status.as_ref().and_then(|status| status.reserved_for.clone()).unwrap_or_default();
        let owner = controller_of(&claim.metadata).filter(|owner| owner.kind == Pod::KIND);
        let is_orphan = owner.is_some_and(|owner| {
            pod(&owner.name).is_some_and(|pod| pod.metadata.uid.as_ref() != Some(&owner.uid) || is_done(&pod))
        });
        Some(Observed { reservations: reserved.into_iter().map(state).collect(), is_orphan, claim })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let claim = &observed.claim;
        let mut plan = Plan::nothing();
        for (consumer, _) in observed.reservations.iter().filter(|(_, state)| *state == Reservation::Unknown) {
            plan.push(Action::absent::<Pod>(Key::new(claim.namespace(), consumer.name.clone())));
        }
        let kept: Vec<ResourceClaimConsumerReference> = observed
            .reservations
            .iter()
            .filter(|(_, state)| *state == Reservation::Kept)
            .map(|(one, _)| one.clone())
            .collect();
        let held = claim.metadata.finalizers.iter().flatten().any(|name| name == FINALIZER);
        let leaving = claim.metadata.deletion_timestamp.is_some();
        let allocated = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
        let made = |key: &str| claim.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(key));
        let source = match (made(POD_CLAIM), made(EXTENDED)) {
            (true, _) => "resource_claim_template",
            (_, true) => "extended_resource",
            _ => "",
        };
        let is_allocated = if allocated { "true" } else { "false" };
        plan.count(&metrics::CLAIMS, [is_allocated.into(), has_admin_access(&claim.spec).into(), source.into()], 1.0);
        if kept.len() < observed.reservations.len() || (leaving && held && kept.is_empty() && allocated) {
            // The end of a use deallocates the devices; a claim that was never used keeps them.
            let mut updated = claim.clone();
            let status = updated.status.get_or_insert_default();
            if kept.is_empty() && held {
                status.allocation = None;
                status.devices = None;
            }
            status.reserved_for = Some(kept).filter(|kept| !kept.is_empty());
            plan.push(Action::update_status(&updated));
        } else if leaving && held && kept.is_empty() {
            let mut updated = claim.clone();
            updated.metadata.finalizers.get_or_insert_default().retain(|name| name != FINALIZER);
            plan.push(Action::update(&updated));
        } else if kept.is_empty() && observed.is_orphan && !leaving {
            plan.push(Action::delete(claim));
        }
        plan
    }
}

/// Returns the claims of a pod that is done or deleted.
fn of_pod(_: &dyn View, change: &Change) -> Vec<Key> {
    let Some(object) = change.new.as_ref().or(change.old.as_ref()).filter(|pod| names_claims(pod)) else {
        return Vec::new();
    };
    let Some(pod) = decode::<Pod>(object).filter(|pod| change.new.is_none() || is_done(pod)) else { return Vec::new() };
    let key = |name: String| Key::new(change.key.namespace.clone(), name);
    let extended = pod.status.as_ref().and_then(|status| status.extended_resource_claim_status.as_ref());
    let listed = claims_of(&pod).filter_map(|claim| match named(&pod, claim) {
        Named::As(name, _) => Some(name),
        _ => None,
    });
    listed.chain(extended.map(|status| status.resource_claim_name.clone())).map(key).collect()
}
