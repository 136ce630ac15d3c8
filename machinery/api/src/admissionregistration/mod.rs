//! The group `admissionregistration.k8s.io`, one file per pair of kinds.

use corten_meta::Value;
use corten_meta::quote::quote;

use crate::kind::Kind;

mod admissionpolicy;
mod admissionpolicybinding;
pub(crate) mod policy_validation;
pub(crate) mod url;
pub(crate) mod webhook;
mod webhookconfiguration;

const GROUP: &str = "admissionregistration.k8s.io";

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        admissionpolicy::mutating(),
        admissionpolicybinding::mutating(),
        webhookconfiguration::mutating(),
        admissionpolicy::validating(),
        admissionpolicybinding::validating(),
        webhookconfiguration::validating(),
    ]
}

/// Warns of a name that is reserved for configurations from the server's own files.
fn reserved_name(object: &Value) -> Vec<String> {
    const SUFFIX: &str = ".static.k8s.io";
    let reserved = "are reserved for static manifest-based configurations and cannot be managed via the API";
    let warning = || format!("metadata.name: names ending with {} {reserved}", quote(SUFFIX));
    corten_meta::name(object).ends_with(SUFFIX).then(warning).into_iter().collect()
}
