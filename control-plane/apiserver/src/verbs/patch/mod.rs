//! PATCH: JSON patch, merge patch, strategic merge patch. Apply patches are in `apply.rs`.

mod documents;

use documents::Document;
pub use documents::kind_of;

use corten_meta::go::printed;
use corten_meta::quote::quote;
use corten_meta::{FieldError, GroupKind, GroupResource, Numbers, Path, Status, Value};

use super::apply;
use super::options::{Write, check_options};
use super::update::reply;
use crate::body::Reply;
use crate::decode::{
    Expected, FieldValidation, Untyped, check_has_type, check_type, checked, field_validation,
    field_validation_complaints, half_version, no_kind,
};
use crate::negotiation::{media_type, unsupported_body};
use crate::scheme;
use crate::write::Scope;
use crate::write::{Change, Part, check_location, unnamed};

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// The type of a patch.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Json,
    Merge,
    Strategic,
}

/// A patch. Errors of the document are reported only once the object to patch is known, as upstream does.
pub struct Patch {
    form: Form,
    document: Result<Value, Status>,
    /// The errors of strict decoding of the patch itself.
    complaints: Vec<String>,
    /// The spelling of its numbers, where that becomes a part of the object.
    numbers: Numbers,
}

/// The result of a patch, and the value that errors about it show.
pub struct Patched {
    object: Value,
    /// The rest of a strategic merge patch, which errors show instead of the object.
    shown: Option<Value>,
}

/// Returns the response with the object after the patch.
pub async fn patch(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    if is_apply(target) {
        return apply::apply(target, bytes).await;
    }
    let patch = Patch::decode(target, bytes)?;
    let transform = |old: &Value| patch.apply_checked(target, old);
    let updated = Change::new(Part::Main, &transform).carry_out(target).await?;
    Ok(reply(target, &updated))
}

/// Returns whether the body is an apply patch.
pub fn is_apply(target: &Scope<'_>) -> bool {
    media_type(&target.context.headers) == apply::MEDIA_TYPE
}

/// Refuses a media type that no patch has.
pub fn check_media_type(target: &Scope<'_>) -> Result<(), Status> {
    let kind = media_type(&target.context.headers);
    let serving = target.resource.kind.serving();
    let accepted: &[&str] = match serving.has_merge_keys {
        true => &[JSON, MERGE, STRATEGIC, apply::MEDIA_TYPE],
        false => &[JSON, MERGE, apply::MEDIA_TYPE],
    };
    match accepted.contains(&kind) {
        true => Ok(()),
        false if serving.is_registered => Err(unsupported_body()),
        false => Err(Status::unsupported_media_type(accepted)),
    }
}

impl Patch {
    /// Reads the patch by its Content-Type.
    pub fn decode(target: &Scope<'_>, bytes: &[u8]) -> Result<Patch, Status> {
        let kind = media_type(&target.context.headers);
        check_options(target.context, Write::Patch)?;
        let form = match kind {
            JSON => Form::Json,
            MERGE => Form::Merge,
            _ => Form::Strategic,
        };
        let is_strict = field_validation(target.context) != FieldValidation::Ignore;
        Ok(match documents::read(form, bytes, is_strict) {
            Ok(Document { value, complaints, numbers }) => Patch { form, document: Ok(value), complaints, numbers },
            Err(status) => Patch { form, document: Err(status), complaints: Vec::new(), numbers: Numbers::default() },
        })
    }

    /// Returns the object with the patch applied; its type in the schema decides how lists merge.
    pub fn apply(&self, schema: &str, old: &Value) -> Result<Patched, Status> {
        let document = self.document.as_ref().map_err(Status::clone)?;
        let mut object = old.clone();
        match self.form {
            Form::Json => corten_meta::patch::json_patch(&mut object, document).map_err(patch_status)?,
            Form::Merge => corten_meta::patch::merge_patch(&mut object, document),
            Form::Strategic => {
                let mut shown = document.clone();
                object = corten_api::strategically_merged(schema, object, &mut shown).map_err(merge_status)?;
                corten_api::schema::restore(schema, &mut object).map_err(|why| refuse(&printed(&shown), &why))?;
                // The typed object keeps its type whatever the patch sets.
                for field in ["apiVersion", "kind"] {
                    object[field] = old[field].clone();
                }
                return Ok(Patched { object, shown: Some(shown) });
            }
        }
        Ok(Patched { object, shown: None })
    }

    /// Returns whether the patch has only these fields of the object.
    pub fn is_within(&self, fields: &[&str]) -> bool {
        let Ok(document) = &self.document else { return false };
        let is_among = |field: &String| fields.contains(&field.as_str());
        self.form != Form::Json && document.as_object().is_some_and(|fields| fields.keys().all(is_among))
    }

    /// Returns the paths that the patch accesses.
    fn touched(&self) -> Value {
        match (&self.document, self.form) {
            (Ok(Value::Array(operations)), Form::Json) => documents::touched(operations),
            (Ok(document), Form::Merge) => document.clone(),
            _ => Value::Object(serde_json::Map::new()),
        }
    }

