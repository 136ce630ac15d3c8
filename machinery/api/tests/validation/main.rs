//! Tests of validation, kind by kind: a fragment of an object and its expected errors.
//!
//! A case starts from a valid object and changes one field, so that every error is about that field.

use corten_meta::Value;
use serde_json::json;

mod batch;
mod combinations;
mod core;
mod groups;
mod order;
mod pod;

/// A valid object of one kind.
struct Subject {
    kind: std::sync::Arc<corten_api::Kind>,
    good: Value,
}

/// A change of a valid object and its expected errors; an empty list means that the change is accepted.
type Case<'a> = (&'a str, Value, &'a [&'a str]);

impl Subject {
    /// Makes a subject of the kind, and the fields of an object beside its metadata.
    fn new(group: &str, plural: &str, fields: Value) -> Subject {
        Subject::versioned(group, "v1", plural, fields)
    }

    fn versioned(group: &str, version: &str, plural: &str, fields: Value) -> Subject {
        let kind = corten_api::lookup(group, version, plural).unwrap_or_else(|| panic!("no {plural}")).clone();
        let mut good = fields;
        let metadata = json!({"name": "x", "uid": "u"});
        if good["metadata"].is_null() {
            good["metadata"] = metadata;
        }
        if kind.namespaced {
            good["metadata"]["namespace"] = "default".into();
        }
        Subject { kind, good }
    }

    /// Returns the object with one field changed, defaulted as a request is.
    fn changed(&self, pointer: &str, value: &Value) -> Value {
        let mut object = self.good.clone();
        if !pointer.is_empty() {
            corten_meta::set(&mut object, pointer, value.clone());
        }
        let input = object.clone();
        let lost = self.kind.default(&mut object);
        self.kind.drop_gated(&mut object);
        if lost { self.kind.as_given(&object, input, &["metadata"]) } else { object }
    }

    fn creates(&self, cases: &[Case<'_>]) {
        let mut good = self.changed("", &Value::Null);
        self.kind.behaviour.prepare_create(&mut good);
        assert_eq!(texts(&self.kind.validate(&good)), Vec::<String>::new(), "{:?} as it is", self.kind);
        for (pointer, value, wanted) in cases {
            let mut object = self.changed(pointer, value);
            self.kind.behaviour.prepare_create(&mut object);
            assert_eq!(texts(&self.kind.validate(&object)), *wanted, "{:?} {pointer} = {value}", self.kind);
        }
    }

    fn updates(&self, cases: &[Case<'_>]) {
        let old = self.changed("", &Value::Null);
        assert_eq!(texts(&self.kind.validate_update(&old, &old)), Vec::<String>::new(), "{:?} as it was", self.kind);
        for (pointer, value, wanted) in cases {
            let input = self.changed(pointer, value);
            let mut new = input.clone();
            self.kind.default(&mut new);
            let errors = self.kind.validate_given_update(&new, &input, &old);
            assert_eq!(texts(&errors), *wanted, "{:?} {pointer} = {value}", self.kind);
        }
    }

    fn status_updates(&self, cases: &[Case<'_>]) {
        let old = self.changed("", &Value::Null);
        for (pointer, value, wanted) in cases {
            let new = self.changed(pointer, value);
            let errors = self.kind.validate_status_update(&new, &old);
            assert_eq!(texts(&errors), *wanted, "{:?} {pointer} = {value}", self.kind);
        }
    }
}

/// Returns the distinct messages, without the lines that show a forbidden change.
fn texts(errors: &[corten_meta::FieldError]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string().split("changed: ").next().unwrap_or_default().to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}
