//! The rules of ownership: which managers gain and lose paths when an object is updated or applied.
//!
//! An update takes the paths that it writes from all other managers. An apply must not write paths of other managers,
//! unless forced; it owns exactly the paths of its configuration. Paths that it owned before and no longer applies are
//! removed unless another manager owns them too.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::LazyLock;

use corten_meta::{Status, Value};

use super::compare::{Comparison, compare, same};
use super::conflict::Conflict;
use super::extract::{Misfit, check, error_message, extract, mismatches_type};
use super::managers::{Entry, Fields, Identity, Managers, Operation};
use super::merge::merge;
use super::reconcile::reconcile;
use super::remove::{remove, with_named_fields};
use super::set::{Filter, Set};
use super::types::Type;

/// The most entries of updates; the oldest are joined beyond it.
const MAX_UPDATERS: usize = 10;
/// The manager of joined entries.
const ANCIENT_CHANGES: &str = "ancient-changes";
/// The manager of the fields before the first apply of an object without managers.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The versions of a resource. Every manager owns paths of the version of its request.
pub trait Versions {
    /// Returns the type in a version; `None` when there is no such version.
    fn type_of(&self, api_version: &str) -> Option<Type<'_>>;
    /// Converts an object to another version, by way of the request's; `None` when there is no such version.
    fn convert(&self, object: &Value, from: &str, to: &str) -> Result<Option<Value>, Status>;
    /// Returns the paths of a version that the request can own.
    fn filter(&self, api_version: &str) -> &Filter;
}

/// Returns an object in a version, with its type; `None` when there is no such version. A converted object must be of
/// its new type: unknown fields are an error, and so are duplicate items.
fn typed<'o, 'v>(
    versions: &'v dyn Versions,
    object: &'o Value,
    from: &str,
    to: &str,
) -> Result<Option<(Cow<'o, Value>, Type<'v>)>, Status> {
    if from == to {
        return Ok(versions.type_of(to).map(|of| (Cow::Borrowed(object), of)));
    }
    let Some(converted) = versions.convert(object, from, to)? else { return Ok(None) };
    let Some(of) = versions.type_of(to) else { return Ok(None) };
    let mut errors = check(of, &converted);
    errors.retain(|error| of.is_custom() || matches!(error.kind, Misfit::Unkeyed | Misfit::Duplicate));
    match error_message(&errors) {
        Some(why) => Err(Status { code: 500, message: why, ..Status::default() }),
        None => Ok(Some((Cow::Owned(converted), of))),
    }
}

/// Returns an error with the step that failed.
fn while_doing(what: &str, error: &Status) -> Status {
    Status { code: 500, message: format!("{what}: {}", error.message), ..Status::default() }
}

/// The comparisons of one change, one for each version of a manager.
struct Change<'a> {
    versions: &'a dyn Versions,
    old: &'a Value,
    new: &'a Value,
    own: &'a str,
    known: BTreeMap<String, Option<Comparison>>,
}

impl<'a> Change<'a> {
    /// Makes a change of an object, which is in this version.
    fn new(versions: &'a dyn Versions, old: &'a Value, new: &'a Value, own: &'a str) -> Change<'a> {
        Change { versions, old, new, own, known: BTreeMap::new() }
    }

    /// Returns the comparison in a version; `None` when the version no longer exists.
    fn in_version(&mut self, version: &str) -> Result<Option<&Comparison>, Status> {
        if !self.known.contains_key(version) {
            let convert = |object, which: &str| {
                let converted = typed(self.versions, object, self.own, version);
                converted.map_err(|e| while_doing(&format!("failed to convert {which} object"), &e))
            };
            let comparison = match (convert(self.old, "old")?, convert(self.new, "new")?) {
                (Some((old, of)), Some((new, _))) => {
                    Some(compare(of, &old, &new).filtered(self.versions.filter(version)))
                }
                _ => None,
            };
            self.known.insert(version.to_owned(), comparison);
        }
        Ok(self.known.get(version).and_then(Option::as_ref))
    }

    /// Returns the written paths, in a version that was compared.
    fn written(mut self, version: &str) -> Set {
        self.known.remove(version).flatten().map(|comparison| comparison.written).unwrap_or_default()
    }
}

