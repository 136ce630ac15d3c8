//! VolumeSnapshotClass and VolumeGroupSnapshotClass: the driver of a snapshot, its parameters and its deletion policy;
//! and the Secrets that parameters name.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

use crate::kind::kind;
use crate::names::PARAMETER_PREFIX;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeSnapshotClass {
    pub metadata: ObjectMeta,
    /// `Delete` or `Retain`.
    pub deletion_policy: String,
    pub driver: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}
kind!(VolumeSnapshotClass, "snapshot.storage.k8s.io", "v1", "volumesnapshotclasses", false);

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct VolumeGroupSnapshotClass {
    pub metadata: ObjectMeta,
    /// `Delete` or `Retain`.
    pub deletion_policy: String,
    pub driver: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, String>,
}
kind!(VolumeGroupSnapshotClass, "groupsnapshot.storage.k8s.io", "v1beta2", "volumegroupsnapshotclasses", false);

/// The name of a Secret that parameters of a class give.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SecretReference {
    pub namespace: String,
    pub name: String,
}

/// The parameters of a class with the name of a Secret: `csi.storage.k8s.io/ROLE-secret-name` and
/// `csi.storage.k8s.io/ROLE-secret-namespace`. Their values may contain `${KEY}`.
pub struct SecretTemplate<'a> {
    pub role: &'a str,
    /// The keys that the namespace may contain.
    pub namespace_keys: &'a [(&'a str, &'a str)],
    /// The keys that the name may contain.
    pub name_keys: &'a [(&'a str, &'a str)],
}

impl SecretTemplate<'_> {
    /// Returns the Secret that the parameters name, or none. Fails on half a name and on unknown keys.
    pub fn resolve(&self, parameters: &BTreeMap<String, String>) -> Result<Option<SecretReference>, String> {
        let parameter = |suffix: &str| parameters.get(&format!("{PARAMETER_PREFIX}{}-secret-{suffix}", self.role));
        match (parameter("name"), parameter("namespace")) {
            (None, None) => Ok(None),
            (Some(name), Some(namespace)) => Ok(Some(SecretReference {
                namespace: expand(namespace, self.namespace_keys)?,
                name: expand(name, self.name_keys)?,
            })),
            (name, _) => {
                let missing = if name.is_some() { "namespace" } else { "name" };
                Err(format!("the parameter {PARAMETER_PREFIX}{}-secret-{missing} is missing", self.role))
            }
        }
    }
}

/// Replaces `${KEY}` in a value.
fn expand(value: &str, keys: &[(&str, &str)]) -> Result<String, String> {
    let mut expanded = String::new();
    let mut rest = value;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((key, after)) = after.split_once('}') else { break };
        let known = keys.iter().find(|(name, _)| *name == key);
        let (_, replacement) = known.ok_or_else(|| format!("{value:?} contains the unknown key {key:?}"))?;
        expanded.push_str(before);
        expanded.push_str(replacement);
        rest = after;
    }
    expanded.push_str(rest);
    if expanded.is_empty() { Err("the name of a Secret is empty".to_owned()) } else { Ok(expanded) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(parameters: &[(&str, &str)]) -> Result<Option<SecretReference>, String> {
        let template = SecretTemplate {
            role: "snapshotter",
            namespace_keys: &[("volumesnapshot.namespace", "shop")],
            name_keys: &[("volumesnapshot.namespace", "shop"), ("volumesnapshot.name", "db")],
        };
        let parameter = |(key, value): &(&str, &str)| (format!("{PARAMETER_PREFIX}{key}"), (*value).to_owned());
        template.resolve(&parameters.iter().map(parameter).collect())
    }

    #[test]
    fn the_name_of_a_secret_has_keys() {
        let both = [
            ("snapshotter-secret-name", "key-${volumesnapshot.name}"),
            ("snapshotter-secret-namespace", "${volumesnapshot.namespace}"),
        ];
        let secret = SecretReference { namespace: "shop".to_owned(), name: "key-db".to_owned() };
        assert_eq!(resolve(&both), Ok(Some(secret)));
        assert_eq!(resolve(&[]), Ok(None));
    }

    #[test]
    fn half_a_name_and_unknown_keys_are_errors() {
        let half = resolve(&[("snapshotter-secret-name", "a")]).unwrap_err();
        assert_eq!(half, "the parameter csi.storage.k8s.io/snapshotter-secret-namespace is missing");
        let unknown =
            resolve(&[("snapshotter-secret-name", "${pvc.name}"), ("snapshotter-secret-namespace", "a")]).unwrap_err();
        assert_eq!(unknown, "\"${pvc.name}\" contains the unknown key \"pvc.name\"");
    }
}
