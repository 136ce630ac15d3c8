//! References between objects, and the ReferenceGrants that allow them across namespaces.

use crate::objects::{Objects, Reference};

/// The object that refers to another.
#[derive(Clone, Copy, Debug)]
pub struct From<'a> {
    pub group: &'a str,
    pub kind: &'a str,
    pub namespace: &'a str,
}

impl<'a> From<'a> {
    /// Returns an object of Gateway API.
    pub fn gateway_api(kind: &'a str, namespace: &'a str) -> From<'a> {
        From { group: crate::crds::GROUP, kind, namespace }
    }
}

/// Reports whether a reference is allowed: within a namespace always, across namespaces by a grant in the namespace of
/// the object that is referred to.
pub fn is_permitted(objects: &Objects, from: From<'_>, to: &Reference) -> bool {
    let Some(namespace) = to.namespace.as_deref().filter(|namespace| *namespace != from.namespace) else { return true };
    let grants = objects.grants.iter().filter(|(key, _)| key.namespace == namespace);
    grants.into_iter().any(|(_, grant)| {
        let is_from = grant.spec.from.iter().any(|one| {
            one.group == from.group && one.kind == from.kind && one.namespace.as_deref() == Some(from.namespace)
        });
        let is_to = |one: &Reference| {
            one.group == to.group && one.kind == to.kind && (one.name.is_empty() || one.name == to.name)
        };
        is_from && grant.spec.to.iter().any(is_to)
    })
}
