//! DELETE of one object or of a collection: grace periods, finalizers, propagation, preconditions.
//!
//! `plan` is pure: it decides the effect of a deletion on the present object. The rest carries it out, and begins again
//! if another writer changed the object first.

use std::borrow::Cow;
use std::sync::Arc;

use corten_admission::{Attributes, Operation};
use corten_meta::{FieldError, GroupResource, Object, Path, Status, Value};
use corten_store::Expect;
use futures::{StreamExt, TryStreamExt};
use http::StatusCode;
use serde_json::json;

use super::list;
use super::list::number;
use super::options::{dry_run_error, dry_run_words, refuse};
use crate::body::Reply;
use crate::registry::Written;
use crate::request::Query;
use crate::response;
use crate::write::Scope;
use crate::write::{ATTEMPTS, is_finalized, not_the_same, server_busy, spec_finalizers};

const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";
/// The number of objects of a collection that are deleted at the same time.
const CONCURRENCY: usize = 32;

/// The DeleteOptions of a request.
#[derive(Clone, Debug, Default)]
pub struct DeleteOptions {
    pub grace_period_seconds: Option<i64>,
    pub propagation: Option<String>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub dry_run: bool,
    /// Whether the client set the deprecated `orphanDependents: false`; the response is 202 then while the object
    /// remains.
    pub cascades: bool,
    /// Whether admission has passed already, for the operation that leads to this deletion.
    pub admitted: bool,
}

impl DeleteOptions {
    pub fn read(target: &Scope<'_>, bytes: &[u8]) -> Result<DeleteOptions, Status> {
        let body = crate::decode::options(target.context, bytes)?;
        DeleteOptions::from_value(target, &body)
    }

    /// Reads the options from the body of a request or, when there is none, from its query.
    pub fn from_value(target: &Scope<'_>, body: &Value) -> Result<DeleteOptions, Status> {
        let query = &target.context.info.query;
        let from_query = if body.is_null() { query_options(query)? } else { Value::Null };
        let options = if body.is_null() { &from_query } else { body };
        check(options)?;
        let text = |pointer: &str| options.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let orphan = options["orphanDependents"].as_bool();
        let from_orphan = orphan.map(|o| if o { "Orphan" } else { "Background" }.to_owned());
        Ok(DeleteOptions {
            grace_period_seconds: options["gracePeriodSeconds"].as_i64(),
            propagation: text("/propagationPolicy").or(from_orphan),
            uid: text("/preconditions/uid"),
            resource_version: text("/preconditions/resourceVersion"),
            dry_run: options["dryRun"].as_array().is_some_and(|d| d.iter().any(|v| v == "All")),
            cascades: orphan == Some(false),
            admitted: false,
        })
    }

    /// Returns the requested grace period; a negative one is the shortest there is.
    fn requested_grace(&self) -> Option<i64> {
        self.grace_period_seconds.map(|seconds| if seconds < 0 { 1 } else { seconds })
    }

    /// Returns the options as admission shows them.
    fn to_value(&self) -> Value {
        let mut value = json!({ "kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1" });
        if let Some(seconds) = self.grace_period_seconds {
            value["gracePeriodSeconds"] = seconds.into();
        }
        if let Some(policy) = &self.propagation {
            value["propagationPolicy"] = policy.as_str().into();
        }
        if let Some(uid) = &self.uid {
            value["preconditions"]["uid"] = uid.as_str().into();
        }
        if let Some(version) = &self.resource_version {
            value["preconditions"]["resourceVersion"] = version.as_str().into();
        }
        if self.dry_run {
            value["dryRun"] = json!(["All"]);
        }
        value
    }
}

fn query_options(query: &Query) -> Result<Value, Status> {
    let mut options = json!({ "dryRun": dry_run_words(query) });
    if let Some(seconds) = number(query, "gracePeriodSeconds")? {
        options["gracePeriodSeconds"] = seconds.into();
    }
    for precondition in ["uid", "resourceVersion"] {
        if let Some(text) = query.get(precondition) {
            options["preconditions"][precondition] = text.into();
        }
    }
    if let Some(policy) = query.raw("propagationPolicy") {
        options["propagationPolicy"] = policy.into();
    }
    if query.has("orphanDependents") {
        options["orphanDependents"] = query.flag("orphanDependents").into();
    }
    Ok(options)
}

