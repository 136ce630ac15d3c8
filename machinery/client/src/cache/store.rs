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
    /// How many objects a namespace has, and the last change among them.
    namespaces: HashMap<Box<str>, (usize, u64)>,
    /// How often anything changed: what a change is stamped with.
    changes: u64,
}

/// A part of a cache that can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part<'a> {
    All,
    Namespace(&'a str),
    Object(&'a Key),
    /// What has an owner reference to this uid.
    Owner(&'a str),
    /// What an index files under a value.
    Index(&'static str, &'a str),
}

/// An object in its place: ordered by namespace and name, which are read from the object itself instead of being kept
/// a second time as a key. With the stamp of the change that put it there.
struct Entry(Arc<Object>, u64);

/// What an [`Entry`] is ordered and found by.
trait Place {
    fn place(&self) -> (&str, &str);
}

impl Place for Entry {
    fn place(&self) -> (&str, &str) {
        (&self.0.header.namespace, &self.0.header.name)
    }
}
impl Place for (&str, &str) {
    fn place(&self) -> (&str, &str) {
        (self.0, self.1)
    }
}
impl<'a> Borrow<dyn Place + 'a> for Entry {
    fn borrow(&self) -> &(dyn Place + 'a) {
        self
    }
}
impl PartialEq for dyn Place + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
    }
}
impl Eq for dyn Place + '_ {}
impl PartialOrd for dyn Place + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for dyn Place + '_ {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place().cmp(&other.place())
    }
}
impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.place() == other.place()
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
        self.place().cmp(&other.place())
    }
}

/// Objects filed under values, each file in the order of namespace and name: they are looked through far more often
/// than one of them changes. With the stamp of the last change of each file.
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

/// Where an object of this place is among those of a file, or belongs. Lists arrive in order: the end is tried first.
fn position(objects: &[Arc<Object>], object: &Object) -> Result<usize, usize> {
    fn place(object: &Object) -> (&str, &str) {
        (&object.header.namespace, &object.header.name)
    }
    match objects.last() {
        Some(last) if place(last) < place(object) => Err(objects.len()),
        _ => objects.binary_search_by(|other| place(other).cmp(&place(object))),
    }
}

/// What a list changed: the state before and the state after.
pub(super) type Replaced = (Option<Arc<Object>>, Option<Arc<Object>>);

impl Store {
    pub(super) fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.objects.get(&(namespace, name) as &dyn Place).map(|entry| entry.0.clone())
    }

    pub(super) fn all(&self) -> Vec<Arc<Object>> {
        self.objects.iter().map(|entry| entry.0.clone()).collect()
    }

    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    pub(super) fn namespace(&self, namespace: &str) -> Vec<Arc<Object>> {
        let start: &dyn Place = &(namespace, "");
        self.objects
            .range::<dyn Place, _>((Bound::Included(start), Bound::Unbounded))
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

    /// Two equal stamps of a part: it holds the same objects in the same versions. Nothing is stamped 0.
    pub(super) fn stamp(&self, part: Part<'_>) -> u64 {
        match part {
            Part::All | Part::Namespace("") => self.changes,
            Part::Namespace(namespace) => self.namespaces.get(namespace).map_or(0, |(_, stamp)| *stamp),
            Part::Object(key) => {
                let place: &dyn Place = &(key.namespace.as_str(), key.name.as_str());
                self.objects.get(place).map_or(0, |entry| entry.1)
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

    /// Puts an object in its place and returns the one that was there.
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
        let old = self.objects.take(&(namespace, name) as &dyn Place)?.0;
        self.changes += 1;
        self.unfile(&old);
        Some(old)
    }

    /// Makes `objects` the whole content; returns what is different now.
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
            // The same revision is the same object; keeping ours spares everybody a change.
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
        let (namespace, name) = (["a", "b"][usize::from(name % 2)], format!("n{name}"));
        let owners = json!([{"apiVersion": "v1", "kind": "X", "name": "x", "uid": format!("u{owner}")}]);
        let labels = json!({"l": format!("v{label}")});
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace,
            "uid": format!("{name}-{revision}"), "labels": labels, "ownerReferences": owners}});
        Arc::new(Object::from_value(&value, revision).unwrap())
    }

    /// Every part there is, with its stamp and the versions it holds.
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
            let (uid, label) = (format!("u{value}"), format!("v{value}"));
            all.push((store.stamp(Part::Owner(&uid)), versions(store.by_owner(&uid))));
            all.push((store.stamp(Part::Index("label", &label)), versions(store.by_index("label", &label))));
        }
        all
    }

    proptest! {
        /// Whatever happened in between: equal stamps, equal content.
        #[test]
        fn a_part_with_the_same_stamp_holds_the_same(
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
