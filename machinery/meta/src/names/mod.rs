//! The names of the API: groups, versions, kinds and resources here, and the rules for the names that users choose in
//! [`validation`].

pub mod address;
pub mod validation;

pub use address::*;
pub use validation::*;

use crate::Error;
use std::fmt;

/// A group and a version, `apps/v1`; the core group prints as the bare version.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersion {
    pub group: String,
    pub version: String,
}

/// A group, version and kind, `apps/v1, Kind=Deployment`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionKind {
    pub group: String,
    pub version: String,
    pub kind: String,
}

/// A group, version and resource, `apps/v1, Resource=deployments`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupVersionResource {
    pub group: String,
    pub version: String,
    pub resource: String,
}

/// A group and a resource, `deployments.apps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupResource {
    pub group: String,
    pub resource: String,
}

/// A group and a kind, `Deployment.apps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupKind {
    pub group: String,
    pub kind: String,
}

impl GroupVersion {
    pub fn new(group: impl Into<String>, version: impl Into<String>) -> GroupVersion {
        GroupVersion { group: group.into(), version: version.into() }
    }

    /// Reads an `apiVersion`. The empty string is the empty group version, as upstream has it.
    pub fn parse(text: &str) -> Result<GroupVersion, Error> {
        match text.split('/').collect::<Vec<_>>()[..] {
            [""] | ["", ""] => Ok(GroupVersion::default()),
            [version] => Ok(GroupVersion::new("", version)),
            [group, version] => Ok(GroupVersion::new(group, version)),
            _ => Err(Error::Name(format!("unexpected GroupVersion string: {text}"))),
        }
    }
}

impl GroupVersionKind {
    pub fn new(group: impl Into<String>, version: impl Into<String>, kind: impl Into<String>) -> GroupVersionKind {
        GroupVersionKind { group: group.into(), version: version.into(), kind: kind.into() }
    }

    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&self.group, &self.version)
    }
    pub fn group_kind(&self) -> GroupKind {
        GroupKind::new(&self.group, &self.kind)
    }
    /// Returns the `apiVersion` of objects of this kind.
    pub fn api_version(&self) -> String {
        self.group_version().to_string()
    }
}

impl GroupVersionResource {
    pub fn new(group: impl Into<String>, version: impl Into<String>, resource: impl Into<String>) -> Self {
        GroupVersionResource { group: group.into(), version: version.into(), resource: resource.into() }
    }
    pub fn group_version(&self) -> GroupVersion {
        GroupVersion::new(&self.group, &self.version)
    }
    pub fn group_resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.resource)
    }
}

impl GroupResource {
    pub fn new(group: impl Into<String>, resource: impl Into<String>) -> GroupResource {
        GroupResource { group: group.into(), resource: resource.into() }
    }

    /// Reads `deployments.apps`; without a dot the group is the core one.
    pub fn parse(text: &str) -> GroupResource {
        let (resource, group) = text.split_once('.').unwrap_or((text, ""));
        GroupResource::new(group, resource)
    }
}

impl GroupKind {
    pub fn new(group: impl Into<String>, kind: impl Into<String>) -> GroupKind {
        GroupKind { group: group.into(), kind: kind.into() }
    }

    /// Reads `Deployment.apps`; without a dot the group is the core one.
    pub fn parse(text: &str) -> GroupKind {
        let (kind, group) = text.split_once('.').unwrap_or((text, ""));
        GroupKind::new(group, kind)
    }
}

impl fmt::Display for GroupVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.version) } else { write!(f, "{}/{}", self.group, self.version) }
    }
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

impl fmt::Display for GroupVersionResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Resource={}", self.group, self.version, self.resource)
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.resource) } else { write!(f, "{}.{}", self.resource, self.group) }
    }
}

impl fmt::Display for GroupKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() { f.write_str(&self.kind) } else { write!(f, "{}.{}", self.kind, self.group) }
    }
}

/// Returns a name of the form `<base><five characters>`, at most 63 long; `random` has at least five random bytes.
pub fn generated_name(base: &str, random: &[u8]) -> String {
    const CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let suffix: String =
        random.iter().take(5).map(|b| CHARACTERS[usize::from(*b) % CHARACTERS.len()] as char).collect();
    let kept: String = base.chars().take(58).collect();
    format!("{kept}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_versions_parse_and_print() {
        for (text, group, version) in [("v1", "", "v1"), ("apps/v1", "apps", "v1"), ("", "", ""), ("/", "", "")] {
            assert_eq!(GroupVersion::parse(text).unwrap(), GroupVersion::new(group, version), "{text}");
        }
        assert_eq!(GroupVersion::parse("a/b/c").unwrap_err().to_string(), "unexpected GroupVersion string: a/b/c");
        assert_eq!(GroupVersionKind::new("", "v1", "Pod").to_string(), "/v1, Kind=Pod");
        assert_eq!(GroupVersionKind::new("apps", "v1", "Deployment").api_version(), "apps/v1");
        assert_eq!(GroupResource::parse("deployments.apps").to_string(), "deployments.apps");
        assert_eq!(GroupKind::parse("Pod").to_string(), "Pod");
    }
}