fn check(options: &Value) -> Result<(), Status> {
    let path = Path::root("propagationPolicy");
    let policy = options["propagationPolicy"].as_str();
    let mut errors = Vec::new();
    if let (Some(policy), true) = (policy, options["orphanDependents"].is_boolean()) {
        let detail = "orphanDependents and deletionPropagation cannot be both set";
        errors.push(FieldError::invalid(&path, policy, detail));
    }
    if let Some(policy) = policy.filter(|p| !matches!(*p, "Orphan" | "Background" | "Foreground")) {
        errors.push(FieldError::not_supported(&path, policy, &["Foreground", "Background", "Orphan", "nil"]));
    }
    errors.extend(dry_run_error(options["dryRun"].as_array().map(Vec::as_slice).unwrap_or_default()));
    refuse("DeleteOptions", errors)
}

/// The effect of a deletion on an object.
#[derive(Debug, PartialEq)]
enum Plan {
    /// The object is marked as being deleted, and stays until a kubelet or a finalizer is done.
    Mark(Value),
    /// The object is removed at once.
    Erase { object: Value, shown: Shown },
}

/// The state of a removed object in the response.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Shown {
    /// The present object.
    Current,
    /// The object with its deletion timestamp.
    Marked,
    /// The present object after it is removed. A dry run, which does not get that far, shows an empty object.
    AfterUpdate,
}

/// The result of a deletion.
pub struct Deleted {
    pub object: Arc<Object>,
    /// Whether the object is removed, not only marked.
    pub gone: bool,
    /// Whether a dry run stopped before the step that reports the removal.
    pub is_cut_short: bool,
}

impl Deleted {
    fn marked(object: Arc<Object>) -> Deleted {
        Deleted { object, gone: false, is_cut_short: false }
    }
}

/// Returns the response: the object if finalizers or a grace period keep it, a Status if it is removed.
pub async fn delete(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let options = DeleteOptions::read(target, bytes)?;
    warn(target, &options);
    let deleted = delete_object(target, &options).await?;
    let context = target.context;
    if !deleted.gone || deleted.is_cut_short || target.resource.kind.rules.returns_deleted {
        let kind = &target.resource.kind;
        let code = if !deleted.gone && options.cascades { StatusCode::ACCEPTED } else { StatusCode::OK };
        let is_complete = deleted.gone && !deleted.is_cut_short;
        let object = if is_complete { target.shown(deleted.object) } else { deleted.object };
        return Ok(response::object(context.accept, context.include_object(), code, kind, &object));
    }
    let header = &deleted.object.header;
    let status = Status::deleted(&target.resource.group_resource(), &header.name, &header.uid);
    Ok(response::value(context.accept, StatusCode::OK, &status))
}

/// Warns that some kinds leave dependents behind.
fn warn(target: &Scope<'_>, options: &DeleteOptions) {
    let warning = target.resource.kind.rules.delete_warning.filter(|_| options.propagation.is_none());
    if let Some(warning) = warning {
        target.context.warn(warning);
    }
}

/// Deletes every object that the query selects, and returns the response with them as they were.
pub async fn delete_collection(target: &Scope<'_>, bytes: &bytes::Bytes) -> Result<Reply, Status> {
    let requested = list::ListOptions::read(target, target.context.info.query.flag("watch"))?;
    let options = DeleteOptions::read(target, bytes)?;
    warn(target, &options);
    let page = list::page(target, requested).await?;
    // A path with an empty namespace lists all namespaces, and deletes from none.
    if target.resource.kind.namespaced && target.namespace.is_empty() && !page.objects.is_empty() {
        return Err(Status::bad_request("Namespace parameter required."));
    }
    let one = |object: Arc<Object>| {
        let options = &options;
        async move {
            let header = &object.header;
            let one = target.at(target.resource, &header.namespace, &header.name);
            match delete_object(&one, options).await {
                Err(status) if !status.is_not_found() => Err(status),
                _ => Ok(()),
            }
        }
    };
    // Several at the same time, so that their writes share a commit of the store's log; one by one where one may be
    // refused, after which the others stay.
    let may_be_refused = options.uid.is_some()
        || options.resource_version.is_some()
        || target.resource.webhook.is_some()
        || corten_admission::has_webhooks_or_policies(&*target.core.registry);
    let at_a_time = if may_be_refused { 1 } else { CONCURRENCY };
    let all = futures::stream::iter(page.objects.iter().cloned().map(one)).buffered(at_a_time);
    all.try_collect::<Vec<()>>().await?;
    let context = target.context;
    Ok(response::list(context.accept, context.include_object(), &target.resource.kind, page.objects, &page.meta))
}

