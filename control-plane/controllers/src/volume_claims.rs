//! The PersistentVolumeClaims of a pod.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};

/// Reports whether a pod uses a claim.
///
/// A scheduled pod uses its claims, also after it terminated: its volumes may still be mounted. The claim of an
/// ephemeral volume is used only by the pod that it was created for, not by another pod of the same name, and only
/// until the kubelet has shut the pod down: the deletion of the pod may wait for that of the claim.
pub fn uses(pod: &Pod, claim: &PersistentVolumeClaim) -> bool {
    let named = |volume: &Volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => source.claim_name == claim.name(),
        (None, Some(_)) => {
            claim_of_ephemeral(pod, volume) == claim.name() && is_made_for(claim, pod) && !is_shut_down(pod)
        }
        _ => false,
    };
    let is_bound = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref()).is_some_and(|node| !node.is_empty());
    is_bound && pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).any(named)
}

/// Reports whether the kubelet has shut the pod down, or a client has force-deleted it.
pub fn is_shut_down(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() && pod.metadata.deletion_grace_period_seconds == Some(0)
}

/// Reports whether the pod is the claim's controller.
fn is_made_for(claim: &PersistentVolumeClaim, pod: &Pod) -> bool {
    let references = claim.metadata.owner_references.iter().flatten();
    let controller = references.into_iter().find(|reference| reference.controller == Some(true));
    controller.is_some_and(|owner| owner.uid == pod.metadata.uid.as_deref().unwrap_or_default())
}

fn claim_of_ephemeral(pod: &Pod, volume: &Volume) -> String {
    format!("{}-{}", pod.name(), volume.name)
}

/// Returns the names of a pod's claims, those of ephemeral volumes included.
pub fn claims_of(pod: &Pod) -> impl Iterator<Item = String> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| match (&volume.persistent_volume_claim, &volume.ephemeral) {
        (Some(source), _) => Some(source.claim_name.clone()),
        (None, Some(_)) => Some(claim_of_ephemeral(pod, volume)),
        _ => None,
    })
}
