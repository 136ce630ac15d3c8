//! HorizontalPodAutoscaler.

use crate::kind::Kind;

/// The declaration.
pub fn kind() -> Kind {
    Kind::new("autoscaling", "v1", "HorizontalPodAutoscaler", "horizontalpodautoscalers")
        .short(&["hpa"])
        .category("all")
        .status()
        .table("Name, Reference, Targets, MinPods, MaxPods, Replicas, Age")
}
