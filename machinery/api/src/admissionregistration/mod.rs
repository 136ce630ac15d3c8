//! The group `admissionregistration.k8s.io`, one file a kind.

use crate::kind::Kind;

mod mutatingadmissionpolicy;
mod mutatingadmissionpolicybinding;
mod mutatingwebhookconfiguration;
mod policy;
mod policy_validation;
mod validatingadmissionpolicy;
mod validatingadmissionpolicybinding;
mod validatingwebhookconfiguration;
pub(crate) mod webhook;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        mutatingadmissionpolicy::kind(),
        mutatingadmissionpolicybinding::kind(),
        mutatingwebhookconfiguration::kind(),
        validatingadmissionpolicy::kind(),
        validatingadmissionpolicybinding::kind(),
        validatingwebhookconfiguration::kind(),
    ]
}
