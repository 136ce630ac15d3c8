//! Strict decoding: unknown fields of a request, and fields of the wrong type.
//!
//! Type errors have the words of upstream's decoder, because people search for them. Unlike upstream's decoder this one
//! never stops at the first error; the caller decides which to show.

use corten_meta::numbers::{Numbers, beyond_error};
use corten_meta::quote::quote;
use corten_meta::{Quantity, Value};

use super::{FieldType, Type, schema};

/// The errors of the fields of a value.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FieldReport {
    /// Paths of unknown fields, e.g. `spec.template.spec.containers[0].imagee`.
    pub unknown: Vec<String>,
    /// The same paths without the keys of maps, as reported for the result of a strategic merge.
    pub unknown_in_structs: Vec<String>,
    /// Decoding errors, e.g. `json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32`.
    pub type_errors: Vec<String>,
    /// The path of each type error, and whether the decoder stops there: it continues after a value of the wrong shape,
    /// but not after one that a custom decoder refuses.
    places: Vec<(String, bool)>,
    /// Whether some field is null.
    pub has_nulls: bool,
    /// The quantities that are numbers with a spelling that differs from their value, and their pointers.
    quantities: Vec<(String, String)>,
}

impl FieldReport {
    /// Returns the error that the decoder reports, which depends on the order of the document: `ordered` returns the
    /// given paths in that order, each in a string that contains it.
    pub fn type_error(&self, ordered: impl FnOnce(Vec<String>) -> Vec<String>) -> Option<&str> {
        let gives_up = self.places.iter().any(|(_, gives_up)| *gives_up);
        let messages: Vec<(&str, &str)> = (self.places.iter().zip(&self.type_errors))
            .filter(|((_, here), _)| *here == gives_up)
            .map(|((place, _), error)| (place.as_str(), error.as_str()))
            .collect();
        if messages.len() < 2 {
            return messages.first().map(|(_, error)| *error);
        }
        let strings = ordered(messages.iter().map(|(place, _)| field_of(place).to_owned()).collect());
        let first = |messages: &[(&'_ str, &'_ str)]| {
            let is_at = |text: &str, place: &str| text.ends_with(&quote(field_of(place)));
            strings.iter().find_map(|text| messages.iter().position(|(place, _)| is_at(text, place)))
        };
        let (place, error) = messages[first(&messages).unwrap_or(0)];
        // In a list, the error of an item comes after those inside of the items before it.
        let index = |other: &str| {
            other.strip_prefix(field_of(place))?.strip_prefix('[')?.split_once(']')?.0.parse::<usize>().ok()
        };
        let Some(own) = index(place).filter(|_| place.ends_with(']')) else { return Some(error) };
        let before: Vec<(&str, &str)> =
            messages.into_iter().filter(|(other, _)| index(other).is_some_and(|at| at < own)).collect();
        first(&before).map(|at| before[at].1).or(Some(error))
    }

    /// Writes quantities as they were sent.
    pub fn restore_quantities(&self, value: &mut Value) {
        for (pointer, text) in &self.quantities {
            if let Some(quantity) = value.pointer_mut(pointer) {
                *quantity = text.as_str().into();
            }
        }
    }

    /// Reports whether [`prune`] would remove something.
    pub fn needs_pruning(&self) -> bool {
        self.has_nulls || !self.unknown.is_empty()
    }
}

/// Returns the field of a path: an item of a list belongs to the list's.
fn field_of(place: &str) -> &str {
    place.strip_suffix(']').and_then(|place| place.rsplit_once('[')).map_or(place, |(field, _)| field)
}

/// Compares a value with a type of the table. A type that the table does not have accepts everything.
pub fn check_fields(type_name: &str, value: &Value) -> FieldReport {
    check_spelled_fields(type_name, value, &Numbers::default())
}

