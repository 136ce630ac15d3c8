//! The group `batch`, one file a kind.

use crate::kind::Kind;

mod cronjob;
mod job;
mod schedule;
mod validation;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![cronjob::kind(), job::kind()]
}
