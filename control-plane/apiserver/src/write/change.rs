//! The write of an object that exists.
//!
//! A change is tried until no other writer wrote in between. A change whose author named a resourceVersion is not
//! repeated: it fails with a conflict.

use std::borrow::Cow;
use std::sync::Arc;

use corten_access::Verb;
use corten_admission::{Attributes, Operation};
use corten_api::Kind;
use corten_managed_fields::{Managers, keep_times, managers_of, same_but_managers, set_managers};
use corten_meta::{Object, Status, Value};
use corten_store::{Expect, Op};

use super::commit::{dry_answer, settle};
use super::create::{Make, create_object};
use super::field_ownership::{Ownership, mismatches_type, track_update};
use super::normalise::{keep_deletion, keep_server_metadata, restore_rest};
use super::part::Part;
use super::precondition::{self, not_the_same, server_busy};
use super::scope::Scope;
use super::untouched::Untouched;
use super::validate::{errors_of_change, refuse_invalid, warn_of_change};
use super::{generation, location, owner_references};
use crate::registry::Written;

/// The limit of tries of a change against other writers. In each failed try another writer succeeded, so the limit only
/// stops an endless loop.
pub const ATTEMPTS: usize = 10_000;

/// A change: from the present object to the wanted object.
pub type Transform<'a> = dyn Fn(&Value) -> Result<Value, Status> + Send + Sync + 'a;

/// Takes the fields that a request may change from the wanted object, and the rest from the present object.
pub type Narrow<'a> = dyn Fn(Value, &Value) -> Result<Value, Status> + Send + Sync + 'a;

/// The result of a change.
pub enum Updated {
    Changed(Arc<Object>),
    Created(Arc<Object>),
    /// The change removed the last finalizer, so the object is deleted; this is its last state.
    Deleted(Arc<Object>),
}

impl Updated {
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Updated::Changed(object) | Updated::Created(object) | Updated::Deleted(object) => object,
        }
    }
}

/// Another form of an object that admission sees, such as the scale of a Deployment.
pub trait View: Sync {
    fn show(&self, object: &Value) -> Value;
    /// Returns the object with admission's changes of the other form.
    fn take(&self, object: Value, shown: &Value) -> Result<Value, Status>;
}

/// A change and its options.
pub struct Change<'a> {
    part: Part,
    view: Option<&'a dyn View>,
    ownership: Ownership,
    create: Create<'a>,
    /// Whether the change reads and writes nothing but metadata and status.
    spares_rest: bool,
    transform: &'a Transform<'a>,
    narrow: Option<&'a Narrow<'a>>,
}

/// The creation when there is no object to change.
enum Create<'a> {
    No,
    /// Creates this object, if the kind allows it.
    Update(&'a Value),
    /// Creates the object that an apply makes of nothing.
    Apply(&'a Make<'a>),
}

/// The wanted object and the present one, before admission.
struct Prepared {
    new: Value,
    old: Value,
    /// Whether defaulting removed an empty list or map.
    has_lost_empty: bool,
}

impl<'a> Change<'a> {
    /// Makes a change of a part; the writer owns the fields that it writes.
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

