//! `approval` of a CertificateSigningRequest: the Approved and Denied conditions, for users who may approve its signer.

use corten_admission::check_signer;
use corten_meta::{Status, Value};
use serde_json::json;

use crate::write::Scope;

/// Checks that the user may approve this request's signer, which never changes.
pub async fn check(target: &Scope<'_>) -> Result<(), Status> {
    let request = target.core.registry.get(target.resource, target.namespace, target.name).await?;
    let signer = request.value();
    let signer = signer.pointer("/spec/signerName").and_then(Value::as_str).unwrap_or_default();
    check_signer(&target.for_admission(), "approve", signer).await
}

/// Takes the approval conditions from the body.
pub fn conditions<'a>(target: &'a Scope<'_>) -> impl Fn(Value, &Value) -> Result<Value, Status> + Send + Sync + 'a {
    move |new, old| {
        // Labels and annotations may be written with the approval; the fields that only the server writes are restored
        // later.
        let mut object = old.clone();
        object["metadata"] = new["metadata"].clone();
        let wanted = new.pointer("/status/conditions").and_then(Value::as_array).cloned().unwrap_or_default();
        corten_meta::set(&mut object, "/status/conditions", json!(wanted));
        Ok(dated(object, old, target.context.now))
    }
}

/// Sets the missing times of the request's conditions. A condition whose status is unchanged keeps its transition time.
pub fn dated(mut object: Value, old: &Value, now: jiff::Timestamp) -> Value {
    let now: Value = corten_meta::time::rfc3339(now).into();
    let before = old.pointer("/status/conditions").and_then(Value::as_array);
    let conditions = object.pointer_mut("/status/conditions").and_then(Value::as_array_mut);
    for condition in conditions.into_iter().flatten().filter(|condition| condition.is_object()) {
        let is_same = |other: &&Value| ["type", "status"].iter().all(|field| other[*field] == condition[*field]);
        let then = before.into_iter().flatten().find(is_same).map(|c| c["lastTransitionTime"].clone());
        let then = then.filter(|time| !time.is_null()).unwrap_or_else(|| now.clone());
        for (field, time) in [("lastUpdateTime", now.clone()), ("lastTransitionTime", then)] {
            if condition[field].is_null() {
                condition[field] = time;
            }
        }
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_get_their_missing_times() {
        let now = jiff::Timestamp::UNIX_EPOCH;
        let then = "2020-01-01T00:00:00Z";
        let old =
            json!({"status": {"conditions": [{"type": "Approved", "status": "True", "lastTransitionTime": then}]}});
        let condition = |kind: &str| json!({"type": kind, "status": "True"});
        let new = json!({"status": {"conditions": [condition("Approved"), condition("Failed")]}});
        let dated = dated(new, &old, now);
        let shown = |at: usize, field: &str| dated["status"]["conditions"][at][field].clone();
        assert_eq!(shown(0, "lastTransitionTime"), then);
        assert_eq!(shown(0, "lastUpdateTime"), "1970-01-01T00:00:00Z");
        assert_eq!(shown(1, "lastTransitionTime"), "1970-01-01T00:00:00Z");
    }
}
