//! The rules of a PersistentVolume, also of an inline one.

use corten_meta::Value;
use corten_meta::field::{FieldError, Path};

use super::volume_source::{Holder, validate_source_and};
use crate::check::{At, Errors};
use crate::rules;
use crate::schema::{changed_fields, equal};

/// The fields of the spec that are not a volume source.
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

pub(super) fn validate_volume(object: &Value) -> Errors {
    let object = At::object(object);
    let mut errors = Errors::new();
    validate_volume_spec(&object.get("spec"), object.get("metadata").get("name").text(), false, &mut errors);
    errors
}

/// Validates the spec of a volume. `inline` means that a VolumeAttachment has it instead of a name.
pub(crate) fn validate_volume_spec(spec: &At<'_>, name: &str, inline: bool, errors: &mut Errors) {
    let part = if inline { "/inline" } else { "" };
    rules::check(&format!(".core.v1.PersistentVolumeSpec{part}"), spec, errors);
    validate_volume_source(spec, name, errors);
    rules::check(&format!(".core.v1.PersistentVolumeSpec{part}/classes"), spec, errors);
}

pub(crate) fn volume_capacity(capacity: &At<'_>, errors: &mut Errors) {
    capacity.must(errors);
    if capacity.value.get("storage").is_none() || capacity.len() > 1 {
        errors.push(FieldError::not_supported(&capacity.path, capacity.value.clone(), &["storage"]));
    }
    for (_, entry) in capacity.entries() {
        let Some(quantity) = entry.quantity() else { continue };
        super::claim_validation::validate_basic(&entry, errors);
        if quantity.sign() <= 0 {
            errors.push(FieldError::invalid(&entry.path, quantity.to_string(), "must be greater than zero"));
        }
    }
}

fn validate_volume_source(spec: &At<'_>, name: &str, errors: &mut Errors) {
    let found = errors.len();
    let affinity = spec.get("nodeAffinity");
    let source = validate_source_and(spec, Holder::PersistentVolume, errors, |source, errors| {
        if source == "local" && !affinity.get("required").is_object() {
            errors.push(affinity.required("Local volume requires node affinity"));
        }
    });
    let iscsi = spec.get("iscsi");
    let portal = iscsi.get("targetPortal");
    let is_initiated = source == Some("iscsi") && iscsi.get("initiatorName").is_set();
    if is_initiated && name.len() + 1 + portal.text().len() > 64 {
        let detail = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
        // Upstream validates it before the rest of the source.
        let error = portal.with(iscsi.path.child("targetportal")).invalid(detail);
        let at = found + usize::from(portal.is_empty());
        errors.insert(at.min(errors.len()), error);
    }
    let path = spec.get("hostPath").get("path");
    let root = !path.is_empty() && path.text().split('/').all(|part| part.is_empty() || part == ".");
    if root && spec.get("persistentVolumeReclaimPolicy").text() == "Recycle" {
        let detail = "may not be 'recycle' for a hostPath mount of '/'";
        errors.push(spec.get("persistentVolumeReclaimPolicy").forbidden(detail));
    }
}

/// Validates an update: the source is immutable, other fields are not.
pub(super) fn validate_volume_update(new: &Value, old: &Value) -> Errors {
    let spec = Path::root("spec");
    let source = |object: &Value| {
        let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
        spec.retain(|name, value| !NOT_SOURCES.contains(&name.as_str()) && !value.is_null());
        Value::from(spec)
    };
    let mut errors = Errors::new();
    let mut now = source(new);
    let then = source(old);
    // The secret for expanding a volume may be added later.
    if then["csi"].is_object()
        && then["csi"]["controllerExpandSecretRef"].is_null()
        && let Some(csi) = now["csi"].as_object_mut()
    {
        csi.remove("controllerExpandSecretRef");
    }
    const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeSpec";
    if !equal(SPEC, &now, &then) {
        let changes = changed_fields(SPEC, &then, &now);
        let detail = format!("spec.persistentvolumesource is immutable after creation\n{changes}");
        errors.push(FieldError::forbidden(&spec.child("persistentvolumesource"), detail));
    }
    const AFFINITY: &str = "io.k8s.api.core.v1.VolumeNodeAffinity";
    let new = At::object(new).get("spec");
    let old = At::object(old).get("spec");
    new.get("volumeMode").with(Path::root("volumeMode")).unchanged(&mut errors, &old.get("volumeMode"));
    if old.get("nodeAffinity").is_object()
        && !equal(AFFINITY, new.get("nodeAffinity").value, &renamed_affinity(&old, &new))
    {
        let detail = "field is immutable, except for updating from beta label to GA";
        errors.push(new.get("nodeAffinity").with(Path::root("nodeAffinity")).invalid(detail));
    }
    let class = "volumeAttributesClassName";
    if old.get(class).is_set() && !new.get(class).is_set() {
        errors.push(new.get(class).forbidden("update from non-nil value to nil is forbidden"));
    }
    errors
}

/// Returns the old node affinity under the current names of labels, where the new one uses them. Upstream maps a new
/// name that it does not know to the empty string, so that a key may also be emptied.
fn renamed_affinity(old: &At<'_>, new: &At<'_>) -> Value {
    const RENAMED: [(&str, &str); 5] = [
        ("failure-domain.beta.kubernetes.io/zone", "topology.kubernetes.io/zone"),
        ("failure-domain.beta.kubernetes.io/region", "topology.kubernetes.io/region"),
        ("beta.kubernetes.io/os", "kubernetes.io/os"),
        ("beta.kubernetes.io/arch", "kubernetes.io/arch"),
        ("beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type"),
    ];
    let mut affinity = old.get("nodeAffinity").value.clone();
    let terms = new.get("nodeAffinity").get("required").get("nodeSelectorTerms");
    for (term, now) in crate::defaulting::items(&mut affinity, "/required/nodeSelectorTerms").zip(terms.items()) {
        for field in ["matchExpressions", "matchFields"] {
            let now = now.get(field);
            for (then, now) in crate::defaulting::items(term, &format!("/{field}")).zip(now.items()) {
                let today = RENAMED.iter().find(|(before, _)| then["key"] == *before).map_or("", |(_, today)| today);
                if now.get("key").text() == today {
                    then["key"] = now.get("key").value.clone();
                }
            }
        }
    }
    affinity
}
