//! The group `authentication.k8s.io`, one file a kind.

use crate::kind::Kind;

mod selfsubjectreview;
mod tokenreview;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![selfsubjectreview::kind(), tokenreview::kind()]
}
