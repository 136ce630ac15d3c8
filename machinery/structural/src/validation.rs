//! Structural schemas: they validate values, in the words and the order of upstream's validator.
//!
//! Pure, on JSON. A value of the wrong type is still validated against all constraints on values of its own type, as
//! upstream does.

use std::collections::HashSet;

use corten_cel::library::regex::compile;
use corten_meta::quote::quote;
use corten_meta::{FieldError, Path, Value};

use crate::numbers::{self, Bound};
use crate::{correlation, formats};

/// The keywords that hold further schemas of the same value.
const JUNCTORS: [&str; 3] = ["anyOf", "oneOf", "allOf"];

/// Returns the errors of a value that replaces `old`. Their paths are below `parent`; without it, the value is the
/// complete object.
pub fn validate(schema: &Value, value: &Value, old: Option<&Value>, parent: Option<&Path>) -> Vec<FieldError> {
    let mut check = Check { parent, name: String::new(), errors: Vec::new() };
    check.value(schema, value, old);
    check.errors
}

/// The traversal of a value.
struct Check<'a> {
    parent: Option<&'a Path>,
    /// The current path, below the parent.
    name: String,
    errors: Vec<FieldError>,
}

impl Check<'_> {
    fn path(&self, below: &str) -> Path {
        let name = format!("{}{below}", self.name);
        let name = name.strip_prefix('.').unwrap_or(&name);
        match self.parent {
            None => Path::root(name),
            Some(parent) if name.is_empty() => parent.clone(),
            Some(parent) => parent.child(name),
        }
    }

    fn invalid(&mut self, value: impl Into<Value>, why: &str) {
        let error = FieldError::invalid(&self.path(""), value, format!("{} in body {why}", self.name));
        self.errors.push(error);
    }

    /// Adds an error that upstream does not attribute to a field.
    fn general(&mut self, why: String) {
        let parent = self.parent.cloned().unwrap_or_default();
        self.errors.push(FieldError::invalid(&parent, "", why));
    }

    /// Validates a value, and returns the number of its matches, by which alternatives are compared. An unchanged value
    /// is not refused.
    fn value(&mut self, schema: &Value, value: &Value, old: Option<&Value>) -> usize {
        if !schema.is_object() {
            return 0;
        }
        let before = self.errors.len();
        let mut matched = self.kind(schema, value) + 2;
        if !value.is_null() {
            matched += self.junctors(schema, value) + 1;
        }
        match value {
            Value::String(string) => self.string(schema, string),
            Value::Number(number) => {
                matched += 2;
                self.number(schema, number);
            }
            Value::Array(items) => matched += self.items(schema, items, old) + 2,
            _ => {}
        }
        self.enumerated(schema, value);
        if let Value::Object(map) = value {
            matched += self.fields(schema, map, old) + 1;
        }
        if JUNCTORS.iter().any(|key| schema.get(key).is_some()) {
            self.remove_duplicates(before);
        }
        if self.errors.len() > before && old.is_some_and(|old| correlation::is_unchanged(schema, value, old)) {
            self.errors.truncate(before);
        }
        matched
    }

    /// Removes duplicate errors of a schema and its branches.
    fn remove_duplicates(&mut self, from: usize) {
        let mut seen = HashSet::new();
        let found = self.errors.split_off(from);
        self.errors.extend(found.into_iter().filter(|error| seen.insert(error.to_string())));
    }

    /// Validates a value below the current one, under `step`.
    fn below(&mut self, step: &str, schema: &Value, value: &Value, old: Option<&Value>) -> usize {
        let length = self.name.len();
        self.name.push_str(step);
        let matched = self.value(schema, value, old);
        self.name.truncate(length);
        matched
    }

    fn kind(&mut self, schema: &Value, value: &Value) -> usize {
        let format = schema["format"].as_str().unwrap_or_default();
        let types = types(schema);
        if types.is_empty() && format.is_empty() {
            return 0;
        }
        match mismatch(&types, format, value).filter(|_| !(value.is_null() && schema["nullable"] == true)) {
            None => 2,
            Some((wanted, found)) => {
                let detail = format!("{} in body must be of type {wanted}: {found}", self.name, found = quote(found));
                self.errors.push(FieldError::type_invalid(&self.path(""), found, detail));
                1
            }
        }
    }

    /// Validates length, pattern and format of a string; adds an error for the first of them that fails.
    fn string(&mut self, schema: &Value, string: &str) {
        let length = string.chars().count() as i64;
        let pattern = schema["pattern"].as_str();
        if let Some(max) = schema["maxLength"].as_i64().filter(|max| length > *max) {
            self.errors.push(limited(max, |max| FieldError::too_long(&self.path(""), max), "value is too long"));
        } else if let Some(min) = schema["minLength"].as_i64().filter(|min| length < *min) {
            self.invalid(string, &format!("should be at least {min} chars long"));
        } else if let Some(pattern) = pattern.filter(|p| compile(p).is_ok_and(|regex| !regex.is_match(string))) {
            self.invalid(string, &format!("should match '{pattern}'"));
        }
        if let Some(format) = schema["format"].as_str().filter(|format| !formats::has(format, string)) {
            let detail = format!("{} in body must be of type {format}: {quoted}", self.name, quoted = quote(string));
            self.errors.push(FieldError::type_invalid(&self.path(""), string, detail));
        }
    }

    fn number(&mut self, schema: &Value, number: &serde_json::Number) {
        let kind = Some(types(schema)).filter(|types| types.len() == 1).map_or("", |types| types[0]);
        let format = schema["format"].as_str().filter(|format| match kind {
            "integer" => matches!(*format, "int32" | "int64"),
            "number" => matches!(*format, "float" | "double"),
            _ => false,
        });
        let complaint = |what: &str, name: &str| match format {
            Some(format) => format!("{what} value must be of type {kind} with format {format} in {name}"),
            None => format!("{what} value must be of type {kind} (default format) in {name}"),
        };
        let number = Value::Number(number.clone());
        if !numbers::fits(&number, kind, format) {
            self.general(complaint("Checked", &self.name));
        }
        for (what, key) in
            [("MultipleOf", "multipleOf"), ("Minimum boundary", "minimum"), ("Maximum boundary", "maximum")]
        {
            let Some(limit) = schema[key].as_f64() else { continue };
            let fits = numbers::fits(&Value::from(limit), kind, format);
            if !fits {
                self.general(complaint(what, &self.name));
            }
            if key == "multipleOf" && limit <= 0.0 {
                let why = format!("factor MultipleOf declared for {} must be positive: {limit}", self.name);
                self.errors.push(FieldError::invalid(&self.path(""), schema[key].clone(), why));
                continue;
            }
            let bound = match key {
                "multipleOf" => Bound::MultipleOf,
                "minimum" => Bound::Minimum { exclusive: schema["exclusiveMinimum"] == true },
                _ => Bound::Maximum { exclusive: schema["exclusiveMaximum"] == true },
            };
            if let Some(why) = numbers::bound_error(&number, bound, limit, fits) {
                // A number that is compared as a float is shown as a float.
                self.invalid(if fits { number.clone() } else { number.as_f64().into() }, &why);
            }
        }
    }

    fn items(&mut self, schema: &Value, items: &[Value], old: Option<&Value>) -> usize {
        let keys = correlation::list_keys(schema);
        let mut matched = 0;
        for (index, item) in items.iter().enumerate() {
            let before = correlation::item(&keys, item, old);
            matched += self.below(&format!("[{index}]"), &schema["items"], item, before);
        }
        if let Some(min) = schema["minItems"].as_u64().filter(|min| (items.len() as u64) < *min) {
            self.invalid(items.len(), &format!("should have at least {min} items"));
        }
        self.at_most(items.len(), &schema["maxItems"]);
        matched
    }

    fn at_most(&mut self, count: usize, max: &Value) {
        if let Some(max) = max.as_i64().filter(|max| count as i64 > *max) {
            let error = |max| FieldError::too_many(&self.path(""), count, max);
            self.errors.push(limited(max, error, "has too many items"));
        }
    }

    fn enumerated(&mut self, schema: &Value, value: &Value) {
        let Some(allowed) = schema["enum"].as_array().filter(|allowed| !allowed.is_empty()) else { return };
        // Null is never in an enum, even if the enum contains it.
        if value.is_null() || !allowed.iter().any(|one| one == value || numbers::same(value, one)) {
            let words: Vec<String> =
                allowed.iter().map(|v| v.as_str().map_or_else(|| v.to_string(), str::to_owned)).collect();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            self.errors.push(FieldError::not_supported(&self.path(""), value.clone(), &words));
        }
    }

    fn fields(&mut self, schema: &Value, map: &serde_json::Map<String, Value>, old: Option<&Value>) -> usize {
        if let Some(min) = schema["minProperties"].as_u64().filter(|min| (map.len() as u64) < *min) {
            self.invalid(map.len(), &format!("should have at least {min} properties"));
        }
        self.at_most(map.len(), &schema["maxProperties"]);
        // The type of an object is the same before and after, in any storage version, so the root is never unchanged.
        let is_root = self.name.is_empty();
        let is_type = |name: &str| is_root && matches!(name, "apiVersion" | "kind");
        let before = |name: &str| old.filter(|_| !is_type(name)).and_then(|old| old.get(name));
        let properties = schema["properties"].as_object();
        let values = &schema["additionalProperties"];
        let mut matched = 0;
        for (name, value) in map.iter().filter(|(name, _)| properties.is_none_or(|known| !known.contains_key(*name))) {
            if *values == false {
                let detail = format!("{}.{name} in body is a forbidden property", self.name);
                self.errors.push(FieldError::invalid(&self.path(""), name.as_str(), detail));
                continue;
            }
            matched += self.below(&format!(".{name}"), values, value, before(name));
        }
        for (name, schema) in properties.into_iter().flatten() {
            let Some(value) = map.get(name) else { continue };
            let step = if self.name.is_empty() { name.clone() } else { format!(".{name}") };
            matched += self.below(&step, schema, value, before(name));
        }
        for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if !map.contains_key(name) {
                self.errors.push(FieldError::required(&self.path(&format!(".{name}")), ""));
            }
        }
        matched
    }

    /// Validates `anyOf`, `oneOf`, `allOf` and `not`. If all alternatives fail, the errors are those of the one with
    /// the most matches.
    fn junctors(&mut self, schema: &Value, value: &Value) -> usize {
        let parent = self.parent;
        let name = self.name.clone();
        let validated = |branch: &Value| {
            let mut inner = Check { parent, name: name.clone(), errors: Vec::new() };
            let matched = inner.value(branch, value, None);
            (inner.errors, matched)
        };
        let branches = |key: &str| schema[key].as_array().into_iter().flatten().map(&validated).collect::<Vec<_>>();
        let mut total = 1;
        let mut best = |check: &mut Self, failed: Vec<(Vec<FieldError>, usize)>| {
            let most = failed.into_iter().reduce(|most, next| if next.1 > most.1 { next } else { most });
            let (errors, matched) = most.unwrap_or_default();
            check.errors.extend(errors);
            total += matched;
        };
        let any = branches("anyOf");
        if !any.is_empty() && !any.iter().any(|(errors, _)| errors.is_empty()) {
            self.general(format!("{} must validate at least one schema (anyOf)", quote(&name)));
            best(self, any);
        }
        let one = branches("oneOf");
        match one.iter().filter(|(errors, _)| errors.is_empty()).count() {
            1 => {}
            _ if one.is_empty() => {}
            0 => {
                self.general(format!(
                    "{} must validate one and only one schema (oneOf). Found none valid",
                    quote(&name)
                ));
                best(self, one);
            }
            many => self.general(format!(
                "{} must validate one and only one schema (oneOf). Found {many} valid alternatives",
                quote(&name)
            )),
        }
        let all = branches("allOf");
        let count = all.len();
        let failed = all.iter().filter(|(errors, _)| !errors.is_empty()).count();
        self.errors.extend(all.into_iter().flat_map(|(errors, _)| errors));
        if failed > 0 {
            let none = if failed == count { ". None validated" } else { "" };
            self.general(format!("{} must validate all the schemas (allOf){none}", quote(&name)));
        }
        if schema["not"].is_object() && validated(&schema["not"]).0.is_empty() {
            self.general(format!("{} must not validate the schema (not)", quote(&name)));
        }
        total
    }
}

