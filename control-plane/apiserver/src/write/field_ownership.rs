//! Ownership of fields in writes: the manager of a request, its version, and the fields that it owns in
//! `metadata.managedFields`.
//!
//! The rules of ownership are in `corten-managed-fields` (`rules.rs`); this module applies them to requests and resources.

use std::borrow::Cow;
use std::sync::Arc;

use corten_admission::Touched;
use corten_api::objectmeta::MAX_MANAGER;
use corten_api::{Kind, Role, Storage};
use corten_managed_fields::{
    Filter, Identity, Managers, OneVersion, Operation, Set, Type, Versions, is_reset, managed_fields, managers_of,
    set_managers, take_lists, take_managed_fields, type_of, update, zero,
};
use corten_meta::codec::characters;
use corten_meta::quote::is_printable;
use corten_meta::{Object, Status, Value};
use corten_store::Revision;

use super::part::Part;
use super::scope::Scope;
use crate::context::Context;
use crate::registry::request_conversions::RequestConversions;
use crate::registry::{MAX_OBJECT_BYTES, Resource};

/// The effect of a change on the ownership of fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The writer owns the fields that it writes.
    Tracked,
    /// The wanted object has its managers already: the apply has computed them.
    Given,
}

impl Ownership {
    /// Encodes an object to be written. The managers of an object that is too large are dropped, so that it may fit,
    /// unless the write is an apply.
    pub fn encode(self, object: &mut Value, revision: Revision) -> Result<Object, Status> {
        let encoded =
            |object: &Value| Object::from_value(object, revision).map_err(|e| Status::internal(e.to_string()));
        let with_managers = encoded(object)?;
        if self == Ownership::Given || with_managers.bytes.len() <= MAX_OBJECT_BYTES {
            return Ok(with_managers);
        }
        set_managers(object, Managers::default());
        encoded(object)
    }

    /// Gives an object its defaults. Returns whether an empty list or map vanished.
    pub fn default(self, kind: &Kind, object: &mut Value) -> bool {
        match self {
            Ownership::Tracked => kind.default(object),
            Ownership::Given => kind.default_applied(object),
        }
    }

    /// Gives an object its defaults once more after admission: plugins may have added fields that need them, and the
    /// first status of the object may (`has_new_status`).
    pub fn default_after_admission(self, kind: &Kind, object: &mut Touched, has_new_status: bool) {
        if object.is_touched() {
            kind.default(object);
        } else if kind.rules.has_status && has_new_status && !kind.rules.is_defaulted_as_sent {
            self.default(kind, object);
        }
    }
}

