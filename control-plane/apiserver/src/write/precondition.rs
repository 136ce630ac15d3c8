//! Preconditions and conflicts: the object that a request means is the one that it writes.

use corten_meta::{FieldError, Object, Status, Value};

use super::scope::Scope;

/// Refuses a change of another object, or of another version of it, than its author names by uid and resourceVersion.
pub fn check(scope: &Scope<'_>, new: &Value, old: &Value, may_change_uid: bool) -> Result<(), Status> {
    let resource = scope.resource.group_resource();
    let uid = corten_meta::uid(new);
    let actual = corten_meta::uid(old);
    if !uid.is_empty() && uid != actual && !may_change_uid {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}");
        return Err(not_the_same(scope, &why)?);
    }
    let version = parse_version(corten_meta::resource_version(new))?;
    if version == 0 {
        if !scope.resource.kind.rules.allow_unconditional_update {
            let path = corten_meta::Path::root("metadata").child("resourceVersion");
            let error = FieldError::invalid(&path, 0, "must be specified for an update");
            // Upstream names the resource here, where it names the kind elsewhere.
            let kind = corten_meta::GroupKind { group: resource.group, kind: resource.resource };
            return Err(Status::invalid(&kind, scope.name, vec![error]));
        }
    } else if corten_meta::resource_version(old).parse() != Ok(version) {
        return Err(Status::conflict(
            &resource,
            scope.name,
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    Ok(())
}

/// Reads a resourceVersion. Upstream's storage reads it, whose errors have no reason.
pub fn parse_version(version: &str) -> Result<u64, Status> {
    match version {
        "" => Ok(0),
        text => corten_meta::go::parse_uint(text).map_err(|message| Status { code: 500, message, ..Status::default() }),
    }
}

/// Refuses a create with a resourceVersion; a string that is no number counts as none. Upstream leaves this to its
/// storage, which a dry run does not reach and whose errors have no reason.
pub fn check_new(version: &str) -> Result<(), Status> {
    if version.parse().unwrap_or(0u64) == 0 {
        return Ok(());
    }
    let message = "resourceVersion should not be set on objects to be created".to_owned();
    Err(Status { code: 500, message, ..Status::default() })
}

/// Returns the error for a write of another object than its author means, with its key as upstream's storage has it;
/// the key of a dry run has no prefix.
pub fn not_the_same(scope: &Scope<'_>, why: &str) -> Result<Status, Status> {
    let key = scope.core.registry.key_of(scope.resource, scope.namespace, scope.name)?;
    let declared = scope.core.registry.caches.root().declared(&key).unwrap_or_default();
    let key = if scope.context.dry_run() { declared.trim_start_matches("/registry") } else { &key };
    let why =
        format!("StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}");
    Ok(Status::conflict(&scope.resource.group_resource(), scope.name, &why))
}

/// Returns the error for a create of an object that exists, or is being deleted.
pub fn already_exists(scope: &Scope<'_>, object: &Value, present: Option<&Object>) -> Status {
    let resource = scope.resource.group_resource();
    let name = corten_meta::name(object);
    // The error depends on `generateName`, also if the client set the name.
    let mut status = match object.pointer("/metadata/generateName").and_then(Value::as_str) {
        None | Some("") => Status::already_exists(&resource, name),
        Some(_) => Status::generate_name_conflict(&resource, name, 1),
    };
    if present.is_some_and(|object| object.header.deletion_timestamp.is_some()) {
        status.message.insert_str(0, "object is being deleted: ");
    }
    status
}

/// Returns the error for a write that other writers prevented in every try.
pub fn server_busy(scope: &Scope<'_>) -> Status {
    Status::server_timeout(&scope.resource.group_resource(), scope.context.info.verb.as_str(), 1)
}
