//! Subresources that change one part of their parent and leave the rest alone. Pure.

use corten_meta::{Status, Value};
use serde_json::json;

/// The old object under the new one's resourceVersion, so that preconditions are checked.
fn base(new: &Value, old: &Value) -> Value {
    let mut object = old.clone();
    let version = corten_meta::resource_version(new);
    corten_meta::set(&mut object, "/metadata/resourceVersion", version.into());
    let uid = corten_meta::uid(new);
    if !uid.is_empty() {
        corten_meta::set(&mut object, "/metadata/uid", uid.into());
    }
    object
}

/// `finalize`: the finalizers of the spec.
pub fn finalizers(new: Value, old: &Value) -> Result<Value, Status> {
    let mut object = base(&new, old);
    let finalizers = new.pointer("/spec/finalizers").cloned().unwrap_or_else(|| json!([]));
    corten_meta::set(&mut object, "/spec/finalizers", finalizers);
    Ok(object)
}

/// `ephemeralcontainers`: the list of them. Validation sees to it that they are added, never changed or removed.
pub fn ephemeral_containers(new: Value, old: &Value) -> Result<Value, Status> {
    let list = |object: &Value| {
        object.pointer("/spec/ephemeralContainers").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let mut object = base(&new, old);
    corten_meta::set(&mut object, "/spec/ephemeralContainers", json!(list(&new)));
    Ok(object)
}

/// `resize`: the resources of containers.
pub fn resize(new: Value, old: &Value) -> Result<Value, Status> {
    let mut object = base(&new, old);
    for list in ["containers", "initContainers"] {
        let wanted = new.pointer(&format!("/spec/{list}")).and_then(Value::as_array).cloned().unwrap_or_default();
        let Some(present) = object.pointer_mut(&format!("/spec/{list}")).and_then(Value::as_array_mut) else {
            continue;
        };
        // Containers that come or go are for validation to refuse.
        if wanted.len() != present.len() {
            *present = wanted;
            continue;
        }
        for container in present {
            let Some(from) = wanted.iter().find(|w| w["name"] == container["name"]) else { continue };
            for field in ["resources", "resizePolicy"] {
                if let Some(value) = from.get(field) {
                    container[field] = value.clone();
                }
            }
        }
    }
    Ok(object)
}
