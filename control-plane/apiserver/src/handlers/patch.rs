//! PATCH: JSON patch, merge patch, strategic merge patch. An apply patch goes its own way (`apply.rs`).

use corten_meta::go::printed;
use corten_meta::{FieldError, GroupKind, GroupResource, Path, Status, Value};

use super::Target;
use super::apply;
use super::options::{Write, check_options};
use super::update::{Change, Part, reply};
use crate::body::Reply;
use crate::decode::{Expected, checked};
use crate::negotiation::media_type;

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The most operations of a JSON patch.
const MAX_OPERATIONS: usize = 10_000;

/// A decoded patch.
pub enum Patch {
    Json(Value),
    Merge(Value),
    Strategic(Value),
}

/// Answers with the object after the patch.
pub async fn patch(target: &Target<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    if is_apply(target) {
        return apply::apply(target, bytes).await;
    }
    let patch = Patch::decode(target, bytes)?;
    let transform = |old: &Value| patch.apply_checked(target, old);
    let updated = Change::new(Part::Main, &transform).carry_out(target).await?;
    Ok(reply(target, &updated))
}

/// Whether the body is to be applied rather than patched.
pub fn is_apply(target: &Target<'_>) -> bool {
    media_type(&target.context.headers) == apply::MEDIA_TYPE
}

impl Patch {
    /// Reads the patch by its Content-Type.
    pub fn decode(target: &Target<'_>, bytes: &[u8]) -> Result<Patch, Status> {
        let kind = media_type(&target.context.headers);
        // Only built-in types have the marks that a strategic merge goes by.
        let accepted: &[&str] = if target.resource.kind.schema.is_empty() {
            &[JSON, MERGE, apply::MEDIA_TYPE]
        } else {
            &[JSON, MERGE, STRATEGIC, apply::MEDIA_TYPE]
        };
        if !accepted.contains(&kind) && target.resource.kind.is_custom() {
            return Err(Status::unsupported_media_type(accepted));
        }
        if !accepted.contains(&kind) {
            return Err(Status {
                message: "415: Unsupported Media Type".to_owned(),
                details: Some(Box::default()),
                ..Status::unsupported_media_type(accepted)
            });
        }
        check_options(target.context, Write::Patch)?;
        let value = decode_document(kind, bytes)?;
        match kind {
            JSON => {
                let operations = value.as_array().map_or(0, Vec::len);
                if operations > MAX_OPERATIONS {
                    let message =
                        format!("The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {operations}");
                    return Err(Status::request_too_large(&message));
                }
                Ok(Patch::Json(value))
            }
            MERGE => Ok(Patch::Merge(value)),
            _ => Ok(Patch::Strategic(value)),
        }
    }

    /// The object with the patch applied; its type in the schema decides how lists merge.
    pub fn apply(&self, schema: &str, old: &Value) -> Result<Value, Status> {
        let mut new = old.clone();
        match self {
            Patch::Json(patch) => corten_meta::patch::json_patch(&mut new, patch).map_err(patch_status)?,
            Patch::Merge(patch) => corten_meta::patch::merge_patch(&mut new, patch),
            Patch::Strategic(patch) => {
                let failed = |e: corten_api::Error| Status { code: 500, message: e.to_string(), ..Status::default() };
                new = corten_api::strategically_merged(schema, new, patch).map_err(failed)?;
                // The typed object keeps its type whatever the patch says.
                for field in ["apiVersion", "kind"] {
                    new[field] = old[field].clone();
                }
            }
        }
        Ok(new)
    }

    /// Whether nothing is said of any field of the object but these.
    pub fn is_within(&self, fields: &[&str]) -> bool {
        match self {
            Patch::Json(_) => false,
            Patch::Merge(patch) | Patch::Strategic(patch) => {
                patch.as_object().is_some_and(|patch| patch.keys().all(|field| fields.contains(&field.as_str())))
            }
        }
    }

    /// The patched object of the resource, with its fields checked.
    pub fn apply_checked(&self, target: &Target<'_>, old: &Value) -> Result<Value, Status> {
        let kind = &target.resource.kind;
        let new = self.apply(&kind.schema, old)?;
        let expected = Expected {
            api_version: &kind.api_version(),
            kind: &kind.kind,
            schema: &kind.schema,
            custom: kind.behaviour.structural_schema(),
            older: None,
        };
        let new = self.checked(target, new, &expected)?;
        super::update::check_name(target, &new)?;
        check_uid(target, &new, old)?;
        Ok(new)
    }

    /// The result of the patch, with its fields checked. What is wrong is wrong with the patch.
    pub fn checked(&self, target: &Target<'_>, new: Value, expected: &Expected<'_>) -> Result<Value, Status> {
        let refuse = |new: &Value, why: &str| {
            let shown = match self {
                Patch::Strategic(patch) => printed(patch),
                Patch::Json(_) | Patch::Merge(_) => new.to_string(),
            };
            let restored = if matches!(self, Patch::Strategic(_)) { restore_error(why) } else { None };
            let why = restored.as_deref().unwrap_or(why);
            let error = FieldError::invalid(&Path::root("patch"), shown.as_str(), why);
            Status::invalid(&GroupKind::default(), "", vec![error])
        };
        let unknown = |paths: Vec<String>| paths.iter().map(|path| format!("unknown field {path:?}")).collect();
        checked(target.context, new, expected, unknown, &refuse)
    }
}