/// Compares a value whose numbers have a known spelling.
pub fn check_spelled_fields(type_name: &str, value: &Value, numbers: &Numbers) -> FieldReport {
    let mut check =
        Check { report: FieldReport::default(), numbers, steps: Vec::new(), owner: "", type_name: None, outer: None };
    if let Some(t) = schema().type_(type_name) {
        check.object(t, value);
    }
    check.report
}

/// Removes unknown and null fields, as decoding into a struct and encoding does; a null among strings becomes an empty
/// one.
pub fn prune(type_name: &str, value: &mut Value) {
    if let Some(t) = schema().type_(type_name) {
        prune_type(t, value);
    }
}

fn prune_type(t: &Type, value: &mut Value) {
    if t.scalar.is_some() {
        return;
    }
    let Some(object) = value.as_object_mut() else { return };
    object.retain(|name, inner| match t.field(name) {
        None => false,
        Some(_) if inner.is_null() => false,
        Some(field) => {
            prune_value(&field.kind, inner);
            true
        }
    });
}

fn prune_value(kind: &FieldType, value: &mut Value) {
    match kind {
        FieldType::String if value.is_null() => *value = Value::String(String::new()),
        FieldType::Ref(id) => prune_type(schema().get(*id), value),
        FieldType::List(items) => {
            value.as_array_mut().into_iter().flatten().for_each(|item| prune_value(items, item));
        }
        FieldType::Map(values) => {
            value.as_object_mut().into_iter().flatten().for_each(|(_, item)| prune_value(values, item));
        }
        _ => {}
    }
}

/// A step of the path to a value.
#[derive(Clone, Copy)]
enum Step<'v> {
    /// A field of a struct, and the struct it is inlined from.
    Field(&'v str, Option<&'static str>),
    /// A key of a map, which the decoder does not name.
    Key(&'v str),
    Item(usize),
}

/// The walk over a value. It formats its path only to report an error.
struct Check<'v> {
    report: FieldReport,
    numbers: &'v Numbers,
    steps: Vec<Step<'v>>,
    /// The struct that has the current field.
    owner: &'static str,
    /// The name of the type of the field's values, if it is more than their shape.
    type_name: Option<&'static str>,
    /// The struct that all errors name, inside of one with a custom decoder.
    outer: Option<&'static str>,
}

/// The schemas of CustomResourceDefinitions. Three types may have another value instead of one of these.
pub(super) const SCHEMA_PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";

impl<'v> Check<'v> {
    fn object(&mut self, t: &'static Type, value: &'v Value) {
        if let Some(scalar) = t.scalar.as_ref().filter(|_| !t.is_empty_struct()) {
            if let Some(instead) = t.short_name().strip_prefix("JSONSchemaPropsOr") {
                return self.schema_or(instead, value);
            }
            // Raw JSON may be anything; the kind's rules check it.
            if t.short_name() != "RawExtension" {
                self.value(scalar, value);
            }
            return;
        }
        let object = match value {
            Value::Object(object) => object,
            Value::Null => return,
            other => return self.mismatch(other, &go_type_name(t)),
        };
        let owner = std::mem::replace(&mut self.owner, t.short_name());
        for (name, inner) in object {
            let field = t.field(name);
            self.steps.push(Step::Field(name, field.and_then(|field| field.inlined_from.as_deref())));
            self.report.has_nulls |= inner.is_null();
            match field {
                Some(field) => {
                    let outer = std::mem::replace(&mut self.type_name, field.type_name.as_deref());
                    self.value(&field.kind, inner);
                    self.type_name = outer;
                }
                None => {
                    self.report.unknown.push(self.path(true));
                    self.report.unknown_in_structs.push(self.path(false));
                }
            }
            self.steps.pop();
        }
        self.owner = owner;
    }

