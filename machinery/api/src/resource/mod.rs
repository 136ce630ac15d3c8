//! The group `resource.k8s.io`, one file per kind.

use corten_meta::Value;

use crate::defaulting::{default_at, default_nonzero, items};
use crate::kind::Kind;

mod deviceclass;
mod resourceclaim;
mod resourceclaimtemplate;
mod resourceslice;
pub(crate) mod slice_validation;
pub(crate) mod validation;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![deviceclass::kind(), resourceclaim::kind(), resourceclaimtemplate::kind(), resourceslice::kind()]
}

/// Sets the defaults of requests: one device each.
fn default_requests(object: &mut Value, requests: &str) {
    let one = |request: &mut Value, at: &str| {
        default_at(request, &format!("{at}/allocationMode"), "ExactCount");
        if request.pointer(&format!("{at}/allocationMode")).is_some_and(|m| m == "ExactCount") {
            default_nonzero(request, &format!("{at}/count"), 1);
        }
    };
    for request in items(object, requests) {
        one(request, "/exactly");
        items(request, "/firstAvailable").for_each(|sub| one(sub, ""));
    }
}
