//! Pods from pod templates, and the stable hash of a template.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Pod, PodTemplateSpec};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::owner::controller_reference;

pub const TEMPLATE_HASH_LABEL: &str = "pod-template-hash";

/// The characters that spell no words, as in every generated name of Kubernetes.
const SAFE_CHARACTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// Returns the pod of a template, owned by its controller; the API server generates the name.
pub fn pod_from<K: Typed>(template: &PodTemplateSpec, owner: &K) -> Pod {
    let from = template.metadata.clone().unwrap_or_default();
    let name = owner.meta().name.clone().unwrap_or_default();
    let metadata = ObjectMeta {
        namespace: owner.meta().namespace.clone(),
        generate_name: Some(format!("{name}-")),
        labels: from.labels,
        annotations: from.annotations,
        finalizers: from.finalizers,
        owner_references: Some(vec![controller_reference(owner)]),
        ..ObjectMeta::default()
    };
    Pod { metadata, spec: template.spec.clone(), status: None }
}

/// Returns a short stable hash of a part of an object; `salt` changes it after a collision.
pub fn hash(value: &Value, salt: Option<i32>) -> String {
    let mut state = fnv32a(FNV_OFFSET, value.to_string().as_bytes());
    if let Some(salt) = salt {
        state = fnv32a(state, &salt.to_le_bytes());
    }
    safe_encode(&state.to_string())
}

const FNV_OFFSET: u32 = 0x811c_9dc5;

fn fnv32a(start: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(start, |state, byte| (state ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// Maps a string to safe characters, byte by byte.
pub fn safe_encode(text: &str) -> String {
    text.bytes().map(|byte| char::from(SAFE_CHARACTERS[usize::from(byte) % SAFE_CHARACTERS.len()])).collect()
}

/// Returns the template without the hash label that the controller added, for comparison.
pub fn without_hash(template: &PodTemplateSpec) -> PodTemplateSpec {
    let mut template = template.clone();
    if let Some(labels) = template.metadata.as_mut().and_then(|meta| meta.labels.as_mut()) {
        labels.remove(TEMPLATE_HASH_LABEL);
    }
    template
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_hash_is_stable_safe_and_salted() {
        let template = json!({"spec": {"containers": [{"name": "a", "image": "b"}]}});
        let plain = hash(&template, None);
        assert_eq!(plain, hash(&template, None));
        assert_ne!(plain, hash(&template, Some(1)));
        assert!(plain.bytes().all(|byte| SAFE_CHARACTERS.contains(&byte)));
    }
}
