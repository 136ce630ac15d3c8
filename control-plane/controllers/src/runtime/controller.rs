//! The contract between a controller and the runtime.

use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use super::plan::{Plan, ResourceType};
use super::view::View;
use corten_api::Typed;

/// Which keys a change of one object concerns.
pub type Keys = fn(&dyn View, &Change) -> Vec<Key>;

/// A resource the controller reads, and the keys to look at again when one of its objects changes.
pub struct Watch {
    pub resource: ResourceType,
    pub keys: Keys,
}

impl Watch {
    /// The controller's own kind: the key of the object is the key to reconcile.
    pub fn own<K: Typed>() -> Watch {
        Watch { resource: ResourceType::of::<K>(), keys: own_key }
    }

    /// Read, but a change alone is no reason to look again.
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

/// One control loop. Invariant: `reconcile` depends on its arguments alone; doing it twice is harmless.
pub trait Controller: Send + Sync + 'static {
    type Observed;

    /// The service account in kube-system that the controller acts as.
    fn name(&self) -> &'static str;

    /// The component named in events.
    fn component(&self) -> &'static str {
        self.name()
    }

    fn watches(&self) -> Vec<Watch>;

    /// How many keys are worked on at once. One key is never worked on twice at a time in any case.
    fn workers(&self) -> usize {
        8
    }

    /// Whether a look that found nothing to do need not be repeated before something it read has changed or a time it
    /// named has come. Not so for one that keeps a state of its own between looks.
    fn remembers(&self) -> bool {
        true
    }

    /// Everything the decision depends on, or nothing when there is nothing to decide.
    fn observe(&self, view: &dyn View, key: &Key) -> Option<Self::Observed>;

    fn reconcile(&self, observed: &Self::Observed, now: Timestamp) -> Plan;
}

/// A controller with its observation hidden, as the runtime and the tests drive it.
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
        Controller::name(self)
    }

    fn component(&self) -> &'static str {
        Controller::component(self)
    }

    fn watches(&self) -> Vec<Watch> {
        Controller::watches(self)
    }

    fn workers(&self) -> usize {
        Controller::workers(self)
    }

    fn remembers(&self) -> bool {
        Controller::remembers(self)
    }

    fn decide(&self, view: &dyn View, key: &Key, now: Timestamp) -> Plan {
        match self.observe(view, key) {
            Some(observed) => self.reconcile(&observed, now),
            None => Plan::nothing(),
        }
    }
}