/// The complaint about a type after a strategic merge, whose result upstream turns into a struct without a detour
/// through JSON. It speaks of what the value is, not of where.
fn restore_error(why: &str) -> Option<String> {
    let (found, wanted) = why.strip_prefix("json: cannot unmarshal ")?.split_once(" into Go ")?;
    let (_, wanted) = wanted.rsplit_once(" of type ")?;
    let kind = match found.split(' ').next()? {
        "object" => "map",
        "array" => "slice",
        "number" if found.contains('.') => "float64",
        "number" => "int64",
        other => other,
    };
    Some(match wanted {
        _ if wanted.starts_with("map[") => format!("cannot restore map from {kind}"),
        _ if wanted.starts_with("[]") => format!("cannot restore slice from {kind}"),
        "string" if kind == "int64" => "cannot convert int64 to string".to_owned(),
        "string" | "bool" => format!("unrecognized type: {wanted}"),
        "int32" | "int64" if kind.ends_with("64") => format!("cannot convert float64 to {wanted}"),
        "int32" | "int64" => format!("unrecognized type: {wanted}"),
        _ if is_struct(wanted) => format!("cannot restore struct from: {kind}"),
        // A word that is one of a few.
        _ if kind == "int64" => format!("cannot convert int64 to {wanted}"),
        _ => "unrecognized type: string".to_owned(),
    })
}

/// Whether a type that is named as `v1.PodSpec` has fields.
fn is_struct(name: &str) -> bool {
    let name = name.rsplit('.').next().unwrap_or(name);
    corten_api::schema().types().any(|of| of.short_name() == name && of.scalar.is_none())
}

/// Reads the document of a patch, in the words of upstream for each kind of patch.
fn decode_document(kind: &str, bytes: &[u8]) -> Result<Value, Status> {
    let prefix = if kind == STRATEGIC { "" } else { "error decoding patch: " };
    let refuse = |why: &str| Status::bad_request(format!("{prefix}{why}"));
    let decoded = corten_meta::decode_json(bytes, false);
    let value =
        decoded.map_err(|e| refuse(&corten_meta::go::json_error(bytes).unwrap_or_else(|| e.to_string())))?.value;
    let (fits, wanted) = match kind {
        JSON => (value.is_array(), "[]handlers.jsonPatchOp"),
        _ => (value.is_object(), "map[string]interface {}"),
    };
    if fits {
        return Ok(value);
    }
    let found = match value {
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
        _ => "object",
    };
    Err(refuse(&format!("json: cannot unmarshal {found} into Go value of type {wanted}")))
}

/// A patch, unlike an update, makes no condition of a uid: it would change it.
pub fn check_uid(target: &Target<'_>, new: &Value, old: &Value) -> Result<(), Status> {
    let (uid, actual) = (corten_meta::uid(new), corten_meta::uid(old));
    if uid.is_empty() || uid == actual {
        return Ok(());
    }
    let error = FieldError::invalid(&Path::root("metadata").child("uid"), uid, "field is immutable");
    // Upstream asks metadata twice, and its causes name each answer.
    Err(Status::invalid(&target.resource.group_kind(), target.name, vec![error.clone(), error]))
}

fn patch_status(e: corten_meta::Error) -> Status {
    match e {
        corten_meta::Error::PatchFailed(_) => Status::generic(422, "", &GroupResource::default(), "", ""),
        other => Status::bad_request(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::restore_error;

    #[test]
    fn a_strategic_merge_complains_of_types_as_upstream_does() {
        for (found, wanted, expected) in [
            ("string", "int32", "unrecognized type: int32"),
            ("number 1.5", "int32", "cannot convert float64 to int32"),
            ("number", "bool", "unrecognized type: bool"),
            ("number", "string", "cannot convert int64 to string"),
            ("object", "string", "unrecognized type: string"),
            ("array", "v1.DeploymentSpec", "cannot restore struct from: slice"),
            ("number", "v1.DeploymentSpec", "cannot restore struct from: int64"),
            ("object", "[]v1.Container", "cannot restore slice from map"),
            ("string", "map[string]string", "cannot restore map from string"),
            ("number", "v1.DNSPolicy", "cannot convert int64 to v1.DNSPolicy"),
            ("bool", "v1.DNSPolicy", "unrecognized type: string"),
        ] {
            let why = format!("json: cannot unmarshal {found} into Go struct field A.b of type {wanted}");
            assert_eq!(restore_error(&why).as_deref(), Some(expected), "{found} {wanted}");
        }
        assert_eq!(restore_error("quantities must match the regular expression"), None);
    }
}
