//! Event, in its first form; `events.k8s.io` serves the same objects in another.

use corten_meta::Value;
use corten_meta::field::FieldError;
use jiff::Timestamp;

use super::event_validation::{Form, validate_event};
use crate::cells::{name, number, or, since, text, time};
use crate::kind::{Behaviour, Column, Kind, NameRule};

/// The behaviour, shared with the newer form, which is converted first.
pub(crate) struct Event;

/// Returns the columns, shared with the newer form.
pub(crate) fn columns() -> Vec<Column> {
    vec![
        Column::new("Last Seen", "string"),
        Column::new("Type", "string"),
        Column::new("Reason", "string"),
        Column::new("Object", "string"),
        Column::new("Subobject", "string").wide(),
        Column::new("Source", "string").wide(),
        Column::new("Message", "string"),
        Column::new("First Seen", "string").wide(),
        Column::new("Count", "string").wide(),
        Column::new("Name", "string").format("name").wide(),
    ]
}

pub fn kind() -> Kind {
    Kind::new("", "v1", "Event", "events")
        .short(&["ev"])
        .create_on_update()
        .without_dependents()
        .name_rule(NameRule::PathSegment)
        .selectable(&[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ])
        .columns(columns())
        .behaviour(Event)
}

impl Behaviour for Event {
    fn validate(&self, event: &Value) -> Vec<FieldError> {
        validate_event(event, Form::Core)
    }

    fn cells(&self, event: &Value, now: Timestamp) -> Vec<Value> {
        let first = match time(event, "/firstTimestamp") {
            Some(_) => since(event, "/firstTimestamp", now),
            None => since(event, "/eventTime", now),
        };
        let mut last = match time(event, "/lastTimestamp") {
            Some(_) => since(event, "/lastTimestamp", now),
            None => first.clone(),
        };
        let mut count = number(event, "/count").max(1);
        if event.get("series").is_some_and(Value::is_object) {
            last = since(event, "/series/lastObservedTime", now);
            count = number(event, "/series/count");
        }
        let kind = text(event, "/involvedObject/kind").to_lowercase();
        let target = match text(event, "/involvedObject/name") {
            "" => kind,
            name => format!("{kind}/{name}"),
        };
        vec![
            last.into(),
            text(event, "/type").into(),
            text(event, "/reason").into(),
            target.into(),
            text(event, "/involvedObject/fieldPath").into(),
            format_source(event).into(),
            text(event, "/message").trim().into(),
            first.into(),
            count.into(),
            name(event),
        ]
    }

    /// Returns fields also by the names of the newer group, whose events are stored in this form.
    fn fields(&self, event: &Value, field: &str) -> Option<String> {
        let field = field.replace("regarding.", "involvedObject.").replace("reportingController", "reportingComponent");
        Some(match field.strip_prefix("involvedObject.") {
            Some(part) => text(event, &format!("/involvedObject/{part}")).to_string(),
            None if field == "source" => {
                or(text(event, "/source/component"), text(event, "/reportingComponent")).to_string()
            }
            None => text(event, &format!("/{field}")).to_string(),
        })
    }
}

fn format_source(event: &Value) -> String {
    let component = or(text(event, "/source/component"), text(event, "/reportingComponent"));
    let host = or(text(event, "/source/host"), text(event, "/reportingInstance"));
    if host.is_empty() { component.to_string() } else { format!("{component}, {host}") }
}
