//! Subresources that change one part of their parent. Pure.

use corten_meta::{Status, Value};
use serde_json::json;

/// Returns the old object with the new one's resourceVersion, whose precondition is checked later, and with the
/// metadata that is validated instead of restored.
fn base(new: &Value, old: &Value) -> Value {
    let mut object = old.clone();
    let version = corten_meta::resource_version(new);
    corten_meta::set(&mut object, "/metadata/resourceVersion", version.into());
    let uid = corten_meta::uid(new);
    if !uid.is_empty() {
        corten_meta::set(&mut object, "/metadata/uid", uid.into());
    }
    take(&mut object["metadata"], &new["metadata"], "generateName");
    if new["metadata"]["deletionGracePeriodSeconds"].is_number() {
        take(&mut object["metadata"], &new["metadata"], "deletionGracePeriodSeconds");
    }
    object
}

/// Handles `finalize`: it changes everything but the status.
pub fn finalizers(mut new: Value, old: &Value) -> Result<Value, Status> {
    if new.pointer("/spec/finalizers").is_none() {
        corten_meta::set(&mut new, "/spec/finalizers", json!([]));
    }
    corten_meta::set(&mut new, "/status", old["status"].clone());
    Ok(new)
}

/// Handles `ephemeralcontainers`: it changes their list. Validation requires that they are added, never changed or
/// removed.
pub fn ephemeral_containers(new: Value, old: &Value) -> Result<Value, Status> {
    let list = |object: &Value| {
        object.pointer("/spec/ephemeralContainers").and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let mut object = base(&new, old);
    corten_meta::set(&mut object, "/spec/ephemeralContainers", json!(list(&new)));
    Ok(object)
}

/// Handles `resize`: it changes the resources of the pod and its containers. Added, removed or reordered containers are
/// left for validation to refuse.
pub fn resize(new: Value, old: &Value) -> Result<Value, Status> {
    const LISTS: [&str; 2] = ["/spec/containers", "/spec/initContainers"];
    let list = |object: &Value, pointer: &str| -> Vec<Value> {
        object.pointer(pointer).and_then(Value::as_array).cloned().unwrap_or_default()
    };
    if LISTS.iter().any(|pointer| list(&new, pointer).len() != list(old, pointer).len()) {
        return Ok(new);
    }
    let mut object = base(&new, old);
    for pointer in LISTS {
        let wanted = list(&new, pointer);
        let mut present = list(old, pointer);
        if wanted.iter().zip(&present).any(|(wanted, present)| wanted["name"] != present["name"]) {
            present = wanted;
        } else {
            let fields = |container: &mut Value, from: &Value| {
                ["resources", "resizePolicy"].iter().for_each(|field| take(container, from, field));
            };
            present.iter_mut().zip(&wanted).for_each(|(container, from)| fields(container, from));
        }
        if !present.is_empty() {
            corten_meta::set(&mut object, pointer, present.into());
        }
    }
    let wanted = &new["spec"];
    take(&mut object["spec"], wanted, "resources");
    Ok(object)
}

/// Copies a field from the other object, also its absence.
fn take(into: &mut Value, from: &Value, field: &str) {
    let Some(object) = into.as_object_mut() else { return };
    match from.get(field) {
        Some(value) => object.insert(field.to_owned(), value.clone()),
        None => object.remove(field),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resize_takes_resources_and_nothing_else() {
        let pod = |cpu: &str, image: &str| {
            json!({"metadata": {"name": "p", "labels": {"l": image}}, "spec": {"containers": [
                {"name": "c", "image": image, "resources": {"requests": {"cpu": cpu}}, "resizePolicy": []}]}})
        };
        let mut named = pod("2", "new");
        named["metadata"]["generateName"] = "n".into();
        named["metadata"]["deletionGracePeriodSeconds"] = 5.into();
        let resized = resize(named, &pod("1", "old")).unwrap();
        assert_eq!(
            (&resized["metadata"]["generateName"], &resized["metadata"]["deletionGracePeriodSeconds"]),
            (&json!("n"), &json!(5))
        );
        let resized = resize(pod("2", "new"), &pod("1", "old")).unwrap();
        assert_eq!(resized["spec"], pod("2", "old")["spec"]);
        assert_eq!(resized["metadata"]["labels"], json!({"l": "old"}));
        let mut bare = pod("2", "new");
        bare["spec"]["containers"][0].as_object_mut().unwrap().remove("resources");
        let resized = resize(bare, &pod("1", "old")).unwrap();
        assert_eq!(resized["spec"]["containers"][0].get("resources"), None, "validation sees removed resources");
        let mut renamed = pod("2", "new");
        renamed["spec"]["containers"][0]["name"] = "d".into();
        assert_eq!(resize(renamed.clone(), &pod("1", "old")).unwrap()["spec"], renamed["spec"]);
    }

    #[test]
    fn a_finalize_takes_everything_but_the_status() {
        let old =
            json!({"metadata": {"name": "n"}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        let new = json!({"metadata": {"name": "n", "labels": {"a": "b"}}, "status": {"phase": "x"}});
        let wanted = json!({"metadata": {"name": "n", "labels": {"a": "b"}}, "spec": {"finalizers": []},
                            "status": {"phase": "Active"}});
        assert_eq!(finalizers(new, &old).unwrap(), wanted);
    }
}
