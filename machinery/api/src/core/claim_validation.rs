//! The rules of a PersistentVolumeClaim, and of templates for one.

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use super::resource_validation::{is_native, validate_quantity};
use crate::cells::text;
use crate::check::{At, Errors};
use crate::rules;
use crate::schema::{changed_fields, equal};
use crate::validation::{labels, quantity};

/// The annotation that held the storage class's name before the field.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";

pub(super) fn validate_claim(claim: &Value) -> Errors {
    let mut errors = Errors::new();
    validate_claim_spec(&At::object(claim).get("spec"), &mut errors);
    errors
}

/// Validates a template for the claims of a pod or a StatefulSet; only labels and annotations may be set beside the
/// spec.
pub(crate) fn validate_claim_template(template: &At<'_>, errors: &mut Errors) {
    validate_template_metadata(&template.get("metadata"), errors);
    validate_claim_spec(&template.get("spec"), errors);
}

/// Validates the metadata of a template.
pub(crate) fn validate_template_metadata(metadata: &At<'_>, errors: &mut Errors) {
    errors.extend(crate::kind::objectmeta::validate_annotations(
        metadata.get("annotations").value,
        &metadata.path.child("annotations"),
    ));
    errors.extend(labels(metadata.get("labels").value, &metadata.path.child("labels")));
    const OTHERS: [&str; 13] = [
        "name",
        "generateName",
        "namespace",
        "selfLink",
        "uid",
        "resourceVersion",
        "generation",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "ownerReferences",
        "finalizers",
        "managedFields",
    ];
    for field in OTHERS {
        // Upstream derives the name of the field from that in its struct. An empty list is set.
        let set = metadata.get(field).with(metadata.path.child(if field == "uid" { "uID" } else { field }));
        if set.is_set() && !(set.value.is_string() && set.is_empty()) {
            errors.push(set.forbidden("cannot be set"));
        }
    }
}

/// Validates the access modes of a claim or a volume: known ones, and the exclusive one alone.
pub(crate) fn validate_access_modes(modes: &At<'_>, errors: &mut Errors) {
    const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    for mode in modes.items() {
        mode.with(modes.path.clone()).one_of(errors, MODES);
    }
    let exclusive = modes.texts().any(|mode| mode == "ReadWriteOncePod");
    if exclusive && modes.texts().any(|mode| mode != "ReadWriteOncePod" && MODES.contains(&mode)) {
        errors.push(modes.forbidden("may not use ReadWriteOncePod with other access modes"));
    }
}

/// Validates the spec of a claim, also of a template for one.
pub(crate) fn validate_claim_spec(spec: &At<'_>, errors: &mut Errors) {
    rules::check(".core.v1.PersistentVolumeClaimSpec/access", spec, errors);
    let storage = spec.get("resources").get("requests").get("storage");
    let storage = storage.with(spec.path.child("resources").key("storage"));
    match storage.quantity() {
        None => errors.push(storage.required("")),
        Some(size) if size.sign() <= 0 => {
            errors.push(FieldError::invalid(&storage.path, size.to_string(), "must be greater than zero"));
        }
        Some(_) => validate_quantity("storage", &storage, errors),
    }
    rules::check(".core.v1.PersistentVolumeClaimSpec/source", spec, errors);
    validate_data_sources(spec, errors);
    spec.get("volumeAttributesClassName").follows(errors, names::dns1123_subdomain);
}

/// Validates that the two ways to name a source agree.
fn validate_data_sources(spec: &At<'_>, errors: &mut Errors) {
    let source = spec.get("dataSource");
    let reference = spec.get("dataSourceRef");
    if !source.is_object() || !reference.is_object() {
        return;
    }
    let same = ["apiGroup", "kind", "name"].iter().all(|f| source.get(f).value == reference.get(f).value);
    let detail = match (reference.get("namespace").is_empty(), same) {
        (false, _) => "may not be specified when dataSourceRef.namespace is specified",
        (true, false) => "must match dataSourceRef",
        (true, true) => return,
    };
    // Upstream shows the path instead of a value, and a path prints as nothing.
    let mut error = FieldError::invalid(&spec.path, Value::Null, detail);
    error.printed = Some("{}".to_string());
    errors.push(error);
}

