//! The tags of volumes and snapshots: those of AWS's driver, of the cluster, and of the parameters `tagSpecification_N`. Pure.

use std::collections::{BTreeMap, HashMap};

use corten_storage_plugin::error::{Error, Result};

/// The tag with the name that the volume was asked for by.
pub const VOLUME_NAME: &str = "CSIVolumeName";
/// The tag with the name that the snapshot was asked for by.
pub const SNAPSHOT_NAME: &str = "CSIVolumeSnapshotName";
/// The tag of everything that a driver of this name made. Policies of AWS's driver allow changes by it.
pub const MANAGED: &str = "ebs.csi.aws.com/cluster";

/// The tag that EC2's console shows as the name.
const NAME: &str = "Name";
/// The tag of the cluster that separates costs.
const CLUSTER: &str = "KubernetesCluster";

const PREFIX: &str = "tagspecification";
const METADATA: &str = "csi.storage.k8s.io/";
/// The most characters of a key and of a value, and the most tags of an object.
const MOST_KEY: usize = 128;
const MOST_VALUE: usize = 256;
const MOST_TAGS: usize = 50;

/// A value that Kubernetes knows of a volume or a snapshot.
struct Known {
    /// The parameter by which it comes.
    parameter: &'static str,
    /// The field of templates in tags.
    field: &'static str,
    /// The tag with it; none for what AWS's driver has no tag for.
    tag: Option<&'static str>,
}

const KNOWN: [Known; 6] = [
    Known { parameter: "pvc/name", field: ".PVCName", tag: Some("kubernetes.io/created-for/pvc/name") },
    Known { parameter: "pvc/namespace", field: ".PVCNamespace", tag: Some("kubernetes.io/created-for/pvc/namespace") },
    Known { parameter: "pv/name", field: ".PVName", tag: Some("kubernetes.io/created-for/pv/name") },
    Known { parameter: "volumesnapshot/name", field: ".VolumeSnapshotName", tag: None },
    Known { parameter: "volumesnapshot/namespace", field: ".VolumeSnapshotNamespace", tag: None },
    Known { parameter: "volumesnapshotcontent/name", field: ".VolumeSnapshotContentName", tag: None },
];

/// Tags by their keys.
pub type Tags = BTreeMap<String, String>;

/// Reports whether a parameter is one of tags, or comes from Kubernetes and not from the class.
pub fn is_parameter(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    key.starts_with(METADATA) || key.starts_with(PREFIX)
}

/// Returns the tags of a volume or a snapshot.
///
/// `key` is that of the tag with the name, `cluster` the name of the cluster.
pub fn of_object(key: &str, name: &str, cluster: &str, parameters: &HashMap<String, String>) -> Result<Tags> {
    let mut tags = of_parameters(parameters)?;
    let metadata = |known: &Known| parameters.get(&format!("{METADATA}{}", known.parameter)).cloned();
    let known = KNOWN.iter().filter_map(|known| Some((known.tag?.to_owned(), metadata(known)?)));
    tags.extend(known);
    tags.insert(key.to_owned(), name.to_owned());
    tags.insert(MANAGED.to_owned(), "true".to_owned());
    tags.insert(format!("kubernetes.io/cluster/{cluster}"), "owned".to_owned());
    // Those of a class win.
    tags.entry(NAME.to_owned())
        .or_insert_with(|| format!("{cluster}-dynamic-{name}").chars().take(MOST_VALUE).collect());
    tags.entry(CLUSTER.to_owned()).or_insert_with(|| cluster.to_owned());
    match tags.len() > MOST_TAGS {
        true => Err(Error::Invalid(format!("an object of EC2 has at most {MOST_TAGS} tags"))),
        false => Ok(tags),
    }
}

/// Returns the tags of the parameters `tagSpecification_N`.
pub fn of_parameters(parameters: &HashMap<String, String>) -> Result<Tags> {
    let specified = parameters.iter().filter(|(key, _)| key.to_ascii_lowercase().starts_with(PREFIX));
    specified.map(|(parameter, value)| specification(parameter, value, parameters)).collect()
}

