//! The path of a collection of objects.

use corten_api::Typed;
use corten_meta::{GroupResource, GroupVersion};
use std::fmt::Write as _;

/// The group, version and plural name of a resource, and whether its objects live in namespaces.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: String,
    pub version: String,
    pub plural: String,
    pub namespaced: bool,
}

impl Resource {
    pub fn new(group: &str, version: &str, plural: &str, namespaced: bool) -> Resource {
        Resource { group: group.into(), version: version.into(), plural: plural.into(), namespaced }
    }

    /// Returns the resource of a typed kind.
    pub fn of<K: Typed>() -> Resource {
        Resource::new(K::GROUP, K::VERSION, K::PLURAL, K::NAMESPACED)
    }

    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.plural)
    }

    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&self.group, &self.version)
    }

    /// Returns the path of the collection in a namespace; "" means all namespaces, or cluster scoped.
    pub fn path(&self, namespace: &str) -> String {
        let mut path = String::with_capacity(64);
        if self.group.is_empty() {
            path.push_str("/api/");
        } else {
            path.push_str("/apis/");
            path.push_str(&self.group);
            path.push('/');
        }
        path.push_str(&self.version);
        if self.namespaced && !namespace.is_empty() {
            path.push_str("/namespaces/");
            encode(&mut path, namespace);
        }
        path.push('/');
        path.push_str(&self.plural);
        path
    }

    /// Returns the path of one object, or of one of its subresources.
    pub fn object_path(&self, namespace: &str, name: &str, subresource: Option<&str>) -> String {
        let mut path = self.path(namespace);
        path.push('/');
        encode(&mut path, name);
        if let Some(subresource) = subresource {
            path.push('/');
            path.push_str(subresource);
        }
        path
    }
}

/// Percent-encodes one path segment or query value.
pub(crate) fn encode(out: &mut String, text: &str) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b':' => out.push(byte as char),
            other => {
                let _ = write!(out, "%{other:02X}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let pods = Resource::new("", "v1", "pods", true);
        let roles = Resource::new("rbac.authorization.k8s.io", "v1", "clusterroles", false);
        assert_eq!(pods.path(""), "/api/v1/pods");
        assert_eq!(pods.object_path("prod", "web", Some("status")), "/api/v1/namespaces/prod/pods/web/status");
        assert_eq!(
            roles.object_path("", "system:a b/c", None),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:a%20b%2Fc"
        );
    }
}
