//! SelfSubjectRulesReview.

use crate::kind::Kind;

pub fn kind() -> Kind {
    Kind::new("authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews").cluster().review()
}
