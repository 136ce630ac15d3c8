//! The group `events.k8s.io`, one file a kind.

use crate::kind::Kind;

mod event;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![event::kind()]
}
