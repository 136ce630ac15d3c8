//! `metadata.managedFields` of objects: reading, writing and keeping them, and the fields that the server itself owns.

use corten_api::Kind;
use corten_meta::{Status, Value};
use serde_json::{Map, json};

use crate::{Application, Filter, Identity, Managers, Operation, Set, Type, Versions, apply, before_first, update};

/// Writes the managers into an object.
pub fn set_managers(object: &mut Value, managers: Managers) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match managers.encode() {
        Some(value) => metadata.insert("managedFields".to_owned(), value),
        None => metadata.remove("managedFields"),
    };
}

/// Returns the encoded managers of an object.
pub fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata").and_then(|metadata| metadata.get("managedFields"))
}

/// Takes the managers out of an object.
pub fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// Returns the managers of a stored object; unreadable ones count as none.
pub fn managers_of(object: &Value) -> Managers {
    Managers::stored(managed_fields(object).cloned())
}

/// Restores the managers of an object if admission made them invalid. Returns the warning about it.
pub fn keep_managers(admitted: &mut Value, before: &Value) -> Option<String> {
    let why = Managers::decode(managed_fields(admitted)).err()?;
    restore_managers(admitted, before);
    Some(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating \
         admission controller; please fix your requests: {why}"
    ))
}

/// Gives an object the managers of another, as they are encoded there.
fn restore_managers(object: &mut Value, from: &Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match managed_fields(from) {
        Some(value) => metadata.insert("managedFields".to_owned(), value.clone()),
        None => metadata.remove("managedFields"),
    };
}

/// Makes the server's own manager the owner of an object that the server creates.
pub fn own_created(kind: &Kind, object: &mut Value, manager: &str, now: jiff::Timestamp) {
    let by = Identity {
        manager: manager.to_owned(),
        operation: Operation::Update,
        api_version: kind.api_version(),
        subresource: String::new(),
    };
    let filter = match kind.rules.has_status {
        true => Filter::Without(Set::of_fields(&[&["status"]])),
        false => Filter::All,
    };
    let versions = OneVersion { api_version: &by.api_version, schema: &kind.schema, filter };
    let time = corten_meta::time::rfc3339(now);
    let managers = update(&versions, &before_first(kind), object, Managers::default(), &by, &time);
    set_managers(object, managers);
}

/// Makes the server the owner of the status fields that it writes.
pub fn own_status(kind: &Kind, old: &Value, new: &mut Value, now: jiff::Timestamp) {
    let by = Identity {
        manager: "kube-apiserver".to_owned(),
        operation: Operation::Update,
        api_version: kind.api_version(),
        subresource: "status".to_owned(),
    };
    let filter = Filter::Only(vec![vec![Some("status")]]);
    let versions = OneVersion { api_version: &by.api_version, schema: &kind.schema, filter };
    let time = corten_meta::time::rfc3339(now);
    let managers = update(&versions, old, new, managers_of(old), &by, &time);
    set_managers(new, managers);
}

/// Applies a status as one of the server's own managers. Returns the object with it, if that changes it.
pub fn apply_status(kind: &Kind, live: &Value, status: &Value, manager: &str, now: jiff::Timestamp) -> Option<Value> {
    let by = Identity {
        manager: manager.to_owned(),
        operation: Operation::Apply,
        api_version: kind.api_version(),
        subresource: "status".to_owned(),
    };
    let filter = Filter::Without(Set::of_fields(&[&["spec"], &["metadata"]]));
    let versions = OneVersion { api_version: &by.api_version, schema: &kind.schema, filter };
    let config = json!({ "apiVersion": by.api_version, "kind": kind.kind, "status": status,
                         "metadata": { "name": corten_meta::name(live) } });
    let time = corten_meta::time::rfc3339(now);
    let first = before_first(kind);
    let application = Application { config: &config, live, first: &first, by: &by, time: &time, force: true };
    let applied = apply(&versions, &managers_of(live), &application).ok()?;
    let mut object = applied.object?;
    set_managers(&mut object, applied.managers);
    Some(object)
}

/// A type of the schema table in its own version only.
pub struct OneVersion<'a> {
    pub api_version: &'a str,
    pub schema: &'a str,
    pub filter: Filter,
}

impl Versions for OneVersion<'_> {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        if self.api_version == api_version { Type::table(self.schema) } else { None }
    }

    fn convert(&self, _: &Value, _: &str, _: &str) -> Result<Option<Value>, Status> {
        Ok(None)
    }

    fn filter(&self, _: &str) -> &Filter {
        &self.filter
    }
}

/// Returns the type that decides how the fields of a kind are owned.
pub fn type_of(kind: &Kind) -> Type<'_> {
    match Type::table(&kind.schema) {
        Some(of) => of,
        None => kind.behaviour.structural_schema().map_or(Type::Deduced, Type::CustomResource),
    }
}

/// Keeps the times of managers if a write changes nothing else, not even their order: then it is no write.
pub fn keep_times(new: &mut Value, old: &Value) {
    if managed_fields(new) == managed_fields(old) || !same_but_managers(new, old) {
        return;
    }
    fn timeless(entry: &Value) -> impl Iterator<Item = (&String, &Value)> {
        entry.as_object().into_iter().flatten().filter(|(name, _)| *name != "time")
    }
    let after = managed_fields(new);
    let before = managed_fields(old);
    if let (Some(after), Some(before)) = (after.and_then(Value::as_array), before.and_then(Value::as_array))
        && after.len() == before.len()
        && after.iter().zip(before).all(|(after, before)| timeless(after).eq(timeless(before)))
    {
        restore_managers(new, old);
    }
}

/// Returns whether two objects are the same but for their managers and their resourceVersion.
pub fn same_but_managers(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    fn metadata(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
        let fields = object.get("metadata").and_then(Value::as_object).into_iter().flatten();
        // The store writes the resourceVersion later, so the new object has none yet.
        fields.filter(|(name, _)| *name != "managedFields" && *name != "resourceVersion")
    }
    // From the end: the status, which a write of a status changes, comes last.
    new.len() == old.len()
        && new.iter().rev().all(|(name, value)| name == "metadata" || old.get(name) == Some(value))
        && metadata(new).eq(metadata(old))
}
