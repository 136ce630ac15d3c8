//! Conditions of statuses, and the merge of wanted with existing ones: a condition whose status stays keeps its time.

use corten_meta::Value;
use serde_json::json;

/// A wanted condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub type_: &'static str,
    pub status: bool,
    pub reason: &'static str,
    pub message: String,
}

impl Condition {
    pub fn is_true(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
        Condition { type_, status: true, reason, message: message.into() }
    }

    pub fn is_false(type_: &'static str, reason: &'static str, message: impl Into<String>) -> Condition {
        Condition { type_, status: false, reason, message: message.into() }
    }
}

/// Returns conditions as the API has them. Those of the status until now keep their time where their status stays.
pub fn conditions(wanted: &[Condition], generation: i64, current: &Value, now: &str) -> Value {
    let condition = |wanted: &Condition| {
        let status = if wanted.status { "True" } else { "False" };
        let entries = current.as_array().into_iter().flatten();
        let same = entries.into_iter().find(|one| one["type"] == wanted.type_ && one["status"] == status);
        let time = same.and_then(|one| one["lastTransitionTime"].as_str()).unwrap_or(now);
        json!({
            "type": wanted.type_,
            "status": status,
            "reason": wanted.reason,
            "message": wanted.message,
            "observedGeneration": generation,
            "lastTransitionTime": time,
        })
    };
    wanted.iter().map(condition).collect()
}

/// Returns the element of a list of a status that has these fields.
pub fn find<'a>(list: &'a Value, fields: &[(&str, &Value)]) -> &'a Value {
    let mut entries = list.as_array().into_iter().flatten();
    entries.find(|entry| fields.iter().all(|(name, value)| entry[*name] == **value)).unwrap_or(&Value::Null)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let current = json!([{"type": "Accepted", "status": "True", "lastTransitionTime": "then"}]);
        let time = |status: bool| {
            let wanted = Condition { type_: "Accepted", status, reason: "Because", message: String::new() };
            conditions(&[wanted], 2, &current, "now")[0]["lastTransitionTime"].clone()
        };
        assert_eq!(time(true), "then");
        assert_eq!(time(false), "now");
    }
}
