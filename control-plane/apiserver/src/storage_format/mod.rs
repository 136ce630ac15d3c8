//! The form of objects in the store: their bytes before encryption, and the root of their keys.
//!
//! A store of our own holds canonical JSON, which is what caches and clients get. A store that upstream's API servers
//! share holds upstream's form: protobuf in an envelope for built-in kinds, JSON for custom resources. Whatever is
//! written, everything is read: protobuf, JSON and YAML, and objects of older versions.

mod crd;
mod root;

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use corten_api::Kind;
use corten_meta::{Object, Value};

use crate::config::StorageMediaType;
pub use root::Root;

/// The prefix of objects in protobuf.
const PROTOBUF: &[u8] = b"k8s\0";

/// The forms that are written and read.
pub struct StorageFormat {
    media_type: StorageMediaType,
    /// Whether other programs write to the store, so that stored JSON need not be canonical.
    is_shared: bool,
    /// The built-in kinds that are stored in another version, by their apiVersion and kind.
    versions: HashMap<(String, String), Arc<Kind>>,
}

impl StorageFormat {
    pub fn new(media_type: StorageMediaType, is_shared: bool, kinds: &[Arc<Kind>]) -> StorageFormat {
        let key = |kind: &Arc<Kind>| ((kind.api_version(), kind.kind.clone()), Arc::clone(kind));
        StorageFormat { media_type, is_shared, versions: kinds.iter().map(key).collect() }
    }

    /// Returns whether an object is stored as its canonical bytes.
    pub fn is_canonical(&self, kind: &Kind) -> bool {
        self.media_type == StorageMediaType::Json || !kind.serving().has_field_numbers
    }

    /// Returns the stored form of an object.
    pub fn encode(&self, kind: &Kind, canonical: Bytes) -> Bytes {
        if self.is_canonical(kind) {
            return canonical;
        }
        let value = serde_json::from_slice::<Value>(&canonical).ok();
        let encoded = value.and_then(|value| corten_protobuf::encode_any(&value));
        encoded.map_or(canonical, Into::into)
    }

    /// Returns the object of a stored form.
    pub fn decode(&self, kind: &Kind, stored: Bytes, revision: u64) -> Result<Object, String> {
        if !self.is_shared && !stored.starts_with(PROTOBUF) {
            return Object::parse(stored, revision).map_err(|e| e.to_string());
        }
        let value = self.decode_value(kind, &stored)?;
        let mut object = Object::from_value(&self.current(kind, value), revision).map_err(|e| e.to_string())?;
        // The marker of an object that is stored without its defaults; upstream ends every object with it.
        if !kind.serving().is_stored_with_defaults && stored.last() == Some(&b'\n') {
            object.bytes = [&object.bytes, b"\n".as_slice()].concat().into();
        }
        Ok(object)
    }

    /// Returns the value of a stored form as it is.
    pub fn decode_value(&self, kind: &Kind, stored: &[u8]) -> Result<Value, String> {
        let value = match stored.starts_with(PROTOBUF) {
            true => self.protobuf(kind, stored)?,
            false => corten_meta::codec::decode_yaml(stored).map_err(|e| e.to_string())?,
        };
        match value.is_object() {
            true => Ok(value),
            false => Err("the stored bytes are not an object".to_owned()),
        }
    }

    fn protobuf(&self, kind: &Kind, stored: &[u8]) -> Result<Value, String> {
        let stored_type = corten_protobuf::type_meta(stored).map_err(|e| e.to_string())?;
        let schema = match self.versions.get(&(stored_type.api_version, stored_type.kind)) {
            Some(version) => &version.schema,
            // Versions of one kind have the same field numbers.
            None => &kind.schema,
        };
        corten_protobuf::object(stored, schema).map_err(|e| e.to_string())
    }

