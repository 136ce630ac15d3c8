//! The objects of a cache and its indexes. Plain data under a lock; no task, no notification.

use corten_meta::{Key, Object};
use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::ops::Bound;
use std::sync::Arc;

type Values = Box<dyn Fn(&Object) -> Vec<String> + Send + Sync>;

#[derive(Default)]
pub(super) struct Store {
    objects: BTreeSet<Entry>,
    by_owner: Filed,
    indexes: HashMap<&'static str, (Values, Filed)>,
    /// The number of objects of each namespace, and the last change among them.
    namespaces: HashMap<Box<str>, (usize, u64)>,
    /// The number of changes so far: the stamp of the last change.
    changes: u64,
}

/// A part of a cache that has a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    All,
    Namespace(&'a str),
    Object(&'a Key),
    /// The objects with an owner reference to this uid.
    Owner(&'a str),
    /// The objects that an index has for a value.
    Index(&'static str, &'a str),
}

/// An object with the stamp of the change that added it: ordered by namespace and name, which are read from the object
/// itself to save a second copy as a key.
struct Entry(Arc<Object>, u64);

/// The key that an [`Entry`] is ordered by.
trait NamespacedName {
    fn namespace_and_name(&self) -> (&str, &str);
}

impl NamespacedName for Entry {
    fn namespace_and_name(&self) -> (&str, &str) {
        (&self.0.header.namespace, &self.0.header.name)
    }
}
impl NamespacedName for (&str, &str) {
    fn namespace_and_name(&self) -> (&str, &str) {
        (self.0, self.1)
    }
}
impl<'a> Borrow<dyn NamespacedName + 'a> for Entry {
    fn borrow(&self) -> &(dyn NamespacedName + 'a) {
        self
    }
}
impl PartialEq for dyn NamespacedName + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.namespace_and_name() == other.namespace_and_name()
    }
}
impl Eq for dyn NamespacedName + '_ {}
impl PartialOrd for dyn NamespacedName + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for dyn NamespacedName + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.namespace_and_name().cmp(&other.namespace_and_name())
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.namespace_and_name() == other.namespace_and_name()
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.namespace_and_name().cmp(&other.namespace_and_name())
    }
}

/// The objects of each value of an index, in the order of namespace and name, with the stamp of the last change: reads
/// are far more frequent than changes.
#[derive(Default)]
struct Filed(HashMap<Box<str>, (u64, Vec<Arc<Object>>)>);

impl Filed {
    fn add(&mut self, value: &str, object: &Arc<Object>, stamp: u64) {
        let Some((last, objects)) = self.0.get_mut(value) else {
            self.0.insert(value.into(), (stamp, vec![object.clone()]));
            return;
        };
        *last = stamp;
        match position(objects, object) {
            Ok(at) => objects[at] = object.clone(),
            Err(at) => objects.insert(at, object.clone()),
        }
    }

    fn remove(&mut self, value: &str, object: &Arc<Object>, stamp: u64) {
        let Some((last, objects)) = self.0.get_mut(value) else { return };
        *last = stamp;
        if let Ok(at) = position(objects, object) {
            objects.remove(at);
        }
        if objects.is_empty() {
            self.0.remove(value);
        }
    }

    fn get(&self, value: &str) -> Vec<Arc<Object>> {
        self.0.get(value).map(|(_, objects)| objects.clone()).unwrap_or_default()
    }

    fn stamp(&self, value: &str) -> u64 {
        self.0.get(value).map_or(0, |(stamp, _)| *stamp)
    }
}

/// Returns the position of an object among those of a value, or the position to insert it. Lists arrive in order, so it
/// tries the end first.
fn position(objects: &[Arc<Object>], object: &Object) -> Result<usize, usize> {
    fn namespace_and_name(object: &Object) -> (&str, &str) {
        (&object.header.namespace, &object.header.name)
    }
    match objects.last() {
        Some(last) if namespace_and_name(last) < namespace_and_name(object) => Err(objects.len()),
        _ => objects.binary_search_by(|other| namespace_and_name(other).cmp(&namespace_and_name(object))),
    }
}

/// A change by a list: the state before and the state after.
pub(super) type Replaced = (Option<Arc<Object>>, Option<Arc<Object>>);

