//! From request bodies to objects: parse, check the fields, prune what the API does not know.
//!
//! Pure but for the warnings it leaves on the context. It never changes what a known field says.

use corten_meta::{Status, Value};

use crate::custom_resources::unknown_fields;
use crate::negotiation::{BodyFormat, body_format};
use crate::pipeline::Context;
use crate::protobuf;

/// What a body must be.
pub struct Expected<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    /// The type's name in the schema table; empty for bodies that are not checked by it.
    pub schema: &'a str,
    /// The structural schema of a custom resource.
    pub custom: Option<&'a Value>,
}

/// `fieldValidation`.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FieldValidation {
    Ignore,
    Warn,
    Strict,
}

fn field_validation(context: &Context) -> Result<FieldValidation, Status> {
    match context.info.query.get("fieldValidation") {
        None | Some("Warn") => Ok(FieldValidation::Warn),
        Some("Ignore") => Ok(FieldValidation::Ignore),
        Some("Strict") => Ok(FieldValidation::Strict),
        Some(other) => Err(Status::bad_request(format!(
            "fieldValidation: Unsupported value: {other:?}: supported values: \"Ignore\", \"Strict\", \"Warn\""
        ))),
    }
}

/// Decodes the body of a create or an update.
pub fn object(context: &Context, bytes: &[u8], expected: &Expected<'_>) -> Result<Value, Status> {
    let (value, duplicates) = parse(context, bytes, expected)?;
    checked(context, value, duplicates, expected)
}

/// Decodes a body that may be absent, such as DeleteOptions.
pub fn options(context: &Context, bytes: &[u8]) -> Result<Value, Status> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Ok(Value::Null);
    }
    match body_format(&context.headers)? {
        BodyFormat::Json => Ok(corten_meta::decode_json(bytes, false).map_err(bad_request)?.value),
        BodyFormat::Yaml => corten_meta::decode_yaml(bytes).map_err(bad_request),
        BodyFormat::Protobuf => {
            let schema = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions";
            protobuf::object(bytes, schema).map_err(|e| Status::bad_request(e.to_string()))
        }
    }
}

fn parse(context: &Context, bytes: &[u8], expected: &Expected<'_>) -> Result<(Value, Vec<String>), Status> {
    let decoded = match body_format(&context.headers)? {
        BodyFormat::Json => {
            let duplicate = |path: String| format!("duplicate field {path:?}");
            let decoded = corten_meta::decode_json(bytes, true);
            decoded.map(|d| (d.value, d.duplicates.into_iter().map(duplicate).collect())).map_err(|e| e.to_string())
        }
        BodyFormat::Yaml => {
            corten_meta::decode_yaml_leniently(bytes).map(|d| (d.value, d.duplicates)).map_err(|e| e.to_string())
        }
        BodyFormat::Protobuf => {
            protobuf::object(bytes, expected.schema).map(|value| (value, Vec::new())).map_err(|e| e.to_string())
        }
    };
    decoded.map_err(|e| {
        Status::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): couldn't get version/kind; json parse error: {e}",
            expected.kind
        ))
    })
}

/// Checks type and fields of a decoded object, and prunes it. Also the result of a patch comes through here.
pub fn checked(
    context: &Context,
    mut value: Value,
    duplicates: Vec<String>,
    expected: &Expected<'_>,
) -> Result<Value, Status> {
    check_type(&value, expected)?;
    if !expected.schema.is_empty() {
        let report = corten_api::check_fields(expected.schema, &value);
        if let Some(error) = report.type_errors.first() {
            return Err(cannot_be_handled(expected, error));
        }
        let unknown = report.unknown.iter().map(|path| format!("unknown field {path:?}"));
        let complaints = unknown.chain(duplicates).collect();
        field_validation_complaints(context, complaints, |complaints| {
            cannot_be_handled(expected, &format!("strict decoding error: {complaints}"))
        })?;
        corten_api::prune(expected.schema, &mut value);
    } else if let Some(custom) = expected.custom {
        check_custom(context, &mut value, duplicates, custom, expected)?;
    }
    let object = value.as_object_mut().ok_or_else(|| Status::bad_request("the body is not an object"))?;
    object.insert("apiVersion".to_owned(), expected.api_version.into());
    object.insert("kind".to_owned(), expected.kind.into());
    if !object.get("metadata").is_some_and(Value::is_object) {
        object.insert("metadata".to_owned(), serde_json::json!({}));
    }
    Ok(value)
}

/// The same for a custom resource: its metadata is of the table, the rest of its own schema, which prunes later.
fn check_custom(
    context: &Context,
    value: &mut Value,
    duplicates: Vec<String>,
    custom: &Value,
    expected: &Expected<'_>,
) -> Result<(), Status> {
    const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    let report = corten_api::check_fields(OBJECT_META, &value["metadata"]);
    if let Some(error) = report.type_errors.first() {
        return Err(cannot_be_handled(expected, error));
    }
    let in_metadata = report.unknown.iter().map(|path| format!("metadata.{path}"));
    let unknown = in_metadata.chain(unknown_fields(custom, value)).map(|path| format!("unknown field {path:?}"));
    field_validation_complaints(context, duplicates.into_iter().chain(unknown).collect(), |complaints| {
        cannot_be_handled(expected, &format!("strict decoding error: {complaints}"))
    })?;
    if let Some(metadata) = value.get_mut("metadata") {
        corten_api::prune(OBJECT_META, metadata);
    }
    Ok(())
}

/// Passes the complaints on as `fieldValidation` wants it: not, as warnings, or as the error that `strict` makes.
pub fn field_validation_complaints(
    context: &Context,
    complaints: Vec<String>,
    strict: impl FnOnce(&str) -> Status,
) -> Result<(), Status> {
    match field_validation(context)? {
        FieldValidation::Warn => complaints.into_iter().for_each(|c| context.warn(c)),
        FieldValidation::Strict if !complaints.is_empty() => return Err(strict(&complaints.join(", "))),
        FieldValidation::Ignore | FieldValidation::Strict => {}
    }
    Ok(())
}

fn check_type(value: &Value, expected: &Expected<'_>) -> Result<(), Status> {
    let field = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (field("apiVersion"), field("kind"));
    if !kind.is_empty() && kind != expected.kind {
        let version = api_version.rsplit('/').next().unwrap_or_default();
        return Err(Status::bad_request(format!(
            "{kind} in version {version:?} cannot be handled as a {}: converting ({api_version}.{kind}) to ({}.{}): unknown conversion",
            expected.kind, expected.api_version, expected.kind
        )));
    }
    if !api_version.is_empty() && api_version != expected.api_version {
        return Err(Status::bad_request(format!(
            "the API version in the data ({api_version}) does not match the expected API version ({})",
            expected.api_version
        )));
    }
    Ok(())
}

fn cannot_be_handled(expected: &Expected<'_>, why: &str) -> Status {
    let version = expected.api_version.rsplit('/').next().unwrap_or_default();
    let kind = expected.kind;
    Status::bad_request(format!("{kind} in version {version:?} cannot be handled as a {kind}: {why}"))
}

fn bad_request(e: corten_meta::Error) -> Status {
    Status::bad_request(e.to_string())
}
