//! SubjectAccessReview.

use crate::kind::{Behaviour, Kind};

struct Review;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews")
        .cluster()
        .review()
        .behaviour(Review)
}

impl Behaviour for Review {
    fn rules(&self) -> &'static str {
        ".authorization.v1.SubjectAccessReview"
    }
}
