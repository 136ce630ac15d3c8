//! POST to a collection: a new object.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use corten_meta::{FieldError, Header, Object, Status, Value};
use corten_store::Expect;
use http::StatusCode;
use serde_json::Map;

use super::Scope;
use super::options::{Write, check_options};
use super::owners;
use super::ownership::{Ownership, compared, says_unclear, track_create};
use super::update::Part;
use crate::admission::{Attributes, Operation, Touched};
use crate::body::Reply;
use crate::custom_resources::TERMINATING;
use crate::fields::Managers;
use crate::managed_fields::set_managers;
use crate::names::generated_name;
use crate::registry::{Resource, Written};
use crate::response;
use crate::verb::Verb;

/// How often a generated name, or what an object takes with it, is tried anew.
const ATTEMPTS: usize = 32;

/// Answers with the object that was created.
pub async fn create(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    check_options(target.context, Write::Create)?;
    let make = || {
        let mut object = target.decode(bytes)?;
        check_namespace(target, &mut object)?;
        wipe(&mut object);
        Ok(object)
    };
    let object = target.shown(create_object(target, &make, Ownership::Tracked).await?);
    let context = target.context;
    Ok(response::object(context.accept, context.include_object(), StatusCode::CREATED, &target.resource.kind, &object))
}

/// Makes of an object what is read again after it was stored: a custom resource is completed once more, by the version
/// that is stored.
pub fn settle(resource: &Resource, object: &mut Value) {
    let kind = &resource.kind;
    if kind.is_custom() && !resource.is_spoke() {
        kind.default(object);
    }
    kind.settle(object);
}

/// How the object of a create comes to be: once for every attempt, of which there is nearly always one.
pub type Make<'a> = dyn Fn() -> Result<Value, Status> + Send + Sync + 'a;

/// Decoded → prepared → admitted → validated → stored.
pub async fn create_object(target: &Scope<'_>, make: &Make<'_>, ownership: Ownership) -> Result<Arc<Object>, Status> {
    let dry_run = target.context.dry_run();
    for attempt in 1.. {
        let mut candidate = make()?;
        check_namespace(target, &mut candidate)?;
        let version = corten_meta::resource_version(&candidate).to_owned();
        owners::drop_repeated(target, &mut candidate);
        let takes_labels = takes_labels(target, &candidate);
        let lost = prepare(target, &mut candidate, ownership);
        let mut attributes = Attributes::new(target, Operation::Create, candidate, None);
        target.admission.change(&mut attributes).await?;
        // The version that an update or an apply names is read where upstream would look for what it changes.
        if target.context.info.verb != Verb::Create {
            super::update::parse_version(&version)?;
        }
        if attributes.object.is_touched() {
            // A webhook may have written anything; where the object goes is not its to say.
            check_namespace(target, &mut attributes.object)?;
        }
        let takes_labels = takes_labels && !attributes.object.is_touched();
        let generated = begin(target, attributes.object.complete(), takes_labels);
        target.admission.allocate(&mut attributes).await?;
        owners::drop_repeated_by_admission(target, &mut attributes.object);
        let unlabelled = lacks_labels(target, &attributes.object);
        finish(target, &mut attributes.object, true, ownership);
        if unlabelled {
            drop_labels(&mut attributes.object);
        }
        let kind = &target.resource.kind;
        let spared: &[&str] = if kind.rules.status_on_create { &["metadata"] } else { &["metadata", "status"] };
        attributes.given = lost.then(make).transpose()?.map(|given| kind.as_given(&attributes.object, given, spared));
        let (errors, more) = (kind.validate(attributes.as_given()), target.admission.errors(&attributes));
        refuse_invalid(target, &attributes.object, errors, more)?;
        // A client is warned also of what is refused after this.
        for warning in target.resource.kind.behaviour.warnings(&attributes.object, None) {
            target.context.warn(warning);
        }
        target.admission.validate(&attributes).await?;
        target.admission.charge(&mut attributes).await?;
        let (mut candidate, companions) = attributes.into_parts();
        if unlabelled {
            target.resource.kind.default(&mut candidate);
        }
        if target.context.info.verb == Verb::Create && !dry_run {
            check_new(&version)?;
        }
        settle(target.resource, &mut candidate);
        if dry_run {
            return dry_create(target, candidate, &version).await;
        }
        let object = ownership.encode(&mut candidate, 0)?;
        let (registry, bytes) = (&target.core.registry, object.bytes.clone());
        match registry.write_encoded(target.resource, candidate, object, Expect::Absent, companions).await? {
            Written::Done(object) => return kept(target, object).await,
            Written::Conflict if generated && attempt < ATTEMPTS => {}
            Written::CompanionConflict if attempt < ATTEMPTS => {
                target.core.registry.caches.fresh().await?;
            }
            Written::Conflict => {
                let candidate: Value = serde_json::from_slice(&bytes).unwrap_or_default();
                let (namespace, name) = (corten_meta::namespace(&candidate), corten_meta::name(&candidate));
                let present = target.core.registry.read(target.resource, namespace, name).await?;
                return Err(exists(target, &candidate, present.as_deref()));
            }
            Written::CompanionConflict => return Err(server_busy(target)),
        }
    }
    Err(server_busy(target))
}

