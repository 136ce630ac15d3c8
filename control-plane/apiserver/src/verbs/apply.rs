//! Server-side apply: a PATCH whose body has the fields that its author wants to own.

use std::collections::BTreeMap;

use corten_managed_fields::{
    Application, FormError, Identity, Misfit, Operation, Refusal, Type, Versions, conflict_status, error_message,
    extract, managers_of, set_managers,
};
use corten_meta::{Numbers, Status, Value};

use super::options::{Write, check_options};
use super::update::reply;
use crate::body::Reply;
use crate::decode::{Expected, checked, field_validation_complaints};
use crate::write::Scope;
use crate::write::field_ownership::{self, Ownership, ResourceVersions};
use crate::write::{Change, Part, check_location, unnamed};

/// The media type of an apply.
pub const MEDIA_TYPE: &str = "application/apply-patch+yaml";

/// The field manager of kubectl, whose client-side apply keeps an annotation.
const KUBECTL: &str = "kubectl";
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// A decoded apply.
pub struct Apply {
    config: Value,
    /// Whether the configuration has a name itself, without which nothing is created.
    is_named: bool,
    /// The errors of strict decoding.
    duplicates: Vec<String>,
    force: bool,
    by: Identity,
}

/// Returns the response of an apply, which may create the object.
pub async fn apply(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let kind = &target.resource.kind;
    let apply = Apply::decode(target, bytes, &kind.api_version(), &kind.kind)??;
    let transform = |old: &Value| apply.transform(target, Part::Main, old);
    let create = || apply.create(target);
    let change = Change::new(Part::Main, &transform).owning(Ownership::Given).or_apply(&create);
    Ok(reply(target, &change.carry_out(target).await?))
}

/// Returns the result of an apply, with its fields checked.
pub fn checked_result(target: &Scope<'_>, object: Value, expected: &Expected<'_>) -> Result<Value, Status> {
    // A configuration has been checked against its schema; other unknown fields are dropped silently.
    checked(target.context, object, &Numbers::default(), expected, |_| Vec::new(), &|_, why| Status::bad_request(why))
}

/// Refuses values that are not of their type. Upstream reports this as an internal error.
fn refuse_misfits(errors: &[FormError], message: impl FnOnce(String) -> String) -> Result<(), Status> {
    let Some(why) = error_message(errors) else { return Ok(()) };
    Err(Status { code: 500, message: message(why), ..Status::default() })
}

/// The type of an apply's object, and whether stored objects fit it.
struct ObjectType<'a> {
    of: Type<'a>,
    fits: bool,
}

impl Apply {
    /// Checks the options and reads the configuration. The inner result has the error of the configuration, which is
    /// reported only once the object to apply it to is known.
    pub fn decode(
        target: &Scope<'_>,
        bytes: &[u8],
        api_version: &str,
        kind: &str,
    ) -> Result<Result<Apply, Status>, Status> {
        check_options(target.context, Write::Apply)?;
        Ok(Apply::read(target, bytes, api_version, kind))
    }

    /// Reads the configuration, which must have its type.
    fn read(target: &Scope<'_>, bytes: &[u8], api_version: &str, kind: &str) -> Result<Apply, Status> {
        let context = target.context;
        let undecodable = |e: corten_meta::Error| {
            Status::bad_request(format!("error decoding YAML: error converting YAML to JSON: {e}"))
        };
        let decoded = corten_meta::decode_yaml_leniently(bytes).map_err(undecodable)?;
        let config = decoded.value;
        let duplicates = decoded.duplicates;
        let config = if config.is_null() { serde_json::json!({}) } else { config };
        if !config.is_object() {
            let found = super::patch::kind_of(&config);
            let why = format!("json: cannot unmarshal {found} into Go value of type map[string]interface {{}}");
            let message = format!("error decoding YAML: error unmarshaling JSON: while decoding JSON: {why}");
            return Err(Status::bad_request(message));
        }
        let word = |field: &str| config.get(field).and_then(Value::as_str).unwrap_or_default();
        if word("apiVersion") != api_version || word("kind") != kind {
            let given = word("apiVersion");
            let kind = word("kind");
            let (given, kind) = match given.matches('/').count() {
                0 => (format!("/{given}"), kind),
                1 => (given.to_owned(), kind),
                // A version that cannot be read is no type at all.
                _ => ("/".to_owned(), ""),
            };
            return Err(Status::bad_request(format!("invalid object type: {given}, Kind={kind}")));
        }
        let is_named = !corten_meta::name(&config).is_empty();
        // A managedFields that is no list of objects is left for the schema to refuse.
        let managers = config.pointer("/metadata/managedFields").and_then(Value::as_array);
        if managers.is_some_and(|managers| managers.iter().all(Value::is_object)) {
            return Err(Status::bad_request("metadata.managedFields must be nil"));
        }
        let force = context.info.query.flag("force");
        let mut by = field_ownership::identity(target, Operation::Apply);
        by.api_version = api_version.to_owned();
        Ok(Apply { config, is_named, duplicates, force, by })
    }

