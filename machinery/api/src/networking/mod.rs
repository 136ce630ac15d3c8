//! The group `networking.k8s.io`, one file per kind.

use crate::kind::Kind;

mod ingress;
mod ingressclass;
mod ipaddress;
mod networkpolicy;
mod servicecidr;
pub(crate) mod validation;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![ingressclass::kind(), ingress::kind(), ipaddress::kind(), networkpolicy::kind(), servicecidr::kind()]
}
