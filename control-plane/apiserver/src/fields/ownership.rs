//! The rules of ownership: who gains and loses paths when an object is updated or applied.
//!
//! An update takes what it writes from everybody else. An apply must not write what others own, unless forced;
//! it owns exactly what its configuration says, and what it owned before and says no more goes away unless
//! somebody else owns it too.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use corten_meta::Value;

use super::compare::{Comparison, compare, same};
use super::conflict::Conflict;
use super::extract::{extract, is_unclear};
use super::managers::{Entry, Fields, Identity, Managers, Operation};
use super::merge::merge;
use super::remove::{remove, with_named_fields};
use super::set::{Filter, Set};
use super::types::Type;

/// The most entries of updaters; the oldest are joined beyond it.
const MAX_UPDATERS: usize = 10;
/// The manager of joined entries.
const ANCIENT_CHANGES: &str = "ancient-changes";
/// The manager of what was there before the first apply of an object that nobody kept track of.
const BEFORE_FIRST_APPLY: &str = "before-first-apply";

/// The versions of a resource. Every manager owns paths of the version that it wrote in.
pub trait Versions {
    /// The type in a version; `None` when it is not served any more.
    fn type_of(&self, api_version: &str) -> Option<Type<'_>>;
    /// The object, which is in the version of the request, in another one.
    fn to(&self, object: &Value, api_version: &str) -> Value;
    /// Back to the version of the request.
    fn back(&self, object: Value, api_version: &str) -> Value;
    /// The paths that the request can own.
    fn filter(&self) -> &Filter;
}

/// The comparisons of one change, one for each version that some manager wrote in.
struct Change<'a> {
    versions: &'a dyn Versions,
    old: &'a Value,
    new: &'a Value,
    known: BTreeMap<String, Option<Comparison>>,
}

