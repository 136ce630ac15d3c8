//! The group `policy`, one file a kind.

use crate::kind::Kind;

mod poddisruptionbudget;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![poddisruptionbudget::kind()]
}
