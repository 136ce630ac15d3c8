//! Keeps `metadata.managedFields` with every write: who writes, in which version, and which paths are theirs to own.
//!
//! The rules are in `fields/`; this is where they meet a request and a resource.

use std::borrow::Cow;
use std::sync::Arc;

use corten_api::objectmeta::MAX_MANAGER;
use corten_api::{Kind, Role, Storage};
use corten_meta::codec::characters;
use corten_meta::quote::is_printable;
use corten_meta::{Object, Status, Value};
use corten_store::Revision;
use serde_json::{Map, json};

use super::Target;
use super::conversions::Conversions;
use super::update::Part;
use crate::fields::{
    Filter, Identity, Managers, Operation, Set, Type, Versions, apply, is_reset, is_unclear, take_lists, update, zero,
};
use crate::pipeline::Context;
use crate::registry::{MAX_OBJECT_BYTES, Resource};

/// What a change does to the ownership of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The writer owns what it writes.
    Tracked,
    /// The wanted object brings its managers: an apply has worked them out.
    Given,
}

impl Ownership {
    /// Encodes an object to be written. One that is too large to be stored forgets who owns its fields, and so may fit,
    /// unless ownership is what the write is about.
    pub fn encode(self, object: &mut Value, revision: Revision) -> Result<Object, Status> {
        let encoded =
            |object: &Value| Object::from_value(object, revision).map_err(|e| Status::internal(e.to_string()));
        let whole = encoded(object)?;
        if self == Ownership::Given || whole.bytes.len() <= MAX_OBJECT_BYTES {
            return Ok(whole);
        }
        set_managers(object, Managers::default());
        encoded(object)
    }

    /// Completes an object with its defaults. Says whether an empty list or map vanished.
    pub fn complete(self, kind: &Kind, object: &mut Value) -> bool {
        match self {
            Ownership::Tracked => kind.default(object),
            Ownership::Given => kind.default_applied(object),
        }
    }
}

/// The name of the manager who makes this request: what it says, else the first word of its user agent.
pub fn manager(context: &Context) -> String {
    let given = context.info.query.get("fieldManager");
    let agent = context.headers.get(http::header::USER_AGENT).map(|agent| characters(agent.as_bytes()));
    let mut name = String::new();
    let agent = agent.as_deref().unwrap_or_default();
    let prefix = given.unwrap_or_else(|| agent.split('/').next().unwrap_or_default());
    for letter in prefix.chars().filter(|c| is_printable(*c)) {
        if name.len() + letter.len_utf8() > MAX_MANAGER {
            break;
        }
        name.push(letter);
    }
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// Who this request is, for an operation.
pub fn identity(target: &Target<'_>, operation: Operation) -> Identity {
    Identity {
        manager: manager(target.context),
        operation,
        api_version: target.resource.kind.api_version(),
        subresource: target.context.info.subresource.clone(),
    }
}

/// Writes the managers into an object.
pub fn set_managers(object: &mut Value, managers: Managers) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match managers.encode() {
        Some(value) => metadata.insert("managedFields".to_owned(), value),
        None => metadata.remove("managedFields"),
    };
}

fn managed_fields(object: &Value) -> Option<&Value> {
    object.get("metadata").and_then(|metadata| metadata.get("managedFields"))
}

fn take_managed_fields(object: &mut Value) -> Option<Value> {
    object.get_mut("metadata")?.as_object_mut()?.remove("managedFields")
}

/// The managers of a stored object; ones that cannot be read are as good as none.
pub fn managers_of(object: &Value) -> Managers {
    Managers::stored(managed_fields(object).cloned())
}

/// What admission made of an object keeps the managers that it had if it has spoiled them. Says what was wrong.
pub fn keep_managers(admitted: &mut Value, before: &Value) -> Option<String> {
    let why = Managers::decode(managed_fields(admitted)).err()?;
    restore_managers(admitted, before);
    Some(format!(
        ".metadata.managedFields was in an invalid state after admission; this could be caused by an outdated mutating \
         admission controller; please fix your requests: {why}"
    ))
}

/// Gives an object the managers of another, as they are written there.
fn restore_managers(object: &mut Value, from: &Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    match managed_fields(from) {
        Some(value) => metadata.insert("managedFields".to_owned(), value.clone()),
        None => metadata.remove("managedFields"),
    };
}

