//! The labels of kinds that take them from their pod template where a request gives none.

use corten_api::Kind;
use corten_meta::Value;

/// The path of a pod template's labels.
const OF_TEMPLATE: &str = "/spec/template/metadata/labels";

/// Returns whether a request leaves the labels of the object to its template.
pub fn are_from_template(kind: &Kind, object: &Value) -> bool {
    let labels = |pointer: &str| object.pointer(pointer).and_then(Value::as_object);
    kind.rules.labels_from_template
        && labels("/metadata/labels").is_none_or(|labels| labels.is_empty())
        && labels(OF_TEMPLATE).is_some()
}

/// Returns whether an object has yet to take its labels from its template: they are validated as the template's alone.
pub fn are_missing(kind: &Kind, object: &Value) -> bool {
    kind.rules.labels_from_template && object.pointer("/metadata/labels").is_none()
}

/// Returns whether the labels of an object are those of its template.
pub fn are_those_of_template(object: &Value) -> bool {
    object.pointer("/metadata/labels") == object.pointer(OF_TEMPLATE)
}

/// Copies the labels of the template.
pub fn copy(object: &mut Value) {
    if let Some(labels) = object.pointer(OF_TEMPLATE).cloned() {
        corten_meta::set(object, "/metadata/labels", labels);
    }
}

/// Removes the labels of the object.
pub fn remove(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("labels");
    }
}