    /// Returns the patched object of the resource, with its fields checked.
    pub fn apply_checked(&self, target: &Scope<'_>, old: &Value) -> Result<Value, Status> {
        let kind = &target.resource.kind;
        let patched = self.apply(&kind.schema, old)?;
        let api_version = kind.api_version();
        let expected = Expected::of(kind, &api_version);
        let new = self.checked(target, patched, &expected)?;
        check_location(target, &new)?;
        Ok(new)
    }

    /// Returns the result of the patch, with its fields checked. Errors are reported as errors of the patch.
    pub fn checked(&self, target: &Scope<'_>, patched: Patched, expected: &Expected<'_>) -> Result<Value, Status> {
        let Patched { object, shown } = patched;
        let show = |object: &Value| match &shown {
            Some(shown) => printed(shown),
            None => corten_api::schema::written(expected.schema, object, &self.touched()),
        };
        let refuse = |object: &Value, why: &str| refuse(&show(object), why);
        let complaints = |paths: Vec<String>| {
            let mut unknown: Vec<String> = paths.iter().map(|path| format!("unknown field {}", quote(path))).collect();
            if self.form == Form::Strategic {
                unknown.sort_unstable();
            }
            self.complaints.iter().cloned().chain(unknown).collect()
        };
        check_type(&object).map_err(|why| refuse(&object, &why))?;
        if expected.custom.is_some() {
            check_custom_type(&object, expected, &refuse)?;
        }
        if let Some(why) = half_version(&object, expected, || show(&object)) {
            return Err(refuse(&object, &why));
        }
        if expected.custom.is_none() && matches!(object["apiVersion"].as_str(), None | Some("" | "/")) {
            let kind = object["kind"].as_str().filter(|kind| !kind.is_empty() && *kind != expected.kind);
            if let Some(kind) = kind {
                let group = expected.api_version.split_once('/').map_or("", |(group, _)| group);
                let internal = format!("{group}/__internal");
                return Err(refuse(&object, &scheme::of(group).unknown(&internal, kind)));
            }
            // Without an apiVersion it is decoded as a type that has none of these fields.
            let fields = object.as_object().into_iter().flatten().map(|(name, _)| name.clone());
            let mut lost: Vec<String> = fields.filter(|name| name != "apiVersion" && name != "kind").collect();
            lost.sort_unstable();
            field_validation_complaints(target.context, complaints(lost), |complaints| {
                refuse(&object, &format!("strict decoding error: {complaints}"))
            })?;
            return Err(unnamed(target));
        }
        if self.form != Form::Strategic {
            return checked(target.context, object, &self.numbers, expected, complaints, &refuse);
        }
        // The result of a strategic merge is a typed object, so an unreadable value is not an error of the patch.
        let fields = Expected { behaviour: None, is_merged: true, ..*expected };
        let object = checked(target.context, object, &self.numbers, &fields, complaints, &refuse)?;
        match expected.unreadable(&object) {
            Some(message) => Err(Status { code: 500, message, ..Status::default() }),
            None => Ok(object),
        }
    }
}

/// Checks that a patched custom resource has its type, unchanged.
fn check_custom_type(
    object: &Value,
    expected: &Expected<'_>,
    refuse: &dyn Fn(&Value, &str) -> Status,
) -> Result<(), Status> {
    match check_has_type(object, expected) {
        Err(Untyped::NoKind) => return Err(refuse(object, &no_kind(&object.to_string()))),
        Err(Untyped::NoVersion(_)) => {
            return Err(Status::internal("Object 'apiVersion' is missing in 'object has no apiVersion field'"));
        }
        Ok(()) => {}
    }
    let given = object["apiVersion"].as_str().unwrap_or_default();
    if given == expected.api_version {
        return Ok(());
    }
    let group = given.split_once('/').map_or("", |(group, _)| group).to_owned();
    let kind = GroupKind { group, kind: object["kind"].as_str().unwrap_or_default().to_owned() };
    let why = format!("must be {}", expected.api_version);
    let error = FieldError::invalid(&Path::root("apiVersion"), given, why);
    Err(Status::invalid(&kind, corten_meta::name(object), vec![error]))
}

/// Returns the error of a patch whose result is invalid.
fn refuse(shown: &str, why: &str) -> Status {
    let error = FieldError::invalid(&Path::root("patch"), shown, why);
    Status::invalid(&GroupKind::default(), "", vec![error])
}

/// Returns the error of a failed strategic merge.
fn merge_status(error: corten_api::Error) -> Status {
    match error {
        corten_api::Error::PatchFormat(why) => Status::bad_request(why),
        corten_api::Error::ListOfLists => Status::generic(422, "", &GroupResource::default(), "", ""),
        other => Status { code: 500, message: other.to_string(), ..Status::default() },
    }
}

fn patch_status(e: corten_meta::Error) -> Status {
    match e {
        corten_meta::Error::PatchFailed(_) | corten_meta::Error::PatchTestFailed(_) => {
            Status::generic(422, "", &GroupResource::default(), "", "")
        }
        other => Status::bad_request(other.to_string()),
    }
}
