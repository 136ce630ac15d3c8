//! The ResourceClaims of a pod.

use corten_api::k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use corten_meta::Object;

use super::pods;
use crate::runtime::mentions;

/// The ResourceClaim that stands for one entry of a pod's `spec.resourceClaims`.
#[derive(Debug, PartialEq, Eq)]
pub enum Named {
    /// The claim's name, from the spec or the status, and whether the pod must own the claim.
    As(String, bool),
    /// The status says that no claim is needed.
    NotNeeded,
    /// The claim has not been created yet.
    NotYet,
}

pub fn named(pod: &Pod, claim: &PodResourceClaim) -> Named {
    if let Some(name) = &claim.resource_claim_name {
        return Named::As(name.clone(), false);
    }
    let statuses = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    match statuses.into_iter().find(|status| status.name == claim.name) {
        None => Named::NotYet,
        Some(status) => status.resource_claim_name.clone().map_or(Named::NotNeeded, |name| Named::As(name, true)),
    }
}

pub fn claims_of(pod: &Pod) -> impl Iterator<Item = &PodResourceClaim> {
    pod.spec.iter().flat_map(|spec| spec.resource_claims.iter().flatten())
}

/// Reports whether the pod will not run, or no longer runs: it needs no claims.
pub fn is_done(pod: &Pod) -> bool {
    pods::is_terminal(pod) || (pods::is_terminating(pod) && pods::node_name(pod).is_empty())
}

/// Reports whether a pod can have claims at all. Searches the JSON, since most pods have none and every pod change
/// asks.
pub fn names_claims(pod: &Object) -> bool {
    mentions(pod, "\"resourceClaims\"") || mentions(pod, "\"extendedResourceClaimStatus\"")
}
