//! Tests of validation, kind by kind, in text files beside this one: a valid object, changes of it and their errors.
//!
//! `VERB APIVERSION RESOURCE {…}` names the request and a valid object, in YAML, without its name. `POINTER VALUE` sets
//! one field of that object, so that every error below it is about that field. `again` writes an object twice.
//! `UPDATE_EXPECT=1` writes the errors.

use corten_api::Role;
use corten_meta::{FieldError, Value};
use expect_test::{ExpectFile, expect_file};
use serde_json::json;

mod defaults;

/// A valid object of one kind.
struct Subject {
    kind: std::sync::Arc<corten_api::Kind>,
    good: Value,
}

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
        self.kind.drop_gated(&mut object, None);
        if lost { self.kind.for_validation(&object, input, &["metadata"], None) } else { object }
    }
}

/// Returns the distinct messages, without the lines that show a forbidden change.
fn texts(errors: &[FieldError]) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    for error in errors {
        let text = error.to_string().split("changed: ").next().unwrap_or_default().to_string();
        if !texts.contains(&text) {
            texts.push(text);
        }
    }
    texts
}

/// The request of a case and its valid object.
#[derive(Default)]
struct Scene {
    verb: String,
    subject: Option<Subject>,
}

fn run(scene: &mut Scene, command: &str) -> String {
    let yaml = |text: &str| corten_meta::codec::decode_yaml(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    if !command.starts_with('/') {
        let [verb, version, plural, fields] = command.splitn(4, ' ').collect::<Vec<_>>()[..] else {
            panic!("{command}: VERB APIVERSION RESOURCE FIELDS");
        };
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        *scene =
            Scene { verb: verb.to_owned(), subject: Some(Subject::versioned(group, version, plural, yaml(fields))) };
        return match verb {
            "again" => written_again(scene),
            _ => errors(scene, "", &Value::Null),
        };
    }
    let (pointer, value) = command.split_once(' ').expect("POINTER VALUE");
    errors(scene, pointer, &yaml(value))
}

fn errors(scene: &Scene, pointer: &str, value: &Value) -> String {
    let subject = scene.subject.as_ref().expect("an object before its changes");
    let old = subject.changed("", &Value::Null);
    let input = subject.changed(pointer, value);
    let mut new = input.clone();
    let part = |role: Role| subject.kind.validate_part_update(role, &input, &old);
    let found = match scene.verb.as_str() {
        "create" => {
            subject.kind.behaviour.prepare_create(&mut new);
            subject.kind.validate(&new)
        }
        "update" if pointer.is_empty() => subject.kind.validate_update(&old, &old),
        "update" => {
            subject.kind.default(&mut new);
            subject.kind.validate_sent_update(&new, &input, &old)
        }
        "status" if pointer.is_empty() => Vec::new(),
        "status" => subject.kind.validate_status_update(&input, &old),
        "resize" => part(Role::Resize),
        "approval" => part(Role::Approval),
        "ephemeralcontainers" => part(Role::EphemeralContainers),
        other => panic!("no request is named {other}"),
    };
    texts(&found).join("\n")
}

/// Returns the invalid fields of a new object, and of the same object written again with a label.
fn written_again(scene: &Scene) -> String {
    let subject = scene.subject.as_ref().expect("an object");
    let old = subject.changed("", &Value::Null);
    let labelled = subject.changed("/metadata/labels", &json!({"l": "v"}));
    let fields = |errors: Vec<FieldError>| {
        let mut fields: Vec<String> = errors.into_iter().map(|error| error.field).collect();
        fields.dedup();
        fields.join(" ")
    };
    format!(
        "new {}\nagain {}",
        fields(subject.kind.validate(&old)),
        fields(subject.kind.validate_update(&labelled, &old))
    )
}

fn check(file: ExpectFile) {
    testkit_fixture::script::check(file, Scene::default, run);
}

#[test]
fn pods() {
    check(expect_file!["pod.txt"]);
}

#[test]
fn apps() {
    check(expect_file!["apps.txt"]);
}

#[test]
fn batch() {
    check(expect_file!["batch.txt"]);
}

#[test]
fn core_group() {
    check(expect_file!["core.txt"]);
}

#[test]
fn smaller_groups() {
    check(expect_file!["groups.txt"]);
}

#[test]
fn several_fields() {
    check(expect_file!["combinations.txt"]);
}

#[test]
fn storage() {
    check(expect_file!["storage.txt"]);
}

#[test]
fn objects_written_again() {
    check(expect_file!["ratchet.txt"]);
}

#[test]
fn order_of_errors() {
    check(expect_file!["order.txt"]);
}
