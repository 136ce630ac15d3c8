//! LimitRange.

use corten_meta::Value;
use corten_meta::field::FieldError;
use serde_json::json;

use crate::cells::text;
use crate::defaulting::{default_at, items};
use crate::kind::{Behaviour, Kind};

struct LimitRange;

pub fn kind() -> Kind {
    Kind::new("", "v1", "LimitRange", "limitranges")
        .short(&["limits"])
        .create_on_update()
        .table("Name, Created At:date")
        .behaviour(LimitRange)
}

impl Behaviour for LimitRange {
    fn default(&self, object: &mut Value) {
        for limit in items(object, "/spec/limits").filter(|l| text(l, "/type") == "Container") {
            fill_from(limit, "/max", "/default");
            fill_from(limit, "/default", "/defaultRequest");
            fill_from(limit, "/min", "/defaultRequest");
        }
    }

    /// Names an object without a name by its uid.
    fn prepare_create(&self, object: &mut Value) {
        let uid = text(object, "/metadata/uid").to_string();
        if text(object, "/metadata/name").is_empty() {
            crate::defaulting::put(object, "/metadata/name", uid);
        }
    }

    fn validate(&self, object: &Value) -> Vec<FieldError> {
        super::limit_validation::validate_limit_range(object)
    }
}

/// Copies resources that the target does not have.
fn fill_from(limit: &mut Value, from: &str, to: &str) {
    let source = limit.pointer(from).and_then(Value::as_object).cloned().unwrap_or_default();
    if source.is_empty() {
        return;
    }
    default_at(limit, to, json!({}));
    if let Some(target) = limit.pointer_mut(to).and_then(Value::as_object_mut) {
        for (resource, quantity) in source {
            target.entry(resource).or_insert(quantity);
        }
    }
}
