//! The attach-detach controller: attaches the volume of a CSI driver to the node of the pod that uses it, and to no
//! other.
//!
//! The pods of a node determine the volumes to attach ([`wanted`]); the node's VolumeAttachments, which the driver's
//! external-attacher serves, show those that are attached. Invariant: a volume that a live node has mounted is never
//! detached, and a volume with single-node access is never attached to a second node.

mod wanted;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{AttachedVolume, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use corten_api::k8s_openapi::api::storage::v1::{
    CSIDriver, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::metrics;
use crate::runtime::{Action, Controller, Plan, View, Watch};
use crate::workload::condition::ready_status;
use wanted::Wanted;

/// The time that an unhealthy node may hold a volume that no pod there uses.
const LONGEST_WAIT: Duration = Duration::from_secs(6 * 60);
const MANAGED: &str = "volumes.kubernetes.io/controller-managed-attach-detach";
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// The prefix of CSI volumes in a node's status.
const CSI_PREFIX: &str = "kubernetes.io/csi/";

#[derive(Default)]
pub struct AttachDetachController {
    /// The time since which an attachment is no longer wanted, by name.
    unwanted: Mutex<HashMap<String, Timestamp>>,
}

/// An attachment of the node, and the time since which it is not wanted, if it is not.
struct Held {
    attachment: VolumeAttachment,
    volume: Option<PersistentVolume>,
    unwanted_since: Option<Timestamp>,
    /// The driver's volumes are used without being attached.
    needless: bool,
}

pub struct Observed {
    /// None for a deleted node that still holds volumes.
    node: Option<Node>,
    name: String,
    wanted: Vec<Wanted>,
    held: Vec<Held>,
}

impl Controller for AttachDetachController {
    type Observed = Observed;

    const NAME: &'static str = "attachdetach-controller";
    /// One node at a time: whether a volume may be attached to a node depends on the attachments of the others.
    const WORKERS: usize = 1;
    /// Only this controller knows since when an attachment is not wanted.
    const REMEMBERS: bool = false;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<Node>(),
            Watch::mapped::<Pod>(wanted::of_pod),
            Watch::mapped::<PersistentVolumeClaim>(wanted::of_claim),
            Watch::mapped::<PersistentVolume>(wanted::of_volume),
            Watch::mapped::<VolumeAttachment>(wanted::of_attachment),
            Watch::mapped::<CSIDriver>(wanted::of_driver),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let attachments: Vec<VolumeAttachment> = view.all("");
        let node: Option<Node> = view.typed(key);
        let managed = node.as_ref().is_none_or(|node| {
            node.metadata.annotations.as_ref().is_some_and(|all| all.get(MANAGED).is_some_and(|value| value == "true"))
        });
        let wanted = if managed { wanted::on_node(view, &key.name, &attachments) } else { return None };
        let mut here: Vec<VolumeAttachment> =
            attachments.into_iter().filter(|attachment| attachment.spec.node_name == key.name).collect();
        here.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        if here.is_empty() && wanted.is_empty() && node.as_ref().is_none_or(|node| !reports_any(node)) {
            return None;
        }
        let held = here.into_iter().map(|attachment| self.held(view, attachment, &wanted)).collect();
        Some(Observed { node, name: key.name.clone(), wanted, held })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let mut plan = Plan::nothing();
        let leaving: Vec<&Held> = observed.held.iter().filter(|held| observed.may_go(&mut plan, held, now)).collect();
        // A node must know that a volume is about to be detached before it is, and see a new one only when it is
        // attached.
        observed.report(&mut plan, &leaving);
        let delete = |held: &&Held| held.attachment.metadata.deletion_timestamp.is_none();
        plan.actions.extend(leaving.iter().copied().filter(delete).map(|held| Action::delete(&held.attachment)));
        observed.attach(&mut plan);
        observed.count(&mut plan);
        plan
    }
}

impl AttachDetachController {
    fn held(&self, view: &dyn View, attachment: VolumeAttachment, wanted: &[Wanted]) -> Held {
        let source = attachment.spec.source.persistent_volume_name.clone();
        let volume = source.and_then(|name| view.typed(&Key::new("", name)));
        let is_wanted = wanted.iter().any(|one| one.attachment_name == attachment.name());
        let mut unwanted = self.unwanted.lock().unwrap_or_else(PoisonError::into_inner);
        let unwanted_since = match is_wanted {
            true => {
                unwanted.remove(attachment.name());
                None
            }
            false => Some(*unwanted.entry(attachment.name().to_owned()).or_insert_with(crate::runtime::now)),
        };
        let needless = wanted::needs_no_attachment(view, &attachment.spec.attacher);
        Held { attachment, volume, unwanted_since, needless }
    }
}

impl Observed {
    /// Counts the desired and the actual volumes of the node.
    fn count(&self, plan: &mut Plan) {
        let plugin = |driver: &str| format!("kubernetes.io/csi:{driver}");
        let wanted = self.wanted.iter().filter_map(|one| wanted::csi_of(&one.volume)).map(|csi| csi.driver.as_str());
        let attached = self.held.iter().filter(|held| is_attached(&held.attachment));
        let attached = attached.map(|held| held.attachment.spec.attacher.as_str());
        let states =
            [("desired_state_of_world", wanted.collect::<Vec<_>>()), ("actual_state_of_world", attached.collect())];
        for (state, drivers) in states {
            for driver in drivers {
                plan.count(&metrics::VOLUMES_ATTACHED, [plugin(driver).as_str().into(), state.into()], 1.0);
            }
        }
    }