impl Store {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.objects.get(&(namespace, name) as &dyn NamespacedName).map(|entry| entry.0.clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<Object>> {
        self.objects.iter().map(|entry| entry.0.clone()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn namespace(&self, namespace: &str) -> Vec<Arc<Object>> {
        let start: &dyn NamespacedName = &(namespace, "");
        self.objects
            .range::<dyn NamespacedName, _>((Bound::Included(start), Bound::Unbounded))
            .take_while(|entry| entry.0.header.namespace == namespace)
            .map(|entry| entry.0.clone())
            .collect()
    }

    pub(super) fn by_owner(&self, uid: &str) -> Vec<Arc<Object>> {
        self.by_owner.get(uid)
    }

    pub(super) fn by_index(&self, index: &str, value: &str) -> Vec<Arc<Object>> {
        self.indexes.get(index).map(|(_, filed)| filed.get(value)).unwrap_or_default()
    }

    /// Returns the stamp of a part. A part with an equal stamp has the same objects at the same revisions. No change
    /// has the stamp 0.
    pub(super) fn stamp(&self, part: Part<'_>) -> u64 {
        match part {
            Part::All | Part::Namespace("") => self.changes,
            Part::Namespace(namespace) => self.namespaces.get(namespace).map_or(0, |(_, stamp)| *stamp),
            Part::Object(key) => {
                let key: &dyn NamespacedName = &(key.namespace.as_str(), key.name.as_str());
                self.objects.get(key).map_or(0, |entry| entry.1)
            }
            Part::Owner(uid) => self.by_owner.stamp(uid),
            Part::Index(index, value) => self.indexes.get(index).map_or(0, |(_, filed)| filed.stamp(value)),
        }
    }

    pub(super) fn add_index(&mut self, name: &'static str, values: Values) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut filed = Filed::default();
        for entry in &self.objects {
            for value in values(&entry.0) {
                filed.add(&value, &entry.0, self.changes);
            }
        }
        self.indexes.insert(name, (values, filed));
    }

    /// Inserts an object and returns the one that it replaces.
    pub(super) fn insert(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        self.changes += 1;
        let old = self.objects.replace(Entry(object.clone(), self.changes)).map(|entry| entry.0);
        if let Some(old) = &old {
            self.unfile(old);
        }
        self.file(&object);
        old
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let old = self.objects.take(&(namespace, name) as &dyn NamespacedName)?.0;
        self.changes += 1;
        self.unfile(&old);
        Some(old)
    }

    /// Makes `objects` the content; returns the differences.
    pub(super) fn replace(&mut self, objects: Vec<Arc<Object>>) -> Vec<Replaced> {
        let listed: BTreeSet<Entry> = objects.into_iter().map(|object| Entry(object, 0)).collect();
        let gone: Vec<Arc<Object>> =
            self.objects.iter().filter(|entry| !listed.contains(*entry)).map(|entry| entry.0.clone()).collect();
        let mut changes: Vec<Replaced> = Vec::new();
        for object in gone {
            self.remove(&object.header.namespace, &object.header.name);
            changes.push((Some(object), None));
        }
        for Entry(object, _) in listed {
            let old = self.get(&object.header.namespace, &object.header.name);
            // An equal revision is the same object; keeping ours avoids a change for the subscribers.
            if old.as_ref().is_some_and(|old| old.revision == object.revision && old.header.uid == object.header.uid) {
                continue;
            }
            self.insert(object.clone());
            changes.push((old, Some(object)));
        }
        changes
    }

    fn file(&mut self, object: &Arc<Object>) {
        let stamp = self.changes;
        for owner in &object.header.owners {
            self.by_owner.add(&owner.uid, object, stamp);
        }
        for (values, filed) in self.indexes.values_mut() {
            for value in values(object) {
                filed.add(&value, object, stamp);
            }
        }
        match self.namespaces.get_mut(object.header.namespace.as_str()) {
            Some((count, last)) => (*count, *last) = (*count + 1, stamp),
            None => {
                self.namespaces.insert(object.header.namespace.as_str().into(), (1, stamp));
            }
        }
    }

    fn unfile(&mut self, object: &Arc<Object>) {
        let stamp = self.changes;
        for owner in &object.header.owners {
            self.by_owner.remove(&owner.uid, object, stamp);
        }
        for (values, filed) in self.indexes.values_mut() {
            for value in values(object) {
                filed.remove(&value, object, stamp);
            }
        }
        let namespace = object.header.namespace.as_str();
        if let Some((count, last)) = self.namespaces.get_mut(namespace) {
            (*count, *last) = (*count - 1, stamp);
            if *count == 0 {
                self.namespaces.remove(namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn object(name: u8, label: u8, owner: u8, revision: u64) -> Arc<Object> {
        let namespace = ["a", "b"][usize::from(name % 2)];
        let name = format!("n{name}");
        let owners = json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": format!("u{owner}")}]);
        let labels = json!({"l": format!("v{label}")});
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace,
            "uid": format!("{name}-{revision}"), "labels": labels, "ownerReferences": owners}});
        Arc::new(Object::from_value(&value, revision).unwrap())
    }

    /// Returns every part with its stamp and the revisions of its objects.
    fn parts(store: &Store) -> Vec<(u64, Vec<u64>)> {
        let versions = |objects: Vec<Arc<Object>>| objects.iter().map(|one| one.revision).collect::<Vec<_>>();
        let mut all = vec![(store.stamp(Part::All), versions(store.all()))];
        for namespace in ["a", "b"] {
            all.push((store.stamp(Part::Namespace(namespace)), versions(store.namespace(namespace))));
            for name in 0..4 {
                let key = Key::new(namespace, format!("n{name}"));
                let found = store.get(namespace, &key.name).into_iter().collect();
                all.push((store.stamp(Part::Object(&key)), versions(found)));
            }
        }
        for value in 0..3 {
            let uid = format!("u{value}");
            let label = format!("v{value}");
            all.push((store.stamp(Part::Owner(&uid)), versions(store.by_owner(&uid))));
            all.push((store.stamp(Part::Index("label", &label)), versions(store.by_index("label", &label))));
        }
        all
    }

    proptest! {
        /// Equal stamps mean equal content, after any changes.
        #[test]
        fn a_part_with_the_same_stamp_has_the_same_objects(
            steps in prop::collection::vec((0u8..4, 0u8..4, 0u8..3, 0u8..3), 1..40),
        ) {
            let mut store = Store::default();
            store.add_index("label", Box::new(|object| object.header.labels.values().cloned().collect()));
            let mut before = vec![parts(&store)];
            for (step, (what, name, label, owner)) in steps.into_iter().enumerate() {
                let object = object(name, label, owner, step as u64 + 1);
                match what {
                    0 => drop(store.remove(&object.header.namespace, &object.header.name)),
                    1 => drop(store.replace(vec![object])),
                    _ => drop(store.insert(object)),
                }
                let now = parts(&store);
                for earlier in &before {
                    for (then, now) in earlier.iter().zip(&now) {
                        prop_assert!(then.0 != now.0 || then.1 == now.1, "{then:?} {now:?}");
                    }
                }
                before.push(now);
            }
        }
    }
}
