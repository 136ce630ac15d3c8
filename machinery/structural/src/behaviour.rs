//! The behaviour of a custom resource's kind: its schema prunes, defaults and validates; its printer columns are
//! JSONPaths.

use std::sync::OnceLock;

use corten_api::{Behaviour, Column, JsonPath, ScalePaths};
use corten_meta::quote::quote;
use corten_meta::{ErrorKind, FieldError, Path, Value};
use jiff::Timestamp;

use crate::rules::Rules;
use crate::{embedded, lists, scale, schema, validation};

/// The zero time of Go, which means no time.
const NO_TIME: &str = "0001-01-01T00:00:00Z";

/// A printer column with its JSONPath.
pub struct PrinterColumn {
    name: String,
    kind: String,
    path: JsonPath,
    priority: i32,
    format: String,
    description: String,
}

impl PrinterColumn {
    pub fn new(
        name: &str,
        kind: &str,
        path: JsonPath,
        priority: i32,
        format: &str,
        description: &str,
    ) -> PrinterColumn {
        PrinterColumn {
            name: name.to_owned(),
            kind: kind.to_owned(),
            path,
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
        let Some(found) = self.path.first(object) else { return Value::Null };
        match (self.kind.as_str(), found) {
            ("date", Value::String(string)) if matches!(string.as_str(), "" | "null" | NO_TIME) => "<unknown>".into(),
            ("date", Value::String(string)) => match corten_meta::time::parse(string) {
                Ok(at) => corten_meta::time::human_duration(now.duration_since(at)).into(),
                Err(_) => "<invalid>".into(),
            },
            ("string", value) => printed(value).into(),
            ("integer", Value::Number(n)) => {
                n.as_i64().map_or_else(|| truncated(n.as_f64().unwrap_or_default()), Value::from)
            }
            ("number", Value::Number(n)) => number(n.as_f64().unwrap_or_default()),
            ("boolean", Value::Bool(b)) => (*b).into(),
            _ => Value::Null,
        }
    }
}

/// Truncates a float to an integer; one out of range becomes the minimum integer, as in Go.
fn truncated(float: f64) -> Value {
    if float.abs() < MAX_INTEGER { (float as i64).into() } else { i64::MIN.into() }
}

/// Converts a float to a JSON number; one without a fraction becomes an integer.
fn number(float: f64) -> Value {
    match float {
        integer if integer.fract() == 0.0 && integer.abs() < MAX_INTEGER => (integer as i64).into(),
        other => other.into(),
    }
}

/// The bound below which a float without a fraction is an integer of JSON.
const MAX_INTEGER: f64 = 9_223_372_036_854_775_808.0;

/// Formats a value as the string of a cell.
fn printed(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".to_owned(),
        Value::String(string) => string.clone(),
        Value::Number(n) if n.as_i64().is_none() => corten_meta::go::float(n.as_f64().unwrap_or_default()),
        // Inside a string, JSON is escaped for HTML, as Go does.
        other => corten_meta::field::shown(other),
    }
}

/// The behaviour of one version.
pub struct CustomResource {
    pub schema: Value,
    pub columns: Vec<PrinterColumn>,
    pub scale: Option<ScalePaths>,
    pub has_status: bool,
    /// The CRD's `spec.conversion.webhook`, if its strategy is Webhook.
    pub conversion: Option<Value>,
    /// The revision at which the CRD last changed.
    pub defined_at: u64,
    /// Compiled when the first object is written: most CRDs have no objects for long.
    pub rules: OnceLock<Option<Rules>>,
}

/// Errors after which the rules are not evaluated: the value is not of the type that they expect.
const BLOCKING: [ErrorKind; 5] =
    [ErrorKind::NotSupported, ErrorKind::Required, ErrorKind::TooLong, ErrorKind::TooMany, ErrorKind::TypeInvalid];

impl CustomResource {
    /// Sets the defaults. Defaults of embedded resources' metadata may have fields that metadata does not have.
    fn fill(&self, object: &mut Value) {
        schema::default(&self.schema, object);
        // A default that is no valid metadata was refused with its CRD.
        let _ = embedded::coerce(&self.schema, object, &mut Vec::new());
    }

    /// Returns the errors of schema and rules for an object that replaces `old`.
    fn errors(&self, object: &Value, old: Option<&Value>) -> Vec<FieldError> {
        let mut errors = validation::validate(&self.schema, object, old, None);
        if let Some(scale) = &self.scale {
            scale::validate_spec(scale, object, &mut errors);
            scale::validate_status(scale, object, &mut errors);
        }
        embedded::validate(&self.schema, object, &mut errors);
        self.validate_lists_and_rules(object, old, &mut errors);
        errors
    }

