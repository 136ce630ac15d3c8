//! FlowSchema.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("flowcontrol.apiserver.k8s.io", "v1", "FlowSchema", "flowschemas")
        .cluster()
        .status()
        .generation()
        .table("Name, PriorityLevel, MatchingPrecedence, DistinguisherMethod, Age, MissingPL")
}
