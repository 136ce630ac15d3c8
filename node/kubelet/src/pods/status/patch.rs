//! The strategic merge patch from the status in the API to the one to report: only the changes, so that conditions of
//! other writers are not overwritten. Pure.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Pod, PodStatus};
use corten_meta::Value;
use serde_json::{Map, json};

use super::conditions::is_owned;

/// Returns the patch for `pods/status`, or `None` if nothing changed. The uid makes it fail on another pod with the
/// same name.
pub fn status_patch(uid: &str, old: &PodStatus, new: &PodStatus) -> Option<Value> {
    let old = fields(old);
    let new = fields(new);
    let mut changed = Map::new();
    for (name, value) in &new {
        let before = old.get(name);
        if before == Some(value) {
            continue;
        }
        match name.as_str() {
            "conditions" => {
                changed.insert(name.clone(), changed_conditions(before, value));
            }
            // Lists with a merge key would grow instead of change.
            "podIPs" | "hostIPs" if before.is_some() => {
                let mut list = vec![json!({"$patch": "replace"})];
                list.extend(value.as_array().into_iter().flatten().cloned());
                changed.insert(name.clone(), Value::Array(list));
            }
            // So would maps in which an entry was removed.
            "resources" | "allocatedResources" if before.is_some() => {
                let mut map = value.as_object().cloned().unwrap_or_default();
                map.insert("$patch".to_owned(), "replace".into());
                changed.insert(name.clone(), Value::Object(map));
            }
            _ => {
                changed.insert(name.clone(), value.clone());
            }
        }
    }
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        changed.insert(name.clone(), Value::Null);
    }
    changed.retain(|name, value| !(name == "conditions" && value.as_array().is_some_and(Vec::is_empty)));
    (!changed.is_empty()).then(|| json!({"metadata": {"uid": uid}, "status": changed}))
}

/// Returns the changed conditions, which merge by type; removed ones are listed with `$patch: delete`.
fn changed_conditions(old: Option<&Value>, new: &Value) -> Value {
    let old: Vec<&Value> = old.and_then(Value::as_array).into_iter().flatten().collect();
    let owned = |condition: &Value| condition["type"].as_str().is_some_and(is_owned);
    let written = |condition: &Value| owned(condition) || condition["reason"] == "TerminationByKubelet";
    let changed = new.as_array().into_iter().flatten();
    let changed = changed.filter(|condition| written(condition) && !old.contains(condition));
    let changed = changed.map(|condition| {
        let mut condition = condition.clone();
        let before = old.iter().find(|before| before["type"] == condition["type"]);
        // A removed field must be null for the merge to remove it.
        for field in ["reason", "message"] {
            let had = before.is_some_and(|before| before.get(field).is_some());
            if had && condition.get(field).is_none() {
                condition[field] = Value::Null;
            }
        }
        condition
    });
    let remains = |condition: &Value| new.as_array().into_iter().flatten().any(|one| one["type"] == condition["type"]);
    let ended = old.iter().filter(|condition| owned(condition) && !remains(condition));
    let ended = ended.map(|condition| json!({"$patch": "delete", "type": condition["type"]}));
    Value::Array(changed.chain(ended).collect())
}

fn fields(status: &PodStatus) -> Map<String, Value> {
    let pod = Pod { status: Some(status.clone()), ..Pod::default() };
    match pod.to_value().get_mut("status").map(Value::take) {
        Some(Value::Object(fields)) => fields,
        _ => Map::new(),
    }
}

#[cfg(test)]
mod tests {
    use corten_api::k8s_openapi::api::core::v1::{PodCondition, PodIP};

    use super::*;

    fn condition(type_: &str, status: &str, reason: Option<&str>) -> PodCondition {
        PodCondition {
            type_: type_.into(),
            status: status.into(),
            reason: reason.map(str::to_owned),
            ..PodCondition::default()
        }
    }

    #[test]
    fn only_what_changed_is_sent() {
        let old = PodStatus {
            phase: Some("Pending".into()),
            reason: Some("Gone".into()),
            pod_ips: Some(vec![PodIP { ip: "10.0.0.1".into() }]),
            conditions: Some(vec![
                condition("Ready", "False", Some("ContainersNotReady")),
                condition("PodResizeInProgress", "True", None),
                condition("Other", "True", None),
            ]),
            ..PodStatus::default()
        };
        assert_eq!(status_patch("u", &old, &old), None);
        let new = PodStatus {
            phase: Some("Running".into()),
            pod_ips: Some(vec![PodIP { ip: "10.0.0.2".into() }]),
            conditions: Some(vec![condition("Ready", "True", None), condition("Other", "True", None)]),
            ..PodStatus::default()
        };
        let expected = json!({
            "metadata": {"uid": "u"},
            "status": {
                "phase": "Running",
                "reason": null,
                "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.2"}],
                "conditions": [
                    {"type": "Ready", "status": "True", "reason": null},
                    {"$patch": "delete", "type": "PodResizeInProgress"},
                ],
            },
        });
        assert_eq!(status_patch("u", &old, &new), Some(expected));
    }
}
