//! The objects that a change enqueues: the object itself, and those that waited for its deletion.

use std::sync::Arc;

use corten_client::{Change, Resource, WorkQueue};
use corten_meta::{Key, Object};

use super::Item;
use super::absent::Absent;
use super::decide::{FOREGROUND, ORPHAN, waits_for_dependents};
use crate::runtime::discovery::Discovered;
use crate::runtime::monitors::{Listener, Monitors};

/// Returns the listener of the garbage collector.
pub fn listener(queue: WorkQueue<Item>, absent: Arc<Absent>) -> Listener {
    Box::new(move |monitors: &Monitors, found: &Discovered, change: &Change| {
        Wake { queue: &queue, absent: &absent, monitors }.heard(&found.resource, change);
    })
}

struct Wake<'a> {
    queue: &'a WorkQueue<Item>,
    absent: &'a Absent,
    monitors: &'a Monitors,
}

impl Wake<'_> {
    fn heard(&self, resource: &Resource, change: &Change) {
        if let Some(new) = &change.new {
            let finalized = new.header.finalizers.iter().any(|name| name == FOREGROUND || name == ORPHAN);
            if !new.header.owners.is_empty() || (new.header.deletion_timestamp.is_some() && finalized) {
                self.queue.add(Item { resource: resource.clone(), key: change.key.clone() });
            }
        }
        let Some(old) = &change.old else { return };
        let replaced = change.new.as_ref().is_none_or(|new| new.header.uid != old.header.uid);
        if replaced {
            // Deletions of objects without dependents are not remembered.
            let dependents = self.monitors.dependents(&old.header.uid);
            if !dependents.is_empty() {
                self.absent.insert(&old.header.uid);
            }
            for (resource, dependent) in dependents {
                self.queue.add(Item { resource, key: dependent.key() });
            }
        }
        for owner in &old.header.owners {
            let kept =
                |new: &Arc<Object>| {
                    !replaced
                        && new.header.owners.iter().any(|other| {
                            other.uid == owner.uid && other.block_owner_deletion == owner.block_owner_deletion
                        })
                };
            if !change.new.as_ref().is_some_and(kept) {
                self.wake_waiting_owner(&owner.api_version, &owner.kind, &change.key.namespace, &owner.name);
            }
        }
    }

    /// Enqueues an owner in foreground deletion: one dependent less blocks it.
    fn wake_waiting_owner(&self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        let Some(resource) = self.monitors.resource_of(api_version, kind) else { return };
        let namespace = if resource.namespaced { namespace } else { "" };
        let key = Key::new(namespace, name);
        if self.monitors.get(&resource, &key).is_some_and(|owner| waits_for_dependents(&owner)) {
            self.queue.add(Item { resource, key });
        }
    }
}