    /// Returns a stored object in the storage version, with its defaults; upstream too sets them when it reads.
    fn current(&self, kind: &Kind, mut value: Value) -> Value {
        if !kind.serving().is_stored_with_defaults {
            return value;
        }
        let stored_in = value["apiVersion"].as_str().unwrap_or_default();
        if stored_in != kind.api_version() {
            if kind.group == crd::GROUP {
                crd::from_beta(&mut value);
            }
            let stored_type = (value["apiVersion"].as_str().unwrap_or_default().to_owned(), kind.kind.clone());
            if let Some(version) = self.versions.get(&stored_type) {
                version.behaviour.to_stored(&mut value);
            }
            value["apiVersion"] = kind.api_version().into();
            value["kind"] = kind.kind.clone().into();
        }
        kind.default(&mut value);
        kind.settle(&mut value);
        value
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn kind(group: &str, version: &str, plural: &str) -> Arc<Kind> {
        let is_it = |kind: &&Arc<Kind>| kind.group == group && kind.version == version && kind.plural == plural;
        corten_api::kinds().iter().find(is_it).cloned().unwrap()
    }

    fn format(media_type: StorageMediaType) -> StorageFormat {
        StorageFormat::new(media_type, true, corten_api::kinds())
    }

    /// Returns an object as the write path would store it.
    fn stored(kind: &Kind, mut value: Value) -> Object {
        kind.default(&mut value);
        kind.settle(&mut value);
        Object::from_value(&value, 7).unwrap()
    }

    #[test]
    fn objects_come_back_from_every_form_as_they_went() {
        let pods = kind("", "v1", "pods");
        let pod = stored(
            &pods,
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "a", "namespace": "b" },
                    "spec": { "containers": [{ "name": "c", "image": "d" }] }, "status": {} }),
        );
        for media_type in [StorageMediaType::Json, StorageMediaType::Protobuf] {
            let format = format(media_type);
            let bytes = format.encode(&pods, pod.bytes.clone());
            assert_eq!(bytes.starts_with(PROTOBUF), media_type == StorageMediaType::Protobuf);
            assert_eq!(format.decode(&pods, bytes, 7).unwrap(), pod);
        }
        let yaml = "kind: Pod\nmetadata: {namespace: b, name: a}\napiVersion: v1\nspec:\n  containers:\n  - {name: c, image: d}\n";
        let read = format(StorageMediaType::Protobuf).decode(&pods, yaml.into(), 7).unwrap();
        assert_eq!(read.value(), pod.value());
    }

    #[test]
    fn an_object_of_an_older_version_is_read_in_the_storage_version() {
        let format = format(StorageMediaType::Protobuf);
        let scalers = kind("autoscaling", "v2", "horizontalpodautoscalers");
        let old = json!({ "apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler",
                          "metadata": { "name": "a", "namespace": "b" },
                          "spec": { "scaleTargetRef": { "kind": "Deployment", "name": "d", "apiVersion": "apps/v1" },
                                    "maxReplicas": 3, "targetCPUUtilizationPercentage": 50 } });
        for bytes in [corten_protobuf::encode_any(&old).unwrap(), serde_json::to_vec(&old).unwrap()] {
            let read = format.decode(&scalers, bytes.into(), 1).unwrap().value();
            assert_eq!(read["apiVersion"], "autoscaling/v2");
            assert_eq!(read["spec"]["metrics"][0]["resource"]["name"], "cpu", "{read}");
        }
        let levels = kind("flowcontrol.apiserver.k8s.io", "v1", "prioritylevelconfigurations");
        let old = json!({ "apiVersion": "flowcontrol.apiserver.k8s.io/v1beta3", "kind": "PriorityLevelConfiguration",
                          "metadata": { "name": "a" }, "spec": { "type": "Exempt" } });
        let read = format.decode(&levels, serde_json::to_vec(&old).unwrap().into(), 1).unwrap().value();
        assert_eq!(read["apiVersion"], "flowcontrol.apiserver.k8s.io/v1");
    }

    #[test]
    fn damaged_bytes_are_an_error() {
        let format = format(StorageMediaType::Protobuf);
        let pods = kind("", "v1", "pods");
        for bytes in [&b"k8s\0"[..], b"k8s\0\x0a\xff", b"{", b"", b"\x00\x01", b"k8s:enc:aescbc:v1:x"] {
            assert!(format.decode(&pods, Bytes::copy_from_slice(bytes), 1).is_err(), "{bytes:?}");
        }
    }
}
