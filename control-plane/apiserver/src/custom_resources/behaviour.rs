//! The logic of a custom resource: its schema prunes, defaults and validates; its columns are paths into it.

use std::sync::OnceLock;

use corten_api::{Behaviour, Column, ScalePaths};
use corten_meta::{ErrorKind, FieldError, Path, Value};
use jiff::Timestamp;

use super::rules::Rules;
use super::{embedded, lists, scale, schema, validation};

/// A column and where its value is.
pub struct PrinterColumn {
    name: String,
    kind: String,
    path: String,
    priority: i32,
    format: String,
    description: String,
}

impl PrinterColumn {
    pub fn new(name: &str, kind: &str, path: &str, priority: i32, format: &str, description: &str) -> PrinterColumn {
        PrinterColumn {
            name: name.to_owned(),
            kind: kind.to_owned(),
            path: path.to_owned(),
            priority,
            format: format.to_owned(),
            description: description.to_owned(),
        }
    }

    pub fn column(&self) -> Column {
        let mut column = Column::new(&self.name, &self.kind).format(&self.format).describe(&self.description);
        column.priority = self.priority;
        column
    }

    fn cell(&self, object: &Value, now: Timestamp) -> Value {
        let Some(found) = find(object, &self.path) else { return Value::Null };
        match (self.kind.as_str(), found) {
            ("date", Value::String(text)) => match corten_meta::time::parse(text) {
                Ok(at) => corten_meta::time::human_duration(now.duration_since(at)).into(),
                Err(_) => "<invalid>".into(),
            },
            ("string", Value::String(text)) => text.clone().into(),
            ("string", other) => other.to_string().into(),
            ("integer", Value::Number(n)) => n.clone().into(),
            ("number", Value::Number(n)) => n.clone().into(),
            ("boolean", Value::Bool(b)) => (*b).into(),
            _ => Value::Null,
        }
    }
}

/// Follows a simple JSON path: `.a.b`, `.a.b\.c`, `.a['b.c']`, `.a[0]`, `.a[-1]`, `.conditions[?(@.type=="Ready")].status`.
/// Of several results, as those of `[*]`, a table shows the first.
fn find<'a>(object: &'a Value, path: &str) -> Option<&'a Value> {
    let mut here = object;
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (inside, after) = after.split_once(']')?;
            here = match inside.strip_prefix("?(@.").and_then(|f| f.strip_suffix(')')) {
                Some(filter) => {
                    let (key, wanted) = filter.split_once("==")?;
                    let wanted = wanted.trim().trim_matches(['"', '\'']);
                    here.as_array()?.iter().find(|item| item[key.trim()] == wanted)?
                }
                None if inside == "*" => here.get(0)?,
                None => match inside.parse::<i64>() {
                    Ok(index) => here.get(place(here, index)?)?,
                    Err(_) => here.get(inside.trim_matches(['"', '\'']))?,
                },
            };
            rest = after;
        } else {
            let (name, after) = name(rest.strip_prefix('.').unwrap_or(rest));
            here = here.get(Some(name).filter(|name| !name.is_empty())?)?;
            rest = after;
        }
    }
    Some(here)
}

/// The place of an item of a list; below zero it is counted from the end.
fn place(list: &Value, index: i64) -> Option<usize> {
    let from = if index < 0 { i64::try_from(list.as_array()?.len()).ok()? } else { 0 };
    usize::try_from(from + index).ok()
}

/// The name that a path begins with, and what follows it; a backslash makes the next letter part of the name.
fn name(path: &str) -> (String, &str) {
    let mut name = String::new();
    let mut letters = path.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '.' | '[' => return (name, &path[at..]),
            '\\' => name.extend(letters.next().map(|(_, next)| next)),
            other => name.push(other),
        }
    }
    (name, "")
}

/// The behaviour of one version.
pub struct CustomResource {
    pub schema: Value,
    pub columns: Vec<PrinterColumn>,
    pub scale: Option<ScalePaths>,
    pub has_status: bool,
    /// `spec.conversion.webhook` of the definition, if it converts by one.
    pub conversion: Option<Value>,
    /// The revision at which the definition last changed.
    pub defined_at: u64,
    /// Compiled when the first object is written: most definitions see none for long.
    pub rules: OnceLock<Option<Rules>>,
}

/// Errors after which the rules are not asked: what they would look at is not what they were written for.
const BLOCKING: [ErrorKind; 5] =
    [ErrorKind::NotSupported, ErrorKind::Required, ErrorKind::TooLong, ErrorKind::TooMany, ErrorKind::TypeInvalid];

impl CustomResource {
    /// What schema and rules say against an object that replaces `old`.
    fn errors(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validation::validate(&self.schema, object, old, None);
        if let Some(scale) = &self.scale {
            scale::validate_spec(scale, object, &mut errors);
            scale::validate_status(scale, object, &mut errors);
        }
        embedded::validate(&self.schema, object, &mut errors);
        self.judge_lists_and_rules(object, old, &mut errors);
        errors
    }