    /// Lets the writer own all fields that it sent, and then restores those that it may not change.
    #[must_use]
    pub fn narrowed(self, narrow: Option<&'a Narrow<'a>>) -> Change<'a> {
        Change { narrow, ..self }
    }

    /// Sets whether the change of a status reads and writes nothing but metadata and status.
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

    /// Tries the change until no other writer wrote in between.
    pub async fn carry_out(&self, scope: &Scope<'_>) -> Result<Updated, Status> {
        for _ in 0..ATTEMPTS {
            let current = scope.core.registry.read(scope.resource, scope.namespace, scope.name).await?;
            let updated = match &current {
                Some(current) => self.attempt(scope, current).await?,
                None => self.create_instead(scope).await?,
            };
            if let Some(updated) = updated {
                return Ok(updated);
            }
        }
        Err(server_busy(scope))
    }

    async fn create_instead(&self, scope: &Scope<'_>) -> Result<Option<Updated>, Status> {
        let created = match self.create {
            Create::Update(object) if scope.resource.kind.rules.allow_create_on_update => {
                let uid = corten_meta::uid(object);
                if !uid.is_empty() {
                    let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: ");
                    return Err(not_the_same(scope, &why)?);
                }
                create_object(scope, &|| Ok(object.clone()), Ownership::Tracked).await
            }
            Create::Apply(make) => {
                check_may_create(scope).await?;
                create_object(scope, make, Ownership::Given).await
            }
            _ => return Err(scope.not_found()),
        };
        match created {
            Ok(object) => Ok(Some(Updated::Created(object))),
            // Another writer created it first, so there is an object to change now.
            Err(status) if status.is_already_exists() => Ok(None),
            Err(status) => Err(status),
        }
    }

    /// Tries the change once: normalise → default → own fields → admit → validate → encode → commit. `None` means that
    /// another writer wrote first.
    async fn attempt(&self, scope: &Scope<'_>, current: &Arc<Object>) -> Result<Option<Updated>, Status> {
        let served = scope.resource.serve(current).await?;
        let mut prepared = scope.context.conversions.complete(|| self.prepare(scope, &served)).await?;
        self.narrow(&mut prepared.new, &prepared.old)?;
        let Prepared { new, mut old, has_lost_empty } = prepared;
        let (mut new, companions) = match self.view {
            Some(view) => (self.admit_as(scope, view, new, &old).await?, Vec::new()),
            None => self.admit(scope, new, &old, has_lost_empty).await?,
        };
        settle(scope.resource, &mut new);
        // An update of the object takes fields that readers are not shown for changes.
        if self.part == Part::Main
            && let Some(shown) = scope.resource.kind.behaviour.shown(&served.bytes)
        {
            old = shown;
        }
        keep_times(&mut new, &old);
        if scope.context.dry_run() {
            let read = scope.resource.as_read_again(new).await?;
            let answer = dry_answer(scope, &read, &served.revision.to_string())?;
            return Ok(Some(Updated::Changed(Arc::new(answer))));
        }
        let object = self.ownership.encode(&mut new, served.revision)?;
        // Also an object that is not changed is deleted if nothing holds it any more.
        if is_finished(scope, &new, &old) {
            return self.erase(scope, current, object, &new, companions).await;
        }
        drop(old);
        self.commit(scope, current, served, Changed { new, object, companions }).await
    }

    /// Makes the wanted object: the fields that the request may not write restored, with its defaults and its owners.
    fn prepare(&self, scope: &Scope<'_>, served: &Object) -> Result<Prepared, Status> {
        let mut old = served.value();
        let (mut new, untouched) = self.transformed(&scope.resource.kind, &mut old)?;
        precondition::check(scope, &new, &old, self.may_change_uid(scope))?;
        location::check_namespace(scope, &mut new)?;
        let has_lost_empty = self.normalise_default_and_own(scope, &mut new, &mut old, untouched);
        Ok(Prepared { new, old, has_lost_empty })
    }

    /// Returns the wanted object, and the fields of the present one that a write of its status leaves alone.
    fn transformed(&self, kind: &Kind, old: &mut Value) -> Result<(Value, Option<Untouched>), Status> {
        let rules = &kind.rules;
        let can_set_aside = self.spares_rest && self.part == Part::Status;
        if !can_set_aside || rules.is_defaulted_as_sent || rules.status_needs_spec {
            return Ok(((self.transform)(old)?, None));
        }
        let untouched = Untouched::take(old);
        let labels = |new: &Value| new.pointer("/metadata/labels")?.as_object().map(serde_json::Map::len);
        let is_labelled = |new: &Value| labels(new).is_some_and(|labels| labels > 0);
        match (self.transform)(old) {
            Ok(new) if !rules.labels_from_template || is_labelled(&new) => Ok((new, Some(untouched))),
            // An error may show the whole object, and labels may have to be taken from it.
            _ => {
                untouched.put_into(old);
                Ok(((self.transform)(old)?, None))
            }
        }
    }

    /// Takes the first three steps, in the order of the kind: most kinds restore the fields that the request may not
    /// write, and then default and own the result; a kind that is owned as sent defaults and owns the object before the
    /// rest is restored. Returns whether an empty list or map vanished.
    fn normalise_default_and_own(
        &self,
        scope: &Scope<'_>,
        new: &mut Value,
        old: &mut Value,
        untouched: Option<Untouched>,
    ) -> bool {
        let kind = &scope.resource.kind;
        let rules = &kind.rules;
        keep_server_metadata(new, old, self.may_change_uid(scope));
        // The labels or the status of a kind may be defaulted from the rest of the object in a write of its status.
        let defaults_first =
            self.part == Part::Status && untouched.is_none() && (rules.status_needs_spec || rules.labels_from_template);
        let mut has_lost_empty = defaults_first && kind.default(new);
        let mismatches_type = mismatches_type(kind, self.part, new, old);
        let owns_first = rules.is_owned_as_sent && self.ownership == Ownership::Tracked;
        if owns_first {
            has_lost_empty |= kind.default(new);
            track_update(scope, self.part, new, old, None);
            self.prepare_part(scope, new, old);
        } else if rules.is_defaulted_as_sent && self.view.is_none() && !same_but_managers(new, old) {
            if self.part == Part::Main && generation::has_unknown_fields(kind, new) {
                generation::raise(new, old);
            }
            self.ownership.default(kind, new);
        }
        restore_rest(kind, self.part, new, old);
        // A kind that is defaulted as sent has its defaults by now; the fields that were restored stay as they are.
        if !defaults_first && !rules.is_defaulted_as_sent {
            has_lost_empty |= self.ownership.default(kind, new);
        }
        kind.behaviour.default_times(new, scope.context.now);
        if untouched.is_some() {
            // Defaulting has made an empty rest of the fields that were set aside.
            drop(Untouched::take(new));
        }
        match self.ownership {
            Ownership::Tracked if mismatches_type => set_managers(new, Managers::default()),
            Ownership::Tracked if owns_first => {}
            Ownership::Tracked => {
                let sent = if has_lost_empty { (self.transform)(old).ok() } else { None };
                let sent = sent.map(|sent| kind.as_sent(new, sent, self.spared()));
                track_update(scope, self.part, new, old, sent.as_ref());
            }
            Ownership::Given => {}
        }
        drop_gated(kind, new, old);
        if let Some(untouched) = untouched {
            untouched.clone().put_into(new);
            untouched.put_into(old);
        }
        if defaults_first {
            // The restored rest defaults the object once more; the writer owns nothing of it.
            kind.default(new);
        }
        self.prepare_part(scope, new, old);
        keep_deletion(new, old);
        has_lost_empty
    }

    fn prepare_part(&self, scope: &Scope<'_>, new: &mut Value, old: &Value) {
        let behaviour = &scope.resource.kind.behaviour;
        match self.part {
            Part::Main => behaviour.prepare_update(new, old),
            Part::Status => behaviour.prepare_status_update(new, old, scope.context.now),
            Part::Transformed => {}
        }
    }

    /// Restores the fields of the wanted object that the request may not change; its managers stay.
    fn narrow(&self, new: &mut Value, old: &Value) -> Result<(), Status> {
        if let Some(narrow) = self.narrow {
            let managers = managers_of(new);
            *new = narrow(std::mem::take(new), old)?;
            set_managers(new, managers);
        }
        Ok(())
    }

    /// Passes the wanted object through admission and validation. Returns it with its companions.
    async fn admit(
        &self,
        scope: &Scope<'_>,
        new: Value,
        old: &Value,
        has_lost_empty: bool,
    ) -> Result<(Value, Vec<Op>), Status> {
        let kind = &scope.resource.kind;
        let mut attributes = Attributes::new(scope.for_admission(), Operation::Update, new, Some(Cow::Borrowed(old)));
        scope.admission.admit(&mut attributes).await?;
        if attributes.object.is_touched() {
            // A webhook may have written anything; it does not decide which object this is.
            location::check_name(scope, &attributes.object)?;
            location::check_namespace(scope, &mut attributes.object)?;
            // Admission writes only the part that this request may change.
            self.narrow(&mut attributes.object, old)?;
        }
        owner_references::drop_repeated_by_admission(scope, &mut attributes.object);
        // A status that is written has its defaults since the write was prepared.
        self.ownership.default_after_admission(kind, &mut attributes.object, self.part != Part::Status);
        if attributes.object.is_touched() && kind.rules.is_defaulted_as_sent {
            restore_rest(kind, self.part, &mut attributes.object, old);
        }
        if has_lost_empty {
            let sent = kind.for_validation(&attributes.object, (self.transform)(old)?, self.spared(), Some(old));
            attributes.sent = Some(sent);
        }
        // The desired state is the old one, unless the request or admission could write it.
        if self.part != Part::Status || attributes.object.is_touched() {
            generation::bump(kind, &mut attributes.object, attributes.sent.as_ref(), old);
        }
        self.validate(scope, &mut attributes, old).await?;
        Ok(attributes.into_parts())
    }

    async fn validate(&self, scope: &Scope<'_>, attributes: &mut Attributes<'_>, old: &Value) -> Result<(), Status> {
        let errors = errors_of_change(scope, self.part, &attributes.object, attributes.as_sent(), old);
        let ratcheted = scope.resource.kind.behaviour.ratcheted(&attributes.object, old, &errors);
        ratcheted.into_iter().for_each(|warning| scope.context.warn(warning));
        refuse_invalid(scope, &attributes.object, errors, scope.admission.errors(attributes))?;
        warn_of_change(scope, self.part, &attributes.object, old);
        scope.admission.validate(attributes).await?;
        scope.admission.charge(attributes).await
    }

    /// Passes the change through admission in another form than the object's, and validates the object.
    async fn admit_as(&self, scope: &Scope<'_>, view: &dyn View, new: Value, old: &Value) -> Result<Value, Status> {
        let kind = &scope.resource.kind;
        let shown = view.show(&new);
        let old_shown = Some(Cow::Owned(view.show(old)));
        let mut attributes = Attributes::new(scope.for_admission(), Operation::Update, shown.clone(), old_shown);
        scope.admission.admit(&mut attributes).await?;
        let mut new = if *attributes.object == shown { new } else { view.take(new, &attributes.object)? };
        // Also fields that the schema of a custom resource does not know are another desired state.
        generation::bump(kind, &mut new, None, old);
        match kind.rules.is_defaulted_as_sent {
            true => kind.behaviour.prune(&mut new),
            false => drop(kind.default(&mut new)),
        }
        refuse_invalid(scope, &new, errors_of_change(scope, self.part, &new, &new, old), Vec::new())?;
        warn_of_change(scope, self.part, &new, old);
        scope.admission.validate(&attributes).await?;
        Ok(new)
    }

    /// Deletes an object that nothing holds any more.
    async fn erase(
        &self,
        scope: &Scope<'_>,
        current: &Object,
        object: Object,
        new: &Value,
        mut companions: Vec<Op>,
    ) -> Result<Option<Updated>, Status> {
        let released = scope.admission.released(&scope.for_admission(), new).await?;
        // A release that the update planned is part of that of the whole object.
        companions.retain(|op| released.iter().all(|other| other.key() != op.key()));
        companions.extend(released);
        let registry = &scope.core.registry;
        let erased = registry.erase(scope.resource, scope.namespace, scope.name, current.revision, companions).await?;
        Ok(erased.map(|_| Updated::Deleted(Arc::new(object))))
    }

    /// Writes the object, unless it would be stored as it is.
    async fn commit(
        &self,
        scope: &Scope<'_>,
        current: &Arc<Object>,
        served: Arc<Object>,
        changed: Changed,
    ) -> Result<Option<Updated>, Status> {
        let Changed { new, object, companions } = changed;
        let registry = &scope.core.registry;
        let resource = scope.resource;
        let stored = match resource.is_built_in_spoke() {
            true => Some(resource.stored_keeping(new.clone(), current, self.other_part(&resource.kind)).await?),
            false => None,
        };
        let is_same = match &stored {
            Some(stored) => stored.bytes == current.bytes,
            None => object.bytes == served.bytes,
        };
        if is_same
            && resource.stays_as_stored(&new, current).await?
            && !registry.is_sealed_otherwise(resource, current).await?
            && !(resource.kind.behaviour.is_completed_when_read(&new) && registry.is_first(resource, current).await?)
        {
            return Ok(Some(Updated::Changed(served)));
        }
        let expect = Expect::ModRevision(current.revision);
        let written = match stored {
            Some(stored) => registry.write_object(resource, stored, expect, companions).await?,
            None => registry.write_encoded(resource, new, object, expect, companions).await?,
        };
        match written {
            Written::Done(object) => Ok(Some(Updated::Changed(object))),
            Written::Conflict | Written::CompanionConflict => Ok(None),
        }
    }

    /// Returns whether the uid is no precondition: a patch, unlike an update, would change it, which validation
    /// refuses.
    fn may_change_uid(&self, scope: &Scope<'_>) -> bool {
        self.view.is_none() && scope.context.info.verb == Verb::Patch
    }

    /// Returns the fields whose empty lists and maps are not recalled: the request does not write them.
    fn spared(&self) -> &'static [&'static str] {
        match self.part {
            Part::Main => &["metadata", "status"],
            Part::Status => &["metadata", "spec"],
            Part::Transformed => &["metadata"],
        }
    }

    /// Returns the part that the request leaves as it is.
    fn other_part(&self, kind: &Kind) -> Option<&'static str> {
        match self.part {
            Part::Main if kind.rules.has_status => Some("status"),
            Part::Status => Some("spec"),
            _ => None,
        }
    }
}

