//! Event, in its second form: the same objects as in the core group, with other names for some fields.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use crate::core::event::{Event as CoreEvent, columns};
use crate::core::event_validation::{Form, validate_event, validate_new_form, validate_new_form_update};
use crate::kind::{Behaviour, Kind};

struct Event;

/// The fields with another name, and their name in the core group.
const RENAMED: [(&str, &str); 7] = [
    ("note", "message"),
    ("regarding", "involvedObject"),
    ("reportingController", "reportingComponent"),
    ("deprecatedSource", "source"),
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
];

pub fn kind() -> Kind {
    Kind::new("events.k8s.io", "v1", "Event", "events")
        .short(&["ev"])
        .create_on_update()
        .without_dependents()
        .stored_as("/registry/events", "", "v1")
        .selectable(&[
            "reason",
            "reportingController",
            "type",
            "regarding.kind",
            "regarding.name",
            "regarding.namespace",
            "regarding.uid",
        ])
        .columns(columns())
        .behaviour(Event)
}

impl Behaviour for Event {
    fn validate(&self, event: &Value) -> Vec<FieldError> {
        validate_event(&to_core(event), Form::Events)
    }

    fn validate_create(&self, event: &Value) -> Vec<FieldError> {
        validate_new_form(&to_core(event))
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        validate_new_form_update(&to_core(new), &to_core(old))
    }

    fn cells(&self, event: &Value, now: Timestamp) -> Vec<Value> {
        CoreEvent.cells(&to_core(event), now)
    }

    fn fields(&self, event: &Value, field: &str) -> Option<String> {
        let core = field.replace("regarding.", "involvedObject.").replace("reportingController", "reportingComponent");
        CoreEvent.fields(&to_core(event), &core)
    }

    fn to_stored(&self, event: &mut Value) {
        rename(event, RENAMED.iter().copied());
        crate::defaulting::put(event, "/apiVersion", "v1");
    }

    fn from_stored(&self, event: &mut Value) {
        rename(event, RENAMED.iter().map(|(here, core)| (*core, *here)));
        // The core group writes them even if they are empty.
        if let Some(object) = event.as_object_mut() {
            object.retain(|name, value| {
                !matches!(name.as_str(), "reportingController" | "reportingInstance") || *value != ""
            });
        }
        crate::defaulting::put(event, "/apiVersion", "events.k8s.io/v1");
    }
}

fn to_core(event: &Value) -> Value {
    let mut core = event.clone();
    rename(&mut core, RENAMED.iter().copied());
    core
}

fn rename<'a>(event: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(object) = event.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = object.remove(from) {
            object.insert(to.to_string(), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_two_forms_convert_without_loss() {
        let newer = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "note": "n", "regarding": {"kind": "Pod"},
            "reportingController": "c", "deprecatedCount": 3, "eventTime": "t", "type": "Normal"});
        let mut object = newer.clone();
        Event.to_stored(&mut object);
        assert_eq!(object["message"], "n");
        assert_eq!(object["involvedObject"]["kind"], "Pod");
        assert_eq!(object["apiVersion"], "v1");
        Event.from_stored(&mut object);
        assert_eq!(object, newer);
        let mut object =
            json!({"apiVersion": "v1", "kind": "Event", "reportingComponent": "", "reportingInstance": ""});
        Event.from_stored(&mut object);
        assert_eq!(object, json!({"apiVersion": "events.k8s.io/v1", "kind": "Event"}));
    }
}
