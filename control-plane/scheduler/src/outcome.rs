//! The writes of a decision: a binding, or a condition and an event with the reason, or the eviction of victims.
//!
//! Everything here calls the API and knows nothing of queues or rows beyond the pod at hand.

use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{
    PersistentVolume, PersistentVolumeClaim, Pod, PodExtendedResourceClaimStatus,
};
use corten_api::k8s_openapi::api::resource::v1::{AllocationResult, ResourceClaim, ResourceClaimConsumerReference};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_client::{Client, DeleteOptions, Error, EventType, ObjectRef, Occurrence, Patch, SeriesRecorder};
use corten_meta::{Key, Value};
use jiff::Timestamp;
use serde_json::json;
use tokio::sync::{Semaphore, watch};
use tokio_util::sync::CancellationToken;

use crate::framework::Effect;
use crate::preemption::Preemption;
use crate::rows::PodRow;
use crate::rows::storage::SELECTED_NODE;
use crate::scheduler::{Placed, Unplaced};

/// The finalizer of an allocated claim.
const CLAIM_FINALIZER: &str = "resource.kubernetes.io/delete-protection";
/// Longer notes are truncated: an event holds no more.
const MAX_NOTE: usize = 1024;
/// The most concurrent evictions. A pod may need many victims, and many pods may need some: the API server rejects
/// requests beyond its queues, and a pod whose victims stay has to wait for its next turn.
const EVICTIONS: usize = 64;
/// The pause before a pod is read again whose binding has an unknown outcome.
const READ_AGAIN: Duration = Duration::from_secs(1);

pub struct Outcomes {
    client: Client,
    recorder: SeriesRecorder,
    component: String,
    evictions: Semaphore,
}

impl Outcomes {
    /// Makes the writer. Events wait until the scheduler is not `busy`, because bindings go first.
    pub fn new(client: Client, component: &str, identity: &str, busy: watch::Receiver<bool>) -> Outcomes {
        let host = identity.split('_').next().unwrap_or_default();
        let recorder = SeriesRecorder::new(&client, component, format!("{component}-{host}"), busy);
        Outcomes { client, recorder, component: component.to_owned(), evictions: Semaphore::new(EVICTIONS) }
    }

    /// Binds a pod. If no answer says whether that worked, the pod is read until one does: the room of a pod that may be
    /// bound is given to no other, until the shutdown.
    pub async fn bind(&self, pod: &PodRow, shutdown: &CancellationToken) -> Result<(), Error> {
        match self.post_binding(pod).await {
            Err(error) if error.is_outcome_unknown() && self.is_bound(pod, shutdown).await => Ok(()),
            bound => bound,
        }
    }

    /// Reports whether the pod is bound to the node that was chosen for it.
    async fn is_bound(&self, pod: &PodRow, shutdown: &CancellationToken) -> bool {
        while !shutdown.is_cancelled() {
            match self.client.get::<Pod>(pod.namespace(), &pod.name).await {
                Ok(found) => {
                    let node = found.spec.as_ref().and_then(|spec| spec.node_name.as_deref());
                    return found.metadata.uid.as_deref() == Some(&*pod.uid) && node == Some(&*pod.node_name);
                }
                Err(error) if !error.is_outcome_unknown() => return false,
                Err(_) => drop(shutdown.run_until_cancelled(tokio::time::sleep(READ_AGAIN)).await),
            }
        }
        false
    }

