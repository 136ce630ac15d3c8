//! The write of a new object.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use corten_access::Verb;
use corten_admission::{Attributes, Operation};
use corten_managed_fields::{Managers, set_managers};
use corten_meta::{Header, Object, Status, Value};
use corten_store::{Expect, Op};

use super::commit::{dry_answer, settle};
use super::field_ownership::{Ownership, mismatches_type, track_create};
use super::normalise::{drop_status, strip};
use super::part::Part;
use super::precondition::{already_exists, check_new, parse_version, server_busy};
use super::scope::Scope;
use super::validate::{refuse_invalid, warn_of_new};
use super::{location, owner_references, template_labels};
use crate::custom_resources::TERMINATING;
use crate::registry::Written;

/// The limit of tries of a create with another generated name, or with other addresses.
const ATTEMPTS: usize = 32;
/// The attempts against other writers of a companion; each is lost to a writer that got through, as in upstream's
/// allocators.
const COMPANION_ATTEMPTS: usize = 1000;

/// Makes the object of a create: once for every attempt, of which there is nearly always one.
pub type Make<'a> = dyn Fn() -> Result<Value, Status> + Send + Sync + 'a;

/// A new object that admission has seen.
struct Draft<'a> {
    attributes: Attributes<'a>,
    ownership: Ownership,
    /// The resourceVersion that the request names.
    version: String,
    /// Whether the server generated the name, so that it can generate another.
    has_generated_name: bool,
    /// Whether the object has yet to take its labels from its template.
    lacks_labels: bool,
}

/// The object as it is written, with its companions.
struct Encoded {
    value: Value,
    object: Object,
    companions: Vec<Op>,
}

/// Creates an object: normalise → default → own fields → admit → validate → encode → commit.
pub async fn create_object(scope: &Scope<'_>, make: &Make<'_>, ownership: Ownership) -> Result<Arc<Object>, Status> {
    for attempt in 1..=COMPANION_ATTEMPTS {
        let mut new = make()?;
        let normalised = normalise(scope, &mut new)?;
        let has_lost_empty = default_and_own(scope, &mut new, ownership, normalised.mismatches_type);
        let mut draft = admit(scope, new, normalised, ownership).await?;
        validate(scope, &mut draft, has_lost_empty.then_some(make)).await?;
        let can_change_name = draft.has_generated_name && attempt < ATTEMPTS;
        if scope.context.dry_run() {
            return dry_run(scope, draft).await;
        }
        let Encoded { value, object, companions } = encode(scope, draft)?;
        let bytes = object.bytes.clone();
        let registry = &scope.core.registry;
        match registry.write_encoded(scope.resource, value, object, Expect::Absent, companions).await? {
            Written::Done(object) => return keep(scope, object).await,
            Written::Conflict if can_change_name => {}
            Written::Conflict => return Err(conflict(scope, &bytes).await?),
            Written::CompanionConflict => drop(registry.caches.fresh().await?),
        }
    }
    Err(server_busy(scope))
}

/// The facts of a request that normalising removes from the object.
struct Normalised {
    /// The resourceVersion that the request names.
    version: String,
    /// Whether the request leaves the labels to the template.
    labels_from_template: bool,
    /// Whether the fields of the status have no clear owners, so that the object has none.
    mismatches_type: bool,
}

/// Gives the object its namespace, and removes the fields that a create may not write.
fn normalise(scope: &Scope<'_>, new: &mut Value) -> Result<Normalised, Status> {
    let kind = &scope.resource.kind;
    location::check_namespace(scope, new)?;
    let version = corten_meta::resource_version(new).to_owned();
    owner_references::drop_repeated(scope, new);
    let labels_from_template = template_labels::are_from_template(kind, new);
    strip(new);
    let mismatches_type = mismatches_type(kind, Part::Main, new, &Value::Null);
    if !kind.rules.is_owned_as_sent {
        drop_status(kind, new);
    }
    Ok(Normalised { version, labels_from_template, mismatches_type })
}

/// Gives the object its defaults, and its creator the fields that it sets. Returns whether an empty list or map
/// vanished.
fn default_and_own(scope: &Scope<'_>, new: &mut Value, ownership: Ownership, mismatches_type: bool) -> bool {
    let kind = &scope.resource.kind;
    let has_lost_empty = ownership.default(kind, new);
    kind.behaviour.default_times(new, scope.context.now);
    match ownership {
        Ownership::Tracked if mismatches_type => set_managers(new, Managers::default()),
        Ownership::Tracked => track_create(scope, new),
        Ownership::Given => {}
    }
    if kind.rules.is_owned_as_sent {
        drop_status(kind, new);
        kind.behaviour.prepare_create(new);
    }
    kind.drop_gated(new, None);
    has_lost_empty
}

/// Passes the object through admission; between its plugins that change and those that allocate, the server gives it a
/// name and a uid.
async fn admit<'a>(
    scope: &'a Scope<'_>,
    new: Value,
    normalised: Normalised,
    ownership: Ownership,
) -> Result<Draft<'a>, Status> {
    let mut attributes = Attributes::new(scope.for_admission(), Operation::Create, new, None);
    scope.admission.change(&mut attributes).await?;
    // The resourceVersion of an update or an apply is parsed here, where upstream looks for the object to change.
    if scope.context.info.verb != Verb::Create {
        parse_version(&normalised.version)?;
    }
    if attributes.object.is_touched() {
        // A webhook may have written anything; it does not decide the namespace.
        location::check_namespace(scope, &mut attributes.object)?;
    }
    let labels_from_template = normalised.labels_from_template && !attributes.object.is_touched();
    let has_generated_name = begin(scope, attributes.object.complete(), labels_from_template);
    scope.admission.allocate(&mut attributes).await?;
    owner_references::drop_repeated_by_admission(scope, &mut attributes.object);
    let lacks_labels = template_labels::are_missing(&scope.resource.kind, &attributes.object);
    ownership.default_after_admission(&scope.resource.kind, &mut attributes.object, true);
    if lacks_labels {
        template_labels::remove(&mut attributes.object);
    }
    Ok(Draft { attributes, ownership, version: normalised.version, has_generated_name, lacks_labels })
}

