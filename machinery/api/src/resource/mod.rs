//! The group `resource.k8s.io`, one file a kind.

use crate::kind::Kind;

mod deviceclass;
mod resourceclaim;
mod resourceclaimtemplate;
mod resourceslice;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        deviceclass::kind(),
        resourceclaim::kind(),
        resourceclaimtemplate::kind(),
        resourceslice::kind(),
    ]
}
