//! Ephemeral volumes: creates the claim from a pod's volumeClaimTemplate, owned by the pod.
//!
//! A claim of that name that the pod does not own is never used: the pod waits until a user deletes it.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, Volume};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;

use crate::metrics;
use crate::runtime::{Action, Controller, Count, Plan, Reference, Report, ResourceType, View, Watch, decode, mentions};
use crate::workload::owner::{controller_reference, is_controlled_by, owners_of};

pub struct EphemeralVolumeController;

pub struct Observed {
    pod: Pod,
    /// The claims that have the names of the pod's ephemeral volumes.
    claims: Vec<PersistentVolumeClaim>,
}

impl Controller for EphemeralVolumeController {
    type Observed = Observed;

    const NAME: &'static str = "ephemeral-volume-controller";
    const COMPONENT: &'static str = "ephemeral_volume";

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<Pod>(), Watch::mapped::<PersistentVolumeClaim>(of_claim)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        // Every change of a pod enqueues it: only pods that may have such a volume are decoded.
        let pod = view.get(ResourceType::of::<Pod>(), key).filter(|pod| mentions(pod, "\"ephemeral\""))?;
        let pod: Pod = decode(&pod).filter(|pod: &Pod| pod.metadata.deletion_timestamp.is_none())?;
        let claim = |volume: &Volume| view.typed(&Key::new(key.namespace.clone(), claim_name(&pod, volume)));
        let claims: Vec<PersistentVolumeClaim> = ephemeral(&pod).filter_map(claim).collect();
        Some(Observed { claims, pod })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let pod = &observed.pod;
        let mut plan = Plan::nothing();
        for volume in ephemeral(pod) {
            let name = claim_name(pod, volume);
            match observed.claims.iter().find(|claim| claim.name() == name) {
                Some(claim) if is_controlled_by(&claim.metadata, pod.metadata.uid.as_deref().unwrap_or_default()) => {}
                Some(claim) => {
                    let message = format!(
                        "ephemeral volume {}: PVC {}/{name} was not created for pod {}/{} (pod is not owner)",
                        volume.name,
                        claim.namespace(),
                        pod.namespace(),
                        pod.name()
                    );
                    plan.push(Action::warning(pod, "FailedBinding", message));
                    // The remaining volumes wait: a pod that cannot start should not occupy storage.
                    return plan;
                }
                None => {
                    plan.actions.extend(new_claim(pod, volume, name));
                    plan.counts.push(Count::attempt(&metrics::EPHEMERAL_CLAIMS, []));
                    plan.counts.push(Count::failure(&metrics::EPHEMERAL_CLAIM_FAILURES, []));
                }
            }
        }
        plan
    }
}

fn ephemeral(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten()).filter(|volume| volume.ephemeral.is_some())
}

fn claim_name(pod: &Pod, volume: &Volume) -> String {
    format!("{}-{}", pod.name(), volume.name)
}

/// Only a deleted claim must be created again.
fn of_claim(_: &dyn View, change: &Change) -> Vec<Key> {
    if change.new.is_some() { Vec::new() } else { owners_of(change, Pod::KIND) }
}

fn new_claim(pod: &Pod, volume: &Volume, name: String) -> Option<Action> {
    let template = volume.ephemeral.as_ref()?.volume_claim_template.as_ref()?;
    let from = template.metadata.clone().unwrap_or_default();
    let report = Report {
        about: Reference::to(pod),
        success: ("", "".into()),
        failure: ("FailedBinding", format!("ephemeral volume {}: create PVC {name}: ", volume.name).into()),
    };
    let claim = PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: pod.metadata.namespace.clone(),
            labels: from.labels,
            annotations: from.annotations,
            owner_references: Some(vec![controller_reference(pod)]),
            ..ObjectMeta::default()
        },
        spec: Some(template.spec.clone()),
        status: None,
    };
    Some(Action::create_reported(&claim, report))
}
