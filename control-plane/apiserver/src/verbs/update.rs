//! PUT and the common path of every change to an existing object.
//!
//! Read, transform, prepare, admit, validate, write if nobody else wrote in between, else begin again. A change
//! whose author named a resourceVersion is not repeated: it fails with a conflict.

use std::borrow::Cow;
use std::sync::Arc;

use corten_meta::{FieldError, Object, Status, Value};
use corten_store::{Expect, Op};
use http::StatusCode;
use serde_json::json;

use super::Scope;
use super::apart::Apart;
use super::create::{self, Make};
use super::options::{Write, check_options};
use super::owners;
use super::ownership::{Ownership, says_unclear, track_update};
use crate::admission::{Attributes, Operation};
use crate::authorization;
use crate::body::Reply;
use crate::fields::Managers;
use crate::managed_fields::{keep_times, managers_of, same_but_managers, set_managers};
use crate::registry::Written;
use crate::response;
use crate::verb::Verb;

/// How often a change is tried against other writers. Each time one of them got through, so the number is only to end what
/// would never end.
pub(super) const ATTEMPTS: usize = 10_000;

/// What says when an object goes.
const ENDING: [&str; 2] = ["deletionTimestamp", "deletionGracePeriodSeconds"];

/// Which part of an object a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but status.
    Main,
    Status,
    /// Whatever the transformation changed: subresources that check on their own what they touch.
    Whole,
}

/// A change: from the object as it stands to the object as wanted.
pub type Transform<'a> = dyn Fn(&Value) -> Result<Value, Status> + Send + Sync + 'a;

/// The result of a change.
pub enum Updated {
    Changed(Arc<Object>),
    Created(Arc<Object>),
    /// The change removed the last finalizer, so the object is gone; this is what it was.
    Deleted(Arc<Object>),
}

impl Updated {
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Updated::Changed(object) | Updated::Created(object) | Updated::Deleted(object) => object,
        }
    }
}

/// Answers with the object after the update.
pub async fn update(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    check_options(target.context, Write::Update)?;
    let mut body = target.decode(bytes)?;
    create::check_namespace(target, &mut body)?;
    check_name(target, &body)?;
    owners::drop_repeated(target, &mut body);
    let transform = |_: &Value| Ok(body.clone());
    let updated = Change::new(Part::Main, &transform).or_create(&body).carry_out(target).await?;
    Ok(reply(target, &updated))
}

/// The response of a change.
pub fn reply(target: &Scope<'_>, updated: &Updated) -> Reply {
    let code = if matches!(updated, Updated::Created(_)) { StatusCode::CREATED } else { StatusCode::OK };
    let context = target.context;
    // What goes with its last finalizer is shown as it was stored.
    let object = match updated {
        Updated::Deleted(object) => Arc::clone(object),
        Updated::Changed(object) | Updated::Created(object) => target.shown(Arc::clone(object)),
    };
    response::object(context.accept, context.include_object(), code, &target.resource.kind, &object)
}

/// The name of the path is the object's.
pub fn check_name(target: &Scope<'_>, body: &Value) -> Result<(), Status> {
    let name = corten_meta::name(body);
    if name.is_empty() {
        return Err(unnamed(target));
    }
    if name != target.name {
        return Err(Status::bad_request(format!(
            "the name of the object ({name}) does not match the name on the URL ({})",
            target.name
        )));
    }
    Ok(())
}

/// Namespace and name of the path are the object's.
pub fn check_place(target: &Scope<'_>, object: &Value) -> Result<(), Status> {
    create::check_given_namespace(target, object)?;
    check_name(target, object)
}

/// The answer to an object without the name that it must have.
pub fn unnamed(target: &Scope<'_>) -> Status {
    let name = target.name;
    Status::bad_request(format!(
        "the name of the object ({name} based on URL) was undeterminable: name must be provided"
    ))
}

/// Another form of an object, in which admission sees a change of it: the scale of a Deployment.
pub trait View: Sync {
    fn show(&self, object: &Value) -> Value;
    /// The object with what admission made of the other form.
    fn take(&self, object: Value, shown: &Value) -> Result<Value, Status>;
}

