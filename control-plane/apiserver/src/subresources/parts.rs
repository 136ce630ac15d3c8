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

/// `ephemeralcontainers`: they can be added, never changed or removed.
pub fn ephemeral_containers(new: Value, old: &Value) -> Result<Value, Status> {
    let list = |object: &Value| {
        object.pointer("/spec/ephemeralContainers").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let (wanted, present) = (list(&new), list(old));
    for container in &present {
        if !wanted.iter().any(|w| w["name"] == container["name"]) {
            let path = corten_meta::Path::root("spec").child("ephemeralContainers");
            let detail = format!("existing ephemeral containers {} may not be removed\n", container["name"]);
            let error = corten_meta::FieldError::forbidden(&path, detail);
            let kind = corten_meta::GroupKind { group: String::new(), kind: "Pod".to_owned() };
            return Err(Status::invalid(&kind, corten_meta::name(old), vec![error]));
        }
    }
    let mut object = base(&new, old);
    corten_meta::set(&mut object, "/spec/ephemeralContainers", json!(wanted));
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