/// Plans and carries out one deletion.
pub async fn delete_object(target: &Scope<'_>, options: &DeleteOptions) -> Result<Deleted, Status> {
    let mut marked_last: Option<Arc<Object>> = None;
    for _ in 0..ATTEMPTS {
        let registry = &target.core.registry;
        let current = registry.read(target.resource, target.namespace, target.name).await?;
        let current = match (current, &marked_last) {
            // Another request removed the object that this one marked: the deletion is done, and an object of the same
            // name is new.
            (current, Some(marked)) if current.as_ref().is_none_or(|now| now.header.uid != marked.header.uid) => {
                return Ok(Deleted { object: Arc::clone(marked), gone: true, is_cut_short: false });
            }
            (Some(current), _) => current,
            (None, _) => return Err(target.not_found()),
        };
        let served = target.resource.serve(&current).await?;
        let old = served.value();
        check_preconditions(target, options, &old)?;
        if is_pending(target, options, &old) {
            return Ok(Deleted::marked(served));
        }
        let old = admitted(target, options, old).await?;
        match plan(target, options, old) {
            Plan::Mark(new) => {
                let marked = Object::from_value(&new, served.revision).map_err(|e| Status::internal(e.to_string()))?;
                if marked.bytes == served.bytes {
                    return Ok(Deleted::marked(served));
                }
                if options.dry_run {
                    return Ok(Deleted::marked(Arc::new(marked)));
                }
                let expect = Expect::ModRevision(current.revision);
                let written = registry.write_encoded(target.resource, new, marked, expect, Vec::new());
                if let Written::Done(object) = written.await? {
                    return Ok(Deleted::marked(object));
                }
            }
            Plan::Erase { object, shown } => {
                let answer = match shown {
                    Shown::Marked => Object::from_value(&object, served.revision),
                    Shown::AfterUpdate if options.dry_run => Object::from_value(&target.resource.kind.empty(), 0),
                    _ => Ok(Object::clone(&served)),
                };
                let answer = answer.map_err(|e| Status::internal(e.to_string()))?;
                if options.dry_run {
                    let is_cut_short = shown != Shown::Current;
                    return Ok(Deleted { object: Arc::new(answer), gone: true, is_cut_short });
                }
                target.resource.check_storable(&served).await?;
                // As upstream: the precondition is compared with the result of the update that removed the finalizers,
                // which has no resourceVersion.
                if shown == Shown::AfterUpdate && options.resource_version.is_some() {
                    let why = "Precondition failed: ResourceVersion in precondition: , ResourceVersion in object meta";
                    return Err(not_the_same(target, &format!("{why}: {}", current.revision))?);
                }
                let companions = target.admission.released(&target.for_admission(), &object).await?;
                let mut revision = current.revision;
                if shown == Shown::Marked {
                    // Watchers get first the event of the mark, and then that of the removal.
                    let expect = Expect::ModRevision(revision);
                    let marked = registry.write_encoded(target.resource, object, answer.clone(), expect, Vec::new());
                    let Written::Done(marked) = marked.await? else { continue };
                    revision = marked.revision;
                    marked_last = Some(marked);
                }
                let erased =
                    registry.erase(target.resource, target.namespace, target.name, revision, companions).await?;
                if let Some(revision) = erased {
                    let object = Arc::new(Object { revision, ..answer });
                    return Ok(Deleted { object, gone: true, is_cut_short: false });
                }
            }
        }
    }
    Err(server_busy(target))
}