    /// Checks a schema or an alternative to it: a bool, a list of schemas or a list of names. These types have custom
    /// decoders: unknown fields inside are not reported, and errors name the struct around them.
    fn schema_or(&mut self, instead: &str, value: &'v Value) {
        let Some(props) = schema().type_(SCHEMA_PROPS) else { return };
        let unknown = self.report.unknown.len();
        let outer = self.outer;
        self.outer = Some(outer.unwrap_or(self.owner));
        match (instead, value) {
            (_, Value::Object(_)) => self.object(props, value),
            ("Array", Value::Array(items)) => items.iter().for_each(|item| self.object(props, item)),
            ("StringArray", Value::Array(items)) => {
                items.iter().for_each(|item| self.value(&FieldType::String, item));
            }
            ("Bool", Value::Bool(_)) => {}
            ("Bool", _) => self.refuse("boolean or JSON schema expected".to_string(), true),
            _ => {}
        }
        self.report.unknown.truncate(unknown);
        self.report.unknown_in_structs.truncate(unknown);
        self.outer = outer;
    }

    /// Returns `spec.containers[0].image`, as unknown fields are reported.
    fn path(&self, with_keys: bool) -> String {
        let mut path = String::new();
        for step in &self.steps {
            match step {
                Step::Key(_) if !with_keys => {}
                Step::Field(name, _) | Step::Key(name) => push_name(&mut path, name),
                Step::Item(at) => path.push_str(&format!("[{at}]")),
            }
        }
        path
    }

