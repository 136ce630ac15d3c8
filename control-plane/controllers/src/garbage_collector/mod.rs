//! The garbage collector: deletes an object whose owners are all deleted; completes foreground and orphan deletion.
//!
//! It works on every resource that can be listed, watched and deleted, custom resources included. Before it treats an
//! owner as deleted it asks the API server, by uid: a stale cache must never cost an object.

mod absent;
mod decide;
mod wake;

use std::sync::Arc;

use corten_client::{Client, DeleteOptions, Error, Patch, Resource, WorkQueue};
use corten_meta::{Key, Object, Owner};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::runtime::monitors::{Listener, Monitors};
use absent::Absent;
use decide::{Decision, FOREGROUND, ORPHAN, OwnerState, blocks, circular_owners, decide, waits_for_dependents};

const WORKERS: usize = 8;

/// The key of one object in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Item {
    resource: Resource,
    key: Key,
}

/// The queue of the collector. It is created before the monitors, because they call its listener.
pub struct GarbageCollector {
    client: Client,
    queue: WorkQueue<Item>,
    absent: Arc<Absent>,
}

impl GarbageCollector {
    pub fn new(client: Client, queue: WorkQueue<Item>) -> GarbageCollector {
        GarbageCollector { client, queue, absent: Arc::default() }
    }

    pub fn listener(&self) -> Listener {
        wake::listener(self.queue.clone(), self.absent.clone())
    }

    pub async fn run(self, monitors: Arc<Monitors>, shutdown: CancellationToken) {
        let mut tasks = JoinSet::new();
        for _ in 0..WORKERS {
            let (client, queue, absent) = (self.client.clone(), self.queue.clone(), self.absent.clone());
            tasks.spawn(Collector { client, queue, absent, monitors: monitors.clone() }.run());
        }
        shutdown.cancelled().await;
        self.queue.shut_down();
        while tasks.join_next().await.is_some() {}
    }
}

struct Collector {
    client: Client,
    queue: WorkQueue<Item>,
    absent: Arc<Absent>,
    monitors: Arc<Monitors>,
}

impl Collector {
    async fn run(self) {
        while let Some(item) = self.queue.get().await {
            match self.collect(&item).await {
                Ok(()) => self.queue.forget(&item),
                Err(error) => {
                    tracing::debug!(resource = item.resource.plural, key = %item.key, %error, "cannot collect yet");
                    self.queue.add_rate_limited(item.clone());
                }
            }
            self.queue.done(&item);
        }
    }

    /// Processes one object: reads the states of its owners, decides, acts.
    async fn collect(&self, item: &Item) -> Result<(), Error> {
        let Some(object) = self.monitors.get(&item.resource, &item.key) else { return Ok(()) };
        let (mut owners, mut unheard_of) = (Vec::new(), None);
        if object.header.deletion_timestamp.is_none() {
            for owner in &object.header.owners {
                let (state, heard) = self.state_of(owner, item, &object).await?;
                owners.push(state);
                unheard_of = unheard_of.or((!heard).then_some(&owner.name));
            }
        }
        let item_of = |(resource, held): (Resource, Arc<Object>)| (Item { resource, key: held.key() }, held);
        let dependents: Vec<(Item, Arc<Object>)> =
            self.monitors.dependents(&object.header.uid).into_iter().map(item_of).collect();
        match decide(&object, &owners, !dependents.is_empty()) {
            // An unknown dependent would be neither released nor waited for.
            Decision::Orphan | Decision::Foreground if !self.monitors.knows_all() => {
                Err(Error::Decode("not all that there is is known yet".to_owned()))
            }
            // The deletion of an owner that no cache has shown would not be observed.
            Decision::Nothing => match unheard_of {
                Some(name) => Err(Error::Decode(format!("the owner {name} has not been heard of yet"))),
                None => Ok(()),
            },
            Decision::DropReferences(uids) => self.drop_references(item, &object, &uids).await,
            Decision::Delete(propagation) => self.delete(item, &object, propagation).await,
            Decision::Orphan => {
                for (dependent, held) in &dependents {
                    self.drop_references(dependent, held, std::slice::from_ref(&object.header.uid)).await?;
                }
                self.lift(item, &object, ORPHAN).await
            }
            Decision::Foreground => {
                if !dependents.iter().any(|(_, held)| blocks(held, &object.header.uid)) {
                    return self.lift(item, &object, FOREGROUND).await;
                }
                let held_by = |uid: &str| self.monitors.dependents(uid).into_iter().map(|(_, held)| held).collect();
                let circular = circular_owners(&object, held_by);
                if !circular.is_empty() {
                    self.unblock(item, &object, &circular).await?;
                }
                // A dependent that is being deleted is enqueued on its own; two that wait would otherwise wake each
                // other forever.
                let stay = dependents.into_iter().filter(|(_, held)| held.header.deletion_timestamp.is_none());
                stay.for_each(|(dependent, _)| self.queue.add(dependent));
                Ok(())
            }
        }
    }

