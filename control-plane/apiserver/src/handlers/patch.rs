//! PATCH: JSON patch, merge patch, strategic merge patch. An apply patch goes its own way (`apply.rs`).

use corten_meta::{Status, Value};

use super::Target;
use super::apply;
use super::ownership::check_options;
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
        if !accepted.contains(&kind) {
            return Err(Status::unsupported_media_type(accepted));
        }
        check_options(target.context, "PatchOptions", false)?;
        let value = corten_meta::decode_json(bytes, false)
            .map_err(|e| Status::bad_request(format!("error decoding patch: {e}")))?
            .value;
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
            _ if !value.is_object() => Err(Status::bad_request("error decoding patch: the patch is not an object")),
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
                corten_api::strategic_merge(schema, &mut new, patch).map_err(|e| Status::bad_request(e.to_string()))?;
            }
        }
        Ok(new)
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
        };
        let new = checked(target.context, new, Vec::new(), &expected)?;
        super::update::check_name(target, &new)?;
        Ok(new)
    }
}

fn patch_status(e: corten_meta::Error) -> Status {
    match e {
        corten_meta::Error::PatchFailed(message) => Status {
            code: 422,
            reason: "Invalid".to_owned(),
            message: format!("the server rejected our request due to an error in our request: {message}"),
            details: None,
        },
        other => Status::bad_request(other.to_string()),
    }
}
