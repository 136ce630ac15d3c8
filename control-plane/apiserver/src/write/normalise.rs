//! The first step of a write: fields that the request may not write are removed or restored.

use corten_api::Kind;
use corten_meta::Value;
use serde_json::{Map, json};

use super::part::Part;

/// The metadata of an object's deletion.
const DELETION: [&str; 2] = ["deletionTimestamp", "deletionGracePeriodSeconds"];

/// Removes the metadata that only the server writes from the body of a create. Objects that an update or an apply
/// creates keep theirs, as upstream's do.
pub fn wipe(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["selfLink", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            metadata.remove(field);
        }
    }
}

/// Removes the fields from a new object that a create must not have.
pub fn strip(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        drop_empty(metadata);
    }
}

/// Removes empty maps, lists and strings from metadata: upstream does not write them.
pub fn drop_empty(metadata: &mut Map<String, Value>) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences", "generateName"] {
        let empty = match metadata.get(field) {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Null) => true,
            _ => false,
        };
        if empty {
            metadata.remove(field);
        }
    }
}

/// Removes the status that a create must not have.
pub fn drop_status(kind: &Kind, object: &mut Value) {
    let rules = &kind.rules;
    if rules.has_status
        && !rules.status_on_create
        && let Some(object) = object.as_object_mut()
        && let Some(mut status) = object.remove("status")
        && let Some(fields) = status.as_object_mut()
    {
        fields.retain(|field, _| rules.kept_of_new_status.contains(&field.as_str()));
        if !fields.is_empty() {
            object.insert("status".to_owned(), status);
        }
    }
}

/// Restores the metadata that only the server writes in a changed object: its uid, creation and generation.
pub fn keep_server_metadata(new: &mut Value, old: &Value, may_change_uid: bool) {
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    let nothing = Map::new();
    let before = old.get("metadata").and_then(Value::as_object).unwrap_or(&nothing);
    if !may_change_uid || metadata.get("uid").is_none_or(|uid| uid == "") {
        before.get("uid").map(|uid| metadata.insert("uid".to_owned(), uid.clone()));
    }
    restore(metadata, before, "creationTimestamp");
    restore(metadata, before, "generation");
    metadata.retain(|field, value| !DELETION.contains(&field.as_str()) || !value.is_null());
    drop_empty(metadata);
    // An empty list resets the ownership and is about to be dropped; one empty entry means the same.
    if metadata.get("managedFields").is_some_and(|given| *given == json!([])) {
        metadata.insert("managedFields".to_owned(), json!([{}]));
    }
}

/// Restores the part of an object that a request does not write.
pub fn restore_rest(kind: &Kind, part: Part, new: &mut Value, old: &Value) {
    let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object()) else { return };
    match part {
        Part::Main if kind.rules.has_status => restore(new, old, "status"),
        Part::Status => {
            if kind.rules.status_keeps_metadata {
                restore_metadata(new, old, kind.rules.status_takes);
            }
            if kind.rules.status_keeps_labels
                && let (Some(new), Some(old)) = (new.get_mut("metadata"), old.get("metadata"))
                && let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object())
            {
                restore(new, old, "labels");
            }
            let is_other = |field: &str| field != "status" && field != "metadata";
            new.retain(|field, _| !is_other(field) || old.contains_key(field));
            for field in old.keys().filter(|field| is_other(field)) {
                restore(new, old, field);
            }
        }
        _ => {}
    }
}

/// Restores the metadata that a write of the status leaves alone: all but the version and the managers of the writer,
/// and the fields that some kinds take.
fn restore_metadata(new: &mut Map<String, Value>, old: &Map<String, Value>, taken: &[&str]) {
    let given = new.get("metadata").cloned().unwrap_or_default();
    restore(new, old, "metadata");
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in ["resourceVersion", "managedFields"].iter().chain(taken) {
        match given.get(*field) {
            Some(value) => metadata.insert((*field).to_owned(), value.clone()),
            None => metadata.remove(*field),
        };
    }
}

fn restore(new: &mut Map<String, Value>, old: &Map<String, Value>, field: &str) {
    match (old.get(field), new.get_mut(field)) {
        // Comparing costs less than copying, and most requests do not change the fields that they may not change.
        (Some(value), Some(here)) if here == value => {}
        (Some(value), Some(here)) => *here = value.clone(),
        (Some(value), None) => {
            new.insert(field.to_owned(), value.clone());
        }
        (None, _) => {
            new.remove(field);
        }
    }
}

/// Restores the deletion of an object: no update changes it. Validation refuses an update that sets it on an object
/// that is not being deleted, or sets another grace period.
pub fn keep_deletion(new: &mut Value, old: &Value) {
    let (Some(new), Some(old)) = (new.get_mut("metadata").and_then(Value::as_object_mut), old.get("metadata")) else {
        return;
    };
    for field in DELETION {
        if let Some(value) = old.get(field)
            && (field == "deletionTimestamp" || !new.contains_key(field))
        {
            new.insert(field.to_owned(), value.clone());
        }
    }
}