/// Writes the fields of a new object that the server decides, whatever the client and webhooks wrote: the name if the
/// object has a generateName, uid, creation and generation, and the first status, which follows from admission's
/// changes (a pod's QoS class from its containers' defaults). Labels from the template stay the template's. Returns
/// whether the server generated the name.
fn begin(scope: &Scope<'_>, object: &mut Value, labels_from_template: bool) -> bool {
    let kind = &scope.resource.kind;
    let has_generated_name = generate_name(scope, object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
        metadata.insert("creationTimestamp".to_owned(), corten_meta::time::rfc3339(scope.context.now).into());
        if kind.rules.generation {
            metadata.insert("generation".to_owned(), 1.into());
        }
    }
    drop_status(kind, object);
    kind.behaviour.early_warnings(object).into_iter().for_each(|warning| scope.context.warn(warning));
    let follows_template = labels_from_template && template_labels::are_those_of_template(object);
    kind.behaviour.prepare_create(object);
    if follows_template {
        template_labels::copy(object);
    }
    has_generated_name
}

/// Generates the name of an object with a generateName. Returns whether another name is possible.
fn generate_name(scope: &Scope<'_>, object: &mut Value) -> bool {
    let base = object.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or_default();
    if base.is_empty() || !corten_meta::name(object).is_empty() {
        return false;
    }
    // An object whose name is its IP address has no other name.
    let is_address = scope.resource.kind.rules.name_rule == corten_api::NameRule::Ip;
    let name = if is_address {
        base.to_owned()
    } else {
        corten_meta::names::generated_name(base, uuid::Uuid::new_v4().as_bytes())
    };
    corten_meta::set(object, "/metadata/name", name.into());
    !is_address
}

/// Validates the object as its author sent it: `make` returns it with its empty lists and maps, if some vanished.
async fn validate(scope: &Scope<'_>, draft: &mut Draft<'_>, make: Option<&Make<'_>>) -> Result<(), Status> {
    let kind = &scope.resource.kind;
    let attributes = &mut draft.attributes;
    let spared: &[&str] = if kind.rules.status_on_create { &["metadata"] } else { &["metadata", "status"] };
    let sent = make.map(|make| make()).transpose()?;
    attributes.sent = sent.map(|sent| kind.for_validation(&attributes.object, sent, spared, None));
    let errors = kind.validate(attributes.as_sent());
    let of_admission = scope.admission.errors(attributes);
    refuse_invalid(scope, &attributes.object, errors, of_admission)?;
    warn_of_new(scope, &attributes.object);
    scope.admission.validate(attributes).await?;
    scope.admission.charge(attributes).await
}

/// Encodes the object as it will be read after it was stored.
fn encode(scope: &Scope<'_>, draft: Draft<'_>) -> Result<Encoded, Status> {
    if scope.context.info.verb == Verb::Create {
        check_new(&draft.version)?;
    }
    let ownership = draft.ownership;
    let (mut value, companions) = settled(scope, draft);
    let object = ownership.encode(&mut value, 0)?;
    Ok(Encoded { value, object, companions })
}

/// Returns the object as it will be read after it was stored, and its companions.
fn settled(scope: &Scope<'_>, draft: Draft<'_>) -> (Value, Vec<Op>) {
    let (mut value, companions) = draft.attributes.into_parts();
    if draft.lacks_labels {
        scope.resource.kind.default(&mut value);
    }
    settle(scope.resource, &mut value);
    (value, companions)
}

/// Fails as the write would, or returns its response, with the resourceVersion of the request.
async fn dry_run(scope: &Scope<'_>, draft: Draft<'_>) -> Result<Arc<Object>, Status> {
    let version = draft.version.clone();
    let (object, _) = settled(scope, draft);
    let name = corten_meta::name(&object);
    let present = scope.core.registry.read(scope.resource, corten_meta::namespace(&object), name).await?;
    if let Some(present) = present {
        return Err(already_exists(scope, &object, Some(&present)));
    }
    dry_answer(scope, &scope.resource.as_read_again(object).await?, &version).map(Arc::new)
}

/// Returns the error for an object whose name is taken.
async fn conflict(scope: &Scope<'_>, bytes: &[u8]) -> Result<Status, Status> {
    let object: Value = serde_json::from_slice(bytes).unwrap_or_default();
    let name = corten_meta::name(&object);
    let present = scope.core.registry.read(scope.resource, corten_meta::namespace(&object), name).await?;
    Ok(already_exists(scope, &object, present.as_deref()))
}

/// Returns the new object, unless its CustomResourceDefinition began to delete its objects before it was written: then
/// it must be deleted, too.
async fn keep(scope: &Scope<'_>, object: Arc<Object>) -> Result<Arc<Object>, Status> {
    if !scope.resource.storage()?.cache.is_terminating.load(Ordering::SeqCst) {
        return Ok(object);
    }
    let Header { namespace, name, .. } = &object.header;
    scope.core.registry.erase(scope.resource, namespace, name, object.revision, Vec::new()).await?;
    Err(Status::forbidden(&scope.resource.group_resource(), name, TERMINATING))
}
