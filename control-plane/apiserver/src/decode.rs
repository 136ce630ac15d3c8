//! Decoding of request bodies to objects: parse, check the fields, prune the unknown ones.
//!
//! Pure but for the warnings it adds to the context. It never changes the value of a known field.

use corten_api::schema::is_within_raw;
use corten_api::{Behaviour, Kind};
use corten_meta::codec::MAX_COMPLAINTS;
use corten_meta::quote::quote;
use corten_meta::{FieldError, GroupKind, Map, Numbers, Path, Status, Value};
use corten_protobuf as protobuf;
use corten_structural::{coerce, unknown_fields};

use crate::context::Context;
use crate::negotiation::{BodyFormat, body_format};
use crate::scheme;

/// The type that a body must have.
pub struct Expected<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    /// The type's name in the schema table; empty for bodies that are not checked by it.
    pub schema: &'a str,
    /// The structural schema of a custom resource.
    pub custom: Option<&'a Value>,
    /// An older version of the same form that is read too.
    pub older: Option<&'a str>,
    /// The kind's behaviour, which may refuse to read a value.
    pub behaviour: Option<&'a dyn Behaviour>,
    /// Whether a strategic merge made the value. Its unknown fields are reported at other paths.
    pub is_merged: bool,
}

impl<'a> Expected<'a> {
    /// Returns the expectation of an object of a kind, in its version.
    pub fn of(kind: &'a Kind, api_version: &'a str) -> Expected<'a> {
        let custom = kind.behaviour.structural_schema();
        let behaviour = Some(&*kind.behaviour);
        Expected {
            api_version,
            kind: &kind.kind,
            schema: &kind.schema,
            custom,
            older: None,
            behaviour,
            is_merged: false,
        }
    }

    /// Returns why a value with fields of the right types still cannot be read.
    pub fn unreadable(&self, value: &Value) -> Option<String> {
        self.behaviour.and_then(|behaviour| behaviour.unreadable(value))
    }
}

/// `fieldValidation`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

/// Returns the `fieldValidation` of this request.
pub fn field_validation(context: &Context) -> FieldValidation {
    match context.info.query.get("fieldValidation") {
        Some("Ignore") => FieldValidation::Ignore,
        Some("Strict") => FieldValidation::Strict,
        _ => FieldValidation::Warn,
    }
}

/// Decodes the body of a create or an update.
pub fn object(context: &Context, bytes: &[u8], expected: &Expected<'_>) -> Result<Value, Status> {
    let Parsed { value, duplicates, numbers, is_json } = parse(context, bytes, expected)?;
    let shown = if expected.custom.is_some() && !is_json { value.to_string() } else { String::new() };
    let value = if value.is_null() { serde_json::json!({}) } else { value };
    check_form(&value, bytes, expected)?;
    if let Some(why) = half_version(&value, expected, || String::from_utf8_lossy(bytes).into_owned()) {
        return Err(TypeMeta::of(&value, expected).cannot_be_handled(expected, &why));
    }
    if expected.custom.is_some() {
        if let Some((_, text)) = numbers.beyond().next() {
            let why = corten_meta::numbers::beyond_error(text);
            return Err(TypeMeta::of(&value, expected).cannot_be_handled(expected, &why));
        }
        let read_strictly = field_validation(context) != FieldValidation::Ignore;
        check_has_type(&value, expected).map_err(|why| match why {
            Untyped::NoVersion(status) => status,
            Untyped::NoKind if read_strictly => {
                unrecognized(expected, &no_kind(&String::from_utf8_lossy(bytes)), bytes)
            }
            Untyped::NoKind => {
                let shown = if is_json { String::from_utf8_lossy(bytes).into_owned() } else { shown };
                TypeMeta::of(&value, expected).cannot_be_handled(expected, &no_kind(&shown))
            }
        })?;
    }
    let complaints = |unknown: Vec<String>| match (is_json, unknown.is_empty()) {
        // Unknown fields of a custom resource are found after it has been read, and are reported as they are.
        _ if expected.custom.is_some() => {
            duplicates.into_iter().chain(unknown.iter().map(|path| format!("unknown field \"{path}\""))).collect()
        }
        (true, false) => {
            let mut errors = corten_meta::codec::strict_complaints(bytes, &unknown);
            errors.retain(|error| !duplicate_path(error).is_some_and(|path| is_within_raw(expected.schema, path)));
            errors
        }
        _ => {
            let unknown = unknown.iter().take(MAX_COMPLAINTS).map(|path| format!("unknown field {}", quote(path)));
            duplicates.into_iter().chain(unknown).collect()
        }
    };
    checked(context, value, &numbers, expected, complaints, &|value, why| {
        TypeMeta::of(value, expected).cannot_be_handled(expected, why)
    })
}

