//! PriorityLevelConfiguration.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("flowcontrol.apiserver.k8s.io", "v1", "PriorityLevelConfiguration", "prioritylevelconfigurations")
        .cluster()
        .status()
        .generation()
        .table("Name, Type, NominalConcurrencyShares, Queues, HandSize, QueueLengthLimit, Age")
}
