//! The rules of a pod's volumes.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use super::container_validation::local_descending;
use crate::cells::{list, text};
use crate::validation::{invalid_each, supported};

/// The errors, and the names of the volumes that a mount may use.
pub(super) fn validate_volumes<'a>(volumes: &'a [Value], path: &Path) -> (BTreeSet<&'a str>, Vec<FieldError>) {
    let mut errors = Vec::new();
    let mut known = BTreeSet::new();
    for (at, volume) in volumes.iter().enumerate() {
        let path = path.index(at);
        match text(volume, "/name") {
            "" => errors.push(FieldError::required(&path.child("name"), "")),
            name => {
                let messages = names::dns1123_label(name);
                if messages.is_empty() && !known.insert(name) {
                    errors.push(FieldError::duplicate(&path.child("name"), name));
                }
                errors.extend(invalid_each(&path.child("name"), name, messages));
            }
        }
        errors.extend(validate_source(volume, &path));
    }
    (known, errors)
}

fn validate_source(volume: &Value, path: &Path) -> Vec<FieldError> {
    let sources: Vec<&String> = volume
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, value)| *name != "name" && value.is_object())
        .map(|(name, _)| name)
        .collect();
    let Some(first) = sources.first() else {
        return vec![FieldError::required(path, "must specify a volume type")];
    };
    let mut errors: Vec<FieldError> = sources[1..]
        .iter()
        .map(|other| FieldError::forbidden(&path.child(other), "may not specify more than 1 volume type"))
        .collect();
    let source = &volume[first.as_str()];
    let path = path.child(first);
    match first.as_str() {
        "hostPath" => {
            match text(source, "/path") {
                "" => errors.push(FieldError::required(&path.child("path"), "")),
                target if target.split('/').any(|p| p == "..") => {
                    errors.push(FieldError::invalid(&path.child("path"), target, "must not contain '..'"));
                }
                _ => {}
            }
            const TYPES: &[&str] =
                &["BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"];
            errors.extend(supported(&source["type"], &path.child("type"), TYPES));
        }
        "secret" if text(source, "/secretName").is_empty() => {
            errors.push(FieldError::required(&path.child("secretName"), ""));
        }
        "configMap" if text(source, "/name").is_empty() => {
            errors.push(FieldError::required(&path.child("name"), ""));
        }
        "persistentVolumeClaim" if text(source, "/claimName").is_empty() => {
            errors.push(FieldError::required(&path.child("claimName"), ""));
        }
        "nfs" => {
            for field in ["server", "path"] {
                if text(source, &format!("/{field}")).is_empty() {
                    errors.push(FieldError::required(&path.child(field), ""));
                }
            }
        }
        _ => {}
    }
    errors.extend(validate_mode_and_items(source, &path));
    errors
}

/// Sources that write files have modes and may choose keys.
fn validate_mode_and_items(source: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mode = |value: &Value, path: Path| {
        let number = value.as_i64().filter(|m| !(0..=0o777).contains(m))?;
        let detail = "must be a number between 0 and 0777 (octal), both inclusive";
        Some(FieldError::invalid(&path, number, detail))
    };
    errors.extend(mode(&source["defaultMode"], path.child("defaultMode")));
    for (at, item) in list(source, "/items").iter().enumerate() {
        let path = path.child("items").index(at);
        if item.get("key").is_some_and(|k| k == "") {
            errors.push(FieldError::required(&path.child("key"), ""));
        }
        match text(item, "/path") {
            "" => errors.push(FieldError::required(&path.child("path"), "")),
            target => errors.extend(local_descending(target, &path.child("path"))),
        }
        errors.extend(mode(&item["mode"], path.child("mode")));
    }
    errors
}