/// Passes the deletion through admission, unless it is part of an operation that was admitted before. Returns the
/// object.
async fn admitted(target: &Scope<'_>, options: &DeleteOptions, old: Value) -> Result<Value, Status> {
    if options.admitted {
        return Ok(old);
    }
    let mut attributes = Attributes::new(target.for_admission(), Operation::Delete, Value::Null, Some(Cow::Owned(old)))
        .with_options(options.to_value(), options.dry_run);
    target.admission.admit(&mut attributes).await?;
    target.admission.validate(&attributes).await?;
    Ok(attributes.old.map(Cow::into_owned).unwrap_or_default())
}

/// Checks the preconditions of a deletion: the UID and the resourceVersion.
pub fn check_preconditions(target: &Scope<'_>, options: &DeleteOptions, old: &Value) -> Result<(), Status> {
    let uid = corten_meta::uid(old);
    let version = corten_meta::resource_version(old);
    if target.resource.kind.rules.is_marked_by_time {
        let preconditions = [("UID", &options.uid, uid), ("ResourceVersion", &options.resource_version, version)];
        for (what, wanted, actual) in preconditions {
            if let Some(wanted) = wanted.as_deref().filter(|wanted| *wanted != actual) {
                let why =
                    format!("Precondition failed: {what} in precondition: {wanted}, {what} in object meta: {actual}");
                return Err(Status::conflict(&target.resource.group_resource(), target.name, &why));
            }
        }
        return Ok(());
    }
    // Upstream names the kind here, where it names the resource elsewhere.
    let kind = target.resource.group_kind();
    let kind = GroupResource { group: kind.group, resource: kind.kind };
    let conflict = |message: String| Err(Status::conflict(&kind, target.name, &message));
    if let Some(wanted) = options.uid.as_deref().filter(|wanted| *wanted != uid) {
        return conflict(format!(
            "the UID in the precondition ({wanted}) does not match the UID in record ({uid}). The object might have been deleted and then recreated"
        ));
    }
    if let Some(wanted) = options.resource_version.as_deref().filter(|wanted| *wanted != version) {
        return conflict(format!(
            "the ResourceVersion in the precondition ({wanted}) does not match the ResourceVersion in record ({version}). The object might have been modified"
        ));
    }
    Ok(())
}

/// Returns whether the object is already being deleted and this request changes nothing about that: a grace period is
/// only ever shortened, and an object with finalizers in its spec waits for them.
fn is_pending(target: &Scope<'_>, options: &DeleteOptions, object: &Value) -> bool {
    if corten_meta::deletion_timestamp(object).is_none() {
        return false;
    }
    let left = grace_period(object);
    let is_waited_for = target.resource.kind.rules.graceful_delete && left > 0;
    let requested = options.requested_grace();
    spec_finalizers(target, object) > 0 || is_waited_for && requested.is_none_or(|requested| requested >= left)
}

/// Decides the effect of the deletion on an object that it changes.
fn plan(target: &Scope<'_>, options: &DeleteOptions, mut new: Value) -> Plan {
    let kind = &target.resource.kind;
    let now = target.context.now;
    if kind.rules.is_marked_by_time && corten_meta::deletion_timestamp(&new).is_none() {
        corten_meta::set(&mut new, "/metadata/deletionTimestamp", corten_meta::time::rfc3339(now).into());
        kind.behaviour.prepare_delete(&mut new, now);
        if is_finalized(target) {
            // The deprecated `orphanDependents: false` deletes the dependents first.
            let first = options.cascades.then(|| "Foreground".to_owned());
            let options = DeleteOptions { propagation: first.or(options.propagation.clone()), ..options.clone() };
            set_dependents_finalizers(target, &options, &mut new);
        }
        return Plan::Mark(new);
    }
    let waits = if kind.rules.graceful_delete { grace(options, now, &mut new) } else { None };
    let was_held = !corten_meta::finalizers(&new).is_empty();
    let is_changed = set_dependents_finalizers(target, options, &mut new);
    let is_held = !corten_meta::finalizers(&new).is_empty();
    match waits {
        Some(seconds) if is_held || seconds > 0 => Plan::Mark(new),
        Some(_) => Plan::Erase { object: new, shown: Shown::Marked },
        None if is_held => {
            mark(&mut new, now);
            Plan::Mark(new)
        }
        None if was_held || is_changed => Plan::Erase { object: new, shown: Shown::AfterUpdate },
        None => Plan::Erase { object: new, shown: Shown::Current },
    }
}