/// Decodes a body that may be absent, such as DeleteOptions.
pub fn options(context: &Context, bytes: &[u8]) -> Result<Value, Status> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    const DELETE_OPTIONS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
    let mut numbers = Numbers::default();
    let value = match body_format(&context.headers)? {
        BodyFormat::Json => {
            let broken = |e: corten_meta::Error| {
                let why = corten_meta::go::json_error(bytes).unwrap_or_else(|| e.to_string());
                Status::bad_request(format!("{NO_TYPE}{why}"))
            };
            let decoded = corten_meta::decode_json(bytes, false).map_err(broken)?;
            if decoded.has_floats {
                numbers = corten_meta::codec::numbers(bytes);
            }
            decoded.value
        }
        BodyFormat::Yaml => {
            corten_meta::decode_yaml_leniently(bytes).map_err(|e| Status::bad_request(e.to_string()))?.value
        }
        BodyFormat::Protobuf => {
            protobuf::object(bytes, DELETE_OPTIONS).map_err(|e| Status::bad_request(e.to_string()))?
        }
    };
    if value.is_null() {
        return Ok(serde_json::json!({}));
    }
    check_type(&value).map_err(Status::bad_request)?;
    let kind = value["kind"].as_str().unwrap_or_default();
    if !matches!(kind, "" | "DeleteOptions") {
        let version = value["apiVersion"].as_str().filter(|v| !v.is_empty()).unwrap_or("meta.k8s.io/v1");
        return Err(Status::bad_request(match scheme::META.package_of(version, kind) {
            Some(package) => format!("converting ({package}.{kind}) to (v1.DeleteOptions): unknown conversion"),
            None => scheme::META.unknown(version, kind),
        }));
    }
    let report = corten_api::check_spelled_fields(DELETE_OPTIONS, &value, &numbers);
    match report.type_error(|places| corten_meta::codec::strict_complaints(bytes, &places)) {
        Some(error) => Err(Status::bad_request(error)),
        None => Ok(value),
    }
}

/// Returns the path in an error about a duplicate field.
fn duplicate_path(complaint: &str) -> Option<&str> {
    complaint.strip_prefix("duplicate field \"").and_then(|rest| rest.strip_suffix('"'))
}

/// A body that was read.
#[derive(Default)]
struct Parsed {
    value: Value,
    /// The errors about fields that occur more than once.
    duplicates: Vec<String>,
    numbers: Numbers,
    is_json: bool,
}

