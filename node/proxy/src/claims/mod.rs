//! The merge of all Services, and the kernel changes that follow from a change of one.
//!
//! Every element is claimed by Services. Some claims agree (two Services in front of one pod both want it in the
//! hairpin set), some conflict (two Services with one external IP): then the Service that comes first by namespace and
//! name wins, in whatever order they arrived. The kernel's element changes only when the winning claim appears, changes
//! or disappears.
//!
//! An element is stored once, however many claims share it: there are five for every Service, and ten thousand
//! Services.
//!
//! The cost of a change follows from the size of the changed Service, never from their number.

use std::collections::{BTreeMap, BTreeSet, HashMap, btree_map, hash_map};
use std::sync::Arc;

use corten_nftables::{Element, Value};

use crate::chains::Shape;
use crate::rules::Rules;
use crate::service::ServiceKey;
use crate::sets::Name;

/// The change to send to the kernel, in this order: add shapes, delete elements, add elements, delete shapes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub add_shapes: BTreeSet<Shape>,
    pub delete_shapes: BTreeSet<Shape>,
    pub delete: BTreeSet<(Name, Arc<Element>)>,
    pub add: BTreeSet<(Name, Arc<Element>)>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }
}

/// The claims of one Service, in order.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    pub elements: Box<[(Name, Arc<Element>)]>,
    shapes: Box<[Shape]>,
}

impl From<Rules> for Claimed {
    fn from(rules: Rules) -> Claimed {
        Claimed {
            elements: rules.elements.into_iter().map(|(name, element)| (name, Arc::new(element))).collect(),
            shapes: rules.shapes.into_iter().collect(),
        }
    }
}

/// The claimants of one key of a set; nearly always one Service.
#[derive(Debug)]
enum Claimants {
    One(Arc<ServiceKey>, Arc<Element>),
    Many(BTreeMap<Arc<ServiceKey>, Arc<Element>>),
}

impl Claimants {
    /// Returns the claim that counts.
    fn winner(&self) -> Option<&Arc<Element>> {
        match self {
            Claimants::One(_, element) => Some(element),
            Claimants::Many(all) => all.values().next(),
        }
    }
}

/// The elements and chains that Services claim.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    services: BTreeMap<Arc<ServiceKey>, Claimed>,
    elements: HashMap<(Name, Value), Claimants>,
    shapes: BTreeMap<Shape, usize>,
}

/// Returns the items of the first that are not in the second; both are sorted.
fn difference<'a, T: Ord>(first: &'a [T], second: &'a [T]) -> impl Iterator<Item = &'a T> {
    first.iter().filter(|one| second.binary_search(one).is_err())
}

impl Claims {
    /// Replaces the claims of a Service, and adds the resulting changes to the change.
    pub fn replace(&mut self, key: &ServiceKey, rules: Option<Rules>, change: &mut Change) {
        let (owner, before) = match self.services.remove_entry(key) {
            Some((owner, before)) => (owner, before),
            None => (Arc::new(key.clone()), Claimed::default()),
        };
        let after = Claimed::from(rules.unwrap_or_default());
        for (name, element) in difference(&before.elements, &after.elements) {
            self.change_claim(&owner, *name, element, false, change);
        }
        for (name, element) in difference(&after.elements, &before.elements) {
            self.change_claim(&owner, *name, element, true, change);
        }
        for shape in difference(&after.shapes, &before.shapes) {
            self.retain_shape(*shape, change);
        }
        for shape in difference(&before.shapes, &after.shapes) {
            self.release_shape(*shape, change);
        }
        if !after.elements.is_empty() || !after.shapes.is_empty() {
            self.services.insert(owner, after);
        }
    }

    fn change_claim(
        &mut self,
        owner: &Arc<ServiceKey>,
        name: Name,
        element: &Arc<Element>,
        claimed: bool,
        change: &mut Change,
    ) {
        let slot = (name, element.key.clone());
        let before = self.elements.get(&slot).and_then(Claimants::winner).cloned();
        match claimed {
            true => self.claim(slot.clone(), owner, element),
            false => self.unclaim(slot.clone(), owner),
        }
        let after = self.elements.get(&slot).and_then(Claimants::winner).cloned();
        if before == after {
            return;
        }
        // An element that was added within the same change is not in the kernel yet, and vice versa.
        if let Some(before) = before.map(|element| (name, element))
            && !change.add.remove(&before)
        {
            change.delete.insert(before);
        }
        if let Some(after) = after.map(|element| (name, element))
            && !change.delete.remove(&after)
        {
            change.add.insert(after);
        }
    }

    fn claim(&mut self, slot: (Name, Value), owner: &Arc<ServiceKey>, element: &Arc<Element>) {
        let new = || (owner.clone(), element.clone());
        match self.elements.entry(slot) {
            hash_map::Entry::Vacant(slot) => drop(slot.insert(Claimants::One(new().0, new().1))),
            hash_map::Entry::Occupied(mut slot) => match slot.get_mut() {
                Claimants::One(known, held) if known == owner => *held = element.clone(),
                Claimants::One(known, held) => {
                    let both = BTreeMap::from([(known.clone(), held.clone()), new()]);
                    *slot.get_mut() = Claimants::Many(both);
                }
                Claimants::Many(all) => drop(all.insert(new().0, new().1)),
            },
        }
    }

    fn unclaim(&mut self, slot: (Name, Value), owner: &Arc<ServiceKey>) {
        let hash_map::Entry::Occupied(mut slot) = self.elements.entry(slot) else { return };
        let left = match slot.get_mut() {
            Claimants::One(known, _) => usize::from(known != owner),
            Claimants::Many(all) => {
                all.remove(owner);
                all.len()
            }
        };
        if left == 0 {
            slot.remove();
        }
    }

    fn retain_shape(&mut self, shape: Shape, change: &mut Change) {
        let users = self.shapes.entry(shape).or_default();
        *users += 1;
        if *users == 1 && !change.delete_shapes.remove(&shape) {
            change.add_shapes.insert(shape);
        }
    }

    fn release_shape(&mut self, shape: Shape, change: &mut Change) {
        let btree_map::Entry::Occupied(mut users) = self.shapes.entry(shape) else { return };
        *users.get_mut() -= 1;
        if *users.get() == 0 {
            users.remove();
            if !change.add_shapes.remove(&shape) {
                change.delete_shapes.insert(shape);
            }
        }
    }

    /// Returns everything, as a change from nothing.
    pub fn full(&self) -> Change {
        let winner = |((name, _), claimants): (&(Name, Value), &Claimants)| Some((*name, claimants.winner()?.clone()));
        Change {
            add_shapes: self.shapes.keys().copied().collect(),
            add: self.elements.iter().filter_map(winner).collect(),
            ..Change::default()
        }
    }

    pub fn is_empty(&self) -> bool {
        self.services.is_empty()
    }

    pub fn claimed(&self, key: &ServiceKey) -> Option<&Claimed> {
        self.services.get(key)
    }
}

#[cfg(test)]
mod tests;