/// The creator of a new object owns all that it says.
pub fn track_create(target: &Target<'_>, object: &mut Value) {
    let given = managed_fields(object);
    let managers = if is_reset(given) { Managers::default() } else { Managers::decode(given).unwrap_or_default() };
    let versions = ResourceVersions::new(target, Part::Main);
    let time = corten_meta::time::rfc3339(target.context.now);
    let by = identity(target, Operation::Update);
    let managers = update(&versions, target.resource.first(), &compared(target, object), managers, &by, &time);
    set_managers(object, managers);
}

/// The server owns what it creates of its own accord, as one of its managers.
pub fn own_created(resource: &Resource, object: &mut Value, manager: &str, now: jiff::Timestamp) {
    let by = Identity {
        manager: manager.to_owned(),
        operation: Operation::Update,
        api_version: resource.kind.api_version(),
        subresource: String::new(),
    };
    let filter = match resource.kind.rules.has_status {
        true => Filter::Without(Set::of_fields(&[&["status"]])),
        false => Filter::All,
    };
    let versions = OneVersion { api_version: &by.api_version, schema: &resource.kind.schema, filter };
    let time = corten_meta::time::rfc3339(now);
    let managers = update(&versions, resource.first(), object, Managers::default(), &by, &time);
    set_managers(object, managers);
}

/// The server owns what it writes into a status of its own accord.
pub fn own_status(resource: &Resource, old: &Value, new: &mut Value, now: jiff::Timestamp) {
    let by = Identity {
        manager: "kube-apiserver".to_owned(),
        operation: Operation::Update,
        api_version: resource.kind.api_version(),
        subresource: "status".to_owned(),
    };
    let filter = Filter::Only(vec![vec![Some("status")]]);
    let versions = OneVersion { api_version: &by.api_version, schema: &resource.kind.schema, filter };
    let time = corten_meta::time::rfc3339(now);
    let managers = update(&versions, old, new, managers_of(old), &by, &time);
    set_managers(new, managers);
}

/// A status as the server applies it of its own accord, as one of its managers: the object with it, if that changes it.
pub fn apply_status(
    resource: &Resource,
    live: &Value,
    status: &Value,
    manager: &str,
    now: jiff::Timestamp,
) -> Option<Value> {
    let kind = &resource.kind;
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
    let applied = apply(&versions, (live, resource.first()), &config, &managers_of(live), &by, (&time, true)).ok()?;
    let mut object = applied.object?;
    set_managers(&mut object, applied.managers);
    Some(object)
}

/// The author of an object that is answered and never stored owns all that it says.
pub fn own_answer(target: &Target<'_>, schema: &str, object: &mut Value) {
    let api_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let by = Identity { api_version: api_version.clone(), ..identity(target, Operation::Update) };
    let versions = OneVersion { api_version: &api_version, schema, filter: Filter::All };
    let Some(Type::Struct(of)) = Type::table(schema) else { return };
    let time = corten_meta::time::rfc3339(target.context.now);
    let managers = update(&versions, &zero(of), object, Managers::default(), &by, &time);
    set_managers(object, managers);
}

/// A type of the table in its own version only.
struct OneVersion<'a> {
    api_version: &'a str,
    schema: &'a str,
    filter: Filter,
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

/// The writer owns what it changes. A client may also write `managedFields` itself: what it says then counts as what
/// was before, and nothing at all means that ownership is to be forgotten. `given` is the new object with what is empty in
/// it, if anything is.
pub fn track_update(target: &Target<'_>, part: Part, new: &mut Value, old: &Value, given: Option<&Value>) {
    let is_main = target.context.info.subresource.is_empty();
    let is_same = managed_fields(new) == managed_fields(old);
    let managers = match managed_fields(new) {
        given if is_main && is_reset(given) => Managers::default(),
        // Nearly always, and then they need not be copied.
        _ if is_same => Managers::stored(take_managed_fields(new)),
        given if is_main => match Managers::decode(given) {
            Ok(managers) if !managers.is_empty() => managers,
            _ => managers_of(old),
        },
        _ => managers_of(old),
    };
    // An object that nobody kept track of is not tracked before its first apply.
    if managers.is_empty() {
        return set_managers(new, managers);
    }
    let versions = ResourceVersions::new(target, part);
    let time = corten_meta::time::rfc3339(target.context.now);
    let by = identity(target, Operation::Update);
    let managers = {
        let mut compared = compared(target, new);
        if let Some(given) = given {
            corten_api::schema::write_amounts(&target.resource.kind.schema, compared.to_mut());
            take_lists(type_of(&target.resource.kind), compared.to_mut(), given);
        }
        update(&versions, old, &compared, managers, &by, &time)
    };
    set_managers(new, managers);
}

