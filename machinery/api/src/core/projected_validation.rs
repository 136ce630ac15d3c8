//! The rules of volumes that consist of files: keys of ConfigMaps and Secrets, the downward API, tokens.

use std::collections::BTreeSet;

use corten_meta::field::FieldError;

use super::env_validation::{validate_field_reference, validate_resource_reference};
use crate::check::{At, Errors, local_descending};
use crate::rules;

/// The fields of a pod that a file may have.
const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];

fn validate_file_mode(at: &At<'_>, errors: &mut Errors) {
    if at.number().is_some_and(|mode| !(0..=0o777).contains(&mode)) {
        errors.push(at.invalid("must be a number between 0 and 0777 (octal), both inclusive"));
    }
}

/// Validates a file path below the volume that does not start with two dots, which the kubelet reserves.
fn local_not_reserved(at: &At<'_>, errors: &mut Errors) {
    local_descending(at, errors);
    not_dotted(at, errors);
}

/// Validates a file path that does not start with two dots.
pub(crate) fn not_dotted(at: &At<'_>, errors: &mut Errors) {
    if at.text().starts_with("..") && !at.text().starts_with("../") {
        errors.push(at.invalid("must not start with '..'"));
    }
}

/// Validates a downward API volume. Upstream names the source, not the item, in the errors.
pub(crate) fn downward_api(at: &At<'_>, errors: &mut Errors) {
    validate_file_mode(&at.get("defaultMode"), errors);
    for item in at.get("items").items() {
        validate_downward_file(&item.with(at.path.clone()), errors);
    }
}

fn validate_downward_file(file: &At<'_>, errors: &mut Errors) {
    file.get("path").must(errors);
    local_not_reserved(&file.get("path"), errors);
    let field = file.get("fieldRef");
    let resource = file.get("resourceFieldRef");
    if field.is_object() {
        validate_field_reference(&field, FILE_FIELDS, errors);
        if resource.is_object() {
            let detail = "fieldRef and resourceFieldRef can not be specified simultaneously";
            errors.push(FieldError::invalid(&file.path, "resource", detail));
        }
    } else if resource.is_object() {
        validate_resource_reference(&resource, true, errors);
    } else {
        errors.push(file.required("one of fieldRef and resourceFieldRef is required"));
    }
    validate_file_mode(&file.get("mode"), errors);
}

/// Validates several sources in one folder: no two files have the same path.
pub(crate) fn projected(at: &At<'_>, errors: &mut Errors) {
    const SOURCES: [&str; 4] = ["secret", "configMap", "downwardAPI", "serviceAccountToken"];
    validate_file_mode(&at.get("defaultMode"), errors);
    let mut paths = Paths { at: at.clone(), seen: BTreeSet::new() };
    for source in at.get("sources").items() {
        for field in SOURCES.into_iter().filter(|f| source.get(f).is_object()) {
            let projection = source.get(field);
            match field {
                "secret" | "configMap" => validate_keys(&projection, &mut paths, errors),
                "downwardAPI" => {
                    for item in projection.get("items").items() {
                        validate_downward_file(&item.with(projection.path.clone()), errors);
                        paths.add(item.get("path").text(), item.get("path").text(), errors);
                    }
                }
                _ => validate_token(&projection, at, errors),
            }
        }
        if SOURCES.iter().filter(|f| source.get(f).is_object()).count() > 1 {
            errors.push(source.forbidden("may not specify more than 1 volume type per source"));
        }
    }
}

/// The paths of the files of a projected volume.
struct Paths<'a> {
    at: At<'a>,
    seen: BTreeSet<&'a str>,
}

impl<'a> Paths<'a> {
    fn add(&mut self, path: &'a str, shown: &str, errors: &mut Errors) {
        if !path.is_empty() && !self.seen.insert(path) {
            errors.push(FieldError::invalid(&self.at.path, shown, "conflicting duplicate paths"));
        }
    }
}

fn validate_keys<'a>(at: &At<'a>, paths: &mut Paths<'a>, errors: &mut Errors) {
    at.get("name").must(errors);
    for item in at.get("items").items() {
        rules::check(".core.v1.KeyToPath", &item, errors);
        paths.add(item.get("path").text(), at.get("name").text(), errors);
    }
}

fn validate_token(at: &At<'_>, volume: &At<'_>, errors: &mut Errors) {
    let expiration = at.get("expirationSeconds");
    let seconds = expiration.number().unwrap_or_default();
    if seconds < 600 {
        let detail = "may not specify a duration less than 10 minutes";
        errors.push(FieldError::invalid(&expiration.path, seconds, detail));
    }
    if seconds > 1 << 32 {
        errors.push(expiration.invalid("may not specify a duration larger than 2^32 seconds"));
    }
    let path = at.get("path").with(volume.path.child("path"));
    if path.must(errors) {
        local_not_reserved(&path, errors);
    }
}