/// Returns the manager of a request: its fieldManager, or the prefix of its user agent.
pub fn manager(context: &Context) -> String {
    let field_manager = context.info.query.get("fieldManager");
    let agent = context.headers.get(http::header::USER_AGENT).map(|agent| characters(agent.as_bytes()));
    let mut name = String::new();
    let agent = agent.as_deref().unwrap_or_default();
    let prefix = field_manager.unwrap_or_else(|| agent.split('/').next().unwrap_or_default());
    for character in prefix.chars().filter(|c| is_printable(*c)) {
        if name.len() + character.len_utf8() > MAX_MANAGER {
            break;
        }
        name.push(character);
    }
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// Returns the identity of the request's manager, for an operation.
pub fn identity(scope: &Scope<'_>, operation: Operation) -> Identity {
    Identity {
        manager: manager(scope.context),
        operation,
        api_version: scope.resource.kind.api_version(),
        subresource: scope.context.info.subresource.clone(),
    }
}

/// Makes the creator of a new object the owner of all its fields.
pub fn track_create(scope: &Scope<'_>, object: &mut Value) {
    let given = managed_fields(object);
    let managers = if is_reset(given) { Managers::default() } else { Managers::decode(given).unwrap_or_default() };
    let versions = ResourceVersions::new(scope, Part::Main);
    let time = corten_meta::time::rfc3339(scope.context.now);
    let by = identity(scope, Operation::Update);
    let managers = update(&versions, scope.resource.first(), &compared(scope, object), managers, &by, &time);
    set_managers(object, managers);
}

/// Makes the author of an object that is never stored the owner of all its fields.
pub fn own_response(scope: &Scope<'_>, schema: &str, object: &mut Value) {
    let api_version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let by = Identity { api_version: api_version.clone(), ..identity(scope, Operation::Update) };
    let versions = OneVersion { api_version: &api_version, schema, filter: Filter::All };
    let Some(Type::Struct(of)) = Type::table(schema) else { return };
    let time = corten_meta::time::rfc3339(scope.context.now);
    let managers = update(&versions, &zero(of), object, Managers::default(), &by, &time);
    set_managers(object, managers);
}

/// Makes the writer the owner of the fields that it changes. A client may also write `managedFields` itself: they
/// replace the managers before the change, and an empty list resets ownership. `given` is the new object with its empty
/// lists and maps, if it has some.
pub fn track_update(scope: &Scope<'_>, part: Part, new: &mut Value, old: &Value, given: Option<&Value>) {
    let is_main = scope.context.info.subresource.is_empty();
    let is_same = managed_fields(new) == managed_fields(old);
    let managers = match managed_fields(new) {
        given if is_main && is_reset(given) => Managers::default(),
        // They are nearly always unchanged, and then they need not be copied.
        _ if is_same => Managers::stored(take_managed_fields(new)),
        given if is_main => match Managers::decode(given) {
            Ok(managers) if !managers.is_empty() => managers,
            _ => managers_of(old),
        },
        _ => managers_of(old),
    };
    // An object without managers is not tracked before its first apply.
    if managers.is_empty() {
        return set_managers(new, managers);
    }
    let versions = ResourceVersions::new(scope, part);
    let time = corten_meta::time::rfc3339(scope.context.now);
    let by = identity(scope, Operation::Update);
    let managers = {
        let mut compared = compared(scope, new);
        if let Some(given) = given {
            corten_api::schema::write_quantities(&scope.resource.kind.schema, compared.to_mut());
            take_lists(type_of(&scope.resource.kind), compared.to_mut(), given);
        }
        update(&versions, old, &compared, managers, &by, &time)
    };
    set_managers(new, managers);
}

/// Returns whether a part that the request does not write has items that its type cannot distinguish: an item without a
/// key, or a value of another type. Upstream compares the whole object, and then drops all owners. A kind that is
/// defaulted as sent is compared as it was sent anyway.
pub fn mismatches_type(kind: &Kind, part: Part, new: &Value, old: &Value) -> bool {
    let is_other_part = |field: &str| match part {
        Part::Main => field == "status",
        Part::Status => !["apiVersion", "kind", "metadata", "status"].contains(&field),
        Part::Transformed => false,
    };
    let sent = new.as_object().into_iter().flatten();
    let mut sent = sent.filter(|(field, value)| is_other_part(field) && old.get(*field) != Some(*value)).peekable();
    if kind.rules.is_defaulted_as_sent || !kind.rules.has_status || sent.peek().is_none() {
        return false;
    }
    let mut other_part = Value::Object(sent.map(|(field, value)| (field.clone(), value.clone())).collect());
    kind.rewrite(&mut other_part);
    corten_managed_fields::mismatches_type(type_of(kind), &other_part)
}

/// Returns the paths that a request for this part of an object can own.
fn filter(scope: &Scope<'_>, part: Part) -> Filter {
    let kind = &scope.resource.kind;
    let role = kind.subresource(&scope.context.info.subresource).map(|s| s.role);
    let without = |paths: &[&[&str]]| Filter::Without(Set::of_fields(paths));
    match (part, role) {
        // Upstream has no reset fields here.
        (_, Some(Role::EphemeralContainers | Role::Resize)) => Filter::All,
        (_, Some(Role::Approval)) => without(&[&["spec"], &["status", "certificate"]]),
        // Approvals are written through another subresource.
        (Part::Status, _) if kind.subresources.iter().any(|s| s.role == Role::Approval) => {
            without(&[&["spec"], &["status", "conditions"]])
        }
        (Part::Status, _) if kind.rules.status_keeps_metadata => without(&[&["spec"], &["metadata"]]),
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
    conversions: &'a RequestConversions,
}

impl<'a> ResourceVersions<'a> {
    pub fn new(scope: &'a Scope<'_>, part: Part) -> ResourceVersions<'a> {
        ResourceVersions {
            resource: scope.resource,
            filter: filter(scope, part),
            others: others(scope, part),
            conversions: &scope.context.conversions,
        }
    }

    /// Returns the kind of a version, and the paths that a request can own in it.
    fn version(&self, api_version: &str) -> Option<(&Arc<Kind>, &Filter)> {
        if self.resource.kind.api_version() == api_version {
            return Some((&self.resource.kind, &self.filter));
        }
        self.others.iter().find(|(kind, _)| kind.api_version() == api_version).map(|(kind, filter)| (kind, filter))
    }

    /// Converts between versions: of a built-in kind through the storage version; of a custom resource by its webhook,
    /// or by replacing the apiVersion.
    fn convert_version(&self, mut object: Value, from: &Arc<Kind>, to: &Arc<Kind>) -> Result<Value, Status> {
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

/// Returns whether a version is served or stored.
fn is_in_use(kind: &Kind) -> bool {
    !kind.verbs.is_empty() || matches!(kind.storage, Storage::Stored { hub: None, .. })
}

/// Returns the other versions of a resource: of a custom resource all versions of its CustomResourceDefinition, of a
/// built-in one those of its group with the same storage. Upstream knows only the types of one group, so the managers
/// of an Event of one group are dropped when it is written in the other.
///
/// Upstream has the reset fields of a custom resource only for the version of the request, and those of a status for
/// the versions that have one.
fn others(scope: &Scope<'_>, part: Part) -> Vec<(Arc<Kind>, Filter)> {
    let resource = scope.resource;
    let own = resource.kind.api_version();
    if !resource.versions.is_empty() {
        let others = resource.versions.iter().filter(|kind| kind.api_version() != own);
        let filter = |kind: &Kind| match part {
            Part::Status if kind.rules.has_status && is_in_use(kind) => filter(scope, part),
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
    let resources = scope.core.registry.resources();
    let others = resources.of_plural(&resource.kind.plural).iter().filter(beside);
    others.map(|r| (Arc::clone(&r.kind), filter(scope, part))).collect()
}

fn through_stored(object: &mut Value, from: &Kind, to: &Kind) {
    from.behaviour.to_stored(object);
    to.behaviour.from_stored(object);
    object["apiVersion"] = to.api_version().into();
    to.rewrite(object);
}

/// Returns a written object as it is compared: a version that is not stored has been converted to the storage version
/// and back.
pub fn compared<'a>(scope: &Scope<'_>, object: &'a Value) -> Cow<'a, Value> {
    if !scope.resource.is_built_in_spoke() {
        return Cow::Borrowed(object);
    }
    let kind = &scope.resource.kind;
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
            // A version that the CustomResourceDefinition no longer has is an error in upstream, unlike a built-in one.
            let message = format!("request to convert CR to an invalid group/version: {to}");
            let gone = Status { code: 500, message, ..Status::default() };
            return if self.resource.versions.is_empty() { Ok(None) } else { Err(gone) };
        };
        let Some((given, _)) = self.version(from) else { return Ok(None) };
        let own = &self.resource.kind;
        let object = self.convert_version(object.clone(), given, own)?;
        self.convert_version(object, own, wanted).map(Some)
    }

    fn filter(&self, api_version: &str) -> &Filter {
        self.version(api_version).map_or(&Filter::All, |(_, filter)| filter)
    }
}
