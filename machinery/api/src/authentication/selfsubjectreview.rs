//! SelfSubjectReview.

use crate::kind::Kind;

pub fn kind() -> Kind {
    Kind::new("authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews").cluster().review()
}