    /// Reports whether an attachment may be deleted now: it is unwanted, this controller created it, and the node has
    /// unmounted the volume or is lost.
    fn may_go(&self, plan: &mut Plan, held: &Held, now: Timestamp) -> bool {
        let Some(since) = held.unwanted_since else { return false };
        // Attachments with other names belong to other writers.
        let ours =
            held.volume.as_ref().and_then(wanted::csi_of).is_some_and(|csi| {
                attachment_name(&csi.volume_handle, &csi.driver, &self.name) == held.attachment.name()
            });
        if !ours {
            return false;
        }
        let in_use = match &self.node {
            None => true,
            Some(node) => {
                let unique = held.volume.as_ref().and_then(unique_name).unwrap_or_default();
                node.status.iter().flat_map(|status| status.volumes_in_use.iter().flatten()).any(|name| *name == unique)
            }
        };
        if !in_use || held.needless {
            return true;
        }
        let news = held.attachment.metadata.deletion_timestamp.is_none();
        let forced = |plan: &mut Plan, reason: &str| {
            if news {
                plan.count(&metrics::FORCED_DETACHES, [reason.into()], 1.0);
            }
        };
        if self.is_out_of_service() {
            forced(plan, "out-of-service");
            return true;
        }
        if self.node.as_ref().is_some_and(|node| ready_status(node) == "True") {
            return false;
        }
        let waited: Duration = now.duration_since(since).try_into().unwrap_or(Duration::ZERO);
        let left = LONGEST_WAIT.saturating_sub(waited);
        match left.is_zero() {
            true => forced(plan, "timeout"),
            false => plan.requeue(left),
        }
        left.is_zero()
    }

    fn is_out_of_service(&self) -> bool {
        let taints = self.node.iter().filter_map(|node| node.spec.as_ref()?.taints.as_ref()).flatten();
        taints.into_iter().any(|taint| taint.key == OUT_OF_SERVICE)
    }

    /// Writes the attached volumes into the node's status, and records events for the pods that waited for one.
    fn report(&self, plan: &mut Plan, leaving: &[&Held]) {
        let Some(node) = &self.node else { return };
        let present = node.status.as_ref().and_then(|status| status.volumes_attached.clone()).unwrap_or_default();
        let stays = |held: &&Held| !leaving.iter().any(|gone| gone.attachment.name() == held.attachment.name());
        let attached: BTreeSet<String> = self
            .held
            .iter()
            .filter(stays)
            .filter(|held| is_attached(&held.attachment) && held.attachment.metadata.deletion_timestamp.is_none())
            .filter_map(|held| unique_name(held.volume.as_ref()?))
            .collect();
        let kept = |volume: &&AttachedVolume| !volume.name.starts_with(CSI_PREFIX) || attached.contains(&volume.name);
        let mut reported: Vec<AttachedVolume> = present.iter().filter(kept).cloned().collect();
        for name in attached.iter().filter(|name| !present.iter().any(|volume| volume.name == **name)) {
            reported.push(AttachedVolume { name: name.clone(), device_path: String::new() });
            for one in self.wanted.iter().filter(|one| unique_name(&one.volume).as_ref() == Some(name)) {
                one.tell(plan, false, "AttachVolume.Attach succeeded", "");
            }
        }
        if reported != present {
            let list: Vec<_> =
                reported.iter().map(|volume| json!({"name": volume.name, "devicePath": volume.device_path})).collect();
            plan.push(Action::patch_status(node, json!({"status": {"volumesAttached": list}})));
        }
    }

