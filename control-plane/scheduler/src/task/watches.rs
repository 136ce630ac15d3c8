//! The resources that the scheduler watches, and the effect of each change on its state.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{ReplicaSet, StatefulSet};
use corten_api::k8s_openapi::api::core::v1::{
    Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController, Service,
};
use corten_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use corten_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use corten_api::k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, CSIStorageCapacity, StorageClass, VolumeAttachment,
};
use corten_client::{Cache, Caches, Change, Client, Error, ListOptions, Resource, Subscription};
use corten_meta::Selector;
use jiff::Timestamp;
use tokio::sync::Notify;

use super::glance::decoded;
use crate::framework::ClusterEvent;
use crate::rows::demand::selector;
use crate::rows::storage::{CapacityRow, ClaimRow, ClassRow, DriverRow, VolumeRow, attachment, limits};
use crate::rows::{Budget, Snapshot};
use crate::scheduler::Scheduler;

/// The watched kinds, in the order in which they are applied: pods last, because they refer to the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched {
    Namespace,
    Node,
    Service,
    ReplicationController,
    ReplicaSet,
    StatefulSet,
    Budget,
    StorageClass,
    CsiDriver,
    CsiNode,
    Capacity,
    Attachment,
    Volume,
    Claim,
    DeviceClass,
    ResourceSlice,
    ResourceClaim,
    Pod,
}

pub struct Watches {
    subscriptions: Vec<(Watched, Subscription)>,
    /// Notified when a subscription has a change.
    bell: Arc<Notify>,
    /// The full objects, for extenders.
    pub nodes: Arc<Cache>,
    pub pods: Arc<Cache>,
}

impl Watches {
    /// Starts the caches, waits until they are synced, and subscribes.
    pub async fn start(caches: &Caches) -> Watches {
        let of = resources().map(|(kind, resource)| (kind, caches.dynamic(&resource)));
        caches.synced().await;
        let bell = Arc::new(Notify::new());
        Watches {
            subscriptions: of.into_iter().map(|(kind, cache)| (kind, cache.subscribe_with(&bell))).collect(),
            bell,
            nodes: caches.of::<Node>(),
            pods: caches.of::<Pod>(),
        }
    }

    /// Returns all objects that are already known, kind by kind.
    pub fn known(&mut self) -> Vec<(Watched, Vec<Change>)> {
        let all = |changes: &mut Subscription| std::iter::from_fn(|| changes.try_next()).collect();
        self.subscriptions.iter_mut().map(|(kind, changes)| (*kind, all(changes))).collect()
    }

    /// Returns a change that has already arrived.
    pub fn try_next(&mut self) -> Option<(Watched, Change)> {
        self.subscriptions.iter_mut().find_map(|(kind, changes)| Some((*kind, changes.try_next()?)))
    }

    /// Waits for the next change of any kind; forever, after the caches have closed.
    pub async fn next(&mut self) -> (Watched, Change) {
        loop {
            let rung = self.bell.clone();
            if let Some(heard) = self.try_next() {
                return heard;
            }
            rung.notified().await;
        }
    }
}

fn typed<K: Typed>(change: &Change) -> Option<K> {
    change.new.as_ref().and_then(|object| decoded::<K>(object))
}

/// Returns the watched resources.
fn resources() -> [(Watched, Resource); 18] {
    [
        (Watched::Namespace, Resource::of::<Namespace>()),
        (Watched::Node, Resource::of::<Node>()),
        (Watched::Service, Resource::of::<Service>()),
        (Watched::ReplicationController, Resource::of::<ReplicationController>()),
        (Watched::ReplicaSet, Resource::of::<ReplicaSet>()),
        (Watched::StatefulSet, Resource::of::<StatefulSet>()),
        (Watched::Budget, Resource::of::<PodDisruptionBudget>()),
        (Watched::StorageClass, Resource::of::<StorageClass>()),
        (Watched::CsiDriver, Resource::of::<CSIDriver>()),
        (Watched::CsiNode, Resource::of::<CSINode>()),
        (Watched::Capacity, Resource::of::<CSIStorageCapacity>()),
        (Watched::Attachment, Resource::of::<VolumeAttachment>()),
        (Watched::Volume, Resource::of::<PersistentVolume>()),
        (Watched::Claim, Resource::of::<PersistentVolumeClaim>()),
        (Watched::DeviceClass, Resource::of::<DeviceClass>()),
        (Watched::ResourceSlice, Resource::of::<ResourceSlice>()),
        (Watched::ResourceClaim, Resource::of::<ResourceClaim>()),
        (Watched::Pod, Resource::of::<Pod>()),
    ]
}

/// Returns the error of the first watched resource that the client may not list: its cache would never be synced.
pub async fn check_readable(client: &Client) -> Result<(), Error> {
    let one = ListOptions { limit: Some(1), ..ListOptions::default() };
    for (_, resource) in resources() {
        client.dynamic(&resource).list_objects("", &one).await?;
    }
    Ok(())
}