    /// Returns `/spec/containers/0/image`, to find it again.
    fn pointer(&self) -> String {
        let step = |step: &Step<'_>| match step {
            Step::Field(name, _) | Step::Key(name) => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
            Step::Item(at) => format!("/{at}"),
        };
        self.steps.iter().map(step).collect()
    }

    /// Returns `spec.containers.image`, as the decoder reports type errors.
    fn go_path(&self) -> String {
        let mut path = String::new();
        for step in &self.steps {
            if let Step::Field(name, inlined_from) = step {
                inlined_from.iter().for_each(|from| push_name(&mut path, from));
                push_name(&mut path, name);
            }
        }
        path
    }

    fn value(&mut self, kind: &'static FieldType, value: &'v Value) {
        if value.is_null() {
            self.report.has_nulls = true;
            return;
        }
        match (kind, value) {
            (FieldType::Ref(id), _) => self.object(schema().get(*id), value),
            (FieldType::List(items), Value::Array(list)) => {
                let outer = self.enter(|name| name.strip_prefix("[]"));
                for (at, item) in list.iter().enumerate() {
                    self.steps.push(Step::Item(at));
                    self.value(items, item);
                    self.steps.pop();
                }
                self.type_name = outer;
            }
            (FieldType::Map(values), Value::Object(map)) => {
                let outer = self.enter(|name| name.strip_prefix("map[").and_then(|rest| Some(rest.split_once(']')?.1)));
                for (key, item) in map {
                    self.steps.push(Step::Key(key));
                    self.value(values, item);
                    self.steps.pop();
                }
                self.type_name = outer;
            }
            (FieldType::Integer(format), Value::Number(_)) if !fits(format, value) => {
                self.mismatch_number(value, go_scalar(kind));
            }
            (FieldType::Number(_), Value::Number(_)) if self.beyond().is_some() => {
                self.mismatch_number(value, go_scalar(kind));
            }
            (FieldType::Any, _) => {
                if let Some(text) = self.beyond() {
                    self.refuse(beyond_error(text), true);
                }
            }
            (FieldType::Quantity, _) => self.quantity(value),
            (FieldType::Time | FieldType::MicroTime, Value::String(text)) => {
                let micro = *kind == FieldType::MicroTime;
                if let Err(error) = corten_meta::go::parse_time(text, micro) {
                    self.refuse(error, true);
                }
            }
            (FieldType::Bytes, Value::String(text)) => {
                if let Some(at) = illegal_base64(text) {
                    self.refuse(format!("illegal base64 data at input byte {at}"), false);
                }
            }
            // Numbers are bytes too, and null is 0.
            (FieldType::Bytes, Value::Array(items)) => {
                let is_byte = |item: &Value| item.is_null() || item.as_u64().is_some_and(|byte| byte <= 255);
                for (at, item) in items.iter().enumerate() {
                    self.steps.push(Step::Item(at));
                    match item {
                        // A byte has no sign.
                        _ if is_byte(item) && self.text().is_none() => {}
                        Value::Number(_) => self.mismatch_number(item, "uint8"),
                        other => self.mismatch(other, "uint8"),
                    }
                    self.steps.pop();
                }
            }
            (FieldType::IntOrString, Value::Number(_)) if !fits("int32", value) => {
                self.mismatch_number(value, "int32");
                self.give_up();
            }
            (FieldType::IntOrString, other) if !other.is_string() && !other.is_number() => {
                self.mismatch(other, "int32");
                self.give_up();
            }
            _ if accepts(kind, value) => {}
            _ => {
                self.mismatch(value, &self.go_type(kind));
                if matches!(kind, FieldType::Time | FieldType::MicroTime) {
                    self.give_up();
                }
            }
        }
    }

    fn refuse(&mut self, error: String, gives_up: bool) {
        self.report.places.push((self.path(true), gives_up || self.outer.is_some()));
        self.report.type_errors.push(error);
    }

    /// Marks the last error as one at which the decoder stops.
    fn give_up(&mut self) {
        if let Some((_, gives_up)) = self.report.places.last_mut() {
            *gives_up = true;
        }
    }

    fn quantity(&mut self, value: &Value) {
        let parsed = match value {
            Value::String(text) => Quantity::parse(text.trim()),
            other => Quantity::parse(&self.spelled(other)),
        };
        if let Err(error) = parsed {
            self.refuse(error.to_string(), true);
        } else if let Some(text) = self.text() {
            self.report.quantities.push((self.pointer(), text.to_owned()));
        }
    }

    /// Returns the spelling of the current number, if its value does not determine it.
    fn text(&self) -> Option<&'v str> {
        if self.numbers.is_empty() { None } else { self.numbers.text(&self.path(true)) }
    }

    /// Returns a number as it was sent.
    fn spelled(&self, value: &Value) -> String {
        self.text().map_or_else(|| value.to_string(), str::to_owned)
    }

    /// Returns the first number here or below that no float can represent.
    fn beyond(&self) -> Option<&'v str> {
        let here = if self.numbers.beyond().next().is_some() { self.path(true) } else { return None };
        let is_within =
            |place: &str| place.strip_prefix(&here).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
        self.numbers.beyond().find(|(place, _)| is_within(place)).map(|(_, text)| text)
    }

    /// Enters the items of a list or map: their type is named if the name of the collection determines it.
    fn enter(&mut self, items: impl Fn(&'static str) -> Option<&'static str>) -> Option<&'static str> {
        let inner = self.type_name.and_then(items).filter(|name| name.contains(char::is_uppercase));
        std::mem::replace(&mut self.type_name, inner)
    }

    /// Returns the decoder's name for the expected type of the current field.
    fn go_type(&self, kind: &FieldType) -> String {
        self.type_name.map_or_else(|| go_type(kind), str::to_string)
    }

    fn mismatch(&mut self, value: &Value, go_type: &str) {
        self.mismatch_named(json_kind(value), go_type);
    }

    fn mismatch_number(&mut self, value: &Value, go_type: &str) {
        self.mismatch_named(&format!("number {}", self.spelled(value)), go_type);
    }

    fn mismatch_named(&mut self, found: &str, go_type: &str) {
        let text = if self.owner.is_empty() {
            format!("json: cannot unmarshal {found} into Go value of type {go_type}")
        } else {
            format!(
                "json: cannot unmarshal {found} into Go struct field {}.{} of type {go_type}",
                self.outer.unwrap_or(self.owner),
                self.go_path()
            )
        };
        self.refuse(text, false);
    }
}

fn push_name(path: &mut String, name: &str) {
    if !path.is_empty() {
        path.push('.');
    }
    path.push_str(name);
}