/// A change and what belongs to it.
pub struct Change<'a> {
    part: Part,
    view: Option<&'a dyn View>,
    ownership: Ownership,
    create: Create<'a>,
    /// Whether nothing but metadata and status is looked at or changed.
    spares_rest: bool,
    transform: &'a Transform<'a>,
    narrow: Option<&'a Narrow<'a>>,
}

/// Takes from the wanted object what a request may change, and the rest from the object as it stands.
pub type Narrow<'a> = dyn Fn(Value, &Value) -> Result<Value, Status> + Send + Sync + 'a;

/// What to do when there is no object to change.
enum Create<'a> {
    No,
    /// Make this one, if the kind allows it.
    Update(&'a Value),
    /// Make what an apply makes of nothing.
    Apply(&'a Make<'a>),
}

impl<'a> Change<'a> {
    /// A change of a part, of which the writer owns what it writes.
    pub fn new(part: Part, transform: &'a Transform<'a>) -> Change<'a> {
        Change {
            part,
            view: None,
            ownership: Ownership::Tracked,
            create: Create::No,
            spares_rest: false,
            transform,
            narrow: None,
        }
    }

    #[must_use]
    pub fn seen_as(self, view: &'a dyn View) -> Change<'a> {
        Change { view: Some(view), ..self }
    }

    #[must_use]
    pub fn owning(self, ownership: Ownership) -> Change<'a> {
        Change { ownership, ..self }
    }

    /// Lets the writer own all that it asked for, and then takes back what it may not change.
    #[must_use]
    pub fn narrowed(self, narrow: Option<&'a Narrow<'a>>) -> Change<'a> {
        Change { narrow, ..self }
    }

    /// Says whether the change of a status neither looks at nor changes anything but metadata and status.
    #[must_use]
    pub fn sparing_rest(self, spares_rest: bool) -> Change<'a> {
        Change { spares_rest, ..self }
    }

    #[must_use]
    pub fn or_create(self, object: &'a Value) -> Change<'a> {
        Change { create: Create::Update(object), ..self }
    }

    #[must_use]
    pub fn or_apply(self, create: &'a Make<'a>) -> Change<'a> {
        Change { create: Create::Apply(create), ..self }
    }

    /// A patch, unlike an update, makes no condition of a uid: it would change it, which is for validation to refuse.
    fn would_change_uid(&self, target: &Scope<'_>) -> bool {
        self.view.is_none() && target.context.info.verb == Verb::Patch
    }

    /// The wanted object, and what is set apart of the one that stands.
    fn transformed(&self, kind: &corten_api::Kind, old: &mut Value) -> Result<(Value, Option<Apart>), Status> {
        if !self.spares_rest || self.part != Part::Status || kind.is_custom() || kind.rules.status_needs_spec {
            return Ok(((self.transform)(old)?, None));
        }
        let apart = Apart::take(old);
        let labels = |new: &Value| new.pointer("/metadata/labels")?.as_object().map(serde_json::Map::len);
        let is_labelled = |new: &Value| labels(new).is_some_and(|labels| labels > 0);
        match (self.transform)(old) {
            Ok(new) if !kind.rules.labels_from_template || is_labelled(&new) => Ok((new, Some(apart))),
            // An error may show the whole object, and labels may have to be taken from it.
            _ => {
                apart.put_into(old);
                Ok(((self.transform)(old)?, None))
            }
        }
    }

    /// The wanted object with the empty lists and maps that vanished from the part which this request writes.
    fn as_given(&self, target: &Scope<'_>, new: &Value, old: &Value) -> Result<Option<Value>, Status> {
        Ok(Some(target.resource.kind.as_given(new, (self.transform)(old)?, self.spared())))
    }

    /// The fields of which a request says nothing that would be recalled.
    fn spared(&self) -> &'static [&'static str] {
        match self.part {
            Part::Main => &["metadata", "status"],
            Part::Status => &["metadata", "spec"],
            Part::Whole => &["metadata"],
        }
    }

    /// Tries the change until nobody else wrote in between.
    pub async fn carry_out(&self, target: &Scope<'_>) -> Result<Updated, Status> {
        for _ in 0..ATTEMPTS {
            let current = target.core.registry.read(target.resource, target.namespace, target.name).await?;
            let updated = match &current {
                Some(current) => attempt(target, self, current).await?,
                None => self.create_instead(target).await?,
            };
            if let Some(updated) = updated {
                return Ok(updated);
            }
        }
        Err(create::server_busy(target))
    }

    async fn create_instead(&self, target: &Scope<'_>) -> Result<Option<Updated>, Status> {
        let created = match self.create {
            Create::Update(object) if target.resource.kind.rules.allow_create_on_update => {
                if !corten_meta::uid(object).is_empty() {
                    let uid = corten_meta::uid(object);
                    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
                    return Err(not_the_same(target, &why)?);
                }
                create::create_object(target, &|| Ok(object.clone()), Ownership::Tracked).await
            }
            Create::Apply(make) => {
                may_create(target).await?;
                create::create_object(target, make, Ownership::Given).await
            }
            _ => return Err(target.not_found()),
        };
        match created {
            Ok(object) => Ok(Some(Updated::Created(object))),
            // Somebody else made it first, so there is something to change now.
            Err(status) if status.is_already_exists() => Ok(None),
            Err(status) => Err(status),
        }
    }
}

