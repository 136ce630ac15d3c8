//! The rules of a PersistentVolumeClaim.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};
use serde_json::json;

use crate::cells::{list, text};
use crate::validation::{label_selector, quantity, supported};

/// The access modes a claim may ask for.
const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

pub(super) fn validate_claim(claim: &Value) -> Vec<FieldError> {
    validate_claim_spec(&claim["spec"], &Path::root("spec"))
}

/// The spec of a claim, also of a template for one.
pub(crate) fn validate_claim_spec(spec: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = label_selector(&spec["selector"], &path.child("selector"));
    let modes = list(spec, "/accessModes");
    let modes_path = path.child("accessModes");
    if modes.is_empty() {
        errors.push(FieldError::required(&modes_path, "at least 1 access mode is required"));
    }
    errors.extend(modes.iter().filter_map(|m| supported(m, &modes_path, MODES)));
    if modes.len() > 1 && modes.iter().any(|m| m == "ReadWriteOncePod") {
        let detail = "may not use ReadWriteOncePod with other access modes";
        errors.push(FieldError::forbidden(&modes_path, detail));
    }
    let storage = path.child("resources").key("storage");
    match spec.pointer("/resources/requests/storage") {
        None => errors.push(FieldError::required(&storage, "")),
        Some(amount) if quantity(amount).is_some_and(|q| q.as_milli() <= 0) => {
            let storage = path.child("resources").child("requests").key("storage");
            errors.push(FieldError::invalid(&storage, amount.clone(), "must be greater than zero"));
        }
        Some(_) => {}
    }
    errors.extend(supported(&spec["volumeMode"], &path.child("volumeMode"), &["Block", "Filesystem"]));
    errors
}

/// Once made, only the size may grow and the volume be bound.
pub(super) fn validate_claim_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let mut comparable = new["spec"].clone();
    for field in ["resources", "volumeAttributesClassName"] {
        comparable[field] = old["spec"][field].clone();
    }
    if text(old, "/spec/volumeName").is_empty() {
        comparable["volumeName"] = old["spec"]["volumeName"].clone();
    }
    let mut before = old["spec"].clone();
    for field in ["resources", "volumeAttributesClassName", "volumeName"] {
        before[field] = old["spec"][field].clone();
    }
    comparable["volumeName"] = comparable.get("volumeName").cloned().unwrap_or(json!(null));
    let mut errors = Vec::new();
    if comparable != before {
        let detail =
            "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden(&path, detail));
    }
    let size = |claim: &Value| claim.pointer("/spec/resources/requests/storage").and_then(quantity);
    if let (Some(new_size), Some(old_size)) = (size(new), size(old)) {
        let path = path.child("resources").child("requests").child("storage");
        if new_size < old_size {
            errors.push(FieldError::forbidden(&path, "field can not be less than status.capacity"));
        } else if new_size != old_size && text(old, "/status/phase") != "Bound" {
            let detail = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims";
            errors.push(FieldError::forbidden(&Path::root("spec"), detail));
        }
    }
    errors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_needs_modes_and_a_size() {
        let errors = validate_claim(&json!({"spec": {}}));
        let texts: Vec<String> = errors.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "spec.accessModes: Required value: at least 1 access mode is required",
                "spec.resources[storage]: Required value",
            ]
        );
    }

    #[test]
    fn only_binding_and_growth_are_changes() {
        let claim = |spec: Value| json!({"spec": spec, "status": {"phase": "Bound"}});
        let old = claim(json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}));
        let bound = claim(
            json!({"accessModes": ["ReadWriteOnce"], "volumeName": "v", "resources": {"requests": {"storage": "2Gi"}}}),
        );
        assert!(validate_claim_update(&bound, &old).is_empty());
        let other = claim(json!({"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}));
        assert_eq!(validate_claim_update(&other, &old).len(), 1);
        assert_eq!(validate_claim_update(&old, &bound).len(), 2);
    }
}
