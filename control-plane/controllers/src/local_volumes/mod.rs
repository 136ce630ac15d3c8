//! Volumes on the nodes' own disks: a claim of a StorageClass with the provisioner [`PROVISIONER`] gets a directory on
//! the node of its first pod, and the directory is removed with its volume.
//!
//! The Node has an annotation with the parent directory. The kubelet creates the directory for the first pod, and
//! removes it on request. A directory exists only while its volume does: none is ever leaked.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use corten_api::k8s_openapi::api::storage::v1::StorageClass;
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::runtime::{Action, Controller, Plan, Reference, Report, ResourceType, View, Watch, decode, key_of};

/// The provisioner that StorageClasses name.
pub const PROVISIONER: &str = "corten/local-path";
/// The annotation with the node's directory for local volumes.
const PLACE: &str = "corten/local-volumes";
const ACCOUNT: &str = "local-path-provisioner";
const SELECTED_NODE: &str = "volume.kubernetes.io/selected-node";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";
const STORAGE_PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";
/// The finalizer that keeps a volume until its directory is removed, whichever client deletes it.
const FINALIZER: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const HOSTNAME: &str = "kubernetes.io/hostname";
/// The longest name of a directory; file systems allow 255 bytes.
const MAX_NAME: usize = 200;

/// Provisions volumes.
pub struct Provisioner;
/// Reclaims volumes.
pub struct Reclaimer;

pub struct Observed {
    claim: PersistentVolumeClaim,
    class: StorageClass,
    /// The selected node, if it exists.
    node: Option<Node>,
    provisioned: bool,
}

impl Controller for Provisioner {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;
    const COMPONENT: &'static str = PROVISIONER;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::own::<PersistentVolumeClaim>(),
            Watch::read::<PersistentVolume>(),
            Watch::read::<StorageClass>(),
            Watch::read::<Node>(),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let claim: PersistentVolumeClaim = view.typed(key)?;
        let spec = claim.spec.as_ref()?;
        let bound = spec.volume_name.as_deref().is_some_and(|name| !name.is_empty());
        if bound
            || claim.metadata.deletion_timestamp.is_some()
            || annotation(&claim, STORAGE_PROVISIONER) != Some(PROVISIONER)
        {
            return None;
        }
        let class: StorageClass = view.typed(&Key::new("", spec.storage_class_name.clone()?))?;
        let node = annotation(&claim, SELECTED_NODE).and_then(|name| view.typed(&Key::new("", name)));
        let volume = Key::new("", volume_name(&claim));
        let provisioned = view.get(ResourceType::of::<PersistentVolume>(), &volume).is_some();
        Some(Observed { claim, class, node, provisioned })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let Observed { claim, class, node, provisioned } = observed;
        let placed = annotation(claim, SELECTED_NODE).is_some();
        if *provisioned || !placed || class.provisioner != PROVISIONER {
            return Plan::nothing();
        }
        let Some(node) = node else {
            // The scheduler selects a node again when the annotation is gone.
            return Plan::from(Action::patch(claim, json!({"metadata": {"annotations": {SELECTED_NODE: null}}})));
        };
        match refusal(claim, node) {
            Some(why) => Plan::from(Action::warning(
                claim,
                "ProvisioningFailed",
                format!("failed to provision volume with StorageClass {:?}: {why}", class.name()),
            )),
            None => provision(claim, class, node),
        }
    }
}

/// Returns the reason why a claim cannot be provisioned on a node.
fn refusal(claim: &PersistentVolumeClaim, node: &Node) -> Option<String> {
    let spec = claim.spec.clone().unwrap_or_default();
    let single = |mode: &String| mode == "ReadWriteOnce" || mode == "ReadWriteOncePod";
    if !spec.access_modes.iter().flatten().all(single) {
        return Some("local volumes only support ReadWriteOnce and ReadWriteOncePod access modes".to_owned());
    }
    if spec.volume_mode.as_deref() == Some("Block") {
        return Some("local volumes cannot be block devices".to_owned());
    }
    if spec.data_source.is_some() || spec.data_source_ref.is_some() {
        return Some("local volumes cannot be made from a data source".to_owned());
    }
    let place = node.metadata.annotations.as_ref().and_then(|all| all.get(PLACE));
    place.is_none().then(|| format!("node {} keeps no local volumes", node.name()))
}

fn provision(claim: &PersistentVolumeClaim, class: &StorageClass, node: &Node) -> Plan {
    let report = Report {
        about: Reference::to(claim),
        success: ("ProvisioningSucceeded", "Successfully provisioned volume ".into()),
        failure: (
            "ProvisioningFailed",
            format!("failed to provision volume with StorageClass {:?}: ", class.name()).into(),
        ),
    };
    let message = format!("External provisioner is provisioning volume for claim \"{}\"", key_of(claim));
    Plan::from(vec![
        Action::normal(claim, "Provisioning", message),
        Action::Create {
            resource: ResourceType::of::<PersistentVolume>(),
            object: volume(claim, class, node),
            report: Some(report),
        },
    ])
}

/// Returns the volume's name; the uid makes it unique for all time.
fn volume_name(claim: &PersistentVolumeClaim) -> String {
    format!("pvc-{}", claim.metadata.uid.as_deref().unwrap_or_default())
}

