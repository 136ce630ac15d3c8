//! PodTemplate.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("", "v1", "PodTemplate", "podtemplates")
        .generation()
        .table("Name, Containers, Images, Pod Labels")
}