/// Marks an object that has no grace period, or none any more.
fn mark(object: &mut Value, now: jiff::Timestamp) {
    let ends = deletion_time(object);
    if ends.is_none() {
        raise_generation(object);
    }
    if ends.is_none_or(|ends| ends > now) {
        corten_meta::set(object, "/metadata/deletionTimestamp", corten_meta::time::rfc3339(now).into());
    }
    corten_meta::set(object, "/metadata/deletionGracePeriodSeconds", 0.into());
}

/// Raises the generation: a deletion is a change of the desired state.
fn raise_generation(object: &mut Value) {
    let generation = corten_meta::generation(object);
    if generation > 0 {
        corten_meta::set(object, "/metadata/generation", (generation + 1).into());
    }
}

/// Returns the deletion timestamp, if the object is being deleted.
fn deletion_time(object: &Value) -> Option<jiff::Timestamp> {
    corten_meta::deletion_timestamp(object).and_then(|t| corten_meta::time::parse(t).ok())
}

fn grace_period(object: &Value) -> i64 {
    let seconds = object.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    if seconds < 0 { 1 } else { seconds }
}

/// Writes the grace period of the deletion into the object and returns it; none when an earlier one is over.
fn grace(options: &DeleteOptions, now: jiff::Timestamp, object: &mut Value) -> Option<i64> {
    let requested = options.requested_grace();
    let (at, seconds) = match (deletion_time(object), grace_period(object)) {
        (Some(_), 0) => return None,
        (Some(ends), left) => {
            let requested = requested.unwrap_or(left);
            let shortened = after(ends, requested.saturating_sub(left));
            if shortened < now { (now, requested.min(1)) } else { (shortened, requested) }
        }
        (None, _) => {
            let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
            let default = object.pointer("/spec/terminationGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
            let never_ran = text("/spec/nodeName").is_empty();
            let ended = matches!(text("/status/phase"), "Succeeded" | "Failed");
            let seconds = match requested.unwrap_or(default) {
                _ if never_ran || ended => 0,
                wanted if wanted < 0 => 1,
                wanted => wanted,
            };
            raise_generation(object);
            (after(now, seconds), seconds)
        }
    };
    corten_meta::set(object, "/metadata/deletionTimestamp", corten_meta::time::rfc3339(at).into());
    corten_meta::set(object, "/metadata/deletionGracePeriodSeconds", seconds.into());
    Some(seconds)
}

/// Returns the time this many seconds later, at most the last time that can be represented.
fn after(time: jiff::Timestamp, seconds: i64) -> jiff::Timestamp {
    time.checked_add(jiff::SignedDuration::from_secs(seconds)).unwrap_or(jiff::Timestamp::MAX)
}

/// Sets the finalizers that tell the garbage collector what to do with dependents. Returns whether they changed.
fn set_dependents_finalizers(target: &Scope<'_>, options: &DeleteOptions, new: &mut Value) -> bool {
    let rules = &target.resource.kind.rules;
    let default = rules.orphan_by_default.then_some("Orphan");
    let before = corten_meta::finalizers(new);
    // An earlier request's policy stays, unless this request has another.
    let earlier = before.iter().find_map(|finalizer| match *finalizer {
        ORPHAN => Some("Orphan"),
        FOREGROUND => Some("Foreground"),
        _ => None,
    });
    let policy = options.propagation.as_deref().or(earlier).or(default);
    let added = match policy.filter(|_| !rules.is_without_dependents) {
        Some("Orphan") => Some(ORPHAN),
        Some("Foreground") => Some(FOREGROUND),
        _ => None,
    };
    let others = before.iter().copied().filter(|finalizer| ![ORPHAN, FOREGROUND].contains(finalizer));
    let finalizers: Vec<String> = others.chain(added).map(str::to_owned).collect();
    let is_known = |finalizer: &&str| finalizers.iter().any(|one| one == finalizer);
    if before.iter().all(is_known) && finalizers.iter().all(|finalizer| before.contains(&finalizer.as_str())) {
        return false;
    }
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut) {
        if finalizers.is_empty() {
            metadata.remove("finalizers");
        } else {
            metadata.insert("finalizers".to_owned(), json!(finalizers));
        }
    }
    true
}
