//! The group `apps`, one file per kind.

use crate::kind::{Kind, ScalePaths};

mod controllerrevision;
mod daemonset;
mod deployment;
mod replicaset;
mod statefulset;
pub(crate) mod validation;

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![controllerrevision::kind(), daemonset::kind(), deployment::kind(), replicaset::kind(), statefulset::kind()]
}

/// Returns the scale paths of the workloads of this group.
fn scale_paths() -> ScalePaths {
    ScalePaths {
        spec_replicas: ".spec.replicas".to_string(),
        status_replicas: ".status.replicas".to_string(),
        selector: Some(".spec.selector".to_string()),
    }
}
