//! Parsing of patch documents, with upstream's errors for each type of patch. Pure.

use corten_meta::numbers::beyond_error;
use corten_meta::quote::quote;
use corten_meta::{Numbers, Status, Value};

use super::Form;

/// The most operations of a JSON patch.
const MAX_OPERATIONS: usize = 10_000;

/// A patch that was read.
#[derive(Debug, Default)]
pub(super) struct Document {
    pub value: Value,
    /// The errors of strict decoding.
    pub complaints: Vec<String>,
    /// The spelling of the numbers that it writes into an object.
    pub numbers: Numbers,
}

pub(super) fn read(form: Form, bytes: &[u8], is_strict: bool) -> Result<Document, Status> {
    let decoded = corten_meta::decode_json(bytes, is_strict)
        .map_err(|e| corten_meta::go::json_error(bytes).unwrap_or_else(|| e.to_string()));
    // Without strict decoding, the error is that of applying the patch.
    let refuse = |why: String| match (form, is_strict) {
        (Form::Strategic, _) | (Form::Json, false) => Status::bad_request(why),
        (_, true) => Status::bad_request(format!("error decoding patch: {why}")),
        (Form::Merge, false) => Status::bad_request("Invalid JSON Patch"),
    };
    let decoded = decoded.map_err(refuse)?;
    let mut numbers = Numbers::default();
    if decoded.has_floats {
        numbers = corten_meta::codec::numbers(bytes);
        // Strict decoding and strategic merge need values; the others keep numbers as they are spelled.
        let beyond = numbers.beyond().find_map(|(place, text)| match form {
            Form::Json => {
                let is_value = place.split_once("].").is_some_and(|(_, member)| member.starts_with("value"));
                is_value.then(|| beyond_error(text).replace("value of type", "struct field jsonPatchOp.value of type"))
            }
            Form::Merge | Form::Strategic => Some(beyond_error(text)),
        });
        if let Some(why) = beyond.filter(|_| is_strict || form == Form::Strategic) {
            return Err(refuse(why));
        }
    }
    let duplicates = decoded.duplicates.iter().map(|path| format!("duplicate field {}", quote(path)));
    let mut value = decoded.value;
    if form == Form::Json {
        // An operation that is null is an empty one.
        let operations = value.as_array_mut().into_iter().flatten().filter(|operation| operation.is_null());
        operations.for_each(|operation| *operation = Value::Object(serde_json::Map::new()));
    }
    match (form, &value) {
        (Form::Json, Value::Null) => Ok(Document { value: Value::Array(Vec::new()), ..Document::default() }),
        (Form::Json, Value::Array(operations)) => {
            check_operations(operations, is_strict).map_err(refuse)?;
            if operations.len() > MAX_OPERATIONS {
                let got = operations.len();
                let message = format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {got}");
                return Err(Status::request_too_large(&message));
            }
            let unknown = if is_strict { unknown_members(operations) } else { Vec::new() };
            let complaints = match unknown.is_empty() {
                true => duplicates.collect(),
                false => corten_meta::codec::strict_complaints(bytes, &unknown),
            };
            let complaints = complaints.into_iter().map(|complaint| format!("json patch {complaint}")).collect();
            let numbers = at_targets(operations, &numbers);
            Ok(Document { value, complaints, numbers })
        }
        (Form::Merge, Value::Null) => Err(Status::bad_request("Invalid JSON Patch")),
        (Form::Strategic, Value::Null) => {
            Ok(Document { value: Value::Object(serde_json::Map::new()), ..Document::default() })
        }
        (Form::Merge, Value::Object(_)) => Ok(Document { complaints: duplicates.collect(), value, numbers }),
        // A strategic merge writes values, not spellings.
        (Form::Strategic, Value::Object(_)) => {
            Ok(Document { complaints: duplicates.collect(), value, ..Document::default() })
        }
        // An array would replace the object, which fails later.
        (Form::Merge, Value::Array(_)) if !is_strict => Ok(Document { value, ..Document::default() }),
        (form, other) => {
            let wanted = match (form, is_strict) {
                (Form::Json, true) => "[]handlers.jsonPatchOp",
                (Form::Json, false) => "jsonpatch.Patch",
                _ => "map[string]interface {}",
            };
            Err(refuse(format!("json: cannot unmarshal {} into Go value of type {wanted}", kind_of(other))))
        }
    }
}

/// The members of an operation that are strings.
const STRING_MEMBERS: [&str; 3] = ["op", "path", "from"];

fn check_operations(operations: &[Value], is_strict: bool) -> Result<(), String> {
    for operation in operations {
        match operation {
            Value::Object(members) if is_strict => {
                for (name, value) in members {
                    if STRING_MEMBERS.contains(&name.as_str()) && !value.is_string() && !value.is_null() {
                        let found = kind_of(value);
                        return Err(format!(
                            "json: cannot unmarshal {found} into Go struct field jsonPatchOp.{name} of type string"
                        ));
                    }
                }
            }
            Value::Object(_) => {}
            other => {
                let wanted = if is_strict { "handlers.jsonPatchOp" } else { "jsonpatch.Operation" };
                return Err(format!("json: cannot unmarshal {} into Go value of type {wanted}", kind_of(other)));
            }
        }
    }
    Ok(())
}