fn specification(parameter: &str, value: &str, parameters: &HashMap<String, String>) -> Result<(String, String)> {
    let refused = |reason: &str| Error::Invalid(format!("the parameter {parameter}: {reason}"));
    let (key, value) = value.split_once('=').ok_or_else(|| refused("a tag is KEY=VALUE"))?;
    let value = filled(value, parameters).map_err(|reason| refused(&reason))?;
    if is_reserved(key) {
        return Err(refused(&format!("the key {key:?} is the driver's or AWS's own")));
    }
    if key.is_empty() || key.chars().count() > MOST_KEY || value.chars().count() > MOST_VALUE {
        return Err(refused(&format!("a key has 1 to {MOST_KEY} characters, a value at most {MOST_VALUE}")));
    }
    Ok((key.to_owned(), value))
}

fn is_reserved(key: &str) -> bool {
    let lower = key.to_ascii_lowercase();
    [VOLUME_NAME, SNAPSHOT_NAME, MANAGED].contains(&key)
        || ["aws:", "kubernetes.io/cluster/", "kubernetes.io/created-for/"].iter().any(|own| lower.starts_with(own))
}

/// Replaces fields such as `{{ .PVCName }}`. Other templates are refused.
fn filled(value: &str, parameters: &HashMap<String, String>) -> Result<String, String> {
    let mut filled = String::new();
    let mut rest = value;
    while let Some((before, template)) = rest.split_once("{{") {
        let (name, after) = template.split_once("}}").ok_or("{{ has no }}")?;
        let known = KNOWN.iter().find(|known| known.field == name.trim());
        let known = known.ok_or_else(|| format!("the template {{{{{name}}}}} is not supported"))?;
        let found = parameters.get(&format!("{METADATA}{}", known.parameter));
        filled.push_str(before);
        filled.push_str(found.ok_or_else(|| format!("{} is not known here", known.field))?);
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(parameters: &[(&str, &str)]) -> Result<Tags> {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        of_object(VOLUME_NAME, "pvc-1", "prod", &parameters)
    }

    #[test]
    fn volumes_have_the_tags_of_awss_driver() {
        let found = tags(&[
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "default"),
            ("tagSpecification_1", "owner={{ .PVCNamespace }}/{{.PVCName}}"),
            ("tagSpecification_2", "empty="),
            ("type", "gp3"),
        ]);
        let found = found.unwrap();
        let shown: Vec<String> = found.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(
            shown,
            [
                "CSIVolumeName=pvc-1",
                "KubernetesCluster=prod",
                "Name=prod-dynamic-pvc-1",
                "ebs.csi.aws.com/cluster=true",
                "empty=",
                "kubernetes.io/cluster/prod=owned",
                "kubernetes.io/created-for/pvc/name=data",
                "kubernetes.io/created-for/pvc/namespace=default",
                "owner=default/data",
            ]
        );
    }

    #[test]
    fn a_class_may_name_its_volumes() {
        let found =
            tags(&[("tagSpecification_1", "Name={{ .PVName }}"), ("csi.storage.k8s.io/pv/name", "pv-1")]).unwrap();
        assert_eq!(found["Name"], "pv-1");
    }

    #[test]
    fn wrong_tags_are_refused_by_a_sentence() {
        let refused = |value: &str| tags(&[("tagSpecification_1", value)]).unwrap_err().to_string();
        let sentences = [
            ("a", "the parameter tagSpecification_1: a tag is KEY=VALUE"),
            (
                "CSIVolumeName=x",
                "the parameter tagSpecification_1: the key \"CSIVolumeName\" is the driver's or AWS's own",
            ),
            ("aws:x=1", "the parameter tagSpecification_1: the key \"aws:x\" is the driver's or AWS's own"),
            ("a={{ .PVCName }}", "the parameter tagSpecification_1: .PVCName is not known here"),
            (
                "a={{ .PVCName | toUpper }}",
                "the parameter tagSpecification_1: the template {{ .PVCName | toUpper }} is not supported",
            ),
        ];
        for (value, sentence) in sentences {
            assert_eq!(refused(value), sentence);
        }
    }
}