    /// Creates the missing attachments, unless another node holds the volume exclusively.
    fn attach(&self, plan: &mut Plan) {
        if self.node.is_none() {
            return;
        }
        for one in &self.wanted {
            let held = self.held.iter().find(|held| held.attachment.name() == one.attachment_name);
            match held.map(|held| &held.attachment) {
                Some(attachment) => {
                    let error = attachment.status.as_ref().and_then(|status| status.attach_error.as_ref());
                    if let Some(error) = error.filter(|_| !is_attached(attachment)) {
                        let message = format!(": {}", error.message.as_deref().unwrap_or_default());
                        one.tell(plan, true, "AttachVolume.Attach failed", &message);
                    }
                }
                None if one.is_exclusive() && !one.elsewhere.is_empty() => one.tell_multi_attach(plan),
                None => plan.push(Action::create(&one.attachment(&self.name))),
            }
        }
    }
}

impl Wanted {
    fn attachment(&self, node: &str) -> VolumeAttachment {
        VolumeAttachment {
            metadata: ObjectMeta { name: Some(self.attachment_name.clone()), ..ObjectMeta::default() },
            spec: VolumeAttachmentSpec {
                attacher: wanted::csi_of(&self.volume).map(|csi| csi.driver.clone()).unwrap_or_default(),
                node_name: node.to_owned(),
                source: VolumeAttachmentSource {
                    persistent_volume_name: Some(self.volume.name().to_owned()),
                    inline_volume_spec: None,
                },
            },
            status: None,
        }
    }

    /// Records an event for every pod that waits for the volume.
    fn tell(&self, plan: &mut Plan, warning: bool, what: &str, detail: &str) {
        let message = format!("{what} for volume \"{}\" {detail}", self.volume.name());
        for pod in &self.pods {
            plan.push(match warning {
                true => Action::warning(pod, "FailedAttachVolume", message.clone()),
                false => Action::normal(pod, "SuccessfulAttachVolume", message.clone()),
            });
        }
    }

    /// Records the Multi-Attach warning: names the pods that hold the volume in the pod's own namespace, and counts
    /// those elsewhere.
    fn tell_multi_attach(&self, plan: &mut Plan) {
        if self.users_elsewhere.is_empty() {
            let detail = "Volume is already exclusively attached to one node, waiting on detach before it can be \
                          attached to another node";
            return self.tell(plan, true, "Waiting for detach", detail);
        }
        for pod in &self.pods {
            let (near, far): (Vec<&Key>, Vec<&Key>) =
                self.users_elsewhere.iter().partition(|user| user.namespace == pod.namespace());
            let names = near.iter().map(|user| user.name.as_str()).collect::<Vec<_>>().join(", ");
            let detail = match (near.is_empty(), far.len()) {
                (true, count) => format!("Volume is already used by {count} pod(s) in different namespaces"),
                (false, 0) => format!("Volume is already used by pod(s) {names}"),
                (false, count) => {
                    format!("Volume is already used by pod(s) {names} and {count} pod(s) in different namespaces")
                }
            };
            let message = format!("Multi-Attach error for volume \"{}\" {detail}", self.volume.name());
            plan.push(Action::warning(pod, "FailedAttachVolume", message));
        }
    }
}

fn is_attached(attachment: &VolumeAttachment) -> bool {
    attachment.status.as_ref().is_some_and(|status| status.attached)
}

fn reports_any(node: &Node) -> bool {
    let attached = node.status.iter().flat_map(|status| status.volumes_attached.iter().flatten());
    attached.into_iter().any(|volume| volume.name.starts_with(CSI_PREFIX))
}

/// Returns the attachment name that the external-attacher, the kubelet and this controller agree on.
fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{:x}", Sha256::digest(format!("{handle}{driver}{node}")))
}

/// Returns the name of the volume in a node's status.
fn unique_name(volume: &PersistentVolume) -> Option<String> {
    wanted::csi_of(volume).map(|csi| format!("{CSI_PREFIX}{}^{}", csi.driver, csi.volume_handle))
}