/// Returns the position at which a string is no base64, counted as upstream's decoder does: line breaks are skipped,
/// and a group that ends too early is reported at its start.
pub(super) fn illegal_base64(text: &str) -> Option<usize> {
    let mut group = Vec::new();
    for (at, byte) in text.bytes().enumerate().filter(|(_, b)| !matches!(b, b'\n' | b'\r')) {
        let padded = group.iter().any(|(_, b)| *b == b'=');
        let legal = match byte {
            b'=' => group.len() >= 2,
            b'+' | b'/' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => !padded,
            _ => false,
        };
        if !legal {
            return Some(at);
        }
        group.push((at, byte));
        if group.len() == 4 {
            if padded || byte == b'=' {
                let rest = text.bytes().enumerate().skip(at + 1).find(|(_, b)| !matches!(b, b'\n' | b'\r'));
                return rest.map(|(at, _)| at);
            }
            group.clear();
        }
    }
    group.first().map(|(at, _)| *at)
}

fn accepts(kind: &FieldType, value: &Value) -> bool {
    match kind {
        FieldType::String | FieldType::Bytes | FieldType::Time | FieldType::MicroTime => value.is_string(),
        FieldType::Integer(_) | FieldType::Number(_) => value.is_number(),
        FieldType::Boolean => value.is_boolean(),
        FieldType::IntOrString => value.is_string() || value.is_number(),
        FieldType::Object => value.is_object(),
        FieldType::Quantity | FieldType::Any | FieldType::Ref(_) => true,
        FieldType::List(_) => value.is_array(),
        FieldType::Map(_) => value.is_object(),
    }
}

fn fits(format: &str, value: &Value) -> bool {
    match value.as_i64() {
        Some(number) => format != "int32" || i32::try_from(number).is_ok(),
        None => false,
    }
}

/// Returns the decoder's name for a JSON value.
pub(super) fn json_kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the decoder's name for the expected type.
fn go_type(kind: &FieldType) -> String {
    match kind {
        FieldType::Ref(id) => go_type_name(schema().get(*id)),
        FieldType::List(items) => format!("[]{}", go_item(items)),
        FieldType::Map(values) => format!("map[string]{}", go_item(values)),
        scalar => go_scalar(scalar).to_string(),
    }
}

/// Returns the decoder's name for the items of a list or a map.
fn go_item(kind: &FieldType) -> String {
    match kind {
        FieldType::Time => "v1.Time".to_owned(),
        FieldType::MicroTime => "v1.MicroTime".to_owned(),
        other => go_type(other),
    }
}

pub(super) fn go_scalar(kind: &FieldType) -> &'static str {
    match kind {
        FieldType::String => "string",
        FieldType::Integer("int64") => "int64",
        FieldType::Integer(_) => "int32",
        FieldType::Number(_) => "float64",
        FieldType::Boolean => "bool",
        FieldType::Bytes => "[]uint8",
        FieldType::IntOrString => "intstr.IntOrString",
        FieldType::Quantity => "resource.Quantity",
        // A time is decoded as a string.
        FieldType::Time | FieldType::MicroTime => "string",
        _ => "map[string]interface {}",
    }
}