/// Whether a request says something of a part that it does not write which its type cannot tell apart: an item without a
/// key, or another value than the schema has. Upstream looks at all of it, and then knows no owners any more. A custom
/// resource is compared with all that is said of it anyway.
pub fn says_unclear(kind: &Kind, part: Part, new: &Value, old: &Value) -> bool {
    let is_beside = |field: &str| match part {
        Part::Main => field == "status",
        Part::Status => !["apiVersion", "kind", "metadata", "status"].contains(&field),
        Part::Whole => false,
    };
    let said = new.as_object().into_iter().flatten();
    let mut said = said.filter(|(field, value)| is_beside(field) && old.get(*field) != Some(*value)).peekable();
    if kind.is_custom() || !kind.rules.has_status || said.peek().is_none() {
        return false;
    }
    let mut beside = Value::Object(said.map(|(field, value)| (field.clone(), value.clone())).collect());
    kind.rewrite(&mut beside);
    is_unclear(type_of(kind), &beside)
}

/// A write that would change nothing but the times of managers, and not even their order, is no write: the times stay.
pub fn keep_times(new: &mut Value, old: &Value) {
    if managed_fields(new) == managed_fields(old) || !same_but_managers(new, old) {
        return;
    }
    fn timeless(entry: &Value) -> impl Iterator<Item = (&String, &Value)> {
        entry.as_object().into_iter().flatten().filter(|(name, _)| *name != "time")
    }
    let (after, before) = (managed_fields(new), managed_fields(old));
    if let (Some(after), Some(before)) = (after.and_then(Value::as_array), before.and_then(Value::as_array))
        && after.len() == before.len()
        && after.iter().zip(before).all(|(after, before)| timeless(after).eq(timeless(before)))
    {
        restore_managers(new, old);
    }
}

/// Whether two objects are the same but for their managers and their revision.
pub fn same_but_managers(new: &Value, old: &Value) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return false };
    fn metadata(object: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
        let fields = object.get("metadata").and_then(Value::as_object).into_iter().flatten();
        // The revision is the store's to write, and not yet in the new object.
        fields.filter(|(name, _)| *name != "managedFields" && *name != "resourceVersion")
    }
    // From the end: of a status that was written it is the status that differs.
    new.len() == old.len()
        && new.iter().rev().all(|(name, value)| name == "metadata" || old.get(name) == Some(value))
        && metadata(new).eq(metadata(old))
}

/// The paths that a request for this part of an object can own.
fn filter(target: &Target<'_>, part: Part) -> Filter {
    let kind = &target.resource.kind;
    let role = kind.subresource(&target.context.info.subresource).map(|s| s.role);
    let without = |paths: &[&[&str]]| Filter::Without(Set::of_fields(paths));
    match (part, role) {
        // Upstream forgets to say here what it leaves alone.
        (_, Some(Role::EphemeralContainers | Role::Resize)) => Filter::All,
        (_, Some(Role::Approval)) => without(&[&["spec"], &["status", "certificate"]]),
        // What is approved is told through another subresource.
        (Part::Status, _) if kind.subresources.iter().any(|s| s.role == Role::Approval) => {
            without(&[&["spec"], &["status", "conditions"]])
        }
        (Part::Status, _) if kind.is_custom() || kind.rules.status_keeps_metadata => {
            without(&[&["spec"], &["metadata"]])
        }
        (Part::Status, _) if kind.rules.status_keeps_labels => without(&[&["spec"], &["metadata", "labels"]]),
        (Part::Status, _) if kind.rules.status_keeps_owners => {
            without(&[&["spec"], &["metadata", "deletionTimestamp"], &["metadata", "ownerReferences"]])
        }
        (Part::Status, _) => without(&[&["spec"]]),
        _ if kind.rules.is_spec_reset => without(&[&["spec"], &["status"]]),
        _ if kind.rules.has_status => without(&[&["status"]]),
        _ => Filter::All,
    }
}

/// A resource in all its versions.
pub struct ResourceVersions<'a> {
    resource: &'a Arc<Resource>,
    filter: Filter,
    others: Vec<(Arc<Kind>, Filter)>,
    conversions: &'a Conversions,
}