/// An apply that creates needs the right to create.
async fn may_create(target: &Scope<'_>) -> Result<(), Status> {
    let context = target.context;
    let attributes = authorization::Attributes {
        verb: "create",
        ..authorization::Attributes::of_request(&context.user, &context.info)
    };
    target.core.authorization.check(&attributes).await
}

/// One try. `None` means that somebody else wrote first.
async fn attempt(target: &Scope<'_>, change: &Change<'_>, current: &Arc<Object>) -> Result<Option<Updated>, Status> {
    let served = target.resource.serve(current).await?;
    let changed = || {
        let mut old = served.value();
        let (mut new, apart) = change.transformed(&target.resource.kind, &mut old)?;
        check_preconditions(target, change, &new, &old)?;
        create::check_namespace(target, &mut new)?;
        let lost = prepare(target, change, &mut new, &mut old, apart);
        Ok((new, old, lost))
    };
    let (mut new, mut old, lost) = target.context.conversions.settled(changed).await?;
    if let Some(narrow) = change.narrow {
        let managers = managers_of(&new);
        new = narrow(new, &old)?;
        set_managers(&mut new, managers);
    }

    let dry_run = target.context.dry_run();
    let (mut new, companions) = admitted(target, change, new, &old, lost).await?;
    create::settle(target.resource, &mut new);
    // What readers are not shown, an update of the whole takes for news.
    if change.part == Part::Main
        && let Some(shown) = target.resource.kind.behaviour.shown(&served.bytes)
    {
        old = shown;
    }
    keep_times(&mut new, &old);
    if dry_run {
        let read = target.resource.as_read_again(new).await?;
        let answer = create::dry_answer(target, &read, &served.revision.to_string())?;
        return Ok(Some(Updated::Changed(Arc::new(answer))));
    }
    let object = change.ownership.encode(&mut new, served.revision)?;
    let registry = &target.core.registry;
    // Also an object that is not changed goes if nothing holds it any more.
    if is_finished(target, &new, &old) {
        let mut companions = companions;
        companions.extend(target.admission.released(target, &new).await?);
        let erased =
            registry.erase(target.resource, target.namespace, target.name, current.revision, companions).await?;
        return Ok(erased.map(|_| Updated::Deleted(Arc::new(object))));
    }
    let stored = match target.resource.tells_through_stored() {
        true => Some(target.resource.stored_beside(new.clone(), current, other_part(target, change.part)).await?),
        false => None,
    };
    let is_same = match &stored {
        Some(stored) => stored.bytes == current.bytes,
        None => object.bytes == served.bytes,
    };
    if is_same
        && target.resource.stays_as_stored(&new, current).await?
        && !registry.is_sealed_otherwise(target.resource, current).await?
        && !(target.resource.kind.behaviour.is_completed_when_read(&new)
            && registry.is_first(target.resource, current).await?)
    {
        return Ok(Some(Updated::Changed(served)));
    }
    let expect = Expect::ModRevision(current.revision);
    drop(old);
    let written = match stored {
        Some(stored) => registry.write_object(target.resource, stored, expect, companions).await?,
        None => registry.write_encoded(target.resource, new, object, expect, companions).await?,
    };
    match written {
        Written::Done(object) => Ok(Some(Updated::Changed(object))),
        Written::Conflict | Written::CompanionConflict => Ok(None),
    }
}