/// Returns the managers after an update of `live` to `new` by a manager, at a time. An object with items that cannot be
/// distinguished has no owners, nor has a custom resource whose schema accepts values that its type does not, in any
/// version of a manager.
pub fn update(
    versions: &dyn Versions,
    live: &Value,
    new: &Value,
    managers: Managers,
    by: &Identity,
    time: &str,
) -> Managers {
    updated(versions, live, new, managers, by, time).unwrap_or_default()
}

fn updated(
    versions: &dyn Versions,
    live: &Value,
    new: &Value,
    managers: Managers,
    by: &Identity,
    time: &str,
) -> Result<Managers, Status> {
    let mut managers = reconciled(versions, live, managers, by)?;
    let mut change = Change::new(versions, live, new, &by.api_version);
    let own = change.in_version(&by.api_version)?;
    let is_foreign = |of: Type<'_>| mismatches_type(of, new) || mismatches_type(of, live);
    if own.is_some_and(|own| own.mismatches_type)
        || versions.type_of(&by.api_version).filter(Type::is_custom).is_some_and(is_foreign)
    {
        return Ok(Managers::default());
    }
    // The writer keeps the paths that it writes again: it only loses the removed ones.
    let previous = managers.take(by).map(|mut entry| {
        if let Some(own) = own {
            entry.fields.subtract(&own.removed);
            entry.fields.subtract(&UNOWNED.intersection(&own.written));
        }
        entry
    });
    take_from_others(&mut change, &mut managers, None)?;
    let written = without_unowned(change.written(&by.api_version));
    if written.is_empty() {
        managers.entries.extend(previous.filter(|entry| !entry.fields.is_empty()));
    } else {
        let mut entry = match previous {
            Some(mut entry) => {
                entry.fields.extend(&written);
                entry
            }
            None => Entry { fields: Fields::Decoded(written), ..empty_entry(by) },
        };
        entry.time = Some(time.to_owned());
        managers.entries.push(entry);
    }
    Ok(cap_updaters(managers))
}

/// Returns the managers as the present types have them: those of a version that no longer exists are dropped, and a
/// manager of paths below a value that has become atomic owns the value. A built-in type never changes, so its managers
/// are only reconciled if a client wrote them.
fn reconciled(
    versions: &dyn Versions,
    live: &Value,
    mut managers: Managers,
    by: &Identity,
) -> Result<Managers, Status> {
    let mut kept = Vec::with_capacity(managers.entries.len());
    for mut entry in managers.entries {
        let Some((_, of)) = typed(versions, live, &by.api_version, &entry.identity.api_version)? else { continue };
        if of.is_custom() || matches!(entry.fields, Fields::Decoded(_)) {
            let set = reconcile(of, &entry.fields.set());
            entry.fields = set.map_or(entry.fields, Fields::Decoded);
        }
        kept.push(entry);
    }
    managers.entries = kept;
    Ok(managers)
}

fn empty_entry(identity: &Identity) -> Entry {
    Entry { identity: identity.clone(), time: None, fields: Fields::Decoded(Set::default()) }
}

/// Takes the changed paths from all managers but one. Managers without paths, or of a version that no longer exists,
/// are dropped.
fn take_from_others(change: &mut Change<'_>, managers: &mut Managers, except: Option<&Identity>) -> Result<(), Status> {
    let mut kept = Vec::with_capacity(managers.entries.len());
    for mut entry in std::mem::take(&mut managers.entries) {
        if !except.is_some_and(|except| entry.identity.is(except)) {
            let Some(comparison) = change.in_version(&entry.identity.api_version)? else { continue };
            for lost in [&comparison.written, &comparison.removed] {
                entry.fields.subtract(lost);
            }
            if entry.fields.is_empty() {
                continue;
            }
        }
        kept.push(entry);
    }
    managers.entries = kept;
    Ok(())
}

/// The reason why an apply is refused.
#[derive(Debug)]
pub enum Refusal {
    Conflicts(Vec<Conflict>),
    /// The object could not be converted to the version of a manager.
    Failed(Status),
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Refusal {
        Refusal::Failed(status)
    }
}

/// The result of an apply.
pub struct Applied {
    /// The resulting object; `None` when the apply changes nothing but ownership.
    pub object: Option<Value>,
    pub managers: Managers,
}

