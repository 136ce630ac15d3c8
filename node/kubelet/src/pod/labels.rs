//! The labels and annotations by which the kubelet finds its pods and containers in the runtime. The names are
//! upstream's, so that tools which read a node's containers know them.

use std::collections::HashMap;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use sha2::{Digest, Sha256};

use super::spec;

pub const POD_NAME: &str = "io.kubernetes.pod.name";
pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const POD_UID: &str = "io.kubernetes.pod.uid";
pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
pub const CONTAINER_HASH: &str = "io.kubernetes.container.hash";
pub const CONTAINER_RESTART_COUNT: &str = "io.kubernetes.container.restartCount";
const TERMINATION_MESSAGE_PATH: &str = "io.kubernetes.container.terminationMessagePath";
const TERMINATION_MESSAGE_POLICY: &str = "io.kubernetes.container.terminationMessagePolicy";
const GRACE_PERIOD: &str = "io.kubernetes.pod.terminationGracePeriod";
const CONFIG_SOURCE: &str = "kubernetes.io/config.source";
const CONFIG_SEEN: &str = "kubernetes.io/config.seen";

/// Returns the labels of a sandbox: the pod's own, and those by which it is found.
pub fn sandbox_labels(pod: &Pod) -> HashMap<String, String> {
    let mut labels: HashMap<String, String> = pod.metadata.labels.clone().unwrap_or_default().into_iter().collect();
    labels.extend(pod_labels(pod));
    labels
}

/// Returns the annotations of a sandbox: the pod's own, and its source.
pub fn sandbox_annotations(pod: &Pod) -> HashMap<String, String> {
    let own = pod.metadata.annotations.clone().unwrap_or_default();
    let mut annotations: HashMap<String, String> = own.into_iter().collect();
    // A static pod has its own source; the network must not wait for its API object.
    annotations.entry(CONFIG_SOURCE.into()).or_insert_with(|| "api".into());
    if let Some(created) = &pod.metadata.creation_timestamp {
        annotations.insert(CONFIG_SEEN.into(), created.0.to_string());
    }
    annotations
}

pub fn container_labels(pod: &Pod, container: &Container) -> HashMap<String, String> {
    let mut labels = pod_labels(pod);
    labels.insert(CONTAINER_NAME.into(), container.name.clone());
    labels
}

pub fn container_annotations(pod: &Pod, container: &Container, restart_count: u32) -> HashMap<String, String> {
    let optional = |value: &Option<String>| value.clone().unwrap_or_default();
    HashMap::from([
        (CONTAINER_HASH.into(), hash(container)),
        (CONTAINER_RESTART_COUNT.into(), restart_count.to_string()),
        (TERMINATION_MESSAGE_PATH.into(), optional(&container.termination_message_path)),
        (TERMINATION_MESSAGE_POLICY.into(), optional(&container.termination_message_policy)),
        (GRACE_PERIOD.into(), spec::spec(pod).termination_grace_period_seconds.unwrap_or(30).to_string()),
    ])
}

/// Returns the hash of a container's name and image: a change restarts the container, as upstream does.
pub fn hash(container: &Container) -> String {
    let mut digest = Sha256::new();
    digest.update(container.name.as_bytes());
    digest.update([0]);
    digest.update(container.image.as_deref().unwrap_or_default().as_bytes());
    digest.finalize()[..4].iter().map(|byte| format!("{byte:02x}")).collect()
}

fn pod_labels(pod: &Pod) -> HashMap<String, String> {
    HashMap::from([
        (POD_NAME.into(), spec::name(pod).to_owned()),
        (POD_NAMESPACE.into(), spec::namespace(pod).to_owned()),
        (POD_UID.into(), spec::uid(pod).to_owned()),
    ])
}
