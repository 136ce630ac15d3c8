//! The group `events.k8s.io`, one file per kind.

use crate::kind::Kind;

mod event;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![event::kind()]
}