/// Returns the directory's name, which shows the claim it belongs to.
fn directory_name(claim: &PersistentVolumeClaim) -> String {
    format!("{}_{}_{}", volume_name(claim), claim.namespace(), claim.name()).chars().take(MAX_NAME).collect()
}

fn volume(claim: &PersistentVolumeClaim, class: &StorageClass, node: &Node) -> Value {
    let directory = directory_name(claim);
    let spec = claim.to_value()["spec"].take();
    let place = node.metadata.annotations.as_ref().and_then(|all| all.get(PLACE)).cloned().unwrap_or_default();
    let hostname = node.metadata.labels.as_ref().and_then(|all| all.get(HOSTNAME));
    let hostname = hostname.cloned().unwrap_or_else(|| node.name().to_owned());
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name(claim),
            "annotations": {PROVISIONED_BY: PROVISIONER},
            "finalizers": [FINALIZER],
        },
        "spec": {
            "capacity": {"storage": spec["resources"]["requests"]["storage"]},
            "accessModes": spec["accessModes"],
            "volumeMode": "Filesystem",
            "persistentVolumeReclaimPolicy": class.reclaim_policy.as_deref().unwrap_or("Delete"),
            "storageClassName": class.name(),
            "claimRef": {
                "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                "name": claim.name(), "uid": claim.metadata.uid, "resourceVersion": claim.metadata.resource_version,
            },
            "local": {"path": format!("{place}/{directory}")},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": [hostname]}]},
            ]}},
        },
    })
}

fn annotation<'a>(claim: &'a PersistentVolumeClaim, key: &str) -> Option<&'a str> {
    claim.metadata.annotations.as_ref()?.get(key).map(String::as_str)
}

impl Controller for Reclaimer {
    type Observed = (PersistentVolume, Option<Node>);

    const NAME: &'static str = ACCOUNT;
    const COMPONENT: &'static str = PROVISIONER;

    fn watches(&self) -> Vec<Watch> {
        vec![Watch::own::<PersistentVolume>(), Watch::mapped::<Node>(volumes_of_lost_node)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Self::Observed> {
        let volume: PersistentVolume = view.typed(key)?;
        let ours = volume.metadata.annotations.as_ref()?.get(PROVISIONED_BY)? == PROVISIONER;
        let hostname = hostname_of(&volume).filter(|_| ours)?;
        let node = view.typed(&Key::new("", hostname.clone())).or_else(|| node_called(view, &hostname));
        Some((volume, node))
    }

    fn reconcile(&self, (volume, node): &Self::Observed, _now: Timestamp) -> Plan {
        let spec = volume.spec.clone().unwrap_or_default();
        let released = volume.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Released");
        let leaving = volume.metadata.deletion_timestamp.is_some();
        let goes = spec.persistent_volume_reclaim_policy.as_deref() == Some("Delete");
        let mut plan = Plan::nothing();
        match (released, goes, leaving) {
            (true, true, _) => plan.actions.extend(removal(volume, node.as_ref())),
            // If a volume with the policy Retain is deleted, its directory is kept.
            (_, false, true) => {}
            _ => return plan,
        }
        let kept: Vec<&String> = volume.metadata.finalizers.iter().flatten().filter(|one| *one != FINALIZER).collect();
        if volume.metadata.finalizers.as_ref().is_some_and(|all| all.len() > kept.len()) {
            let version = &volume.metadata.resource_version;
            plan.push(Action::patch(volume, json!({"metadata": {"resourceVersion": version, "finalizers": kept}})));
        }
        if !leaving {
            plan.push(Action::delete(volume));
        }
        plan
    }
}

/// Removes the directory on the node. Without the node its disk is gone, too.
fn removal(volume: &PersistentVolume, node: Option<&Node>) -> Option<Action> {
    let path = volume.spec.as_ref()?.local.as_ref()?.path.clone();
    let report =
        Report { about: Reference::to(volume), success: ("", "".into()), failure: ("VolumeFailedDelete", "".into()) };
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    Some(Action::RemoveLocalVolume { node: node?.name().to_owned(), name, report })
}

/// Returns the node of the volume, by its hostname label.
fn hostname_of(volume: &PersistentVolume) -> Option<String> {
    let terms = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?.node_selector_terms.clone();
    let requirements = terms.into_iter().flat_map(|term| term.match_expressions.unwrap_or_default());
    requirements.into_iter().find(|one| one.key == HOSTNAME)?.values?.into_iter().next()
}

fn node_called(view: &dyn View, hostname: &str) -> Option<Node> {
    let nodes = view.list(ResourceType::of::<Node>(), "");
    let called = nodes.iter().find(|node| node.header.labels.get(HOSTNAME).is_some_and(|name| name == hostname));
    called.and_then(decode)
}

/// Returns the volumes of a deleted node, which have nothing to wait for.
fn volumes_of_lost_node(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.new.is_some() {
        return Vec::new();
    }
    let all = view.list(ResourceType::of::<PersistentVolume>(), "");
    let volumes = all.iter().filter_map(decode::<PersistentVolume>);
    let lies_there = |volume: &PersistentVolume| hostname_of(volume).as_deref() == Some(change.key.name.as_str());
    volumes.filter(lies_there).map(|volume| key_of(&volume)).collect()
}