    /// Returns the errors of schema and rules for a status that replaces another.
    fn status_errors(&self, new: &Value, old: &Value) -> Vec<FieldError> {
        let schema = &self.schema["properties"]["status"];
        let place = Path::root("status");
        let mut errors = match new.get("status") {
            // A null status is no status.
            None | Some(Value::Null) => Vec::new(),
            Some(status) => validation::validate(schema, status, old.get("status"), Some(&place)),
        };
        if let Some(scale) = &self.scale {
            scale::validate_status(scale, new, &mut errors);
        }
        self.validate_lists_and_rules(new, Some(old), &mut errors);
        errors
    }

    fn validate_lists_and_rules(&self, object: &Value, old: Option<&Value>, errors: &mut Vec<FieldError>) {
        let repeated = |object: &Value| {
            let mut found = Vec::new();
            lists::validate(&self.schema, object, &Path::default(), &mut found);
            found
        };
        let mut found = repeated(object);
        // Duplicates that the old list has too are allowed.
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
            errors.extend(rules.check(&self.schema, object, old));
        }
    }
}

impl Behaviour for CustomResource {
    fn default(&self, object: &mut Value) {
        schema::prune_root(&self.schema, object);
        schema::prune_nulls(&self.schema, object);
        self.fill(object);
    }

    fn default_applied(&self, object: &mut Value) {
        schema::prune_root(&self.schema, object);
        self.fill(object);
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

    fn ratcheted(&self, new: &Value, old: &Value, errors: &[FieldError]) -> Vec<String> {
        let rules = self.rules.get_or_init(|| Rules::compile(&self.schema)).as_ref();
        let may_ratchet = !errors.iter().any(|error| BLOCKING.contains(&error.kind));
        rules.filter(|_| may_ratchet).map(|rules| rules.ratcheted(&self.schema, new, old)).unwrap_or_default()
    }

    /// Warns of finalizers without a domain.
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
            warnings.extend(wrong.into_iter().map(|why| format!("metadata.finalizers: {}: {why}", quote(name))));
            if !name.contains('/') && !OWN.contains(&name) {
                let path = if name.contains('.') { " including a path (/)" } else { "" };
                warnings.push(format!("metadata.finalizers: {}: {PREFER}{path} {AVOID}", quote(name)));
            }
        }
        warnings
    }

    fn fields(&self, object: &Value, field: &str) -> Option<String> {
        Some(match JsonPath::read(&format!(".{field}")).first(object) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(string)) => string.clone(),
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
    fn cells_are_of_the_type_of_their_column() {
        let object = json!({ "v": [1, 2.75, "x", true, null, { "b": "<", "a": 1 }, "", "0001-01-01T00:00:00Z", 1e-7, 1e19,
                                   "2024-01-01", 3.0, "1970-01-01T00:00:00Z", 123456789.5] });
        let now = Timestamp::from_second(3600).unwrap();
        for (kind, wanted) in [
            (
                "string",
                json!([
                    "1",
                    "2.75",
                    "x",
                    "true",
                    "<no value>",
                    "{\"a\":1,\"b\":\"\\u003c\"}",
                    "",
                    "0001-01-01T00:00:00Z",
                    "1e-07",
                    "1e+19",
                    "2024-01-01",
                    "3",
                    "1970-01-01T00:00:00Z",
                    "1.234567895e+08"
                ]),
            ),
            ("integer", json!([1, 2, null, null, null, null, null, null, 0, i64::MIN, null, 3, null, 123456789])),
            ("number", json!([1, 2.75, null, null, null, null, null, null, 1e-7, 1e19, null, 3, null, 123456789.5])),
            ("boolean", json!([null, null, null, true, null, null, null, null, null, null, null, null, null, null])),
            (
                "date",
                json!([
                    null,
                    null,
                    "<invalid>",
                    null,
                    null,
                    null,
                    "<unknown>",
                    "<unknown>",
                    null,
                    null,
                    "<invalid>",
                    null,
                    "60m",
                    null
                ]),
            ),
        ] {
            for (at, wanted) in wanted.as_array().unwrap().iter().enumerate() {
                let column = PrinterColumn::new("c", kind, JsonPath::read(&format!(".v[{at}]")), 0, "", "");
                assert_eq!(&column.cell(&object, now), wanted, "{kind} of {}", object["v"][at]);
            }
        }
    }
}
