//! The objects of a cache and its indexes. Plain data under a lock; no task, no notification.

use corten_meta::Object;
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
}

/// An object in its place: ordered by namespace and name, which are read from the object itself instead of being kept
/// a second time as a key.
struct Entry(Arc<Object>);

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
/// than one of them changes.
#[derive(Default)]
struct Filed(HashMap<Box<str>, Vec<Arc<Object>>>);

impl Filed {
    fn add(&mut self, value: &str, object: &Arc<Object>) {
        let Some(objects) = self.0.get_mut(value) else {
            self.0.insert(value.into(), vec![object.clone()]);
            return;
        };
        match position(objects, object) {
            Ok(at) => objects[at] = object.clone(),
            Err(at) => objects.insert(at, object.clone()),
        }
    }

    fn remove(&mut self, value: &str, object: &Arc<Object>) {
        let Some(objects) = self.0.get_mut(value) else { return };
        if let Ok(at) = position(objects, object) {
            objects.remove(at);
        }
        if objects.is_empty() {
            self.0.remove(value);
        }
    }

    fn get(&self, value: &str) -> Vec<Arc<Object>> {
        self.0.get(value).cloned().unwrap_or_default()
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

    pub(super) fn add_index(&mut self, name: &'static str, values: Values) {
        if self.indexes.contains_key(name) {
            return;
        }
        let mut filed = Filed::default();
        for entry in &self.objects {
            for value in values(&entry.0) {
                filed.add(&value, &entry.0);
            }
        }
        self.indexes.insert(name, (values, filed));
    }

    /// Puts an object in its place and returns the one that was there.
    pub(super) fn insert(&mut self, object: Arc<Object>) -> Option<Arc<Object>> {
        let old = self.objects.replace(Entry(object.clone())).map(|entry| entry.0);
        if let Some(old) = &old {
            self.unfile(old);
        }
        self.file(&object);
        old
    }

    pub(super) fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let old = self.objects.take(&(namespace, name) as &dyn Place)?.0;
        self.unfile(&old);
        Some(old)
    }

    /// Makes `objects` the whole content; returns what is different now.
    pub(super) fn replace(&mut self, objects: Vec<Arc<Object>>) -> Vec<Replaced> {
        let listed: BTreeSet<Entry> = objects.into_iter().map(Entry).collect();
        let gone: Vec<Arc<Object>> =
            self.objects.iter().filter(|entry| !listed.contains(*entry)).map(|entry| entry.0.clone()).collect();
        let mut changes: Vec<Replaced> = Vec::new();
        for object in gone {
            self.remove(&object.header.namespace, &object.header.name);
            changes.push((Some(object), None));
        }
        for Entry(object) in listed {
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
        for owner in &object.header.owners {
            self.by_owner.add(&owner.uid, object);
        }
        for (values, filed) in self.indexes.values_mut() {
            for value in values(object) {
                filed.add(&value, object);
            }
        }
    }

    fn unfile(&mut self, object: &Arc<Object>) {
        for owner in &object.header.owners {
            self.by_owner.remove(&owner.uid, object);
        }
        for (values, filed) in self.indexes.values_mut() {
            for value in values(object) {
                filed.remove(&value, object);
            }
        }
    }
}
