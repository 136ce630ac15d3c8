//! The group `authentication.k8s.io`, one file per kind.

use crate::kind::Kind;

mod selfsubjectreview;
mod tokenreview;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![selfsubjectreview::kind(), tokenreview::kind()]
}