/// The part that a request leaves as it is.
fn other_part(target: &Scope<'_>, part: Part) -> Option<&'static str> {
    match part {
        Part::Main if target.resource.kind.rules.has_status => Some("status"),
        Part::Status => Some("spec"),
        _ => None,
    }
}

/// The wanted object after admission and validation, and what is committed together with it.
async fn admitted(
    target: &Scope<'_>,
    change: &Change<'_>,
    new: Value,
    old: &Value,
    lost: bool,
) -> Result<(Value, Vec<Op>), Status> {
    let admission = &target.admission;
    if let Some(view) = change.view {
        return admitted_as(target, change, view, new, old).await;
    }
    let mut attributes = Attributes::new(target, Operation::Update, new, Some(Cow::Borrowed(old)));
    admission.admit(&mut attributes).await?;
    if attributes.object.is_touched() {
        // A webhook may have written anything; which object this is, is not its to say.
        check_name(target, &attributes.object)?;
        create::check_namespace(target, &mut attributes.object)?;
        // What admission writes is kept only of the part that this request may change.
        if let Some(narrow) = change.narrow {
            let managers = managers_of(&attributes.object);
            *attributes.object = narrow(attributes.object.clone(), old)?;
            set_managers(&mut attributes.object, managers);
        }
    }
    owners::drop_repeated_by_admission(target, &mut attributes.object);
    // A status that is written is complete, as it was completed when the write was prepared.
    create::finish(target, &mut attributes.object, change.part != Part::Status, change.ownership);
    let kind = &target.resource.kind;
    if attributes.object.is_touched() && kind.is_custom() {
        restore_rest(kind, change.part, &mut attributes.object, old);
    }
    attributes.given = if lost { change.as_given(target, &attributes.object, old)? } else { None };
    // What is wanted is the old one, unless somebody could write it.
    if change.part != Part::Status || attributes.object.is_touched() {
        bump_generation(target, &mut attributes.object, attributes.given.as_ref(), old);
    }
    let errors = validate(target, change, &attributes.object, attributes.as_given(), old);
    let ratcheted = target.resource.kind.behaviour.ratcheted(&attributes.object, old, &errors);
    ratcheted.into_iter().for_each(|warning| target.context.warn(warning));
    create::refuse_invalid(target, &attributes.object, errors, admission.errors(&attributes))?;
    warn(target, change.part, &attributes.object, old);
    admission.validate(&attributes).await?;
    admission.charge(&mut attributes).await?;
    Ok(attributes.into_parts())
}

/// Warns the client of what is no error, also when the change is refused after this.
fn warn(target: &Scope<'_>, part: Part, new: &Value, old: &Value) {
    let behaviour = &target.resource.kind.behaviour;
    let warnings = match part {
        Part::Main => behaviour.warnings(new, Some(old)),
        Part::Status => behaviour.status_warnings(new),
        Part::Whole => Vec::new(),
    };
    warnings.into_iter().for_each(|warning| target.context.warn(warning));
}

/// The same for a change that is asked for in another form than the object's.
async fn admitted_as(
    target: &Scope<'_>,
    change: &Change<'_>,
    view: &dyn View,
    new: Value,
    old: &Value,
) -> Result<(Value, Vec<Op>), Status> {
    let admission = &target.admission;
    let shown = view.show(&new);
    let mut attributes = Attributes::new(target, Operation::Update, shown.clone(), Some(Cow::Owned(view.show(old))));
    admission.admit(&mut attributes).await?;
    let mut new = if *attributes.object == shown { new } else { view.take(new, &attributes.object)? };
    // Also what the schema of a custom resource does not know is another wanted state.
    bump_generation(target, &mut new, None, old);
    match target.resource.kind.is_custom() {
        true => target.resource.kind.behaviour.prune(&mut new),
        false => drop(target.resource.kind.default(&mut new)),
    }
    create::refuse_invalid(target, &new, validate(target, change, &new, &new, old), Vec::new())?;
    warn(target, change.part, &new, old);
    admission.validate(&attributes).await?;
    Ok((new, Vec::new()))
}

/// The version that an object names. Upstream's storage reads it, whose errors have no reason.
pub fn parse_version(version: &str) -> Result<u64, Status> {
    match version {
        "" => Ok(0),
        text => corten_meta::go::parse_uint(text).map_err(|message| Status { code: 500, message, ..Status::default() }),
    }
}

/// resourceVersion and uid of the new object are what its author believes to change.
fn check_preconditions(target: &Scope<'_>, change: &Change<'_>, new: &Value, old: &Value) -> Result<(), Status> {
    let resource = target.resource.group_resource();
    let (uid, actual) = (corten_meta::uid(new), corten_meta::uid(old));
    if !uid.is_empty() && uid != actual && !change.would_change_uid(target) {
        let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {actual}");
        return Err(not_the_same(target, &why)?);
    }
    let version = parse_version(corten_meta::resource_version(new))?;
    if version == 0 {
        if !target.resource.kind.rules.allow_unconditional_update {
            let path = corten_meta::Path::root("metadata").child("resourceVersion");
            let error = FieldError::invalid(&path, 0, "must be specified for an update");
            // Upstream names the resource here, where it names the kind elsewhere.
            let kind = corten_meta::GroupKind { group: resource.group, kind: resource.resource };
            return Err(Status::invalid(&kind, target.name, vec![error]));
        }
    } else if corten_meta::resource_version(old).parse() != Ok(version) {
        return Err(Status::conflict(
            &resource,
            target.name,
            "the object has been modified; please apply your changes to the latest version and try again",
        ));
    }
    Ok(())
}

/// The conflict with an object that is another than its author believes, told with its place as upstream's storage
/// does; a dry run does not know where the storage begins.
pub fn not_the_same(target: &Scope<'_>, why: &str) -> Result<Status, Status> {
    let place = target.core.registry.place(target.resource, target.namespace, target.name)?;
    let key = if target.context.dry_run() { place.trim_start_matches("/registry") } else { &place };
    let why =
        format!("StorageError: invalid object, Code: 4, Key: {key}, ResourceVersion: 0, AdditionalErrorMsg: {why}");
    Ok(Status::conflict(&target.resource.group_resource(), target.name, &why))
}

/// Metadata that only the server writes, and the parts that this request does not touch, are the old ones. Says whether
/// something that was given is lost.
fn prepare(target: &Scope<'_>, change: &Change<'_>, new: &mut Value, old: &mut Value, apart: Option<Apart>) -> bool {
    let part = change.part;
    let kind = &target.resource.kind;
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        let before = old.get("metadata").and_then(|before| before.get("uid"));
        if !change.would_change_uid(target) || metadata.get("uid").is_none_or(|uid| uid == "") {
            before.map(|uid| metadata.insert("uid".to_owned(), uid.clone()));
        }
        let nothing = serde_json::Map::new();
        let before = old.get("metadata").and_then(Value::as_object).unwrap_or(&nothing);
        restore(metadata, before, "creationTimestamp");
        restore(metadata, before, "generation");
        metadata.retain(|field, value| !ENDING.contains(&field.as_str()) || !value.is_null());
        create::drop_empty(metadata);
        // An empty list asks for ownership to be forgotten and is about to be dropped; one empty entry asks the same.
        if metadata.get("managedFields").is_some_and(|given| *given == json!([])) {
            metadata.insert("managedFields".to_owned(), json!([{}]));
        }
    }
    // What a write of the status says of the rest may be what its labels or its status are completed by.
    let rules = &kind.rules;
    let as_given = part == Part::Status && apart.is_none() && (rules.status_needs_spec || rules.labels_from_template);
    let mut lost = as_given && kind.default(new);
    let is_unclear = says_unclear(kind, part, new, old);
    // Of a custom resource all that is said counts, as managers of other versions may lose it.
    let is_tracked = (rules.tells_in_annotations || kind.is_custom()) && change.ownership == Ownership::Tracked;
    if is_tracked {
        lost |= kind.default(new);
        track_update(target, part, new, old, None);
        prepare_part(target, part, new, old);
    } else if kind.is_custom() && change.view.is_none() && !same_but_managers(new, old) {
        if part == Part::Main && says_unknown(kind, new) {
            raise_generation(new, old);
        }
        change.ownership.complete(kind, new);
    }
    restore_rest(kind, part, new, old);
    // A custom resource was completed as it was asked for: what is kept of the old one is kept as it is.
    if !as_given && !kind.is_custom() {
        lost |= change.ownership.complete(kind, new);
    }
    kind.behaviour.default_times(new, target.context.now);
    if apart.is_some() {
        // What defaulting made of the absent rest.
        drop(Apart::take(new));
    }
    match change.ownership {
        Ownership::Tracked if is_unclear => set_managers(new, Managers::default()),
        Ownership::Tracked if is_tracked => {}
        Ownership::Tracked => {
            let sent = if lost { (change.transform)(old).ok() } else { None };
            let sent = sent.map(|sent| kind.as_sent(new, sent, change.spared()));
            track_update(target, part, new, old, sent.as_ref());
        }
        Ownership::Given => {}
    }
    let gated = kind.rules.counts_gated.then(|| new.clone());
    kind.drop_gated(new);
    if gated.is_some_and(|gated| gated != *new) {
        raise_generation(new, old);
    }
    if let Some(apart) = apart {
        apart.clone().put_into(new);
        apart.put_into(old);
    }
    if as_given {
        // It is read again with the rest as it stands, by nobody's doing.
        kind.default(new);
    }
    prepare_part(target, part, new, old);
    restore_ending(new, old);
    lost
}

