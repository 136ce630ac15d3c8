//! The PersistentVolume of a volume that the driver made.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::PersistentVolumeClaim;
use corten_api::k8s_openapi::api::storage::v1::StorageClass;
use corten_meta::{Quantity, Value};
use corten_plugins::csi;
use corten_plugins::csi::controller_service_capability::rpc::Type as Rpc;
use corten_snapshots::{BACKUP_DRIVER, REPLICAS_ATTRIBUTE};
use serde_json::{Map, json};

use super::request::is_block;
use crate::driver::Driver;
use crate::modify::{MODIFY_SECRET_NAME, MODIFY_SECRET_NAMESPACE};
use crate::reclaim::{DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FINALIZER, PROVISIONED_BY};
use crate::secrets::VolumeSecrets;
use crate::topology;

/// A volume that the driver made for a claim.
pub struct Made<'a> {
    pub claim: &'a PersistentVolumeClaim,
    pub class: &'a StorageClass,
    pub driver: &'a Driver,
    pub request: &'a csi::CreateVolumeRequest,
    pub volume: &'a csi::Volume,
    pub secrets: &'a VolumeSecrets,
}

impl Made<'_> {
    pub fn object(&self, fs_type: &str) -> Value {
        let claim = self.claim;
        let spec = claim.to_value()["spec"].take();
        let required = self.request.capacity_range.map_or(0, |range| range.required_bytes);
        let bytes = if self.volume.capacity_bytes == 0 { required } else { self.volume.capacity_bytes };
        let mut object = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {
                "name": self.request.name,
                "annotations": self.annotations(),
                "finalizers": [FINALIZER],
            },
            "spec": {
                "capacity": {"storage": Quantity::from_bytes(bytes).to_string()},
                "accessModes": spec["accessModes"],
                "persistentVolumeReclaimPolicy": self.class.reclaim_policy.as_deref().unwrap_or("Delete"),
                "storageClassName": self.class.name(),
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                    "name": claim.name(), "uid": claim.metadata.uid,
                    "resourceVersion": claim.metadata.resource_version,
                },
                "csi": self.source(fs_type),
            },
        });
        for field in ["volumeMode", "volumeAttributesClassName"] {
            if spec[field].as_str().is_some_and(|value| !value.is_empty()) {
                object["spec"][field] = spec[field].clone();
            }
        }
        if let Some(options) = &self.class.mount_options {
            object["spec"]["mountOptions"] = json!(options);
        }
        let mut affinity = topology::affinity(&self.volume.accessible_topology);
        if self.driver.has_topology() && !affinity.is_null() {
            if self.has_copy() {
                affinity = topology::movable(affinity, &self.volume.volume_id);
            }
            object["spec"]["nodeAffinity"] = affinity;
        }
        object
    }

    /// Reports whether the volume has a copy on another node, which may take its place.
    fn has_copy(&self) -> bool {
        let replicas = self.volume.volume_context.get(REPLICAS_ATTRIBUTE);
        self.driver.name == BACKUP_DRIVER && replicas.is_some_and(|replicas| replicas == "2")
    }

    fn annotations(&self) -> Value {
        let secret = self.secrets.provisioner.clone().unwrap_or_default();
        let mut annotations = json!({
            PROVISIONED_BY: self.driver.name,
            DELETION_SECRET_NAME: secret.name,
            DELETION_SECRET_NAMESPACE: secret.namespace,
        });
        if let Some(secret) = &self.secrets.modify {
            annotations[MODIFY_SECRET_NAME] = json!(secret.name);
            annotations[MODIFY_SECRET_NAMESPACE] = json!(secret.namespace);
        }
        annotations
    }

    fn source(&self, fs_type: &str) -> Value {
        let context = self.volume.volume_context.iter().map(|(key, value)| (key.clone(), json!(value)));
        let attributes: Map<String, Value> = context.collect();
        let mut source = json!({"driver": self.driver.name, "volumeHandle": self.volume.volume_id});
        if !attributes.is_empty() {
            source["volumeAttributes"] = Value::Object(attributes);
        }
        if !is_block(self.claim) && !fs_type.is_empty() {
            source["fsType"] = json!(fs_type);
        }
        let modes = self.claim.spec.as_ref().and_then(|spec| spec.access_modes.clone()).unwrap_or_default();
        if modes == ["ReadOnlyMany"] && self.driver.has(Rpc::PublishReadonly) {
            source["readOnly"] = json!(true);
        }
        for (field, reference) in &self.secrets.fields {
            source[*field] = reference.clone();
        }
        source
    }
}
