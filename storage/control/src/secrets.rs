//! The Secrets that classes name for the calls of a driver.

use std::collections::{BTreeMap, HashMap};

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret, SecretReference as FieldReference};
use corten_snapshots::names::PARAMETER_PREFIX;
use corten_snapshots::{SecretReference, SecretTemplate};
use serde_json::{Value, json};

use crate::world::World;

/// The parameters of a StorageClass with Secrets of calls that a volume carries: the parameter, and the field of the
/// volume.
const OF_VOLUME: [(&str, &str); 5] = [
    ("controller-publish", "controllerPublishSecretRef"),
    ("node-stage", "nodeStageSecretRef"),
    ("node-publish", "nodePublishSecretRef"),
    ("controller-expand", "controllerExpandSecretRef"),
    ("node-expand", "nodeExpandSecretRef"),
];

/// The Secrets of a volume to provision.
#[derive(Debug, Default, PartialEq)]
pub struct VolumeSecrets {
    pub provisioner: Option<SecretReference>,
    pub modify: Option<SecretReference>,
    /// The references in the volume, by field.
    pub fields: BTreeMap<&'static str, Value>,
}

/// Resolves the Secrets that the parameters of a StorageClass name for a claim.
pub fn of_class(
    parameters: &BTreeMap<String, String>,
    volume: &str,
    claim: &PersistentVolumeClaim,
) -> Result<VolumeSecrets, String> {
    let annotations: Vec<(String, String)> = claim
        .metadata
        .annotations
        .iter()
        .flatten()
        .map(|(key, value)| (format!("pvc.annotations['{key}']"), value.clone()))
        .collect();
    let mut keys = vec![("pv.name", volume), ("pvc.namespace", claim.namespace()), ("pvc.name", claim.name())];
    keys.extend(annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let resolve = |role: &str| {
        let template = SecretTemplate { role, namespace_keys: &keys[..2], name_keys: &keys };
        template.resolve(parameters)
    };
    let mut secrets = VolumeSecrets {
        provisioner: resolve("provisioner")?,
        modify: resolve("controller-modify")?,
        fields: BTreeMap::new(),
    };
    for (role, field) in OF_VOLUME {
        if let Some(secret) = resolve(role)? {
            secrets.fields.insert(field, json!({"namespace": secret.namespace, "name": secret.name}));
        }
    }
    Ok(secrets)
}

/// Returns the parameters for the driver: those without the prefix. Fails on an unknown parameter with the prefix, for a
/// typing error would be overlooked.
pub fn for_driver(parameters: &BTreeMap<String, String>) -> Result<HashMap<String, String>, String> {
    let known = |key: &str| {
        let name = key.trim_start_matches(PARAMETER_PREFIX);
        name == "fstype" || name.ends_with("-secret-name") || name.ends_with("-secret-namespace")
    };
    let mut rest = HashMap::new();
    for (key, value) in parameters {
        if !key.starts_with(PARAMETER_PREFIX) {
            rest.insert(key.clone(), value.clone());
        } else if !known(key) {
            return Err(format!("found unknown parameter key \"{key}\" with reserved namespace {PARAMETER_PREFIX}"));
        }
    }
    Ok(rest)
}

/// Reads the data of a Secret; nothing without a reference.
pub async fn read(world: &World, secret: Option<&SecretReference>) -> Result<HashMap<String, String>, String> {
    let Some(SecretReference { namespace, name }) = secret else { return Ok(HashMap::new()) };
    let found: Secret = world
        .client
        .get(namespace, name)
        .await
        .map_err(|error| format!("error getting secret {name} in namespace {namespace}: {error}"))?;
    let data = found.data.unwrap_or_default().into_iter();
    Ok(data.map(|(key, value)| (key, String::from_utf8_lossy(&value.0).into_owned())).collect())
}

/// Returns the reference in two annotations.
pub fn of_annotations<K: Typed>(object: &K, name: &str, namespace: &str) -> Option<SecretReference> {
    Some(SecretReference {
        name: crate::world::annotation(object, name)?.to_owned(),
        namespace: crate::world::annotation(object, namespace)?.to_owned(),
    })
}

/// Returns the reference of a field of a volume.
pub fn of_field(field: Option<&FieldReference>) -> Option<SecretReference> {
    let field = field?;
    Some(SecretReference { name: field.name.clone()?, namespace: field.namespace.clone()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_driver_gets_no_parameter_of_kubernetes() {
        let mixed = parameters(&[("type", "ssd"), ("csi.storage.k8s.io/fstype", "xfs")]);
        assert_eq!(for_driver(&mixed), Ok(HashMap::from([("type".to_owned(), "ssd".to_owned())])));
        let unknown = for_driver(&parameters(&[("csi.storage.k8s.io/fstyp", "xfs")])).unwrap_err();
        assert!(unknown.contains("csi.storage.k8s.io/fstyp"), "{unknown}");
    }

    #[test]
    fn secrets_of_a_class_have_the_names_of_the_claim() {
        let claim = testkit_fixture::typed("pvc shop/data annotation.team=red");
        let class = parameters(&[
            ("csi.storage.k8s.io/provisioner-secret-name", "p-${pvc.name}"),
            ("csi.storage.k8s.io/provisioner-secret-namespace", "${pvc.namespace}"),
            ("csi.storage.k8s.io/node-stage-secret-name", "${pvc.annotations['team']}"),
            ("csi.storage.k8s.io/node-stage-secret-namespace", "keys"),
        ]);
        let secrets = of_class(&class, "pvc-1", &claim).unwrap();
        let provisioner = SecretReference { namespace: "shop".to_owned(), name: "p-data".to_owned() };
        assert_eq!(secrets.provisioner, Some(provisioner));
        assert_eq!(secrets.fields["nodeStageSecretRef"], json!({"namespace": "keys", "name": "red"}));
    }
}
