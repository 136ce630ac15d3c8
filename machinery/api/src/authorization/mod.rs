//! The group `authorization.k8s.io`, one file per kind.

use crate::kind::Kind;

mod localsubjectaccessreview;
mod selfsubjectaccessreview;
mod selfsubjectrulesreview;
mod subjectaccessreview;
pub(crate) mod validation;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        localsubjectaccessreview::kind(),
        selfsubjectaccessreview::kind(),
        selfsubjectrulesreview::kind(),
        subjectaccessreview::kind(),
    ]
}