/// A configuration that a manager applies.
pub struct Application<'a> {
    pub config: &'a Value,
    pub live: &'a Value,
    /// The value that a live object without managers is compared with.
    pub first: &'a Value,
    pub by: &'a Identity,
    pub time: &'a str,
    /// Whether the apply takes over the paths of other managers.
    pub force: bool,
}

/// Applies a configuration to the live object.
pub fn apply(versions: &dyn Versions, managers: &Managers, application: &Application<'_>) -> Result<Applied, Refusal> {
    let Application { config, live, first, by, time, force } = *application;
    let mut managers = managers.clone();
    if managers.is_empty() {
        let before = Identity { manager: BEFORE_FIRST_APPLY.to_owned(), operation: Operation::Update, ..by.clone() };
        managers = update(versions, first, live, managers, &before, time);
    }
    let Some(of) = versions.type_of(&by.api_version) else {
        return Ok(Applied { object: None, managers });
    };
    let time_before = managers.entries.iter().find(|entry| entry.identity.is(by)).and_then(|last| last.time.clone());
    let mut managers = reconciled(versions, live, managers, by)?;
    let merged = merge(of, live, config);
    let last = managers.take(by);
    let fields = versions.filter(&by.api_version).apply(extract(of, config));
    let mut entry = Entry { fields: Fields::Decoded(fields.clone()), ..empty_entry(by) };
    entry.time = time_before;
    managers.entries.push(entry);
    // The name has no owner in the end, but the configuration's fields must not be pruned.
    let merged =
        prune(versions, merged, &managers, by, last.as_ref()).map_err(|e| while_doing("failed to prune fields", &e))?;
    if let Some(entry) = managers.entries.iter_mut().find(|entry| entry.identity.is(by)) {
        entry.fields = Fields::Decoded(without_unowned(fields));
    }

    let mut change = Change::new(versions, live, &merged, &by.api_version);
    if !force {
        let conflicts = conflicts(&mut change, &managers, by)?;
        if !conflicts.is_empty() {
            return Err(Refusal::Conflicts(conflicts));
        }
    }
    take_from_others(&mut change, &mut managers, Some(by))?;
    managers.entries.retain(|entry| !entry.fields.is_empty());
    if same(live, &merged) {
        return Ok(Applied { object: None, managers });
    }
    if let Some(entry) = managers.entries.iter_mut().find(|entry| entry.identity.is(by)) {
        entry.time = Some(time.to_owned());
    }
    Ok(Applied { object: Some(merged), managers })
}

/// Returns the changed paths that other managers own.
fn conflicts(change: &mut Change<'_>, managers: &Managers, by: &Identity) -> Result<Vec<Conflict>, Status> {
    let mut conflicts = Vec::new();
    let mut others: Vec<&Entry> = managers.entries.iter().filter(|entry| !entry.identity.is(by)).collect();
    others.sort_by_cached_key(|entry| entry.key());
    for entry in others {
        let identity = &entry.identity;
        let Some(comparison) = change.in_version(&identity.api_version)? else { continue };
        let contested = entry.fields.set().intersection(&comparison.written);
        conflicts.extend(contested.paths().into_iter().map(|path| Conflict { with: identity.clone(), path }));
    }
    Ok(conflicts)
}

/// Removes the paths from the merged object that the manager applied last time, no longer applies, and no other manager
/// owns.
fn prune(
    versions: &dyn Versions,
    merged: Value,
    managers: &Managers,
    by: &Identity,
    last: Option<&Entry>,
) -> Result<Value, Status> {
    let Some(last) = last.filter(|last| !last.fields.is_empty()) else { return Ok(merged) };
    let version = &last.identity.api_version;
    let to_last = "failed to convert merged object to last applied version";
    let Some((at_last, of)) =
        typed(versions, &merged, &by.api_version, version).map_err(|e| while_doing(to_last, &e))?
    else {
        return Ok(merged);
    };
    let removed = with_named_fields(of, &last.fields.set());
    let pruned = remove(of, &at_last, &removed).unwrap_or_default();
    let pruned = add_back_owned(versions, &at_last, pruned, managers, version)
        .map_err(|e| while_doing("failed add back owned items", &e))?;

    // Only paths of the manager's last apply may be removed.
    let before = with_named_fields(of, &extract(of, &at_last));
    let after = with_named_fields(of, &extract(of, &pruned));
    let gone = before.difference(&after).intersection(&removed);
    let pruned = remove(of, &at_last, &gone).unwrap_or_default();
    let own = typed(versions, &pruned, version, &by.api_version)?.map(|(own, _)| own.into_owned());
    Ok(own.unwrap_or(pruned))
}

