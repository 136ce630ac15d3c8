//! StorageClasses of claims that no volume satisfies: the default class, and the provisioner.
//!
//! A claim without a class waits for a default class, which may be created later; a claim with the class `""` never
//! gets one.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::PersistentVolumeClaim;
use corten_api::k8s_openapi::api::storage::v1::StorageClass;
use corten_client::Change;
use corten_meta::Key;

use super::{Observed, is_waiting};
use crate::metrics;
use crate::runtime::{Action, Count, Plan, View, key_of};

const ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const IS_DEFAULT: [&str; 2] =
    ["storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class"];
const PROVISIONER: [&str; 2] =
    ["volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner"];
/// The prefix of in-tree provisioners.
const IN_TREE: &str = "kubernetes.io/";
/// The in-tree provisioners that were migrated to CSI drivers.
const MIGRATED: [&str; 7] =
    ["aws-ebs", "azure-disk", "azure-file", "cinder", "gce-pd", "portworx-volume", "vsphere-volume"];

/// Returns the class that a claim requests, if it has one.
pub fn class_of(claim: &PersistentVolumeClaim) -> Option<&str> {
    let annotated = claim.metadata.annotations.as_ref().and_then(|all| all.get(ANNOTATION));
    annotated.or(claim.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref())).map(String::as_str)
}

/// Returns the default class: of several, the newest, then the first by name.
pub fn default_class(view: &dyn View) -> Option<String> {
    let is_default = |class: &StorageClass| {
        let annotations = class.metadata.annotations.as_ref();
        annotations.is_some_and(|all| IS_DEFAULT.iter().any(|key| all.get(*key).is_some_and(|value| value == "true")))
    };
    let all = view.all::<StorageClass>("").into_iter().filter(is_default);
    let age = |class: &StorageClass| {
        (std::cmp::Reverse(class.metadata.creation_timestamp.as_ref().map(|time| time.0)), class.name().to_owned())
    };
    all.min_by_key(age).and_then(|class| class.metadata.name)
}

/// Returns all pending claims if a class is created or becomes the default.
pub fn of_class(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.new.is_none() {
        return Vec::new();
    }
    view.all::<PersistentVolumeClaim>("").iter().filter(is_waiting).map(key_of).collect()
}

/// Sets the default class on a claim without one.
pub fn assign_default(observed: &Observed) -> Option<Plan> {
    let mut updated = observed.claim.clone();
    updated.spec.get_or_insert_default().storage_class_name = Some(observed.default_class.clone()?);
    let mut plan = Plan::from(Action::update(&updated));
    plan.counts.push(Count::attempt(&metrics::RETROACTIVE_CLASSES, []));
    plan.counts.push(Count::failure(&metrics::RETROACTIVE_CLASS_ERRORS, []));
    Some(plan)
}

/// Names the provisioner that the claim waits for, or the reason why there is none.
pub fn await_provisioner(observed: &Observed) -> Plan {
    let claim = &observed.claim;
    let failed = |message: String| Plan::from(Action::warning(claim, "ProvisioningFailed", message));
    let Some(name) = class_of(claim).filter(|name| !name.is_empty()) else {
        let message = "no persistent volumes available for this claim and no storage class is set";
        return Plan::from(Action::normal(claim, "FailedBinding", message));
    };
    let Some(class) = &observed.class else { return failed(format!("storageclass.storage.k8s.io {name:?} not found")) };
    let provisioner = &class.provisioner;
    if provisioner.strip_prefix(IN_TREE).is_some_and(|name| !MIGRATED.contains(&name)) {
        return failed(format!("no volume plugin matched name: {provisioner}"));
    }
    let mut updated = claim.clone();
    let annotations = updated.metadata.annotations.get_or_insert_default();
    annotations.extend(PROVISIONER.map(|key| (key.to_owned(), provisioner.clone())));
    if updated != *claim {
        return Plan::from(Action::update(&updated));
    }
    let message = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the system administrator. If volume creation is delayed, please verify that the provisioner is running and correctly registered."
    );
    Plan::from(Action::normal(claim, "ExternalProvisioning", message))
}