/// The part of an object that a request does not write stays as it is.
fn restore_rest(kind: &corten_api::Kind, part: Part, new: &mut Value, old: &Value) {
    let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object()) else { return };
    match part {
        Part::Main if kind.rules.has_status => restore(new, old, "status"),
        Part::Status => {
            if kind.is_custom() || kind.rules.status_keeps_metadata {
                restore_metadata(new, old, kind.rules.status_takes);
            }
            if kind.rules.status_keeps_labels
                && let (Some(new), Some(old)) = (new.get_mut("metadata"), old.get("metadata"))
                && let (Some(new), Some(old)) = (new.as_object_mut(), old.as_object())
            {
                restore(new, old, "labels");
            }
            let is_other = |field: &str| field != "status" && field != "metadata";
            new.retain(|field, _| !is_other(field) || old.contains_key(field));
            for field in old.keys().filter(|field| is_other(field)) {
                restore(new, old, field);
            }
        }
        _ => {}
    }
}

fn prepare_part(target: &Scope<'_>, part: Part, new: &mut Value, old: &Value) {
    let behaviour = &target.resource.kind.behaviour;
    match part {
        Part::Main => behaviour.prepare_update(new, old),
        Part::Status => behaviour.prepare_status_update(new, old, target.context.now),
        Part::Whole => {}
    }
}

