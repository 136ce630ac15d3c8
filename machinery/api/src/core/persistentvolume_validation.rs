//! The rules of a PersistentVolume.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

use crate::cells::{list, text};
use crate::validation::{immutable, quantity, supported};

/// Fields of the spec that are not a volume source.
const NOT_SOURCES: [&str; 9] = [
    "accessModes",
    "capacity",
    "claimRef",
    "mountOptions",
    "nodeAffinity",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "volumeAttributesClassName",
    "volumeMode",
];

pub(super) fn validate_volume(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let spec = &object["spec"];
    let mut errors = Vec::new();
    let modes = list(spec, "/accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(&path.child("accessModes"), ""));
    }
    const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    errors.extend(modes.iter().filter_map(|m| supported(m, &path.child("accessModes"), MODES)));
    errors.extend(validate_capacity(spec, &path.child("capacity")));
    errors.extend(supported(
        &spec["persistentVolumeReclaimPolicy"],
        &path.child("persistentVolumeReclaimPolicy"),
        &["Delete", "Recycle", "Retain"],
    ));
    errors.extend(supported(&spec["volumeMode"], &path.child("volumeMode"), &["Block", "Filesystem"]));
    errors.extend(validate_source(spec, &path));
    errors
}

fn validate_capacity(spec: &Value, path: &Path) -> Vec<FieldError> {
    let capacity = spec["capacity"].as_object().filter(|c| !c.is_empty());
    let Some(capacity) = capacity else { return vec![FieldError::required(path, "")] };
    if capacity.len() != 1 || !capacity.contains_key("storage") {
        let value = spec["capacity"].clone();
        return vec![FieldError::not_supported(path, value, &["storage"])];
    }
    let amount = &capacity["storage"];
    match quantity(amount) {
        Some(q) if q.as_milli() <= 0 => {
            vec![FieldError::invalid(&path.key("storage"), amount.clone(), "must be greater than zero")]
        }
        _ => Vec::new(),
    }
}

fn validate_source(spec: &Value, path: &Path) -> Vec<FieldError> {
    let sources: Vec<&String> = spec
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, value)| !NOT_SOURCES.contains(&name.as_str()) && value.is_object())
        .map(|(name, _)| name)
        .collect();
    let Some(first) = sources.first() else {
        return vec![FieldError::required(path, "must specify a volume type")];
    };
    let mut errors: Vec<FieldError> = sources[1..]
        .iter()
        .map(|other| FieldError::forbidden(&path.child(other), "may not specify more than 1 volume type"))
        .collect();
    if *first == "hostPath" && text(spec, "/hostPath/path").is_empty() {
        errors.push(FieldError::required(&path.child("hostPath").child("path"), ""));
    }
    if *first == "local" && !spec["nodeAffinity"].is_object() {
        errors.push(FieldError::required(&path.child("nodeAffinity"), "Local volume requires node affinity"));
    }
    errors
}

/// What holds the data is fixed; who may use it is not.
pub(super) fn validate_volume_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let source = |object: &Value| {
        let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
        spec.retain(|name, value| !NOT_SOURCES.contains(&name.as_str()) && !value.is_null());
        spec
    };
    let mut errors = Vec::new();
    if source(new) != source(old) {
        let detail = "spec.persistentvolumesource is immutable after creation";
        errors.push(FieldError::forbidden(&path.child("persistentvolumesource"), detail));
    }
    errors.extend(immutable(new, old, "/spec/volumeMode", &path.child("volumeMode")));
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn volumes() {
        let check = |spec: Value| -> Vec<String> {
            validate_volume(&json!({ "spec": spec })).iter().map(ToString::to_string).collect()
        };
        let good =
            json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}});
        assert_eq!(check(good.clone()), Vec::<String>::new());
        assert_eq!(
            check(json!({})),
            [
                "spec.accessModes: Required value",
                "spec.capacity: Required value",
                "spec: Required value: must specify a volume type",
            ]
        );
        let mut two = good.clone();
        two["nfs"] = json!({"server": "s", "path": "/"});
        assert_eq!(check(two.clone()), ["spec.nfs: Forbidden: may not specify more than 1 volume type"]);
        assert_eq!(validate_volume_update(&json!({"spec": two}), &json!({"spec": good})).len(), 1);
    }
}
