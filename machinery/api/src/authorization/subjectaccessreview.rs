//! SubjectAccessReview.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews").cluster().review()
}