/// When an object goes stays as it is, though who said otherwise may own it. Who says it of one that is to stay is
/// refused, as is who gives another grace period.
fn restore_ending(new: &mut Value, old: &Value) {
    let (Some(new), Some(old)) = (new.get_mut("metadata").and_then(Value::as_object_mut), old.get("metadata")) else {
        return;
    };
    for field in ENDING {
        if let Some(value) = old.get(field)
            && (field == "deletionTimestamp" || !new.contains_key(field))
        {
            new.insert(field.to_owned(), value.clone());
        }
    }
}

/// The status of a custom resource comes without its metadata, but for what says who wrote which version of it. Some
/// kinds take a little more.
fn restore_metadata(new: &mut serde_json::Map<String, Value>, old: &serde_json::Map<String, Value>, taken: &[&str]) {
    let given = new.get("metadata").cloned().unwrap_or_default();
    restore(new, old, "metadata");
    let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) else { return };
    for field in ["resourceVersion", "managedFields"].iter().chain(taken) {
        match given.get(*field) {
            Some(value) => metadata.insert((*field).to_owned(), value.clone()),
            None => metadata.remove(*field),
        };
    }
}

fn restore(new: &mut serde_json::Map<String, Value>, old: &serde_json::Map<String, Value>, field: &str) {
    match (old.get(field), new.get_mut(field)) {
        // To compare takes less than to copy, and most requests leave alone what they may not change.
        (Some(value), Some(here)) if here == value => {}
        (Some(value), Some(here)) => *here = value.clone(),
        (Some(value), None) => {
            new.insert(field.to_owned(), value.clone());
        }
        (None, _) => {
            new.remove(field);
        }
    }
}

