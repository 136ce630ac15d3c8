//! Mirror pods: the API objects of static pods. The worker of the static pod creates its mirror, keeps it, and deletes
//! it; deleting it by hand does not affect the pod itself.

use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use corten_client::DeleteOptions;
use corten_meta::Key;

use super::worker::Worker;
use crate::error::Result;
use crate::pod::source::{CONFIG_HASH, CONFIG_MIRROR, annotation};
use crate::pod::spec;
use crate::services::Services;

/// Returns the mirror of a static pod, to be created.
fn mirror_of(pod: &Pod, node: &Node) -> Pod {
    let mut annotations = pod.metadata.annotations.clone().unwrap_or_default();
    let hash = annotation(pod, CONFIG_HASH).unwrap_or_default().to_owned();
    annotations.insert(CONFIG_MIRROR.to_owned(), hash);
    let owner = OwnerReference {
        api_version: "v1".into(),
        kind: "Node".into(),
        name: node.metadata.name.clone().unwrap_or_default(),
        uid: node.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        ..OwnerReference::default()
    };
    Pod {
        metadata: ObjectMeta {
            name: pod.metadata.name.clone(),
            namespace: pod.metadata.namespace.clone(),
            labels: pod.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: pod.spec.clone(),
        status: None,
    }
}

/// Reports whether the mirror is of this very pod.
fn shows(mirror: &Pod, pod: &Pod) -> bool {
    mirror.metadata.deletion_timestamp.is_none() && annotation(mirror, CONFIG_MIRROR) == annotation(pod, CONFIG_HASH)
}

impl Worker {
    /// Creates or replaces the mirror; the status is written once there is a mirror.
    pub(super) async fn keep_mirror(&mut self, mirror: Option<&Arc<Pod>>) -> Result<()> {
        if !self.is_static || self.memory.termination.is_some() {
            return Ok(());
        }
        match mirror {
            Some(mirror) if shows(mirror, &self.pod) => Ok(()),
            Some(stale) => delete(&self.services, stale).await,
            None => self.create_mirror().await,
        }
    }

    async fn create_mirror(&self) -> Result<()> {
        let name = self.services.config.node_name.clone();
        // Before the node is registered, nothing can be owned by it; the next pass tries again.
        let Some(node) = self.services.api.own_node.typed::<Node>(&Key { namespace: String::new(), name }) else {
            return Ok(());
        };
        match self.services.api.client.create(&mirror_of(&self.pod, &node)).await {
            Err(error) if !error.is_already_exists() => {
                tracing::warn!(%error, pod = %spec::describe(&self.pod), "mirror pod not created");
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

/// Deletes a mirror at once: it needs no grace period.
pub async fn delete(services: &Services, mirror: &Pod) -> Result<()> {
    let options = DeleteOptions {
        grace_period_seconds: Some(0),
        precondition_uid: mirror.metadata.uid.clone(),
        ..DeleteOptions::default()
    };
    match services.api.client.delete::<Pod>(spec::namespace(mirror), spec::name(mirror), &options).await {
        Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use crate::pod::source::is_mirror;

    #[test]
    fn a_mirror_shows_one_content_only() {
        let mut pod = fixtures::pod(r#"{"containers":[{"name":"c"}]}"#);
        pod.metadata.annotations = Some([(CONFIG_HASH.to_owned(), "h1".to_owned())].into());
        let node = Node { metadata: ObjectMeta { name: Some("n".into()), ..ObjectMeta::default() }, ..Node::default() };
        let mut mirror = mirror_of(&pod, &node);
        assert!(is_mirror(&mirror) && shows(&mirror, &pod));
        assert_eq!(mirror.metadata.uid, None, "the API gives it an identity of its own");
        mirror.metadata.annotations = Some([(CONFIG_MIRROR.to_owned(), "h2".to_owned())].into());
        assert!(!shows(&mirror, &pod));
    }
}