/// Validates an update: only the size may grow, the volume attributes class change, and the volume be bound.
pub(super) fn validate_claim_update(new: &Value, old: &Value) -> Errors {
    let path = Path::root("spec");
    let mut errors = Errors::new();
    let class_moved = validate_class_annotation(new, old, &mut errors);
    let wanted = comparable(new, old, class_moved);
    let before = before(new, old);
    const SPEC: &str = "io.k8s.api.core.v1.PersistentVolumeClaimSpec";
    if !equal(SPEC, &wanted, &before) {
        let changes = changed_fields(SPEC, &before, &wanted);
        let except = "except resources.requests and volumeAttributesClassName for bound claims";
        errors.push(FieldError::forbidden(&path, format!("spec is immutable after creation {except}\n{changes}")));
    }
    let size = |claim: &Value, pointer: &str| claim.pointer(pointer).and_then(quantity).unwrap_or_default();
    let requested = "/spec/resources/requests/storage";
    let now = size(new, requested);
    // A size above the volume's capacity reverts a failed expansion.
    if now < size(old, requested) && now <= size(old, "/status/capacity/storage") {
        let path = path.child("resources").child("requests").child("storage");
        errors.push(FieldError::forbidden(&path, "field can not be less than status.capacity"));
    }
    let new = At::object(new);
    let old = At::object(old);
    let mode = new.get("spec").get("volumeMode").with(Path::root("volumeMode"));
    mode.unchanged(&mut errors, &old.get("spec").get("volumeMode"));
    let class = new.get("spec").get("volumeAttributesClassName");
    let changed = class.value != old.get("spec").get("volumeAttributesClassName").value;
    if changed && old.get("status").get("currentVolumeAttributesClassName").is_set() && class.is_empty() {
        let to = if class.is_set() { "empty string" } else { "nil" };
        let detail = format!("update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil");
        errors.push(class.forbidden(detail));
    }
    errors
}

/// Reports whether the class moved from the annotation to the field, which is allowed; otherwise the annotation stays.
fn validate_class_annotation(new: &Value, old: &Value, errors: &mut Errors) -> bool {
    let annotation = |claim: &Value| {
        claim.pointer("/metadata/annotations")?.get(CLASS_ANNOTATION).and_then(Value::as_str).map(str::to_string)
    };
    let now = annotation(new);
    let then = annotation(old);
    let unset = old["spec"]["storageClassName"].is_null();
    let class = new["spec"]["storageClassName"].as_str();
    let moved = unset && then.is_some() && class == then.as_deref() && (now.is_none() || now == then);
    if !moved && now != then {
        let path = Path::root("metadata").child("annotations").child(CLASS_ANNOTATION);
        errors.push(FieldError::invalid(&path, now.unwrap_or_default(), "field is immutable"));
    }
    // A claim that is older than the default class may be given one.
    moved || (unset && class.is_some() && then.is_none_or(|then| Some(then.as_str()) == class))
}

/// Returns the new spec with the mutable fields of the old one.
fn comparable(new: &Value, old: &Value, class_moved: bool) -> Value {
    let mut spec = new["spec"].clone();
    let Some(object) = spec.as_object_mut() else { return spec };
    let mut restore = |field: &str| {
        object.insert(field.to_string(), old["spec"][field].clone());
    };
    if class_moved {
        restore("storageClassName");
    }
    if text(new, "/status/phase") == "Bound" {
        restore("volumeAttributesClassName");
        if let Some(requests) = spec.pointer_mut("/resources/requests").and_then(Value::as_object_mut) {
            let before = old.pointer("/spec/resources/requests/storage").cloned().unwrap_or_default();
            requests.insert("storage".to_string(), before);
        }
    }
    spec
}

/// Returns the old spec, bound as the new one if it was not bound before.
fn before(new: &Value, old: &Value) -> Value {
    let mut spec = old["spec"].clone();
    if text(old, "/spec/volumeName").is_empty()
        && let Some(object) = spec.as_object_mut()
    {
        object.insert("volumeName".to_string(), new["spec"]["volumeName"].clone());
    }
    spec
}

/// Validates a write of status.
pub(super) fn validate_claim_status_update(new: &Value) -> Errors {
    const STATES: &[&str] = &[
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
        "NodeResizePending",
    ];
    let status = At::object(new).get("status");
    let mut errors = Errors::new();
    if At::object(new).get("spec").get("accessModes").is_empty() {
        // Upstream writes this field with a capital letter.
        errors.push(FieldError::required(&Path::root("Spec").child("accessModes"), ""));
    }
    for (_, quantity) in status.get("capacity").entries() {
        validate_basic(&quantity, &mut errors);
    }
    let states = status.get("allocatedResourceStatuses");
    for (resource, state) in states.entries() {
        validate_claim_resource(resource, &states, &mut errors);
        if !STATES.contains(&state.text()) {
            errors.push(FieldError::not_supported(&states.path, resource, STATES));
        }
    }
    let allocated = status.get("allocatedResources");
    for (resource, quantity) in allocated.entries() {
        if validate_claim_resource(resource, &allocated, &mut errors) {
            validate_basic(&quantity, &mut errors);
        }
    }
    errors
}

/// Validates that a quantity is not negative. One beyond 64 bits overflows.
pub(super) fn validate_basic(quantity: &At<'_>, errors: &mut Errors) {
    if let Some(value) = quantity.quantity().map(|quantity| quantity.value()).filter(|value| *value < 0) {
        errors.push(FieldError::invalid(&quantity.path, value, "must be a valid resource quantity"));
    }
}

fn validate_claim_resource(resource: &str, at: &At<'_>, errors: &mut Errors) -> bool {
    let before = errors.len();
    let messages = names::qualified_name(resource).into_iter();
    errors.extend(messages.map(|m| FieldError::invalid(&at.path, resource, m)));
    if errors.len() == before && is_native(resource) && resource != "storage" {
        errors.push(FieldError::not_supported(&at.path, resource, &["storage"]));
    }
    errors.len() == before
}