/// The generation counts changes of what is wanted: anything but metadata and status. What is empty and what is absent
/// are the same, but to the few kinds that count it.
fn bump_generation(target: &Scope<'_>, new: &mut Value, as_given: Option<&Value>, old: &Value) {
    let rules = &target.resource.kind.rules;
    if !rules.generation {
        return;
    }
    // The status of a custom resource that has no such part is a field like any other.
    let counts_status = target.resource.kind.is_custom() && !rules.has_status;
    fn wanted(object: &Value, counts_status: bool) -> impl Iterator<Item = (&String, &Value)> {
        let fields = object.as_object().into_iter().flatten();
        fields.filter(move |(name, _)| match name.as_str() {
            "metadata" | "apiVersion" | "kind" => false,
            "status" => counts_status,
            _ => true,
        })
    }
    let is_other = |object: &Value| !wanted(object, counts_status).eq(wanted(old, counts_status));
    let is_changed = match rules.counts_empty {
        true => is_other(as_given.unwrap_or(new)),
        false => {
            let kind = &target.resource.kind;
            let exact = as_given.map_or(Cow::Borrowed(&*new), |given| kind.exact(new, given));
            // What is always written is stored as null where it is empty.
            is_other(&exact) && is_other(&kind.settled(&exact))
        }
    };
    if is_changed {
        raise_generation(new, old);
    }
}

fn raise_generation(new: &mut Value, old: &Value) {
    let generation = corten_meta::generation(old) + 1;
    corten_meta::set(new, "/metadata/generation", generation.into());
}

/// Whether an apply says what the schema does not know. It is another wanted state, though it is not kept.
fn says_unknown(kind: &corten_api::Kind, applied: &Value) -> bool {
    let mut kept = applied.clone();
    kind.behaviour.prune(&mut kept);
    let is_wanted = |name: &str| name != "metadata" && (name != "status" || !kind.rules.has_status);
    let fields = applied.as_object().into_iter().flatten();
    kind.rules.generation
        && fields.filter(|(name, _)| is_wanted(name)).any(|(name, value)| kept.get(name) != Some(value))
}

fn validate(target: &Scope<'_>, change: &Change<'_>, new: &Value, given: &Value, old: &Value) -> Vec<FieldError> {
    let kind = &target.resource.kind;
    match change.part {
        Part::Main => kind.validate_given_update(new, given, old),
        Part::Status => kind.validate_given_status_update(new, given, old),
        Part::Whole => {
            let role = kind.subresource(&target.context.info.subresource).map(|s| s.role);
            role.map(|role| kind.validate_part_update(role, given, old)).unwrap_or_default()
        }
    }
}

/// Whether the object is to go and nothing holds it after this change: its last finalizer, most often.
pub fn is_finished(target: &Scope<'_>, new: &Value, old: &Value) -> bool {
    let grace = old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    corten_meta::deletion_timestamp(new).is_some()
        && corten_meta::finalizers(new).is_empty()
        && spec_finalizers(target, new) == 0
        && grace == 0
}

/// Finalizers in the spec, for kinds that are finalized through a subresource.
pub fn spec_finalizers(target: &Scope<'_>, object: &Value) -> usize {
    if !is_finalized(target) {
        return 0;
    }
    object.pointer("/spec/finalizers").and_then(Value::as_array).map_or(0, Vec::len)
}

/// Whether the kind is finalized through a subresource.
pub fn is_finalized(target: &Scope<'_>) -> bool {
    target.resource.kind.subresources.iter().any(|s| s.role == corten_api::Role::Finalize)
}
