//! The group `policy`, one file per kind.

use crate::kind::Kind;

mod poddisruptionbudget;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![poddisruptionbudget::kind()]
}
