//! What a decision leads to: a binding, or a condition and an event that say why not, or victims that must go.
//!
//! Everything here talks to the API and knows nothing of queues or rows beyond the pod at hand.

use std::sync::Arc;

use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Client, DeleteOptions, Error, EventRecorder, EventType, ObjectRef, Patch};
use corten_meta::Value;
use futures::future::BoxFuture;
use jiff::Timestamp;
use serde_json::json;

use crate::preemption::Preemption;
use crate::queue::Entry;
use crate::rows::PodRow;
use crate::task::full_name;

/// Longer notes are cut: an event holds no more.
const MAX_NOTE: usize = 1024;

/// A pod with the node that was chosen for it.
pub struct Placed {
    pub entry: Entry,
    pub node: String,
}

#[derive(Clone)]
pub struct Outcomes {
    client: Client,
    recorder: EventRecorder,
    component: String,
}

impl Outcomes {
    pub fn new(client: Client, component: &str) -> Outcomes {
        let recorder = EventRecorder::new(client.clone(), component, "");
        Outcomes { client, recorder, component: component.to_owned() }
    }

    /// Binds; gives the pod back either way.
    pub fn bind(&self, placed: Placed) -> BoxFuture<'static, Result<Placed, Placed>> {
        let this = self.clone();
        Box::pin(async move {
            let pod = placed.entry.pod.clone();
            match this.create_binding(&pod, &placed.node).await {
                Ok(()) => {
                    let message = format!("Successfully assigned {} to {}", full_name(&pod.key), placed.node);
                    this.recorder.event(&about(&pod), EventType::Normal, "Scheduled", message);
                    Ok(placed)
                }
                Err(error) => {
                    tracing::debug!(pod = %pod.key, node = placed.node, %error, "cannot bind");
                    if !error.is_not_found() && !error.is_conflict() {
                        let message = format!("running Bind plugin \"DefaultBinder\": {error}");
                        this.tell(&pod, "SchedulerError", &message, None).await;
                    }
                    Err(placed)
                }
            }
        })
    }

    async fn create_binding(&self, pod: &PodRow, node: &str) -> Result<(), Error> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": pod.key.namespace, "name": pod.key.name, "uid": pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        });
        self.client.create_subresource::<Pod>(&pod.key.namespace, &pod.key.name, "binding", &binding).await.map(drop)
    }

    /// Says why no node was found, and carries out a preemption.
    pub fn unschedulable(
        &self,
        pod: Arc<PodRow>,
        message: String,
        preemption: Option<Preemption>,
        now: Timestamp,
    ) -> BoxFuture<'static, ()> {
        let this = self.clone();
        Box::pin(async move {
            let node = preemption.as_ref().map(|room| room.node.clone());
            if let Some(room) = preemption {
                this.evict(&pod, &room, now).await;
            }
            this.tell(&pod, "Unschedulable", &message, node.as_deref()).await;
        })
    }

    /// A pod behind a gate gets its condition, but no event: it is not a failure.
    pub fn gated(&self, pod: Arc<PodRow>) -> BoxFuture<'static, ()> {
        let this = self.clone();
        Box::pin(async move {
            this.set_condition(
                &pod,
                "SchedulingGated",
                "Scheduling is blocked due to non-empty scheduling gates",
                None,
            )
            .await;
        })
    }

    async fn tell(&self, pod: &PodRow, reason: &str, message: &str, nominated: Option<&str>) {
        let note: String = if message.chars().count() > MAX_NOTE {
            message.chars().take(MAX_NOTE - 4).chain(" ...".chars()).collect()
        } else {
            message.to_owned()
        };
        self.recorder.event(&about(pod), EventType::Warning, "FailedScheduling", note);
        self.set_condition(pod, reason, message, nominated).await;
    }

    /// Writes the PodScheduled condition unless it already says so.
    async fn set_condition(&self, pod: &PodRow, reason: &str, message: &str, nominated: Option<&str>) {
        let current = pod.scheduled_condition.as_ref();
        let same = current.is_some_and(|current| {
            current.status == "False"
                && current.reason.as_deref() == Some(reason)
                && current.message.as_deref() == Some(message)
        });
        if same && nominated.is_none_or(|node| node == pod.nominated) {
            return;
        }
        let now = corten_meta::time::rfc3339(corten_meta::time::now());
        let kept = current
            .filter(|current| current.status == "False")
            .and_then(|current| current.last_transition_time.as_ref());
        let since = kept.map_or(now, |time| corten_meta::time::rfc3339(time.0));
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message, "lastProbeTime": null, "lastTransitionTime": since});
        let mut status = json!({"conditions": [condition]});
        if let Some(node) = nominated {
            status["nominatedNodeName"] = json!(node);
        }
        self.patch_status(pod, status).await;
    }

    async fn patch_status(&self, pod: &PodRow, status: Value) {
        let patch = Patch::Strategic(json!({"metadata": {"uid": pod.uid}, "status": status}));
        let patched = self.client.patch::<Pod>(&pod.key.namespace, &pod.key.name, &patch, Some("status")).await;
        if let Err(error) = patched
            && !error.is_not_found()
            && !error.is_conflict()
        {
            tracing::warn!(pod = %pod.key, %error, "cannot update the status of a pod");
        }
    }

    /// Takes the victims down, each with the reason on it.
    async fn evict(&self, pod: &PodRow, room: &Preemption, now: Timestamp) {
        for victim in room.victims.iter().filter(|victim| !victim.terminating) {
            let condition = json!({
                "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
                "message": format!("{}: preempting to accommodate a higher priority pod", self.component),
                "lastTransitionTime": corten_meta::time::rfc3339(now),
            });
            self.patch_status(victim, json!({"conditions": [condition]})).await;
            let options = DeleteOptions::uid(&victim.uid);
            match self.client.delete::<Pod>(&victim.key.namespace, &victim.key.name, &options).await {
                Ok(()) => {
                    let message = format!("Preempted by pod {} on node {}", pod.uid, room.node);
                    self.recorder.event(&about(victim), EventType::Normal, "Preempted", message);
                }
                Err(error) if error.is_not_found() => {}
                Err(error) => tracing::warn!(victim = %victim.key, %error, "cannot preempt a pod"),
            }
        }
    }
}

fn about(pod: &PodRow) -> ObjectRef {
    ObjectRef {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: pod.key.namespace.clone(),
        name: pod.key.name.clone(),
        uid: pod.uid.clone(),
        resource_version: pod.resource_version.clone(),
        ..ObjectRef::default()
    }
}