    /// Returns the state of an owner, and whether its deletion will be observed.
    async fn state_of(&self, owner: &Owner, item: &Item, dependent: &Object) -> Result<(OwnerState, bool), Error> {
        if self.absent.contains(&owner.uid) {
            return Ok((OwnerState::Absent, true));
        }
        let Some(resource) = self.monitors.resource_of(&owner.api_version, &owner.kind) else {
            return Err(Error::Decode(format!("no resource is known for owner {} {}", owner.api_version, owner.kind)));
        };
        if resource.namespaced && !item.resource.namespaced {
            return Ok((OwnerState::Solid, true));
        }
        let namespace = if resource.namespaced { dependent.header.namespace.clone() } else { String::new() };
        let key = Key::new(namespace, owner.name.clone());
        let cached = self.monitors.get(&resource, &key);
        if let Some(found) = cached.filter(|found| found.header.uid == owner.uid) {
            return Ok((state_of(&found), true));
        }
        match self.client.dynamic(&resource).get(&key.namespace, &key.name).await {
            Ok(live) if corten_meta::uid(&live) == owner.uid => Ok((OwnerState::Solid, false)),
            Ok(_) => Ok((OwnerState::Absent, true)),
            Err(error) if error.is_not_found() => Ok((OwnerState::Absent, true)),
            Err(error) => Err(error),
        }
    }

    async fn delete(&self, item: &Item, object: &Object, propagation: corten_client::Propagation) -> Result<(), Error> {
        let options = DeleteOptions {
            propagation: Some(propagation),
            precondition_uid: Some(object.header.uid.clone()),
            precondition_resource_version: Some(object.revision.to_string()),
            ..DeleteOptions::default()
        };
        absent_is_done(self.client.dynamic(&item.resource).delete(&item.key.namespace, &item.key.name, &options).await)
    }

    async fn drop_references(&self, item: &Item, object: &Object, uids: &[String]) -> Result<(), Error> {
        let references = object.value()["metadata"]["ownerReferences"].take();
        let dropped = |reference: &Value| uids.iter().any(|uid| reference["uid"] == uid.as_str());
        let kept: Vec<Value> =
            references.as_array().into_iter().flatten().filter(|one| !dropped(one)).cloned().collect();
        self.patch(item, object, json!({"ownerReferences": kept})).await
    }

    /// Clears `blockOwnerDeletion` of the references to these owners, so that they are deleted before the object.
    async fn unblock(&self, item: &Item, object: &Object, owners: &[String]) -> Result<(), Error> {
        let mut references = object.value()["metadata"]["ownerReferences"].take();
        for reference in references.as_array_mut().into_iter().flatten() {
            if owners.iter().any(|uid| reference["uid"] == uid.as_str()) {
                reference["blockOwnerDeletion"] = json!(false);
            }
        }
        self.patch(item, object, json!({ "ownerReferences": references })).await
    }

    async fn lift(&self, item: &Item, object: &Object, finalizer: &str) -> Result<(), Error> {
        let kept: Vec<&String> = object.header.finalizers.iter().filter(|name| *name != finalizer).collect();
        self.patch(item, object, json!({"finalizers": kept})).await
    }

    /// Patches the metadata with the object's resourceVersion as precondition.
    async fn patch(&self, item: &Item, object: &Object, mut metadata: Value) -> Result<(), Error> {
        metadata["uid"] = json!(object.header.uid);
        metadata["resourceVersion"] = json!(object.revision.to_string());
        let patch = Patch::Merge(json!({"metadata": metadata}));
        absent_is_done(
            self.client
                .dynamic(&item.resource)
                .patch(&item.key.namespace, &item.key.name, &patch, None)
                .await
                .map(drop),
        )
    }
}

fn state_of(owner: &Object) -> OwnerState {
    match waits_for_dependents(owner) {
        true => OwnerState::WaitingForDependents,
        false => OwnerState::Solid,
    }
}

fn absent_is_done(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.is_not_found() => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod properties;