    /// Returns the live object with the configuration applied and its managers updated.
    pub fn transform(&self, target: &Scope<'_>, part: Part, live: &Value) -> Result<Value, Status> {
        let versions = ResourceVersions::new(target, part);
        let object = self.apply_to(&versions, live, target.resource.first(), target)?;
        // A configuration that drops the metadata it owned removes the name.
        if object["metadata"].is_null() || object["metadata"].is_object() && corten_meta::name(&object).is_empty() {
            return Err(unnamed(target));
        }
        self.checked(target, object)
    }

    fn checked(&self, target: &Scope<'_>, object: Value) -> Result<Value, Status> {
        let kind = &target.resource.kind;
        let api_version = kind.api_version();
        let expected = Expected::of(kind, &api_version);
        if let Some(why) = expected.unreadable(&object) {
            let message = format!("failed to convert to unversioned ({}): {why}", self.object());
            return Err(Status { code: 500, message, ..Status::default() });
        }
        let object = checked_result(target, object, &expected)?;
        check_location(target, &object)?;
        Ok(object)
    }

    /// Returns the object to create when there is none.
    pub fn create(&self, target: &Scope<'_>) -> Result<Value, Status> {
        let kind = &target.resource.kind;
        let versions = ResourceVersions::new(target, Part::Main);
        let nothing = serde_json::json!({ "apiVersion": kind.api_version(), "kind": kind.kind });
        let object = self.apply_to(&versions, &nothing, &nothing, target)?;
        if !self.is_named {
            return Err(unnamed(target));
        }
        let uid = corten_meta::uid(&self.config);
        if !uid.is_empty() {
            let why =
                format!("uid mismatch: the provided object specified uid {uid}, and no existing object was found");
            return Err(Status::conflict(&target.resource.group_resource(), target.name, &why));
        }
        self.checked(target, object)
    }

    /// Applies to an object of any type that has versions.
    pub fn apply_to(
        &self,
        versions: &dyn Versions,
        live: &Value,
        first: &Value,
        target: &Scope<'_>,
    ) -> Result<Value, Status> {
        let of = versions.type_of(&self.by.api_version).unwrap_or(Type::Deduced);
        let managers = managers_of(live);
        // The live object becomes the first manager's, if it has none, so it is checked first.
        let live_type = ObjectType { of, fits: target.resource.kind.serving().fits_its_type };
        if managers.is_empty() {
            self.check_live(&live_type, live, |about, why| {
                let why = format!("failed to convert new object ({about}) to smd typed: {why}");
                format!("failed to create manager for existing fields: {why}")
            })?;
        }
        self.check_form(of)?;
        self.check_live(&live_type, live, |about, why| format!("failed to create typed live object ({about}): {why}"))?;
        let time = corten_meta::time::rfc3339(target.context.now);
        let run = |force: bool| {
            let application = Application { config: &self.config, live, first, by: &self.by, time: &time, force };
            corten_managed_fields::apply(versions, &managers, &application)
        };
        let applied = match run(self.force) {
            Ok(applied) => applied,
            Err(Refusal::Failed(status)) => return Err(status),
            Err(Refusal::Conflicts(conflicts)) => {
                let allowed = self.allowed_by_last_applied(of, live);
                let left: Vec<_> = conflicts.into_iter().filter(|c| !allowed.contains(&c.path)).collect();
                if !left.is_empty() {
                    return Err(conflict_status(&left));
                }
                run(true).map_err(|refusal| match refusal {
                    Refusal::Failed(status) => status,
                    Refusal::Conflicts(conflicts) => conflict_status(&conflicts),
                })?
            }
        };
        let mut object = applied.object.unwrap_or_else(|| live.clone());
        self.restore(versions, &mut object)?;
        if !object.get("metadata").is_some_and(Value::is_object) {
            object["metadata"] = serde_json::json!({});
        }
        set_managers(&mut object, applied.managers);
        self.update_last_applied(&mut object);
        // Duplicate fields are reported only if the apply succeeds.
        field_validation_complaints(target.context, self.duplicates.clone(), |complaints| {
            Status::bad_request(format!("error strict decoding YAML: error converting YAML to JSON: {complaints}"))
        })?;
        Ok(object)
    }