fn parse(context: &Context, bytes: &[u8], expected: &Expected<'_>) -> Result<Parsed, Status> {
    let decoded = match body_format(&context.headers)? {
        BodyFormat::Json => {
            let duplicate = |path: String| format!("duplicate field {}", quote(&path));
            let read = |mut d: corten_meta::Decoded| {
                // Values of raw types are taken as they are: duplicates within them are no errors.
                d.duplicates.retain(|path| !is_within_raw(expected.schema, path));
                let numbers = if d.has_floats { corten_meta::codec::numbers(bytes) } else { Numbers::default() };
                let duplicates = d.duplicates.into_iter().map(duplicate).collect();
                Parsed { value: d.value, duplicates, numbers, is_json: true }
            };
            corten_meta::decode_json(bytes, true).map(read).map_err(|e| {
                let why = corten_meta::go::json_error(bytes).unwrap_or_else(|| e.to_string());
                format!("{NO_TYPE}{why}")
            })
        }
        BodyFormat::Yaml => {
            let read =
                |d: corten_meta::Decoded| Parsed { value: d.value, duplicates: d.duplicates, ..Parsed::default() };
            corten_meta::decode_yaml_leniently(bytes).map(read).map_err(|e| e.to_string())
        }
        BodyFormat::Protobuf => {
            let read = protobuf::object(bytes, expected.schema);
            if let Err(protobuf::Error::Object { api_version, kind, error }) = &read {
                let given = serde_json::json!({ "apiVersion": api_version, "kind": kind });
                return Err(TypeMeta::of(&given, expected).cannot_be_handled(expected, &error.to_string()));
            }
            read.map(|value| Parsed { value, ..Parsed::default() }).map_err(|e| e.to_string())
        }
    };
    decoded.map_err(|why| unrecognized(expected, &why, bytes))
}

const NO_TYPE: &str = "couldn't get version/kind; json parse error: ";

fn check_form(value: &Value, bytes: &[u8], expected: &Expected<'_>) -> Result<(), Status> {
    check_type(value).map_err(|why| unrecognized(expected, &why, bytes))
}

/// Checks that the type of an object can be found: it is an object, and its apiVersion has at most one slash.
pub fn check_type(value: &Value) -> Result<(), String> {
    check_object(value)?;
    let api_version = value["apiVersion"].as_str().unwrap_or_default();
    match api_version.matches('/').count() > 1 {
        true => Err(format!("unexpected GroupVersion string: {api_version}")),
        false => Ok(()),
    }
}

/// Checks that a body is an object whose apiVersion and kind are strings.
fn check_object(value: &Value) -> Result<(), String> {
    const TYPE_META: &str =
        r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let kind_of = |value: &Value| match value {
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        _ => "object",
    };
    if !value.is_object() {
        return Err(format!("{NO_TYPE}json: cannot unmarshal {} into Go value of type {TYPE_META}", kind_of(value)));
    }
    for field in ["apiVersion", "kind"] {
        let given = &value[field];
        if !given.is_string() && !given.is_null() {
            let found = kind_of(given);
            return Err(format!(
                "{NO_TYPE}json: cannot unmarshal {found} into Go struct field .{field} of type string"
            ));
        }
    }
    Ok(())
}

/// The reason why an object has no type.
pub enum Untyped {
    NoKind,
    NoVersion(Status),
}

/// Returns the error about an object without a kind.
pub fn no_kind(shown: &str) -> String {
    format!("Object 'Kind' is missing in '{shown}'")
}

/// Returns the error about an object whose apiVersion has only a group, which is another than expected.
pub fn half_version(value: &Value, expected: &Expected<'_>, shown: impl FnOnce() -> String) -> Option<String> {
    let is_half = is_half(value["apiVersion"].as_str().unwrap_or_default(), expected);
    is_half.then(|| format!("Object 'apiVersion' is missing in '{}'", shown()))
}

fn is_half(api_version: &str, expected: &Expected<'_>) -> bool {
    let group = expected.api_version.split_once('/').map_or("", |(group, _)| group);
    let given = api_version.strip_suffix('/').filter(|_| expected.custom.is_none());
    given.is_some_and(|given| !given.is_empty() && given != group)
}

/// Checks that a custom resource has its apiVersion and kind. Built-in kinds may leave them out.
pub fn check_has_type(value: &Value, expected: &Expected<'_>) -> Result<(), Untyped> {
    if value["kind"].as_str().unwrap_or_default().is_empty() {
        return Err(Untyped::NoKind);
    }
    if value["apiVersion"].as_str().unwrap_or_default().is_empty() {
        return Err(Untyped::NoVersion(Status::bad_request(format!(
            "the API version in the data () does not match the expected API version ({})",
            expected.api_version
        ))));
    }
    Ok(())
}