    /// What they say against a status that replaces another.
    fn status_errors(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let (schema, place) = (&self.schema["properties"]["status"], Path::root("status"));
        let mut errors = match new.get("status") {
            Some(status) => validation::validate(schema, status, old.get("status"), Some(&place)),
            None => Vec::new(),
        };
        if let Some(scale) = &self.scale {
            scale::validate_status(scale, new, &mut errors);
        }
        self.judge_lists_and_rules(new, Some(old), &mut errors);
        errors
    }

    fn judge_lists_and_rules(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let repeated = |object: &Value| {
            let mut found = Vec::new();
            lists::validate(&self.schema, object, &Path::default(), &mut found);
            found
        };
        let mut found = repeated(object);
        // What was there twice before may stay so.
        if !found.is_empty() && old.is_none_or(|old| repeated(old).is_empty()) {
            errors.append(&mut found);
        }
        let Some(rules) = self.rules.get_or_init(|| Rules::compile(&self.schema)) else { return };
        // An object without a name is refused before this, in the same answer.
        let blocked = corten_meta::name(object).is_empty() || errors.iter().any(|error| BLOCKING.contains(&error.kind));
        if blocked {
            let unchecked = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
            errors.push(FieldError::invalid(&Path::default(), Value::Null, unchecked));
        } else {
            errors.extend(rules.check(object, old));
        }
    }
}

impl Behaviour for CustomResource {
    fn default(&self, object: &mut Value) {
        schema::prune_root(&self.schema, object);
        schema::prune_nulls(&self.schema, object);
        schema::default(&self.schema, object);
    }

    fn prune(&self, object: &mut Value) {
        schema::prune_root(&self.schema, object);
    }

    fn defined_at(&self) -> u64 {
        self.defined_at
    }

    fn prepare_create(&self, object: &mut Value) {
        if self.has_status
            && let Some(object) = object.as_object_mut()
        {
            object.remove("status");
        }
    }

    fn validate_create(&self, object: &Value) -> Vec<FieldError> {
        self.errors(object, None)
    }

    fn validate_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.errors(new, Some(old))
    }

    fn validate_status_update(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        self.status_errors(new, old)
    }

    /// Finalizers should say whose they are.
    fn warnings(&self, new: &Value, old: Option<&Value>) -> Vec<String> {
        const OWN: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
        const PREFER: &str = "prefer a domain-qualified finalizer name";
        const AVOID: &str = "to avoid accidental conflicts with other finalizer writers";
        let before = old.map(corten_meta::finalizers).unwrap_or_default();
        let mut added: Vec<&str> = corten_meta::finalizers(new);
        added.retain(|name| !before.contains(name));
        added.sort_unstable();
        added.dedup();
        let mut warnings = Vec::new();
        for name in added {
            let wrong = corten_meta::names::qualified_name(name);
            warnings.extend(wrong.into_iter().map(|why| format!("metadata.finalizers: {name:?}: {why}")));
            if !name.contains('/') && !OWN.contains(&name) {
                let path = if name.contains('.') { " including a path (/)" } else { "" };
                warnings.push(format!("metadata.finalizers: {name:?}: {PREFER}{path} {AVOID}"));
            }
        }
        warnings
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        Some(match find(object, &format!(".{field}")) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(other) => other.to_string(),
        })
    }

    fn cells(&self, object: &Value, now: Timestamp) -> Vec<Value> {
        let name = Value::from(corten_meta::name(object));
        std::iter::once(name).chain(self.columns.iter().map(|column| column.cell(object, now))).collect()
    }

    fn scale(&self) -> Option<ScalePaths> {
        self.scale.clone()
    }

    fn conversion_webhook(&self) -> Option<&Value> {
        self.conversion.as_ref()
    }

    fn structural_schema(&self) -> Option<&Value> {
        Some(&self.schema)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_lead_to_values() {
        let object = json!({ "spec": { "a.b": 1, "list": [{ "x": "y" }] },
                             "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        let at = |path: &str| find(&object, path).cloned();
        assert_eq!(at(".spec['a.b']"), Some(json!(1)));
        assert_eq!(at(r".spec.a\.b"), Some(json!(1)));
        assert_eq!(at(".spec.list[-1].x"), Some(json!("y")));
        assert_eq!(at(".spec.list[*].x"), Some(json!("y")));
        assert_eq!(
            (at(".spec.list[1]"), at(".spec.list[-2]"), at(".spec[*]"), at(r".spec.a\")),
            (None, None, None, None)
        );
        assert_eq!(at(".spec.list[0].x"), Some(json!("y")));
        assert_eq!(at(".status.conditions[?(@.type==\"Ready\")].status"), Some(json!("True")));
        assert_eq!(at(".spec.none"), None);
        assert_eq!(at("..x["), None);
    }
}
