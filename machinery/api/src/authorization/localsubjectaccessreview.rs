//! LocalSubjectAccessReview.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::validation;
use crate::kind::{Behaviour, Kind};

struct Review;

/// Returns the declaration.
pub fn kind() -> Kind {
    Kind::new("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews")
        .review()
        .behaviour(Review)
}

impl Behaviour for Review {
    fn validate(&self, review: &Value) -> Vec<FieldError> {
        validation::validate_local(review)
    }
}
