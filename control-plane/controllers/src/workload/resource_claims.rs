//! The ResourceClaims of a pod.

use corten_api::k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use corten_meta::Object;

use super::pods;
use crate::runtime::mentions;

/// What stands for one claim of a pod.
#[derive(Debug, PartialEq, Eq)]
pub enum Named {
    /// By the user, or by the status; whether it must be the pod's own.
    As(String, bool),
    /// The status says that none is needed.
    NotNeeded,
    /// It is still to be made.
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

/// The pod will not run, or not any more: it needs no claims.
pub fn is_done(pod: &Pod) -> bool {
    pods::is_terminal(pod) || (pods::is_terminating(pod) && pods::node_name(pod).is_empty())
}

/// Whether a pod can have claims at all: told from its bytes, since most have none and every pod change asks.
pub fn names_claims(pod: &Object) -> bool {
    mentions(pod, "\"resourceClaims\"") || mentions(pod, "\"extendedResourceClaimStatus\"")
}
