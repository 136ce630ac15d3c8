//! LocalSubjectAccessReview.

use crate::kind::{Behaviour, Kind};

struct Review;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews")
        .review()
        .behaviour(Review)
}

impl Behaviour for Review {
    fn rules(&self) -> &'static str {
        ".authorization.v1.LocalSubjectAccessReview"
    }
}