/// Returns the types that a schema allows.
fn types(schema: &Value) -> Vec<&str> {
    if schema["x-kubernetes-int-or-string"] == true {
        return vec!["integer", "string"];
    }
    schema["type"].as_str().filter(|kind| !kind.is_empty()).into_iter().collect()
}

/// Returns the expected and the actual type, if they differ.
fn mismatch(types: &[&str], format: &str, value: &Value) -> Option<(String, &'static str)> {
    let (found, found_format) = match value {
        Value::Null => return (!types.is_empty()).then(|| (types.join(","), "null")),
        Value::Bool(_) => ("boolean", ""),
        Value::Number(n) if n.is_i64() => ("integer", "int64"),
        Value::Number(_) => ("number", "float64"),
        Value::String(_) => ("string", ""),
        Value::Array(_) => ("array", ""),
        Value::Object(_) => ("object", ""),
    };
    let has = |kind: &str| types.contains(&kind);
    let is_integral = || has("integer") && value.as_f64().is_some_and(numbers::is_integer);
    let good = has(found) || (found == "integer" && has("number")) || (found == "number" && is_integral());
    let is_string_or_array = matches!(found, "string" | "array");
    if !is_string_or_array && !format.is_empty() && !good && found_format != format {
        return Some((format.to_owned(), found_format));
    }
    if is_string_or_array && !format.is_empty() && !has("number") && !has("integer") {
        return None;
    }
    (!good).then(|| (types.join(","), found))
}