/// Returns the spelling of numbers at the paths that the operations write them to.
fn at_targets(operations: &[Value], numbers: &Numbers) -> Numbers {
    let mut placed = Numbers::default();
    for (place, text) in numbers.iter() {
        let Some((at, rest)) = place.strip_prefix('[').and_then(|place| place.split_once("].value")) else { continue };
        let Some(operation) = at.parse().ok().and_then(|at: usize| operations.get(at)) else { continue };
        let mut path = String::new();
        for step in operation["path"].as_str().unwrap_or_default().split('/').skip(1) {
            match step.parse::<usize>() {
                Ok(item) => path.push_str(&format!("[{item}]")),
                Err(_) => {
                    let dot = if path.is_empty() { "" } else { "." };
                    path = format!("{path}{dot}{}", step.replace("~1", "/").replace("~0", "~"));
                }
            }
        }
        placed.insert(&(path + rest), text);
    }
    placed
}

/// Returns the paths of members that no operation has.
fn unknown_members(operations: &[Value]) -> Vec<String> {
    let members = operations.iter().enumerate().filter_map(|(at, operation)| Some((at, operation.as_object()?)));
    let paths = members.flat_map(|(at, members)| members.keys().map(move |name| (at, name)));
    let unknown = paths.filter(|(_, name)| name.as_str() != "value" && !STRING_MEMBERS.contains(&name.as_str()));
    unknown.map(|(at, name)| format!("[{at}].{name}")).collect()
}

/// Returns the paths that the operations of a JSON patch access, as an object of objects.
pub(super) fn touched(operations: &[Value]) -> Value {
    let mut touched = Value::Object(serde_json::Map::new());
    let pointers = operations.iter().flat_map(|operation| ["from", "path"].map(|member| operation[member].as_str()));
    for pointer in pointers.flatten() {
        let steps: Vec<String> =
            pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~")).collect();
        let Some((last, containers)) = steps.split_last() else { continue };
        let mut here = &mut touched;
        for step in containers {
            if !here.is_object() {
                break;
            }
            here = &mut here[step.as_str()];
            if here.is_null() {
                *here = Value::Object(serde_json::Map::new());
            }
        }
        if here.is_object() && here[last.as_str()].is_null() {
            here[last.as_str()] = Value::Bool(true);
        }
    }
    touched
}

/// Returns the JSON decoder's word for the type of a value.
pub fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        Value::Null | Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_are_refused_with_upstreams_errors() {
        for (form, text, is_strict, wanted) in [
            (
                Form::Json,
                r#"[{"op": 5}]"#,
                true,
                "error decoding patch: json: cannot unmarshal number into Go struct field jsonPatchOp.op of type string",
            ),
            (
                Form::Json,
                r#"["x"]"#,
                true,
                "error decoding patch: json: cannot unmarshal string into Go value of type handlers.jsonPatchOp",
            ),
            (Form::Json, "[5]", false, "json: cannot unmarshal number into Go value of type jsonpatch.Operation"),
            (Form::Json, "{}", false, "json: cannot unmarshal object into Go value of type jsonpatch.Patch"),
            (
                Form::Merge,
                "[]",
                true,
                "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
            ),
            (Form::Merge, "null", true, "Invalid JSON Patch"),
            (
                Form::Merge,
                r#"{"a": 1E400}"#,
                true,
                "error decoding patch: json: cannot unmarshal number 1E400 into Go value of type float64",
            ),
            (
                Form::Json,
                r#"[{"op": "add", "value": {"a": 1E400}}]"#,
                true,
                "error decoding patch: json: cannot unmarshal number 1E400 into Go struct field jsonPatchOp.value of type float64",
            ),
            (Form::Merge, "{", false, "Invalid JSON Patch"),
            (Form::Strategic, "5", true, "json: cannot unmarshal number into Go value of type map[string]interface {}"),
        ] {
            let Err(status) = read(form, text.as_bytes(), is_strict) else { panic!("{text} was read") };
            assert_eq!((status.code, status.message.as_str()), (400, wanted), "{text}");
        }
    }

    #[test]
    fn numbers_are_written_as_they_were_sent() {
        let numbers = |form, text: &str| read(form, text.as_bytes(), false).unwrap().numbers;
        let patch = r#"[{"op": "add", "path": "/spec/l/0/a~1b", "value": {"c": 1e3}, "odd": 1E400}]"#;
        assert_eq!(numbers(Form::Json, patch).iter().collect::<Vec<_>>(), [("spec.l[0].a/b.c", "1e3")]);
        assert_eq!(numbers(Form::Merge, r#"{"a": 1e3}"#).text("a"), Some("1e3"));
        assert!(numbers(Form::Strategic, r#"{"a": 1e3}"#).is_empty());
    }

    #[test]
    fn strict_decoding_reports_duplicate_and_unknown_fields() {
        let complaints = |form, text: &str, is_strict| read(form, text.as_bytes(), is_strict).unwrap().complaints;
        assert_eq!(
            complaints(Form::Json, r#"[{"op": "test", "op": "add", "path": "/a", "odd": 1}]"#, true),
            [r#"json patch duplicate field "[0].op""#, r#"json patch unknown field "[0].odd""#]
        );
        let twice = r#"{"spec": {"a": 1, "a": 2}}"#;
        assert_eq!(complaints(Form::Merge, twice, true), [r#"duplicate field "spec.a""#]);
        assert_eq!(complaints(Form::Strategic, twice, false), Vec::<String>::new());
        assert_eq!(read(Form::Json, b"null", true).unwrap().value, serde_json::json!([]));
    }
}
