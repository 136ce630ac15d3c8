//! Objects in memory that implement `View`, for the fuzz targets.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::{PersistentVolume, Pod, Service};
use corten_meta::{Key, Object, Value};

use crate::runtime::{ResourceType, View, claim_of_volume, node_of_pod, selector_of_service};

/// A few objects, without indexes.
pub struct World(Vec<(String, Arc<Object>)>);

impl World {
    /// Takes the objects that have a kind and a name; of two with the same name the first.
    pub fn new(objects: &[Value]) -> World {
        let mut all: BTreeMap<(String, Key), Arc<Object>> = BTreeMap::new();
        for (number, object) in objects.iter().enumerate() {
            let Some(kind) = object["kind"].as_str() else { continue };
            if let Ok(object) = Object::from_value(object, number as u64 + 1) {
                all.entry((kind.to_owned(), object.key())).or_insert_with(|| Arc::new(object));
            }
        }
        World(all.into_iter().map(|((kind, _), object)| (kind, object)).collect())
    }

    pub fn keys(&self) -> Vec<Key> {
        self.0.iter().map(|(_, object)| object.key()).collect()
    }

    fn filtered(&self, resource: ResourceType, is_wanted: impl Fn(&Object) -> bool) -> Vec<Arc<Object>> {
        let of_kind = self.0.iter().filter(|(kind, _)| *kind == resource.kind);
        of_kind.map(|(_, object)| object).filter(|object| is_wanted(object)).cloned().collect()
    }
}

fn is_in(object: &Object, namespace: &str) -> bool {
    namespace.is_empty() || object.key().namespace == namespace
}

impl View for World {
    fn get(&self, resource: ResourceType, key: &Key) -> Option<Arc<Object>> {
        self.filtered(resource, |object| object.key() == *key).pop()
    }

    fn list(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>> {
        self.filtered(resource, |object| is_in(object, namespace))
    }

    fn owned(&self, resource: ResourceType, uid: &str) -> Vec<Arc<Object>> {
        self.filtered(resource, |object| object.header.owners.iter().any(|owner| owner.uid == uid))
    }

    fn orphans(&self, resource: ResourceType, namespace: &str) -> Vec<Arc<Object>> {
        self.filtered(resource, |object| is_in(object, namespace) && object.controller().is_none())
    }

    fn labelled(&self, resource: ResourceType, namespace: &str, (key, value): (&str, &str)) -> Vec<Arc<Object>> {
        let has_label = |object: &Object| object.header.labels.get(key).map(String::as_str) == Some(value);
        self.filtered(resource, |object| is_in(object, namespace) && has_label(object))
    }

    fn services_for(&self, namespace: &str, labels: &BTreeMap<String, String>) -> Vec<Arc<Object>> {
        let selects = |service: &Object| {
            selector_of_service(service).iter().next().is_some_and(|(key, value)| labels.get(key) == Some(value))
        };
        self.filtered(ResourceType::of::<Service>(), |service| is_in(service, namespace) && selects(service))
    }

    fn volumes_for(&self, claim: &Key) -> Vec<Arc<Object>> {
        let wanted = [String::new(), claim.to_string()];
        self.filtered(ResourceType::of::<PersistentVolume>(), |volume| wanted.contains(&claim_of_volume(volume)))
    }

    fn pods_on(&self, node: &str) -> Vec<Arc<Object>> {
        self.filtered(ResourceType::of::<Pod>(), |pod| node_of_pod(pod).as_deref() == Some(node))
    }
}