impl<'a> ResourceVersions<'a> {
    pub fn new(target: &'a Target<'_>, part: Part) -> ResourceVersions<'a> {
        ResourceVersions {
            resource: target.resource,
            filter: filter(target, part),
            others: others(target, part),
            conversions: &target.context.conversions,
        }
    }

    /// The kind of a version, and what a request can own of it.
    fn version(&self, api_version: &str) -> Option<(&Arc<Kind>, &Filter)> {
        if self.resource.kind.api_version() == api_version {
            return Some((&self.resource.kind, &self.filter));
        }
        self.others.iter().find(|(kind, _)| kind.api_version() == api_version).map(|(kind, filter)| (kind, filter))
    }

    /// From one version to another: through the stored one, as the other writes it; of a custom resource by its webhook,
    /// or as it is, with another version's name on it.
    fn converted(&self, mut object: Value, from: &Arc<Kind>, to: &Arc<Kind>) -> Result<Value, Status> {
        if from.version == to.version {
            return Ok(object);
        }
        if self.resource.has_webhook() {
            return self.conversions.get(&object, self.resource, to);
        }
        through_stored(&mut object, from, to);
        Ok(object)
    }
}

/// Whether a version is served, or stored.
fn is_in_use(kind: &Kind) -> bool {
    !kind.verbs.is_empty() || matches!(kind.storage, Storage::Stored { hub: None, .. })
}

/// The other versions of a resource: of a custom one all that its definition has, of a built-in one those of its group
/// that are stored in the same place. Upstream knows the types of a group alone, so the managers of an Event in one group
/// are gone when it is written in the other.
///
/// What a write of a custom resource leaves alone, upstream knows of the version of the request only, and of a status in
/// those versions that have one.
fn others(target: &Target<'_>, part: Part) -> Vec<(Arc<Kind>, Filter)> {
    let resource = target.resource;
    let own = resource.kind.api_version();
    if resource.kind.is_custom() {
        let others = resource.versions.iter().filter(|kind| kind.api_version() != own);
        let filter = |kind: &Kind| match part {
            Part::Status if kind.rules.has_status && is_in_use(kind) => filter(target, part),
            _ => Filter::All,
        };
        return others.map(|kind| (Arc::clone(kind), filter(kind))).collect();
    }
    let Some(stored) = &resource.stored else { return Vec::new() };
    let beside = |r: &&Arc<Resource>| {
        r.kind.group == resource.kind.group
            && r.kind.version != resource.kind.version
            && r.stored.as_ref().is_some_and(|s| s.prefix == stored.prefix)
    };
    let resources = target.server.registry.resources();
    let others = resources.of_plural(&resource.kind.plural).iter().filter(beside);
    others.map(|r| (Arc::clone(&r.kind), filter(target, part))).collect()
}

/// How the fields of a kind are owned.
pub fn type_of(kind: &Kind) -> Type<'_> {
    match Type::table(&kind.schema) {
        Some(of) => of,
        None => kind.behaviour.structural_schema().map_or(Type::Deduced, Type::CustomResource),
    }
}

fn through_stored(object: &mut Value, from: &Kind, to: &Kind) {
    from.behaviour.to_stored(object);
    to.behaviour.from_stored(object);
    object["apiVersion"] = to.api_version().into();
    to.rewrite(object);
}

/// A written object as it is compared: of a version that is not the stored one it has been in that.
pub fn compared<'a>(target: &Target<'_>, object: &'a Value) -> Cow<'a, Value> {
    if !target.resource.tells_through_stored() {
        return Cow::Borrowed(object);
    }
    let kind = &target.resource.kind;
    let mut object = object.clone();
    through_stored(&mut object, kind, kind);
    Cow::Owned(object)
}

impl Versions for ResourceVersions<'_> {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        self.version(api_version).map(|(kind, _)| type_of(kind))
    }

    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Option<Value>, Status> {
        let Some((wanted, _)) = self.version(to) else {
            // A version that a definition no longer has is an error to upstream, unlike one that was built in.
            let message = format!("request to convert CR to an invalid group/version: {to}");
            let gone = Status { code: 500, message, ..Status::default() };
            return if self.resource.kind.is_custom() { Err(gone) } else { Ok(None) };
        };
        let Some((given, _)) = self.version(from) else { return Ok(None) };
        let own = &self.resource.kind;
        let object = self.converted(object.clone(), given, own)?;
        self.converted(object, own, wanted).map(Some)
    }

    fn filter(&self, api_version: &str) -> &Filter {
        self.version(api_version).map_or(&Filter::All, |(_, filter)| filter)
    }
}
