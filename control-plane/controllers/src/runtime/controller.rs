//! The interface between a controller and the runtime.

use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use super::plan::{Plan, ResourceType};
use super::view::View;
use corten_api::Typed;

/// Maps a change of one object to the keys to reconcile.
pub type Keys = fn(&dyn View, &Change) -> Vec<Key>;

/// A resource that the controller reads, and the keys to reconcile when one of its objects changes.
pub struct Watch {
    pub resource: ResourceType,
    pub keys: Keys,
}

impl Watch {
    /// Watches the controller's own kind: the key of the object is the key to reconcile.
    pub fn own<K: Typed>() -> Watch {
        Watch { resource: ResourceType::of::<K>(), keys: own_key }
    }

    /// Watches a kind that the controller reads, but whose changes enqueue no key.
    pub fn read<K: Typed>() -> Watch {
        Watch { resource: ResourceType::of::<K>(), keys: |_, _| Vec::new() }
    }

    pub fn mapped<K: Typed>(keys: Keys) -> Watch {
        Watch { resource: ResourceType::of::<K>(), keys }
    }
}

fn own_key(_: &dyn View, change: &Change) -> Vec<Key> {
    vec![change.key.clone()]
}

/// A controller. Invariant: `reconcile` depends on its arguments alone; to run it twice is harmless.
pub trait Controller: Send + Sync + 'static {
    type Observed;

    /// The service account in kube-system that the controller acts as.
    const NAME: &'static str;
    /// The component named in events.
    const COMPONENT: &'static str = Self::NAME;
    /// The number of keys that are reconciled at once. One key is never reconciled twice at a time.
    const WORKERS: usize = 8;
    /// Whether a reconcile that found nothing to do need not be repeated until an object that it read has changed or
    /// its `requeue_after` has passed. False for a controller that keeps state of its own between reconciles.
    const REMEMBERS: bool = true;

    fn watches(&self) -> Vec<Watch>;

    /// Reads everything that the decision depends on; `None` if there is nothing to reconcile.
    fn observe(&self, view: &dyn View, key: &Key) -> Option<Self::Observed>;

    fn reconcile(&self, observed: &Self::Observed, now: Timestamp) -> Plan;
}

/// A controller with its `Observed` type erased, as the runtime and the tests call it.
pub trait Decide: Send + Sync + 'static {
    fn name(&self) -> &'static str;
    fn component(&self) -> &'static str;
    fn watches(&self) -> Vec<Watch>;
    fn workers(&self) -> usize;
    fn remembers(&self) -> bool;
    fn decide(&self, view: &dyn View, key: &Key, now: Timestamp) -> Plan;
}

impl<C: Controller> Decide for C {
    fn name(&self) -> &'static str {
        C::NAME
    }

    fn component(&self) -> &'static str {
        C::COMPONENT
    }

    fn watches(&self) -> Vec<Watch> {
        Controller::watches(self)
    }

    fn workers(&self) -> usize {
        C::WORKERS
    }

    fn remembers(&self) -> bool {
        C::REMEMBERS
    }

    fn decide(&self, view: &dyn View, key: &Key, now: Timestamp) -> Plan {
        match self.observe(view, key) {
            Some(observed) => self.reconcile(&observed, now),
            None => Plan::nothing(),
        }
    }
}