/// An object as a change makes it, with its companions.
struct Changed {
    new: Value,
    object: Object,
    companions: Vec<Op>,
}

/// Removes the fields whose features are off; kinds that count them get another generation.
fn drop_gated(kind: &Kind, new: &mut Value, old: &Value) {
    let gated = kind.rules.counts_gated.then(|| new.clone());
    kind.drop_gated(new, Some(old));
    if gated.is_some_and(|gated| gated != *new) {
        generation::raise(new, old);
    }
}

/// Refuses an apply that creates without the right to create.
async fn check_may_create(scope: &Scope<'_>) -> Result<(), Status> {
    let context = scope.context;
    let attributes = corten_access::Attributes { verb: "create", ..context.info.attributes(&context.user) };
    scope.core.authorization.check(&attributes).await
}

/// Returns whether the object is being deleted and nothing holds it after this change: its last finalizer is gone.
fn is_finished(scope: &Scope<'_>, new: &Value, old: &Value) -> bool {
    let grace = old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    corten_meta::deletion_timestamp(new).is_some()
        && corten_meta::finalizers(new).is_empty()
        && spec_finalizers(scope, new) == 0
        && grace == 0
}

/// Returns the number of finalizers in the spec, for kinds that are finalized through a subresource.
pub fn spec_finalizers(scope: &Scope<'_>, object: &Value) -> usize {
    if !is_finalized(scope) {
        return 0;
    }
    object.pointer("/spec/finalizers").and_then(Value::as_array).map_or(0, Vec::len)
}

/// Returns whether the kind is finalized through a subresource.
pub fn is_finalized(scope: &Scope<'_>) -> bool {
    scope.resource.kind.subresources.iter().any(|s| s.role == corten_api::Role::Finalize)
}