fn unrecognized(expected: &Expected<'_>, why: &str, bytes: &[u8]) -> Status {
    let kind = expected.kind;
    let body = summary(bytes);
    Status::bad_request(format!("the object provided is unrecognized (must be of type {kind}): {why} ({body})"))
}

/// Returns the beginning of a body, to recognise it by.
fn summary(bytes: &[u8]) -> String {
    const LENGTH: usize = 30;
    let begin = &bytes[..bytes.len().min(LENGTH)];
    let more = if bytes.len() > LENGTH { " ..." } else { "" };
    match bytes.first() {
        None => "<empty>".to_owned(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(begin)),
        Some(_) => format!("{}{more}", begin.iter().map(|byte| format!("{byte:02x}")).collect::<String>()),
    }
}

/// Checks type and fields of a decoded object and prunes it. `numbers` has the spelling of its numbers. The result of a
/// patch comes through here too. `complaints` makes the errors of strict decoding from the paths of unknown fields;
/// `refuse` makes the response for the value as it was sent.
pub fn checked(
    context: &Context,
    mut value: Value,
    numbers: &Numbers,
    expected: &Expected<'_>,
    complaints: impl FnOnce(Vec<String>) -> Vec<String>,
    refuse: &dyn Fn(&Value, &str) -> Status,
) -> Result<Value, Status> {
    let check_given = |value: &Value| TypeMeta::of(value, expected).check(expected, &|why| refuse(value, why));
    // The type of a custom resource is compared only after it has been read.
    if expected.custom.is_none() {
        check_given(&value)?;
    }
    if !expected.schema.is_empty() {
        let report = corten_api::check_spelled_fields(expected.schema, &value, numbers);
        if !report.type_errors.is_empty() {
            return Err(refuse(&value, report.type_error(complaints).unwrap_or_default()));
        }
        if let Some(why) = expected.unreadable(&value) {
            return Err(refuse(&value, &why));
        }
        report.restore_quantities(&mut value);
        let needs_pruning = report.needs_pruning();
        let strict = |complaints: &str| refuse(&value, &format!("strict decoding error: {complaints}"));
        let unknown = if expected.is_merged { report.unknown_in_structs } else { report.unknown };
        field_validation_complaints(context, complaints(unknown), strict)?;
        if needs_pruning {
            corten_api::prune(expected.schema, &mut value);
        }
        if !numbers.is_empty() {
            // Raw values are compared with the stored ones, so their numbers must be normalised as those were.
            corten_meta::codec::settle_numbers(&mut value);
        }
    } else if let Some(custom) = expected.custom {
        const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
        // A float without a fraction is an integer here, however it was written.
        for number in value.get_mut("metadata").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
            let is_whole = |float: &f64| !number.is_i64() && float.fract() == 0.0 && float.abs() < i64::MAX as f64;
            if let Some(whole) = number.as_f64().filter(is_whole) {
                *number = Value::from(whole as i64);
            }
        }
        let report = corten_api::check_fields(OBJECT_META, &value["metadata"]);
        if let Some(error) = report.type_errors.first() {
            return Err(refuse(&value, error));
        }
        let in_metadata = report.unknown.iter().map(|path| format!("metadata.{path}"));
        let mut unknown: Vec<String> = in_metadata.chain(unknown_fields(custom, &value)).collect();
        let coerced = coerce(custom, &mut value, &mut unknown);
        coerced.map_err(|error| refuse(&value, &error.to_string()))?;
        let strict = |complaints: &str| refuse(&value, &format!("strict decoding error: {complaints}"));
        field_validation_complaints(context, complaints(unknown), strict)?;
        check_given(&value)?;
        if let Some(metadata) = value.get_mut("metadata") {
            corten_api::prune(OBJECT_META, metadata);
        }
    }
    let object = value.as_object_mut().ok_or_else(|| Status::bad_request("the body is not an object"))?;
    object.insert("apiVersion".to_owned(), expected.api_version.into());
    object.insert("kind".to_owned(), expected.kind.into());
    if !object.get("metadata").is_some_and(Value::is_object) {
        object.insert("metadata".to_owned(), serde_json::json!({}));
    }
    Ok(value)
}

