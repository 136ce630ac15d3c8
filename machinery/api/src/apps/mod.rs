//! The group `apps`, one file a kind.

use crate::kind::Kind;

mod controllerrevision;
mod daemonset;
mod deployment;
mod replicaset;
mod statefulset;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        controllerrevision::kind(),
        daemonset::kind(),
        deployment::kind(),
        replicaset::kind(),
        statefulset::kind(),
    ]
}