/// Returns the error of a value beyond a limit; if the limit is negative, upstream's error has no number.
fn limited(max: i64, error: impl FnOnce(usize) -> FieldError, unlimited: &str) -> FieldError {
    match usize::try_from(max) {
        Ok(max) => error(max),
        Err(_) => FieldError { detail: unlimited.to_owned(), ..error(0) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_of_several_branches_is_reported_once() {
        let modes = json!({ "enum": ["a", "b"] });
        for (key, says) in [
            ("allOf", "must validate all the schemas (allOf). None validated"),
            ("anyOf", "must validate at least one schema (anyOf)"),
            ("oneOf", "must validate one and only one schema (oneOf). Found none valid"),
        ] {
            let mode = json!({ "type": "string", "enum": ["a", "b"], key: [modes, modes] });
            let schema = json!({ "type": "object", "properties": { "mode": mode } });
            let errors = validate(&schema, &json!({ "mode": "c" }), None, None);
            let messages: Vec<String> = errors.iter().map(ToString::to_string).collect();
            assert_eq!(
                messages.iter().filter(|messages| messages.contains("Unsupported value")).count(),
                1,
                "{key}: {messages:?}"
            );
            assert_eq!(messages.iter().filter(|messages| messages.contains(says)).count(), 1, "{key}: {messages:?}");
            assert_eq!(messages.len(), 2, "{key}: {messages:?}");
        }
    }

    fn schema() -> Value {
        json!({ "type": "object", "properties": { "spec": { "type": "object", "required": ["size"], "properties": {
            "size": { "type": "integer", "minimum": 1, "multipleOf": 1 },
            "mode": { "type": "string", "enum": ["a", "b"], "default": "a" },
            "cron": { "type": "string", "pattern": "^(\\d+|\\*)(/\\d+)?$" },
            "at": { "type": "string", "format": "date-time" },
            "net": { "type": "string", "format": "cidr" },
            "any": { "type": "integer", "anyOf": [{ "minimum": 10 }, { "maximum": 2 }], "not": { "enum": [12] } },
            "one": { "type": "object", "oneOf": [{ "required": ["a"] }, { "required": ["b"] }] },
            "all": { "type": "integer", "allOf": [{ "minimum": 3 }, { "maximum": 5 }] },
            "labels": { "type": "object", "additionalProperties": { "type": "string" } } } } } })
    }

    #[test]
    fn demands_are_checked() {
        let check = |spec: Value| {
            let errors = validate(&schema(), &json!({ "metadata": 5, "spec": spec }), None, None);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        assert_eq!(check(json!({ "size": 1 })), "");
        assert_eq!(check(json!({})), "spec.size: Required value");
        assert!(check(json!({ "size": "x" })).contains("spec.size in body must be of type integer: \"string\""));
        assert!(check(json!({ "size": 0 })).contains("spec.size in body should be greater than or equal to 1"));
        assert!(check(json!({ "size": 1, "mode": "c" })).contains("supported values: \"a\", \"b\""));
        assert!(
            check(json!({ "size": 1, "labels": { "l": 1 } })).contains("spec.labels.l in body must be of type string")
        );
    }

    #[test]
    fn an_unchanged_value_is_not_refused() {
        let check = |new: Value, old: Value| {
            let mut schema = schema();
            schema["required"] = json!(["more"]);
            schema["properties"]["kind"] = json!({ "type": "string", "maxLength": 1 });
            let errors = validate(&schema, &new, Some(&old), None);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        let object = |spec: Value| json!({ "metadata": {}, "more": 1, "spec": spec });
        assert_eq!(check(object(json!({ "size": 0 })), object(json!({ "size": 0 }))), "");
        let strange = object(json!({ "odd": 1 }));
        assert_eq!(check(strange.clone(), strange), "spec.size: Required value");
        let object = json!({ "metadata": {} });
        let kind = json!({ "kind": "ab", "more": 1 });
        assert_eq!(check(object.clone(), object), "more: Required value");
        assert_eq!(check(kind.clone(), kind), "kind: Too long: may not be more than 1 byte");
    }

    /// A negative maximum refuses even an empty value, and `additionalProperties: false` refuses every field.
    #[test]
    fn bounds_may_leave_no_room() {
        for (schema, value, wanted) in [
            (json!({ "type": "string", "maxLength": -1 }), json!(""), "f: Too long: value is too long"),
            (json!({ "type": "string", "minLength": -1 }), json!(""), ""),
            (json!({ "type": "array", "maxItems": -1 }), json!([]), "f: Too many: 0: has too many items"),
            (
                json!({ "additionalProperties": false }),
                json!({ "a": 1 }),
                "f: Invalid value: \"a\": f.a in body is a forbidden property",
            ),
            (json!({ "type": "object", "maxProperties": -1 }), json!({}), "f: Too many: 0: has too many items"),
        ] {
            let errors = validate(&json!({ "properties": { "f": schema } }), &json!({ "f": value }), None, None);
            assert_eq!(errors.iter().map(ToString::to_string).collect::<String>(), wanted, "{schema}");
        }
    }

    #[test]
    fn words_and_alternatives_are_checked() {
        let check = |field: &str, value: Value| {
            let mut spec = json!({ "size": 1 });
            spec[field] = value;
            let errors = validate(&schema(), &json!({ "spec": spec }), None, None);
            errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
        };
        for (field, good, bad, message) in [
            ("cron", json!("*/5"), json!("x"), "spec.cron in body should match '^(\\d+|\\*)(/\\d+)?$'"),
            ("at", json!("2026-01-02T03:04:05Z"), json!("now"), "spec.at in body must be of type date-time: \"now\""),
            ("net", json!("10.0.0.0/8"), json!("10.0.0.0/33"), "must be of type cidr"),
            ("any", json!(11), json!(5), "\"spec.any\" must validate at least one schema (anyOf)"),
            ("any", json!(1), json!(12), "\"spec.any\" must not validate the schema (not)"),
            (
                "one",
                json!({ "a": 1 }),
                json!({}),
                "\"spec.one\" must validate one and only one schema (oneOf). Found none valid",
            ),
            ("one", json!({ "b": 1 }), json!({ "a": 1, "b": 1 }), "Found 2 valid alternatives"),
            ("all", json!(4), json!(6), "\"spec.all\" must validate all the schemas (allOf)"),
        ] {
            assert_eq!(check(field, good), "", "{field}");
            let found = check(field, bad);
            assert!(found.contains(message), "{found}");
        }
    }
}
