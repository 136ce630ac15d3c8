//! The group `rbac.authorization.k8s.io`, one file per kind.

use corten_meta::Value;
use jiff::Timestamp;

use crate::cells::{age, list, name, text};
use crate::defaulting::{default_at, items};
use crate::kind::Kind;

mod clusterrole;
mod clusterrolebinding;
mod role;
mod rolebinding;
pub(crate) mod validation;

const GROUP: &str = "rbac.authorization.k8s.io";

/// Returns its kinds, in the order of discovery.
pub(crate) fn kinds() -> Vec<Kind> {
    vec![clusterrolebinding::kind(), clusterrole::kind(), rolebinding::kind(), role::kind()]
}

/// Sets the API groups of the role and of the subjects.
fn default_binding(object: &mut Value) {
    default_at(object, "/roleRef/apiGroup", GROUP);
    for subject in items(object, "/subjects") {
        match text(subject, "/kind") {
            "User" | "Group" => default_at(subject, "/apiGroup", GROUP),
            "ServiceAccount" if text(subject, "/apiGroup").is_empty() => {
                crate::defaulting::remove(subject, "/apiGroup");
            }
            _ => {}
        }
    }
}

fn binding_cells(object: &Value, now: Timestamp) -> Vec<Value> {
    let role = format!("{}/{}", text(object, "/roleRef/kind"), text(object, "/roleRef/name"));
    let subjects = |kind: &str| {
        let named = list(object, "/subjects").iter().filter(|s| text(s, "/kind") == kind).map(|s| match kind {
            "ServiceAccount" => format!("{}/{}", text(s, "/namespace"), text(s, "/name")),
            _ => text(s, "/name").to_string(),
        });
        Value::from(named.collect::<Vec<_>>().join(", "))
    };
    vec![name(object), role.into(), age(object, now), subjects("User"), subjects("Group"), subjects("ServiceAccount")]
}
