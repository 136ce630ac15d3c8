//! Volume expansion: names the component that expands a claim which requests more than its capacity.
//!
//! No volume is expanded here: the CSI driver's external-resizer does that, and a volume on the node itself cannot be
//! expanded. Without the event a user would wait and not know for which component.

use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use corten_client::Change;
use corten_meta::{Key, Quantity};
use jiff::Timestamp;

use crate::runtime::{Action, Controller, Plan, View, Watch, decode};

pub struct ExpandController;

impl Controller for ExpandController {
    type Observed = PersistentVolumeClaim;

    const NAME: &'static str = "expand-controller";
    const COMPONENT: &'static str = "volume_expand";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::mapped::<PersistentVolumeClaim>(of_claim), Watch::read::<PersistentVolume>()]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<PersistentVolumeClaim> {
        let claim: PersistentVolumeClaim = view.typed(key)?;
        let volume: PersistentVolume = view.typed(&Key::new("", claim.spec.as_ref()?.volume_name.clone()?))?;
        let bound = volume.spec.as_ref()?.claim_ref.as_ref()?.uid == claim.metadata.uid;
        (bound && wants_more(&claim)).then_some(claim)
    }

    fn reconcile(&self, claim: &PersistentVolumeClaim, _now: Timestamp) -> Plan {
        let message = "waiting for an external controller to expand this PVC";
        Plan::from(Action::normal(claim, "ExternalExpanding", message))
    }
}

/// Returns the claim if its request grew; a claim that is seen for the first time may have grown while no controller
/// watched.
fn of_claim(_: &dyn View, change: &Change) -> Vec<Key> {
    let Some(new) = &change.new else { return Vec::new() };
    let requested = |object| decode::<PersistentVolumeClaim>(object).and_then(|claim| requested(&claim));
    let grew = change.old.as_ref().is_none_or(|old| requested(new) > requested(old));
    if grew { vec![change.key.clone()] } else { Vec::new() }
}

fn requested(claim: &PersistentVolumeClaim) -> Option<i128> {
    let requests = claim.spec.as_ref()?.resources.as_ref()?.requests.as_ref()?;
    Some(Quantity::parse(&requests.get("storage")?.0).ok()?.as_milli())
}

fn wants_more(claim: &PersistentVolumeClaim) -> bool {
    let capacity = claim.status.as_ref().and_then(|status| status.capacity.as_ref()?.get("storage"));
    let capacity = capacity.and_then(|quantity| Quantity::parse(&quantity.0).ok()).map(|quantity| quantity.as_milli());
    capacity.is_some() && requested(claim) > capacity
}
