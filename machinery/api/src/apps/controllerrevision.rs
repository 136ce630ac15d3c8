//! ControllerRevision.

use corten_meta::Value;
use corten_meta::codec::write_value;
use corten_meta::field::{FieldError, Path};
use jiff::Timestamp;

use crate::cells::{age, boolean, list, name, number, text};
use crate::kind::{Behaviour, Kind};

struct ControllerRevision;

pub fn kind() -> Kind {
    Kind::new("apps", "v1", "ControllerRevision", "controllerrevisions")
        .table("Name, Controller, Revision, Age")
        .behaviour(ControllerRevision)
}

impl Behaviour for ControllerRevision {
    fn rules(&self) -> &'static str {
        ".apps.v1.ControllerRevision"
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        // Numbers with the same encoding are equal.
        if written(&new["data"]) == written(&old["data"]) {
            return Vec::new();
        }
        vec![FieldError::invalid(&Path::root("data"), new["data"].clone(), "field is immutable")]
    }

    fn empty(&self, object: &mut Value) {
        object["data"] = Value::Null;
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let owner = list(object, "/metadata/ownerReferences").iter().find(|o| boolean(o, "/controller"));
        let controller = match owner {
            Some(owner) => {
                let group = text(owner, "/apiVersion").rsplit_once('/').map_or("", |(group, _)| group);
                let kind = text(owner, "/kind").to_lowercase();
                let dot = if group.is_empty() { "" } else { "." };
                format!("{kind}{dot}{group}/{}", text(owner, "/name"))
            }
            None => "<none>".to_string(),
        };
        vec![name(object), controller.into(), number(object, "/revision").into(), age(object, now)]
    }
}

fn written(value: &Value) -> Vec<u8> {
    let mut text = Vec::new();
    write_value(&mut text, value);
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn data_is_an_object_that_does_not_change() {
        let required = |data: Value| {
            let mut object = json!({ "data": data });
            crate::schema::fill_defaults("io.k8s.api.apps.v1.ControllerRevision", &mut object);
            ControllerRevision.validate_create(&object).first().map(|error| error.detail.clone())
        };
        assert_eq!(required(json!({})), None);
        assert_eq!(required(json!(null)).as_deref(), Some("data is mandatory"));
        for data in [json!(""), json!(0), json!(false), json!([]), json!("a")] {
            assert_eq!(required(data).as_deref(), Some("data must be a valid JSON object"));
        }
        let changes = |new: Value, old: Value| {
            !ControllerRevision.validate_update(&json!({ "data": new }), &json!({ "data": old })).is_empty()
        };
        assert!(!changes(json!({"a": 1.0}), json!({"a": 1})), "both are stored as 1");
        assert!(changes(json!({"a": 1.5}), json!({"a": 1})));
    }
}