/// Restores the paths that any manager owns, in each version of a manager; `version`, the one of the two objects,
/// first.
fn add_back_owned(
    versions: &dyn Versions,
    merged: &Value,
    pruned: Value,
    managers: &Managers,
    version: &str,
) -> Result<Value, Status> {
    let mut owned: BTreeMap<&str, Set> = BTreeMap::new();
    for entry in &managers.entries {
        owned.entry(&entry.identity.api_version).or_default().extend(&entry.fields.set());
    }
    let mut pruned = pruned;
    if let Some(owned) = owned.remove(version)
        && let Some(of) = versions.type_of(version)
    {
        pruned = keep_owned(of, merged, &pruned, &owned);
    }
    for (other, owned) in owned {
        let convert = |object, which: &str| {
            let at = format!("failed to convert {which} object at version {other}");
            typed(versions, object, version, other).map_err(|e| while_doing(&at, &e))
        };
        let (Some((merged, of)), Some((there, _))) = (convert(merged, "merged")?, convert(&pruned, "pruned")?) else {
            continue;
        };
        let kept = keep_owned(of, &merged, &there, &owned);
        pruned = typed(versions, &kept, other, version)?.map_or(kept.clone(), |(back, _)| back.into_owned());
    }
    Ok(pruned)
}

/// Returns the merged object without the paths that are neither in the pruned one nor owned.
fn keep_owned(of: Type<'_>, merged: &Value, pruned: &Value, owned: &Set) -> Value {
    let before = with_named_fields(of, &extract(of, merged));
    let kept = with_named_fields(of, &extract(of, pruned)).union(&with_named_fields(of, owned));
    remove(of, merged, &before.difference(&kept)).unwrap_or_default()
}

/// The fields that no manager owns.
static UNOWNED: LazyLock<Set> = LazyLock::new(|| {
    let mut set = Set::of_fields(&[&["apiVersion"], &["kind"], &["metadata"]]);
    for field in [
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "clusterName",
        "generation",
        "managedFields",
        "resourceVersion",
    ] {
        set.insert_fields(&["metadata", field]);
    }
    set
});

fn without_unowned(mut set: Set) -> Set {
    set.subtract(&UNOWNED);
    set
}

/// Joins the oldest updaters, version by version, until there are few enough.
fn cap_updaters(mut managers: Managers) -> Managers {
    let is_updater = |entry: &Entry| entry.identity.operation == Operation::Update;
    let mut updaters = managers.entries.iter().filter(|entry| is_updater(entry)).count();
    if updaters <= MAX_UPDATERS {
        return managers;
    }
    managers.entries.sort_by(|a, b| (&a.time, &a.identity).cmp(&(&b.time, &b.identity)));
    let oldest: Vec<Identity> =
        managers.entries.iter().filter(|entry| is_updater(entry)).map(|entry| entry.identity.clone()).collect();
    let mut first: BTreeMap<String, Identity> = BTreeMap::new();
    for identity in oldest {
        if updaters <= MAX_UPDATERS {
            break;
        }
        let version = identity.api_version.clone();
        let Some(first) = first.get(&version) else {
            first.insert(version, identity);
            continue;
        };
        let bucket = Identity {
            manager: ANCIENT_CHANGES.to_owned(),
            operation: Operation::Update,
            api_version: version,
            subresource: String::new(),
        };
        let Some(entry) = managers.take(&identity) else { continue };
        let mut joined =
            managers.take(&bucket).or_else(|| managers.take(first)).unwrap_or_else(|| empty_entry(&bucket));
        joined.identity = bucket;
        joined.fields.extend(&entry.fields.set());
        joined.time = entry.time;
        managers.entries.push(joined);
        updaters -= 1;
    }
    managers
}
