//! The group `rbac.authorization.k8s.io`, one file a kind.

use crate::kind::Kind;

mod clusterrole;
mod clusterrolebinding;
mod role;
mod rolebinding;

/// Its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![
        clusterrolebinding::kind(),
        clusterrole::kind(),
        rolebinding::kind(),
        role::kind(),
    ]
}