/// Returns `v1.PodSpec`: the last package and the type.
fn go_type_name(t: &Type) -> String {
    let mut parts = t.name.rsplit('.');
    let name = parts.next().unwrap_or_default();
    let package = parts.next().unwrap_or_default();
    format!("{package}.{name}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";

    fn check(value: Value) -> (Vec<String>, Vec<String>) {
        let report = check_fields(DEPLOYMENT, &value);
        (report.unknown, report.type_errors)
    }

    #[test]
    fn the_first_error_of_the_document_is_reported() {
        let claim = json!({"spec": {"accessModes": "x", "volumeName": 5, "resources": {"requests": {"storage": "1"}}}});
        let report = check_fields("io.k8s.api.core.v1.PersistentVolumeClaim", &claim);
        let messages =
            |order: &'static [&str]| report.type_error(|_| order.iter().map(|text| (*text).to_owned()).collect());
        let first = messages(&["unknown field \"spec.volumeName\"", "unknown field \"spec.accessModes\""]);
        assert!(first.is_some_and(|error| error.contains("spec.volumeName")), "{first:?}");
        let service = json!({"spec": {"ports": [{"name": 5}, "x"]}});
        let report = check_fields("io.k8s.api.core.v1.Service", &service);
        let order =
            ["unknown field \"spec.ports\"", "unknown field \"spec.ports[0].name\""].map(str::to_owned).to_vec();
        let first = report.type_error(|_| order);
        assert!(first.is_some_and(|error| error.contains("spec.ports.name")), "{first:?}");
        // An error of a custom decoder ends decoding, and is reported instead.
        let claim = json!({"spec": {"accessModes": "x", "resources": {"requests": {"storage": "?"}}}});
        let report = check_fields("io.k8s.api.core.v1.PersistentVolumeClaim", &claim);
        let first = report.type_error(|places| places);
        assert!(first.is_some_and(|error| error.starts_with("quantities must match")), "{first:?}");
    }

    #[test]
    fn unknown_fields_are_named_with_their_index() {
        let (unknown, errors) = check(json!({
            "foo": 1,
            "metadata": {"labels": {"any": "thing"}, "nam": "x"},
            "spec": {"template": {"spec": {"containers": [{"name": "a"}, {"imagee": "b"}]}}},
        }));
        assert_eq!(unknown, ["foo", "metadata.nam", "spec.template.spec.containers[1].imagee"]);
        assert!(errors.is_empty(), "{errors:?}");
    }

    #[test]
    fn type_errors_read_as_upstreams() {
        let cases = [
            (
                json!({"spec": {"replicas": "3"}}),
                "json: cannot unmarshal string into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"replicas": 3.5}}),
                "json: cannot unmarshal number 3.5 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": [{"env": [{"name": "a", "value": 1}]}]}}}}),
                "json: cannot unmarshal number into Go struct field \
                 EnvVar.spec.template.spec.containers.env.value of type string",
            ),
            (
                json!({"spec": {"template": {"spec": {"containers": {}}}}}),
                "json: cannot unmarshal object into Go struct field \
                 PodSpec.spec.template.spec.containers of type []v1.Container",
            ),
            (
                json!({"metadata": {"labels": {"a": 1}}}),
                "json: cannot unmarshal number into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (json!("x"), "json: cannot unmarshal string into Go value of type v1.Deployment"),
        ];
        for (value, wanted) in cases {
            assert_eq!(check(value).1, [wanted]);
        }
    }

    #[test]
    fn quantities_and_alternatives_are_checked() {
        let (_, errors) = check(json!({"spec": {"template": {"spec": {"containers": [
            {"resources": {"limits": {"cpu": "1", "memory": 5, "x": "1.2.3"}}}
        ]}}, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": true}}}}));
        assert_eq!(errors.len(), 2, "{errors:?}");
    }

    #[test]
    fn numbers_are_read_by_their_spelling() {
        let check = |type_name: &str, text: &str| {
            let mut value = corten_meta::decode_json(text.as_bytes(), true).unwrap().value;
            let report = check_spelled_fields(type_name, &value, &corten_meta::codec::numbers(text.as_bytes()));
            report.restore_quantities(&mut value);
            (report.type_errors.first().cloned().unwrap_or_default(), value)
        };
        for (text, wanted) in [
            (r#"{"spec":{"replicas":-0}}"#, ""),
            (r#"{"odd":1E400}"#, ""),
            (
                r#"{"spec":{"replicas":1e3}}"#,
                "json: cannot unmarshal number 1e3 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
            (
                r#"{"spec":{"replicas":1E400}}"#,
                "json: cannot unmarshal number 1E400 into Go struct field DeploymentSpec.spec.replicas of type int32",
            ),
        ] {
            assert_eq!(check(DEPLOYMENT, text).0, wanted, "{text}");
        }
        let (error, quota) =
            check("io.k8s.api.core.v1.ResourceQuota", r#"{"spec":{"hard":{"cpu":1e5,"a/~b":1E400,"pods":5}}}"#);
        assert_eq!((error.as_str(), &quota["spec"]["hard"]), ("", &json!({"cpu": "1e5", "a/~b": "1E400", "pods": 5})));
        let bytes = check("io.k8s.api.core.v1.ConfigMap", r#"{"binaryData":{"a":[0,-0]}}"#).0;
        assert_eq!(bytes, "json: cannot unmarshal number -0 into Go struct field ConfigMap.binaryData of type uint8");
        const PROPS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
        let schema = |text: &str| check(PROPS, text).0;
        assert_eq!(
            schema(r#"{"maximum":1E400}"#),
            "json: cannot unmarshal number 1E400 into Go struct field JSONSchemaProps.maximum of type float64"
        );
        assert_eq!(
            schema(r#"{"default":{"a":[1E400]}}"#),
            "json: cannot unmarshal number 1E400 into Go value of type float64"
        );
    }

    #[test]
    fn bytes_must_be_base64() {
        for (text, wanted) in [
            ("", None),
            ("YQ==", None),
            ("YWJj\nYQ==", None),
            ("YQ", Some(0)),
            ("YWJjY", Some(4)),
            ("Y!==", Some(1)),
            ("YQ==YQ==", Some(4)),
            ("=AAA", Some(0)),
        ] {
            assert_eq!(illegal_base64(text), wanted, "{text:?}");
        }
        let report = check_fields("io.k8s.api.core.v1.Secret", &json!({"data": {"a": "plain text"}}));
        assert_eq!(report.type_errors, ["illegal base64 data at input byte 5"]);
    }

    #[test]
    fn pruning_drops_the_unknown_and_null() {
        let mut value = json!({"spec": {"replicas": null, "bogus": {}, "paused": true}, "bogus": 1});
        prune(DEPLOYMENT, &mut value);
        assert_eq!(value, json!({"spec": {"paused": true}}));
        let mut crd = json!({"spec": {"versions": [{"schema": {"openAPIV3Schema": {"default": {"any": 1}}}}]}});
        let before = crd.clone();
        prune("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition", &mut crd);
        assert_eq!(crd, before);
    }

    #[test]
    fn schemas_are_checked_in_alternatives() {
        const DEFINITION: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.CustomResourceDefinition";
        let check = |schema: Value, status: Value| {
            let version = json!({"schema": {"openAPIV3Schema": schema}, "subresources": {"status": status}});
            check_fields(DEFINITION, &json!({"spec": {"versions": [version]}}))
        };
        let at = "JSONSchemaProps.spec.versions.schema.openAPIV3Schema";
        for (schema, wanted) in [
            (
                json!({"items": {"type": 5}}),
                format!("json: cannot unmarshal number into Go struct field {at}.items.type of type string"),
            ),
            (json!({"additionalProperties": "x"}), "boolean or JSON schema expected".to_string()),
            (
                json!({"items": {"x-kubernetes-validations": [{"rule": 5}]}}),
                format!(
                    "json: cannot unmarshal number into Go struct field {at}.items.x-kubernetes-validations.rule of type string"
                ),
            ),
        ] {
            assert_eq!(check(schema, json!({})).type_errors, [wanted]);
        }
        let good = json!({"items": {"odd": 1}, "additionalProperties": true});
        assert_eq!(check(good, json!({"odd": 1})).unknown, ["spec.versions[0].subresources.status.odd"]);
        let nested = check(json!({"properties": {"a": {"properties": {"b": {"odd": 1}}}}}), json!({}));
        let schema = "spec.versions[0].schema.openAPIV3Schema";
        assert_eq!(nested.unknown, [format!("{schema}.properties.a.properties.b.odd")]);
        assert_eq!(nested.unknown_in_structs, [format!("{schema}.properties.properties.odd")]);
        assert!(check(json!({}), json!("x")).type_errors[0].ends_with("of type v1.CustomResourceSubresourceStatus"));
    }
}