/// Applies a change of anything but pods.
pub fn hear(scheduler: &mut Scheduler, kind: Watched, change: &Change, now: Timestamp) {
    let key = &change.key;
    let snapshot = &mut scheduler.snapshot;
    let event = match kind {
        Watched::Pod => return,
        Watched::Node => return scheduler.node_changed(&key.name, typed::<Node>(change), now),
        Watched::Namespace => {
            let labels = |change: &Option<_>| {
                let object: &Option<Arc<corten_meta::Object>> = change;
                object.as_ref().map(|object| object.header.labels.clone())
            };
            let new = labels(&change.new);
            if new.is_some() && new == labels(&change.old) {
                return;
            }
            snapshot.set_namespace(&key.name, new.map(|labels| (*labels).clone()));
            ClusterEvent::NamespaceChanged
        }
        Watched::Service | Watched::ReplicationController | Watched::ReplicaSet | Watched::StatefulSet => {
            return set_selector(snapshot, kind, change);
        }
        Watched::Budget => return set_budget(snapshot, change),
        Watched::StorageClass => {
            replace(&mut snapshot.storage.classes, &key.name, typed(change).map(ClassRow::of));
            ClusterEvent::StorageClassChanged
        }
        Watched::CsiDriver => {
            replace(&mut snapshot.storage.drivers, &key.name, typed(change).as_ref().map(DriverRow::of));
            ClusterEvent::CsiDriverChanged
        }
        Watched::CsiNode => {
            replace(&mut snapshot.storage.limits, &key.name, typed(change).map(limits));
            ClusterEvent::CsiNodeChanged
        }
        Watched::Capacity => {
            replace(&mut snapshot.storage.capacities, key, typed(change).map(CapacityRow::of));
            ClusterEvent::StorageCapacityChanged
        }
        Watched::Attachment => {
            replace(&mut snapshot.storage.attachments, &key.name, typed(change).and_then(attachment));
            ClusterEvent::AttachmentRemoved
        }
        Watched::Volume => {
            replace(&mut snapshot.storage.volumes, &key.name, typed(change).map(VolumeRow::of));
            ClusterEvent::VolumeChanged
        }
        Watched::Claim => {
            replace(&mut snapshot.storage.claims, key, typed(change).map(ClaimRow::of));
            ClusterEvent::ClaimChanged(key)
        }
        Watched::DeviceClass => {
            replace(&mut snapshot.devices.classes, &key.name, typed(change));
            // The class may provide an extended resource: every node is to be searched again.
            snapshot.touch_all();
            ClusterEvent::DevicesChanged
        }
        Watched::ResourceSlice => {
            snapshot.devices.set_slice(&key.name, typed(change));
            ClusterEvent::DevicesChanged
        }
        Watched::ResourceClaim => {
            snapshot.devices.set_claim(key, typed::<ResourceClaim>(change));
            ClusterEvent::DevicesChanged
        }
    };
    scheduler.happened(&event, now);
}

fn replace<K, V, Q>(map: &mut std::collections::HashMap<K, V>, key: &Q, value: Option<V>)
where
    K: std::hash::Hash + Eq + std::borrow::Borrow<Q>,
    Q: std::hash::Hash + Eq + ToOwned<Owned = K> + ?Sized,
{
    match value {
        Some(value) => drop(map.insert(key.to_owned(), value)),
        None => drop(map.remove(key)),
    }
}

fn set_selector(snapshot: &mut Snapshot, kind: Watched, change: &Change) {
    let (key, selectors) = (&change.key, &mut snapshot.selectors);
    match kind {
        Watched::Service => {
            let service = typed::<Service>(change).and_then(|service| service.spec);
            selectors.set_service(key, service.and_then(|spec| spec.selector));
        }
        Watched::ReplicationController => {
            let owner = typed::<ReplicationController>(change).and_then(|owner| owner.spec);
            let owner = owner.and_then(|spec| spec.selector).map(|labels| Selector::from_set(&labels));
            selectors.set_owner("ReplicationController", key, owner);
        }
        Watched::ReplicaSet => {
            let owner = typed::<ReplicaSet>(change).and_then(|owner| owner.spec);
            selectors.set_owner("ReplicaSet", key, owner.map(|spec| selector(&spec.selector)));
        }
        _ => {
            let owner = typed::<StatefulSet>(change).and_then(|owner| owner.spec);
            selectors.set_owner("StatefulSet", key, owner.map(|spec| selector(&spec.selector)));
        }
    }
}

fn set_budget(snapshot: &mut Snapshot, change: &Change) {
    let budget = typed::<PodDisruptionBudget>(change).map(|budget| {
        let status = budget.status.unwrap_or_default();
        let selected = budget.spec.and_then(|spec| spec.selector);
        Budget {
            namespace: change.key.namespace.clone(),
            selector: selected.as_ref().map_or_else(Selector::nothing, selector),
            allowed: status.disruptions_allowed.unwrap_or(0),
            disrupted: status.disrupted_pods.unwrap_or_default().into_keys().collect(),
        }
    });
    replace(&mut snapshot.budgets, &change.key, budget);
}