/// Handles the errors of strict decoding by `fieldValidation`: ignores them, warns, or fails with the error of
/// `strict`.
pub fn field_validation_complaints(
    context: &Context,
    complaints: Vec<String>,
    strict: impl FnOnce(&str) -> Status,
) -> Result<(), Status> {
    match field_validation(context) {
        FieldValidation::Warn => {
            // The YAML reader joins all its errors in one message.
            let each = |complaint: &String| match complaint.strip_prefix("yaml: unmarshal errors:\n  ") {
                Some(several) => several.split("\n  ").map(str::to_owned).collect(),
                None => vec![complaint.clone()],
            };
            complaints.iter().flat_map(each).for_each(|complaint| context.warn(complaint));
        }
        FieldValidation::Strict if !complaints.is_empty() => return Err(strict(&complaints.join(", "))),
        FieldValidation::Ignore | FieldValidation::Strict => {}
    }
    Ok(())
}

/// The type that a body declares; where it declares none, the expected one.
struct TypeMeta<'a> {
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
}

impl<'a> TypeMeta<'a> {
    fn of(value: &'a Value, expected: &Expected<'a>) -> TypeMeta<'a> {
        let field = |key: &str, default: &'a str| {
            value.get(key).and_then(Value::as_str).filter(|v| !v.is_empty()).unwrap_or(default)
        };
        let api_version = match field("apiVersion", expected.api_version) {
            given if is_half(given, expected) => given,
            // A version that is left out is the expected one.
            given if given.ends_with('/') => expected.api_version,
            given => given.strip_prefix('/').unwrap_or(given),
        };
        TypeMeta { api_version, kind: field("kind", expected.kind), name: corten_meta::name(value) }
    }

    fn version(&self) -> &str {
        self.api_version.rsplit('/').next().unwrap_or_default()
    }

    fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    fn cannot_be_handled(&self, expected: &Expected<'_>, why: &str) -> Status {
        let kind = self.kind;
        let version = quote(self.version());
        let handled = if expected.custom.is_some() { kind } else { expected.kind };
        Status::bad_request(format!("{kind} in version {version} cannot be handled as a {handled}: {why}"))
    }

    /// Checks that the body has the expected type.
    fn check(&self, expected: &Expected<'_>, refuse: &dyn Fn(&str) -> Status) -> Result<(), Status> {
        let is_kind = self.kind == expected.kind;
        let is_version = self.api_version == expected.api_version || Some(self.api_version) == expected.older;
        if is_kind && is_version {
            return Ok(());
        }
        if expected.custom.is_some() && is_version {
            let kind = GroupKind { group: self.group().to_owned(), kind: self.kind.to_owned() };
            let why = format!("must be {}", expected.kind);
            let error = FieldError::invalid(&Path::root("kind"), self.kind, why);
            return Err(Status::invalid(&kind, self.name, vec![error]));
        }
        let group = expected.api_version.split_once('/').map_or("", |(group, _)| group);
        let scheme = scheme::of(group);
        let package = scheme.package_of(self.api_version, self.kind);
        let is_other_version = package.is_some() && is_kind && scheme::package(group) == scheme::package(self.group());
        if expected.custom.is_some() || is_other_version {
            return Err(Status::bad_request(format!(
                "the API version in the data ({}) does not match the expected API version ({})",
                self.api_version, expected.api_version
            )));
        }
        Err(refuse(&match package {
            None => scheme.unknown(self.api_version, self.kind),
            Some(package) => {
                let kind = scheme::type_name(self.api_version, self.kind);
                let own = scheme::package(group);
                format!("converting ({package}.{kind}) to ({own}.{}): unknown conversion", expected.kind)
            }
        }))
    }
}