impl<'a> Change<'a> {
    fn new(versions: &'a dyn Versions, old: &'a Value, new: &'a Value) -> Change<'a> {
        Change { versions, old, new, known: BTreeMap::new() }
    }

    /// The comparison in a version; `None` when the version is gone.
    fn in_version(&mut self, version: &str, own: &str) -> Option<&Comparison> {
        if !self.known.contains_key(version) {
            let comparison = self.versions.type_of(version).map(|of| {
                let comparison = if version == own {
                    compare(of, self.old, self.new)
                } else {
                    compare(of, &self.versions.to(self.old, version), &self.versions.to(self.new, version))
                };
                comparison.filtered(self.versions.filter())
            });
            self.known.insert(version.to_owned(), comparison);
        }
        self.known.get(version).and_then(Option::as_ref)
    }

    /// What was written, in a version that was compared.
    fn written(mut self, version: &str) -> Set {
        self.known.remove(version).flatten().map(|comparison| comparison.written).unwrap_or_default()
    }
}

/// Ownership after an update of `live` to `new` by a manager, at a time. Of an object with items that cannot be told
/// apart nobody owns anything, nor of a custom resource whose schema takes what its type does not.
pub fn update(
    versions: &dyn Versions,
    live: &Value,
    new: &Value,
    mut managers: Managers,
    by: &Identity,
    time: &str,
) -> Managers {
    managers.entries.retain(|entry| versions.type_of(&entry.identity.api_version).is_some());
    let mut change = Change::new(versions, live, new);
    let own = change.in_version(&by.api_version, &by.api_version);
    let is_custom = |of: &Type<'_>| matches!(of, Type::CustomResource(_));
    let is_foreign = |of: Type<'_>| is_unclear(of, new) || is_unclear(of, live);
    if own.is_some_and(|own| own.is_unclear)
        || versions.type_of(&by.api_version).filter(is_custom).is_some_and(is_foreign)
    {
        return Managers::default();
    }
    // What the writer has and writes again it would lose and gain: it only loses what is gone.
    let previous = managers.take(by).map(|mut entry| {
        if let Some(own) = own {
            entry.fields.subtract(&own.removed);
            entry.fields.subtract(&MACHINERY.intersection(&own.written));
        }
        entry
    });
    take_from_others(&mut change, &mut managers, by, None);
    let written = without_machinery(change.written(&by.api_version));
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
    cap_updaters(managers)
}

fn empty_entry(identity: &Identity) -> Entry {
    Entry { identity: identity.clone(), time: None, fields: Fields::Decoded(Set::default()) }
}

/// Takes what changed from all managers but one. Managers that own nothing any more, or only something of a
/// version that is gone, go as well.
fn take_from_others(change: &mut Change<'_>, managers: &mut Managers, by: &Identity, except: Option<&Identity>) {
    managers.entries.retain_mut(|entry| {
        if except.is_some_and(|except| entry.identity.is(except)) {
            return true;
        }
        let version = entry.identity.api_version.clone();
        let Some(comparison) = change.in_version(&version, &by.api_version) else { return false };
        for lost in [&comparison.written, &comparison.removed] {
            entry.fields.subtract(lost);
        }
        !entry.fields.is_empty()
    });
}

/// The result of an apply.
pub struct Applied {
    /// The object to be; `None` when the apply changes nothing but ownership.
    pub object: Option<Value>,
    pub managers: Managers,
}

/// Applies a configuration to the live object. `first` is what a live object without managers is compared with.
pub fn apply(
    versions: &dyn Versions,
    (live, first): (&Value, &Value),
    config: &Value,
    managers: &Managers,
    by: &Identity,
    (time, force): (&str, bool),
) -> Result<Applied, Vec<Conflict>> {
    let mut managers = managers.clone();
    if managers.is_empty() {
        let before = Identity { manager: BEFORE_FIRST_APPLY.to_owned(), operation: Operation::Update, ..by.clone() };
        managers = update(versions, first, live, managers, &before, time);
    }
    let Some(of) = versions.type_of(&by.api_version) else {
        return Ok(Applied { object: None, managers });
    };
    let time_before = managers.entries.iter().find(|entry| entry.identity.is(by)).and_then(|last| last.time.clone());
    managers.entries.retain(|entry| versions.type_of(&entry.identity.api_version).is_some());
    let merged = merge(of, live, config);
    let last = managers.take(by);
    let fields = versions.filter().apply(extract(of, config));
    let mut entry = Entry { fields: Fields::Decoded(fields.clone()), ..empty_entry(by) };
    entry.time = time_before;
    managers.entries.push(entry);
    // The name belongs to nobody in the end, but what the configuration says must not be pruned.
    let merged = prune(versions, merged, &managers, by, last.as_ref());
    if let Some(entry) = managers.entries.iter_mut().find(|entry| entry.identity.is(by)) {
        entry.fields = Fields::Decoded(without_machinery(fields));
    }

    let mut change = Change::new(versions, live, &merged);
    if !force {
        let conflicts = conflicts(&mut change, &managers, by);
        if !conflicts.is_empty() {
            return Err(conflicts);
        }
    }
    take_from_others(&mut change, &mut managers, by, Some(by));
    managers.entries.retain(|entry| !entry.fields.is_empty());
    if same(live, &merged) {
        return Ok(Applied { object: None, managers });
    }
    if let Some(entry) = managers.entries.iter_mut().find(|entry| entry.identity.is(by)) {
        entry.time = Some(time.to_owned());
    }
    Ok(Applied { object: Some(merged), managers })
}

/// What others own of what changes.
fn conflicts(change: &mut Change<'_>, managers: &Managers, by: &Identity) -> Vec<Conflict> {
    let mut conflicts = Vec::new();
    let mut others: Vec<&Entry> = managers.entries.iter().filter(|entry| !entry.identity.is(by)).collect();
    others.sort_by_cached_key(|entry| entry.key());
    for entry in others {
        let identity = &entry.identity;
        let Some(comparison) = change.in_version(&identity.api_version, &by.api_version) else { continue };
        let contested = entry.fields.set().intersection(&comparison.written);
        conflicts.extend(contested.paths().into_iter().map(|path| Conflict { with: identity.clone(), path }));
    }
    conflicts
}

/// Takes out of the merged object what the manager applied last time, applies no more, and nobody else owns.
fn prune(versions: &dyn Versions, merged: Value, managers: &Managers, by: &Identity, last: Option<&Entry>) -> Value {
    let Some(last) = last.filter(|last| !last.fields.is_empty()) else { return merged };
    let version = &last.identity.api_version;
    let Some(of) = versions.type_of(version) else { return merged };
    let own_version = *version == by.api_version;
    let at_last = if own_version { merged } else { versions.to(&merged, version) };
    let removed = with_named_fields(of, &last.fields.set());
    let pruned = remove(of, &at_last, &removed).unwrap_or_default();
    let pruned = add_back_owned(versions, &at_last, pruned, managers, version);

    // Only what this manager said last time may go; what it holds by accident stays.
    let before = with_named_fields(of, &extract(of, &at_last));
    let after = with_named_fields(of, &extract(of, &pruned));
    let gone = before.difference(&after).intersection(&removed);
    let pruned = remove(of, &at_last, &gone).unwrap_or_default();
    if own_version { pruned } else { versions.back(pruned, version) }
}

/// Puts back what any manager owns, in each version that some manager wrote in; `version`, the one of the two
/// objects, first.
fn add_back_owned(versions: &dyn Versions, merged: &Value, pruned: Value, managers: &Managers, version: &str) -> Value {
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
        let Some(of) = versions.type_of(other) else { continue };
        let to = |object: &Value| versions.to(&versions.back(object.clone(), version), other);
        let kept = keep_owned(of, &to(merged), &to(&pruned), &owned);
        pruned = versions.to(&versions.back(kept, other), version);
    }
    pruned
}

/// The merged object without what is neither in the pruned one nor owned.
fn keep_owned(of: Type<'_>, merged: &Value, pruned: &Value, owned: &Set) -> Value {
    let before = with_named_fields(of, &extract(of, merged));
    let kept = with_named_fields(of, &extract(of, pruned)).union(&with_named_fields(of, owned));
    remove(of, merged, &before.difference(&kept)).unwrap_or_default()
}

/// The fields that belong to the machinery and to nobody.
static MACHINERY: LazyLock<Set> = LazyLock::new(|| {
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

fn without_machinery(mut set: Set) -> Set {
    set.subtract(&MACHINERY);
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