    /// Binds by the pod's `binding` subresource.
    async fn post_binding(&self, pod: &PodRow) -> Result<(), Error> {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding",
            "metadata": {"namespace": pod.namespace(), "name": pod.name, "uid": &*pod.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": pod.node_name},
        });
        self.client.of::<Pod>().post_subresource(pod.namespace(), &pod.name, "binding", &binding).await
    }

    pub fn scheduled(&self, pod: &PodRow) {
        let message = format!("Successfully assigned {}/{} to {}", pod.namespace(), pod.name, pod.node_name);
        self.record(pod, None, EventType::Normal, ("Scheduled", "Binding"), message);
    }

    fn record(
        &self,
        pod: &PodRow,
        related: Option<&PodRow>,
        kind: EventType,
        (reason, action): (&'static str, &'static str),
        note: String,
    ) {
        let (regarding, related) = (about(pod), related.map(about));
        self.recorder.record(Occurrence { regarding, related, kind, reason, action, note });
    }

    /// Reports that a pod could not be bound. A pod that is deleted or bound by another scheduler needs no report.
    pub async fn binding_failed(&self, pod: &PodRow, step: &str, error: &str) {
        self.failed(pod, &format!("running {step}: {error}")).await;
    }

    /// Reports that a pod could not be decided about.
    pub async fn failed(&self, pod: &PodRow, error: &str) {
        self.tell(pod, "SchedulerError", error, None).await;
    }

    /// Writes everything that must be visible before the pod is bound.
    pub async fn pre_bind(&self, placed: &mut Placed) -> Result<(), Error> {
        for effect in &mut placed.effects {
            match effect {
                Effect::BindVolume { volume, claim, claim_uid } => {
                    let mut object = self.client.get::<PersistentVolume>("", volume).await?;
                    let bound_by_user = object.spec.as_ref().is_some_and(|spec| spec.claim_ref.is_some());
                    give(&mut object, claim, claim_uid, !bound_by_user);
                    self.client.update(&object).await?;
                }
                Effect::AllocateClaim { claim, allocation } => {
                    self.reserve_claim(&placed.row, claim, allocation.as_deref()).await?;
                }
                Effect::CreateClaim { claim, allocation, mappings, written } => {
                    let pod = &placed.row;
                    let name = self.client.create(&**claim).await?.metadata.name.unwrap_or_default();
                    let key = Key { namespace: pod.namespace().to_owned(), name };
                    self.reserve_claim(pod, &key, Some(allocation)).await?;
                    let claim_status = PodExtendedResourceClaimStatus {
                        request_mappings: std::mem::take(mappings),
                        resource_claim_name: key.name.clone(),
                    };
                    let patch = json!({"metadata": {"uid": &*pod.uid}, "status": {"extendedResourceClaimStatus": claim_status}});
                    let (namespace, name) = (pod.namespace(), &pod.name);
                    self.client.send_patch::<Pod>(namespace, name, &Patch::Merge(patch), Some("status")).await?;
                    *written = Some(key);
                }
                Effect::DeallocateClaim { .. } | Effect::DeleteClaim { .. } => {}
                Effect::Provision { claim, written } => {
                    let annotations = json!({SELECTED_NODE: placed.row.node_name});
                    let patch = Patch::Merge(json!({"metadata": {"annotations": annotations}}));
                    let (namespace, name) = (&claim.namespace, &claim.name);
                    let object = self.client.patch::<PersistentVolumeClaim>(namespace, name, &patch, None).await?;
                    *written = object.metadata.resource_version.and_then(|version| version.parse().ok());
                }
            }
        }
        Ok(())
    }

    /// Writes the allocation and the reservation into the claim. An allocated claim must not be deleted before it is
    /// deallocated, so it gets a finalizer first.
    async fn reserve_claim(&self, pod: &PodRow, key: &Key, allocation: Option<&AllocationResult>) -> Result<(), Error> {
        let mut claim = self.client.get::<ResourceClaim>(&key.namespace, &key.name).await?;
        if allocation.is_some() {
            let finalizers = claim.metadata.finalizers.get_or_insert_default();
            if !finalizers.iter().any(|finalizer| finalizer == CLAIM_FINALIZER) {
                finalizers.push(CLAIM_FINALIZER.to_owned());
                claim = self.client.update(&claim).await?;
            }
        }
        let status = claim.status.get_or_insert_default();
        if status.allocation.is_none() {
            status.allocation = allocation.cloned();
        }
        if let Some(given) = &mut status.allocation {
            given.allocation_timestamp.get_or_insert_with(|| Time(corten_meta::time::now()));
        }
        let consumers = status.reserved_for.get_or_insert_default();
        if !consumers.iter().any(|consumer| *consumer.uid == *pod.uid) {
            consumers.push(ResourceClaimConsumerReference {
                resource: "pods".to_owned(),
                name: pod.name.clone(),
                uid: pod.uid.to_string(),
                api_group: None,
            });
        }
        self.client.update_status(&claim).await.map(drop)
    }

    /// Deallocates claims that would make the pod infeasible on every node.
    pub async fn deallocate(&self, unplaced: &Unplaced) {
        for effect in &unplaced.effects {
            if let Effect::DeleteClaim { claim } = effect
                && let Err(error) = self.delete_claim(claim).await
            {
                tracing::warn!(%claim, %error, "cannot delete the claim of extended resources");
            }
            let Effect::DeallocateClaim { claim } = effect else { continue };
            let empty = json!({"allocation": null, "reservedFor": null, "devices": null});
            let patch = Patch::Merge(json!({"status": empty}));
            let given = self.client.send_patch::<ResourceClaim>(&claim.namespace, &claim.name, &patch, Some("status"));
            if let Err(error) = given.await {
                tracing::warn!(%claim, %error, "cannot take the devices of a claim away");
            }
        }
    }

    /// Deletes an allocated claim that no pod uses.
    async fn delete_claim(&self, key: &Key) -> Result<(), Error> {
        let mut claim = self.client.get::<ResourceClaim>(&key.namespace, &key.name).await?;
        let finalizers = claim.metadata.finalizers.get_or_insert_default();
        finalizers.retain(|finalizer| finalizer != CLAIM_FINALIZER);
        self.client.update(&claim).await?;
        self.client.delete::<ResourceClaim>(&key.namespace, &key.name, &DeleteOptions::default()).await.map(drop)
    }

    /// Evicts the victims of a preemption, and clears the nominations of lower-priority pods to the node.
    pub async fn preempt(&self, unplaced: &Unplaced, now: Timestamp) -> Result<(), Error> {
        for other in &unplaced.displaced {
            self.patch_status(other, json!({"nominatedNodeName": null})).await;
        }
        match &unplaced.preemption {
            Some(room) => self.evict(&unplaced.pod, room, now).await,
            None => Ok(()),
        }
    }

    /// Reports why no node is feasible.
    pub async fn unschedulable(&self, unplaced: &Unplaced) {
        let nominated = match (&unplaced.preemption, unplaced.clears_nomination) {
            (Some(room), _) => Some(room.node.as_str()),
            (None, true) => Some(""),
            (None, false) => None,
        };
        let reason = if unplaced.is_error { "SchedulerError" } else { "Unschedulable" };
        self.tell(&unplaced.pod, reason, &unplaced.message, nominated).await;
    }

    /// Sets the condition of a pod with scheduling gates. There is no event, since it is not a failure.
    pub async fn gated(&self, pod: Arc<PodRow>) {
        let message = "Scheduling is blocked due to non-empty scheduling gates";
        self.set_condition(&pod, "SchedulingGated", message, None).await;
    }

    async fn tell(&self, pod: &PodRow, reason: &str, message: &str, nominated: Option<&str>) {
        let note: String = if message.chars().count() > MAX_NOTE {
            message.chars().take(MAX_NOTE - 4).chain(" ...".chars()).collect()
        } else {
            message.to_owned()
        };
        self.record(pod, None, EventType::Warning, ("FailedScheduling", "Scheduling"), note);
        self.set_condition(pod, reason, message, nominated).await;
    }

    /// Writes the PodScheduled condition unless it is up to date.
    async fn set_condition(&self, pod: &PodRow, reason: &str, message: &str, nominated: Option<&str>) {
        let current = pod.condition.as_deref();
        let same = current
            .is_some_and(|current| current.status == "False" && current.reason == reason && current.message == message);
        if same && nominated.is_none_or(|node| node == pod.nominated) {
            return;
        }
        let now = corten_meta::time::rfc3339(corten_meta::time::now());
        let kept = current.filter(|current| current.status == "False").and_then(|current| current.since);
        let since = kept.map_or(now, corten_meta::time::rfc3339);
        let mut condition = json!({"type": "PodScheduled", "status": "False", "reason": reason, "message": message,
            "lastProbeTime": null, "lastTransitionTime": since});
        if pod.generation > 0 {
            condition["observedGeneration"] = json!(pod.generation);
        }
        let mut status = json!({"conditions": [condition]});
        match nominated {
            Some("") => status["nominatedNodeName"] = Value::Null,
            Some(node) => status["nominatedNodeName"] = json!(node),
            None => {}
        }
        self.patch_status(pod, status).await;
    }

    async fn patch_status(&self, pod: &PodRow, status: Value) {
        let patch = Patch::Strategic(json!({"metadata": {"uid": &*pod.uid}, "status": status}));
        let patched = self.client.send_patch::<Pod>(pod.namespace(), &pod.name, &patch, Some("status")).await;
        if let Err(error) = patched
            && !error.is_not_found()
            && !error.is_conflict()
        {
            tracing::warn!(pod = %pod.key(), %error, "cannot update the status of a pod");
        }
    }

    /// Evicts the victims concurrently, each with the condition DisruptionTarget.
    async fn evict(&self, pod: &PodRow, room: &Preemption, now: Timestamp) -> Result<(), Error> {
        let going = room.victims.iter().filter(|victim| !victim.terminating);
        let evictions = going.map(|victim| self.evict_one(pod, victim, &room.node, now));
        futures::future::try_join_all(evictions).await.map(drop)
    }

    async fn evict_one(&self, pod: &PodRow, victim: &PodRow, node: &str, now: Timestamp) -> Result<(), Error> {
        // The semaphore is never closed; if it were, the eviction would still be due.
        let _turn = self.evictions.acquire().await;
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler",
            "message": format!("{}: preempting to accommodate a higher priority pod", self.component),
            "lastTransitionTime": corten_meta::time::rfc3339(now),
        });
        self.patch_status(victim, json!({"conditions": [condition]})).await;
        let options = DeleteOptions::uid(&*victim.uid);
        match self.client.delete::<Pod>(victim.namespace(), &victim.name, &options).await {
            Ok(()) => {
                let message = format!("Preempted by pod {} on node {node}", pod.uid);
                self.record(victim, Some(pod), EventType::Normal, ("Preempted", "Preempting"), message);
                Ok(())
            }
            Err(error) if error.is_not_found() || error.is_conflict() => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Writes the claim into the volume, with the annotation that the scheduler and not the user chose it.
fn give(volume: &mut PersistentVolume, claim: &corten_meta::Key, uid: &str, by_us: bool) {
    let reference = volume.spec.get_or_insert_default().claim_ref.get_or_insert_default();
    reference.api_version = Some("v1".to_owned());
    reference.kind = Some(PersistentVolumeClaim::KIND.to_owned());
    reference.namespace = Some(claim.namespace.clone());
    reference.name = Some(claim.name.clone());
    reference.uid = Some(uid.to_owned());
    if by_us {
        let annotations = volume.metadata.annotations.get_or_insert_default();
        annotations.insert("pv.kubernetes.io/bound-by-controller".to_owned(), "yes".to_owned());
    }
}

fn about(pod: &PodRow) -> ObjectRef {
    ObjectRef {
        api_version: "v1".to_owned(),
        kind: "Pod".to_owned(),
        namespace: pod.namespace().to_owned(),
        name: pod.name.clone(),
        uid: pod.uid.to_string(),
        resource_version: pod.revision.to_string(),
        ..ObjectRef::default()
    }
}