/// The new object, unless its definition began to delete its objects before it was written: then it must go, too.
async fn kept(target: &Scope<'_>, object: Arc<Object>) -> Result<Arc<Object>, Status> {
    let stored = target.resource.storage()?;
    if !target.resource.kind.is_custom() || !stored.cache.is_ending.load(Ordering::SeqCst) {
        return Ok(object);
    }
    let Header { namespace, name, .. } = &object.header;
    target.core.registry.erase(target.resource, namespace, name, object.revision, Vec::new()).await?;
    Err(Status::forbidden(&target.resource.group_resource(), name, TERMINATING))
}

/// Gives the object a name of its own if it asks for one. Says whether another would do.
fn generate_name(target: &Scope<'_>, object: &mut Value) -> bool {
    let base = object.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or_default();
    if base.is_empty() || !corten_meta::name(object).is_empty() {
        return false;
    }
    // What is called by its address has no other name.
    let is_whole = target.resource.kind.rules.name_rule == corten_api::NameRule::Ip;
    let name = if is_whole { base.to_owned() } else { generated_name(base) };
    corten_meta::set(object, "/metadata/name", name.into());
    !is_whole
}

/// The conflict with an object that is there, or is about to go.
fn exists(target: &Scope<'_>, object: &Value, present: Option<&Object>) -> Status {
    let (resource, name) = (target.resource.group_resource(), corten_meta::name(object));
    // An object that says `generateName` is taken at its word, also if its name was given.
    let mut status = match object.pointer("/metadata/generateName").and_then(Value::as_str) {
        None | Some("") => Status::already_exists(&resource, name),
        Some(_) => Status::generate_name_conflict(&resource, name, 1),
    };
    if present.is_some_and(|object| object.header.deletion_timestamp.is_some()) {
        status.message.insert_str(0, "object is being deleted: ");
    }
    status
}

pub(super) fn server_busy(target: &Scope<'_>) -> Status {
    Status::server_timeout(&target.resource.group_resource(), target.context.info.verb.as_str(), 1)
}

/// A dry run fails as the write would, and answers what the write would, under the version that was given.
async fn dry_create(target: &Scope<'_>, object: Value, version: &str) -> Result<Arc<Object>, Status> {
    let name = corten_meta::name(&object);
    let present = target.core.registry.read(target.resource, corten_meta::namespace(&object), name).await?;
    if let Some(present) = present {
        return Err(exists(target, &object, Some(&present)));
    }
    dry_answer(target, &target.resource.as_read_again(object).await?, version).map(Arc::new)
}

