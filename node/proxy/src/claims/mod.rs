//! The merge of all Services, and what a change of one means for the kernel.
//!
//! Every element is claimed by Services. Some claims agree (two Services in front of one pod both
//! want it in the hairpin set), some conflict (two Services with one external IP): then the Service
//! that comes first by namespace and name wins, in whatever order they arrived. The kernel sees an
//! element only when the winning claim appears, changes or goes.
//!
//! The cost of a change follows from the size of the changed Service, never from their number.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use corten_nftables::{Element, Value};

use crate::chains::Shape;
use crate::rules::Rules;
use crate::service::ServiceKey;
use crate::sets::Name;

/// What to tell the kernel, in this order: add shapes, delete elements, add elements, delete shapes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub add_shapes: BTreeSet<Shape>,
    pub delete_shapes: BTreeSet<Shape>,
    pub delete: BTreeSet<(Name, Element)>,
    pub add: BTreeSet<(Name, Element)>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        *self == Change::default()
    }
}

/// The elements and chains that Services claim.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    services: BTreeMap<Arc<ServiceKey>, Rules>,
    elements: HashMap<(Name, Value), BTreeMap<Arc<ServiceKey>, Element>>,
    shapes: BTreeMap<Shape, usize>,
}

impl Claims {
    /// Replaces what a Service claims, and adds what that means to the change.
    pub fn replace(&mut self, key: &ServiceKey, rules: Option<Rules>, change: &mut Change) {
        let owner = Arc::new(key.clone());
        let before = self.services.remove(&owner).unwrap_or_default();
        let after = rules.unwrap_or_default();
        for (name, element) in before.elements.difference(&after.elements) {
            self.change_claim(&owner, *name, &element.key, None, change);
        }
        for (name, element) in after.elements.difference(&before.elements) {
            self.change_claim(&owner, *name, &element.key, Some(element.clone()), change);
        }
        for shape in after.shapes.difference(&before.shapes) {
            self.retain_shape(*shape, change);
        }
        for shape in before.shapes.difference(&after.shapes) {
            self.release_shape(*shape, change);
        }
        if after != Rules::default() {
            self.services.insert(owner, after);
        }
    }

    fn change_claim(
        &mut self,
        owner: &Arc<ServiceKey>,
        name: Name,
        key: &Value,
        claim: Option<Element>,
        change: &mut Change,
    ) {
        let slot = (name, key.clone());
        let claims = self.elements.entry(slot.clone()).or_default();
        let before = claims.values().next().cloned();
        match claim {
            Some(element) => drop(claims.insert(owner.clone(), element)),
            None => drop(claims.remove(owner)),
        }
        let after = claims.values().next().cloned();
        if claims.is_empty() {
            self.elements.remove(&slot);
        }
        if before == after {
            return;
        }
        // What was added within the same change is not in the kernel yet, and the other way round.
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

    fn retain_shape(&mut self, shape: Shape, change: &mut Change) {
        let users = self.shapes.entry(shape).or_default();
        *users += 1;
        if *users == 1 && !change.delete_shapes.remove(&shape) {
            change.add_shapes.insert(shape);
        }
    }

    fn release_shape(&mut self, shape: Shape, change: &mut Change) {
        let Entry::Occupied(mut users) = self.shapes.entry(shape) else { return };
        *users.get_mut() -= 1;
        if *users.get() == 0 {
            users.remove();
            if !change.add_shapes.remove(&shape) {
                change.delete_shapes.insert(shape);
            }
        }
    }

    /// Everything, as a change from nothing.
    pub fn whole(&self) -> Change {
        Change {
            add_shapes: self.shapes.keys().copied().collect(),
            add: self
                .elements
                .iter()
                .filter_map(|((name, _), claims)| Some((*name, claims.values().next()?.clone())))
                .collect(),
            ..Change::default()
        }
    }

    /// What a Service claims.
    pub fn rules(&self, key: &ServiceKey) -> Option<&Rules> {
        self.services.get(key)
    }
}

#[cfg(test)]
mod tests;