    fn check_form(&self, of: Type<'_>) -> Result<(), Status> {
        refuse_misfits(&corten_managed_fields::check(of, &self.config), |why| {
            format!("failed to create typed patch object ({}): {why}", self.object())
        })
    }

    /// Checks that the live object can be merged with. List items without their keys cannot, nor can a custom resource
    /// whose schema accepts values that its type does not. Duplicate items may stay.
    fn check_live(
        &self,
        live_type: &ObjectType<'_>,
        live: &Value,
        message: impl FnOnce(String, String) -> String,
    ) -> Result<(), Status> {
        let mut errors = corten_managed_fields::check(live_type.of, live);
        errors.retain(|e| if live_type.fits { e.kind == Misfit::Unkeyed } else { e.kind != Misfit::Duplicate });
        let about = || format!("{}/{}; {}", corten_meta::namespace(live), corten_meta::name(live), self.type_name());
        refuse_misfits(&errors, |why| message(about(), why))
    }

    /// Returns the kind of the configuration; the core group is an empty name before the slash.
    fn type_name(&self) -> String {
        let version = &self.by.api_version;
        let kind = self.config["kind"].as_str().unwrap_or_default();
        let version = if version.contains('/') { version.clone() } else { format!("/{version}") };
        format!("{version}, Kind={kind}")
    }

    /// Returns the name and the type of the object, as errors have them.
    fn object(&self) -> String {
        format!("{}{}", self.object_name(), self.type_name())
    }

    /// Returns the namespace and name of the object, as errors have them before its type.
    pub fn object_name(&self) -> String {
        let name = if self.is_named { corten_meta::name(&self.config) } else { "" };
        format!("{}/{name}; ", corten_meta::namespace(&self.config))
    }

    /// Makes the result a value of its type.
    fn restore(&self, versions: &dyn Versions, object: &mut Value) -> Result<(), Status> {
        let Some(Type::Struct(of)) = versions.type_of(&self.by.api_version) else { return Ok(()) };
        corten_api::schema::restore(&of.name, object).map_err(|why| {
            let about = self.object();
            let kind = self.type_name();
            let why = format!("unable to convert unstructured object to {kind}: {why}");
            let message = format!("failed to convert new object ({about}) to proper version: {why}");
            Status { code: 500, message, ..Status::default() }
        })
    }

    /// Returns the fields of kubectl's last client-side apply that no other writer changed: kubectl may take them over
    /// without force.
    fn allowed_by_last_applied(&self, of: Type<'_>, live: &Value) -> corten_managed_fields::Set {
        let annotations: BTreeMap<String, String> = corten_meta::annotations(live);
        let last = annotations.get(LAST_APPLIED).filter(|_| self.by.manager == KUBECTL);
        let Some(last) = last.and_then(|text| serde_json::from_str::<Value>(text).ok()) else {
            return corten_managed_fields::Set::default();
        };
        if last.get("apiVersion").and_then(Value::as_str) != Some(&self.by.api_version) {
            return corten_managed_fields::Set::default();
        }
        let changed = corten_managed_fields::compare(of, &last, live);
        extract(of, &last).difference(&changed.written).difference(&changed.removed)
    }

    /// Updates the annotation of client-side apply, so that both can be used in turn.
    fn update_last_applied(&self, object: &mut Value) {
        let has = corten_meta::annotations(object).get(LAST_APPLIED).is_some_and(|text| !text.is_empty());
        if self.by.manager != KUBECTL || !has {
            return;
        }
        let mut config = self.config.clone();
        if let Some(annotations) = config.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.remove(LAST_APPLIED);
        }
        object["metadata"]["annotations"][LAST_APPLIED] = format!("{config}\n").into();
    }
}
