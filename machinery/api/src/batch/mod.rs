//! The group `batch`, one file per kind.

use crate::kind::Kind;

mod cronjob;
pub(crate) mod cronjob_validation;
mod indexes;
mod job;
mod job_status;
mod schedule;
pub(crate) mod validation;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![cronjob::kind(), job::kind()]
}