/// The object of a dry run, which has not been where others get their version and lose their link.
pub fn dry_answer(target: &Scope<'_>, object: &Value, version: &str) -> Result<Object, Status> {
    const METADATA: &[u8] = b"\"metadata\":{";
    // A version that storage could have given is one.
    let revision = version.parse().ok().filter(|revision: &u64| *revision > 0 && revision.to_string() == version);
    let version = if revision.is_some() { "" } else { version };
    let internal = |e: corten_meta::Error| Status::internal(e.to_string());
    let mut answer = Object::from_value(&compared(target, object), revision.unwrap_or(0)).map_err(internal)?;
    let link = object.pointer("/metadata/selfLink").and_then(Value::as_str).unwrap_or_default();
    let mut said = Vec::new();
    for (field, value) in [("resourceVersion", version), ("selfLink", link)].into_iter().filter(|(_, v)| !v.is_empty())
    {
        said.extend_from_slice(format!("{}:{},", Value::from(field), Value::from(value)).as_bytes());
    }
    let place = answer.bytes.windows(METADATA.len()).position(|window| window == METADATA);
    if let Some(place) = place.map(|at| at + METADATA.len()).filter(|_| !said.is_empty()) {
        answer.bytes = [&answer.bytes[..place], &said, &answer.bytes[place..]].concat().into();
    }
    Ok(answer)
}

/// The namespace of the path is the object's; a body that says another is refused. What is in no namespace stays so,
/// whatever the body says.
pub fn check_namespace(target: &Scope<'_>, object: &mut Value) -> Result<(), Status> {
    if !target.resource.kind.namespaced {
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("namespace");
        }
        return Ok(());
    }
    check_given_namespace(target, object)?;
    corten_meta::set(object, "/metadata/namespace", target.namespace.into());
    Ok(())
}

/// Refuses an object that says another namespace than the path.
pub fn check_given_namespace(target: &Scope<'_>, object: &Value) -> Result<(), Status> {
    let given = corten_meta::namespace(object);
    let is_other = !given.is_empty() && given != target.namespace && !target.namespace.is_empty();
    if target.resource.kind.namespaced && is_other {
        return Err(Status::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// A new object has no version. What is no number says nothing. Upstream leaves this to its storage, which a dry run does
/// not reach and whose errors have no reason.
fn check_new(version: &str) -> Result<(), Status> {
    if version.parse().unwrap_or(0u64) == 0 {
        return Ok(());
    }
    let message = "resourceVersion should not be set on objects to be created".to_owned();
    Err(Status { code: 500, message, ..Status::default() })
}

/// Takes out what only the server says of an object. What an update or an apply creates says it itself: also upstream
/// takes it at its word.
pub fn wipe(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        for field in ["selfLink", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
            metadata.remove(field);
        }
    }
}

/// A new object as admission sees it: without what only the server says of it, completed with its defaults, and with its
/// creator as its manager. Says whether an empty list or map vanished.
fn prepare(target: &Scope<'_>, object: &mut Value, ownership: Ownership) -> bool {
    let kind = &target.resource.kind;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
        drop_empty(metadata);
    }
    let is_unclear = says_unclear(kind, Part::Main, object, &Value::Null);
    // Of a custom resource all that is said counts, as managers of other versions may lose it.
    let tells_status = kind.rules.tells_in_annotations || kind.is_custom();
    if !tells_status {
        drop_status(target, object);
    }
    let lost = ownership.complete(kind, object);
    kind.behaviour.default_times(object, target.context.now);
    match ownership {
        Ownership::Tracked if is_unclear => set_managers(object, Managers::default()),
        Ownership::Tracked => track_create(target, object),
        Ownership::Given => {}
    }
    if tells_status {
        drop_status(target, object);
        kind.behaviour.prepare_create(object);
    }
    kind.drop_gated(object);
    lost
}

fn drop_status(target: &Scope<'_>, object: &mut Value) {
    let rules = &target.resource.kind.rules;
    if rules.has_status
        && !rules.status_on_create
        && let Some(object) = object.as_object_mut()
        && let Some(mut status) = object.remove("status")
        && let Some(fields) = status.as_object_mut()
    {
        fields.retain(|field, _| rules.kept_of_new_status.contains(&field.as_str()));
        if !fields.is_empty() {
            object.insert("status".to_owned(), status);
        }
    }
}

/// What the server says about a new object, whatever client and webhooks said: its name if it asks for one, what it is
/// known by, and what it begins with, which follows from what admission made of it (a pod's class of service from its
/// containers' defaults). A status that a webhook wrote is nobody's. Labels that it takes from its template stay the
/// template's, also those that the template gets here. Says whether the name was made here.
fn begin(target: &Scope<'_>, object: &mut Value, takes_labels: bool) -> bool {
    const OF_TEMPLATE: &str = "/spec/template/metadata/labels";
    let kind = &target.resource.kind;
    let generated = generate_name(target, object);
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("uid".to_owned(), uuid::Uuid::new_v4().to_string().into());
        metadata.insert("creationTimestamp".to_owned(), corten_meta::time::rfc3339(target.context.now).into());
        if kind.rules.generation {
            metadata.insert("generation".to_owned(), 1.into());
        }
    }
    drop_status(target, object);
    for warning in kind.behaviour.early_warnings(object) {
        target.context.warn(warning);
    }
    let took = takes_labels && object.pointer("/metadata/labels") == object.pointer(OF_TEMPLATE);
    kind.behaviour.prepare_create(object);
    if took && let Some(labels) = object.pointer(OF_TEMPLATE).cloned() {
        corten_meta::set(object, "/metadata/labels", labels);
    }
    generated
}

