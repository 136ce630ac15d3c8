//! The rules of a pod's volumes: names, and one source each.

use std::collections::BTreeMap;

use corten_meta::field::FieldError;
use corten_meta::quote::quote;
use corten_meta::{Value, names};

use super::volume_source::{Holder, validate_source};
use crate::check::{At, Errors};

/// The valid volumes by name, which a mount may use.
pub(super) type Volumes<'a> = BTreeMap<&'a str, &'a Value>;

/// Validates the volumes of a pod. `pod` is its name, if it is a pod and already has one.
pub(super) fn validate_volumes<'a>(volumes: &At<'a>, holder: Holder, pod: &str, errors: &mut Errors) -> Volumes<'a> {
    let mut known = Volumes::new();
    let made: Vec<String> = volumes
        .items()
        .filter(|volume| !pod.is_empty() && volume.get("ephemeral").is_object())
        .map(|volume| format!("{pod}-{}", volume.get("name").text()))
        .collect();
    for volume in volumes.items() {
        let name = volume.get("name");
        let mut invalid = Errors::new();
        validate_volume(&volume, holder, pod, &mut invalid);
        name.must_follow(&mut invalid, names::dns1123_label);
        if known.contains_key(name.text()) {
            invalid.push(name.duplicate());
        }
        if invalid.is_empty() {
            known.insert(name.text(), volume.value);
        }
        errors.append(&mut invalid);
        let claim = volume.get("persistentVolumeClaim").get("claimName");
        if made.iter().any(|name| name == claim.text()) {
            errors.push(claim.invalid("must not reference a PVC that gets created for an ephemeral volume"));
        }
    }
    known
}

fn validate_volume(volume: &At<'_>, holder: Holder, pod: &str, errors: &mut Errors) {
    let name = volume.get("name");
    let source = validate_source(volume, holder, errors);
    let iscsi = volume.get("iscsi");
    let length = name.text().len() + 1 + iscsi.get("targetPortal").text().len();
    if iscsi.get("initiatorName").is_set() && length > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        errors.push(name.invalid(detail));
    }
    if source == Some("ephemeral") && !pod.is_empty() && !name.is_empty() {
        let claim = format!("{pod}-{}", name.text());
        let messages = names::dns1123_subdomain(&claim).into_iter();
        errors.extend(
            messages.map(|m| FieldError::invalid(&name.path, name.text(), format!("PVC name {}: {m}", quote(&claim)))),
        );
    }
}