/// Whether a request leaves it to the template to say the labels of the object.
fn takes_labels(target: &Scope<'_>, object: &Value) -> bool {
    let labels = |pointer: &str| object.pointer(pointer).and_then(Value::as_object);
    target.resource.kind.rules.labels_from_template
        && labels("/metadata/labels").is_none_or(|labels| labels.is_empty())
        && labels("/spec/template/metadata/labels").is_some()
}

/// Whether an object is yet to take its labels from its template, which are judged as the template's alone.
fn lacks_labels(target: &Scope<'_>, object: &Value) -> bool {
    target.resource.kind.rules.labels_from_template && object.pointer("/metadata/labels").is_none()
}

fn drop_labels(object: &mut Value) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("labels");
    }
}

/// Empty maps and lists of metadata are not written, as upstream does not write them.
pub fn drop_empty(metadata: &mut Map<String, Value>) {
    for field in ["labels", "annotations", "finalizers", "ownerReferences", "generateName"] {
        let empty = match metadata.get(field) {
            Some(Value::Object(map)) => map.is_empty(),
            Some(Value::Array(list)) => list.is_empty(),
            Some(Value::String(text)) => text.is_empty(),
            Some(Value::Null) => true,
            _ => false,
        };
        if empty {
            metadata.remove(field);
        }
    }
}

/// Admission may have added what needs defaults of its own, and a kind with a status may have begun one.
pub fn finish(target: &Scope<'_>, object: &mut Touched, has_begun: bool, ownership: Ownership) {
    let kind = &target.resource.kind;
    if object.is_touched() {
        kind.default(object);
    } else if kind.rules.has_status && has_begun && !kind.is_custom() {
        ownership.complete(kind, object);
    }
}

/// Refuses an object that has errors. What is wrong beside stands among them at its place.
pub fn refuse_invalid(
    target: &Scope<'_>,
    object: &Value,
    mut errors: Vec<FieldError>,
    mut more: Vec<FieldError>,
) -> Result<(), Status> {
    if errors.is_empty() && more.is_empty() {
        return Ok(());
    }
    let schema = &target.resource.kind.schema;
    corten_api::schema::print_values(schema, &mut more);
    corten_api::schema::insert_errors(schema, &mut errors, more);
    Err(Status::invalid(&target.resource.group_kind(), corten_meta::name(object), errors))
}
