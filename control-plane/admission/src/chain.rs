//! The chain of admission plugins, in upstream's order.

use std::sync::Arc;
use std::time::Instant;

use corten_api::Kind;
use corten_meta::metrics::Exposition;
use corten_meta::quote::quote;
use corten_meta::{FieldError, Status, Value};
use corten_store::Op;

use super::attributes::Attributes;
use super::durations::{self, Durations, Step};
use super::operation::Operation;
use super::plugin::Plugin;
use super::{
    admin_access, claim_status, default_storage_class, default_toleration_seconds, device_selectors, limit_ranger,
    namespace_lifecycle, node_restriction, pod_resize, pod_security, pod_topology_labels, policy, priority,
    rbac_escalation, resource_quota, runtime_class, service_account, service_allocation, signing_request,
    taint_nodes_by_condition, webhook,
};
use crate::advice::{Advice, Adviser};
use crate::certificate_subject_restriction::CertificateSubjectRestriction;
use crate::default_ingress_class::DefaultIngressClass;
use crate::door::{Objects, Target};
use crate::node_declared_features::NodeDeclaredFeatureValidator;
use crate::persistent_volume_claim_resize::PersistentVolumeClaimResize;
use crate::storage_object_in_use_protection::StorageObjectInUseProtection;

/// The plugins in upstream's order, with the durations of admission.
pub struct Chain {
    plugins: Vec<Entry>,
    steps: Durations,
}

/// A plugin of the chain.
struct Entry {
    /// Upstream's name of the plugin, or ours.
    name: &'static str,
    /// The operations that upstream's plugin handles in the two steps; none for a plugin that upstream does not have.
    handles: [&'static [Operation]; 2],
    /// The resources that the plugin handles, by group and plural; none means all of them. The chain does not call it for
    /// others: most plugins do not handle most writes.
    resources: Vec<(&'static str, &'static str)>,
    plugin: Box<dyn Plugin>,
    durations: Durations,
}

/// Makes an entry of the chain; the resources are words such as `ingresses.networking.k8s.io`.
fn entry(
    name: &'static str,
    handles: [&'static [Operation]; 2],
    resources: &'static str,
    plugin: impl Plugin + 'static,
) -> Entry {
    let resource = |word: &'static str| word.split_once('.').map_or(("", word), |(plural, group)| (group, plural));
    let resources = resources.split_whitespace().map(resource).collect();
    Entry { name, handles, resources, plugin: Box::new(plugin), durations: Durations::default() }
}

const NONE: &[Operation] = &[];
const C: &[Operation] = &[Operation::Create];
const U: &[Operation] = &[Operation::Update];
const CU: &[Operation] = &[Operation::Create, Operation::Update];
const CUD: &[Operation] = &[Operation::Create, Operation::Update, Operation::Delete];
const ALL: &[Operation] = &[Operation::Create, Operation::Update, Operation::Delete, Operation::Connect];

/// The resources with pods or templates of pods.
const WORKLOADS: &str = "namespaces pods podtemplates replicationcontrollers daemonsets.apps deployments.apps \
                         replicasets.apps statefulsets.apps cronjobs.batch jobs.batch";
const CLAIMS: &str = "resourceclaims.resource.k8s.io resourceclaimtemplates.resource.k8s.io";
const DEVICES: &str = "deviceclasses.resource.k8s.io resourceclaims.resource.k8s.io \
                       resourceclaimtemplates.resource.k8s.io";
const CERTIFICATES: &str = "certificatesigningrequests.certificates.k8s.io";
const IN_USE: &str = "persistentvolumeclaims persistentvolumes volumeattributesclasses.storage.k8s.io";
const POLICIES: &str = "validatingadmissionpolicies.admissionregistration.k8s.io \
                        mutatingadmissionpolicies.admissionregistration.k8s.io";
const ROLES: &str = "roles.rbac.authorization.k8s.io rolebindings.rbac.authorization.k8s.io \
                     clusterroles.rbac.authorization.k8s.io clusterrolebindings.rbac.authorization.k8s.io";

/// Returns all plugins in upstream's order, after that of CustomResourceDefinitions.
fn entries(custom_resources: impl Plugin + 'static) -> Vec<Entry> {
    vec![
        entry("CustomResourceRules", [NONE, NONE], "", custom_resources),
        entry("NamespaceLifecycle", [CUD, NONE], "", namespace_lifecycle::NamespaceLifecycle),
        entry("LimitRanger", [CU, CU], "pods persistentvolumeclaims", limit_ranger::LimitRanger),
        entry("ServiceAccount", [CU, CU], "pods", service_account::ServiceAccount),
        entry("NodeRestriction", [CUD, NONE], "", node_restriction::NodeRestriction),
        entry("TaintNodesByCondition", [C, NONE], "nodes", taint_nodes_by_condition::TaintNodesByCondition),
        entry("PodSecurity", [NONE, CU], WORKLOADS, pod_security::PodSecurity),
        entry("Priority", [CUD, CUD], "pods priorityclasses.scheduling.k8s.io", priority::Priority),
        entry("DefaultTolerationSeconds", [CU, NONE], "pods", default_toleration_seconds::DefaultTolerationSeconds),
        entry("DefaultStorageClass", [C, NONE], "persistentvolumeclaims", default_storage_class::DefaultStorageClass),
        entry("StorageObjectInUseProtection", [C, NONE], IN_USE, StorageObjectInUseProtection),
        entry("PersistentVolumeClaimResize", [NONE, U], "persistentvolumeclaims", PersistentVolumeClaimResize),
        entry("RuntimeClass", [C, C], "pods", runtime_class::RuntimeClass),
        entry("CertificateSigning", [NONE, NONE], CERTIFICATES, signing_request::SigningRequest),
        entry("CertificateSubjectRestriction", [NONE, C], CERTIFICATES, CertificateSubjectRestriction),
        entry("DefaultIngressClass", [C, NONE], "ingresses.networking.k8s.io", DefaultIngressClass),
        entry("PodTopologyLabels", [C, NONE], "pods", pod_topology_labels::PodTopologyLabels),
        entry("NodeDeclaredFeatureValidator", [NONE, U], "pods", NodeDeclaredFeatureValidator),
        entry("PodResizeValidator", [NONE, U], "pods", pod_resize::PodResizeValidator),
        entry("MutatingAdmissionPolicy", [ALL, NONE], "", policy::MutatingAdmissionPolicy::new()),
        entry("MutatingAdmissionWebhook", [ALL, NONE], "", webhook::MutatingAdmissionWebhook::new()),
        entry("ValidatingAdmissionPolicy", [NONE, ALL], "", policy::ValidatingAdmissionPolicy::new()),
        entry("ValidatingAdmissionWebhook", [NONE, ALL], "", webhook::ValidatingAdmissionWebhook::new()),
        entry("AdminAccess", [NONE, NONE], CLAIMS, admin_access::AdminAccess),
        entry("ClaimStatus", [NONE, NONE], "resourceclaims.resource.k8s.io", claim_status::ClaimStatus),
        entry("DeviceSelectors", [NONE, NONE], DEVICES, device_selectors::DeviceSelectors),
        entry("Expressions", [NONE, NONE], POLICIES, policy::Expressions),
        entry("RBACEscalation", [NONE, NONE], ROLES, rbac_escalation::RbacEscalation),
        entry("ServiceAllocation", [NONE, NONE], "services", service_allocation::ServiceAllocation),
        entry("ResourceQuota", [NONE, CU], "", resource_quota::ResourceQuota),
    ]
}

impl Entry {
    /// Reports whether it is a plugin of upstream's too: the others are rules of the API itself.
    fn can_be_disabled(&self) -> bool {
        self.handles.iter().any(|operations| !operations.is_empty())
    }

    /// Reports whether the plugin handles objects of this kind.
    fn concerns(&self, kind: &Kind) -> bool {
        let is_kind = |(group, plural): &(&str, &str)| kind.plural == *plural && kind.group == *group;
        self.resources.is_empty() || self.resources.iter().any(is_kind)
    }

    /// Counts a write that the plugin does not handle, which took no time.
    fn passed_over(&self, operation: Operation, step: Step) {
        if self.handles[step as usize].contains(&operation) {
            self.durations.observe_none(operation, step);
        }
    }

    /// Counts the plugin's answer and its duration since `began`, logs a refusal, and returns the current time.
    fn answered(&self, operation: Operation, step: Step, answer: &Result<(), Status>, began: Instant) -> Instant {
        if let Err(status) = answer {
            log(self.name, status);
        }
        if !self.handles[step as usize].contains(&operation) {
            return began;
        }
        self.durations.observe(operation, step, answer.is_err(), began)
    }
}

impl Chain {
    /// Makes the chain of all plugins except those that are `disabled` by name. The plugin of CustomResourceDefinitions
    /// precedes them.
    pub fn new(
        custom_resources: impl Plugin + 'static,
        disabled: &[String],
        adviser: Option<Arc<dyn Adviser>>,
    ) -> Result<Chain, String> {
        let mut plugins = entries(custom_resources);
        plugins.extend(adviser.map(|adviser| entry("Advice", [NONE, NONE], "", Advice(adviser))));
        let is_unknown = |name: &&String| !plugins.iter().any(|entry| entry.can_be_disabled() && entry.name == **name);
        if let Some(unknown) = disabled.iter().find(is_unknown) {
            return Err(format!("there is no admission plugin {} to disable", quote(unknown)));
        }
        plugins.retain(|entry| !disabled.iter().any(|name| name == entry.name));
        Ok(Chain { plugins, steps: Durations::default() })
    }

    pub fn render_metrics(&self, out: &mut Exposition) {
        durations::render(out, &self.steps, self.plugins.iter().map(|entry| (entry.name, &entry.durations)));
    }

    /// Returns the plugins that handle objects of a kind.
    fn concerned<'c>(&'c self, kind: &'c Kind) -> impl Iterator<Item = &'c Entry> {
        self.plugins.iter().filter(|entry| entry.concerns(kind))
    }

    /// Lets the plugins change the object, and then allocate for it.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        self.change(attributes).await?;
        self.allocate(attributes).await
    }

    /// Lets the plugins change the object, a second time if one of them requests it.
    pub async fn change(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let began = Instant::now();
        let changed = self.change_in_turn(attributes, began).await;
        self.steps.observe(attributes.operation, Step::Admit, changed.is_err(), began);
        changed
    }

    /// Lets the plugins allocate addresses, ports and the like for the object.
    pub async fn allocate(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let kind = Arc::clone(attributes.target.resource.kind());
        for entry in self.concerned(&kind) {
            entry.plugin.allocate(attributes).await.inspect_err(|status| log(entry.name, status))?;
        }
        Ok(())
    }

    async fn change_in_turn(&self, attributes: &mut Attributes<'_>, mut began: Instant) -> Result<(), Status> {
        loop {
            for entry in &self.plugins {
                if !entry.concerns(attributes.target.resource.kind()) {
                    entry.passed_over(attributes.operation, Step::Admit);
                    continue;
                }
                let answer = entry.plugin.admit(attributes).await;
                began = entry.answered(attributes.operation, Step::Admit, &answer, began);
                answer?;
            }
            if !attributes.reinvocation.next() {
                return Ok(());
            }
        }
    }

    /// Admits an object that is answered and not stored: the body of a subresource, a review, or the options of a
    /// connection.
    pub async fn pass(&self, target: Target<'_>, operation: Operation, object: Value) -> Result<Value, Status> {
        let mut attributes = Attributes::new(target, operation, object, None);
        self.admit(&mut attributes).await?;
        self.validate(&attributes).await?;
        Ok(attributes.into_parts().0)
    }

    /// Returns the errors that the plugins find in the object itself.
    pub fn errors(&self, attributes: &Attributes<'_>) -> Vec<FieldError> {
        self.concerned(attributes.target.resource.kind()).flat_map(|entry| entry.plugin.errors(attributes)).collect()
    }

    pub async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        let began = Instant::now();
        let validated = self.validate_in_turn(attributes, began).await;
        self.steps.observe(attributes.operation, Step::Validate, validated.is_err(), began);
        validated
    }

    async fn validate_in_turn(&self, attributes: &Attributes<'_>, mut began: Instant) -> Result<(), Status> {
        for entry in &self.plugins {
            if !entry.concerns(attributes.target.resource.kind()) {
                entry.passed_over(attributes.operation, Step::Validate);
                continue;
            }
            let answer = entry.plugin.validate(attributes).await;
            began = entry.answered(attributes.operation, Step::Validate, &answer, began);
            answer?;
        }
        Ok(())
    }

    pub async fn charge(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let kind = Arc::clone(attributes.target.resource.kind());
        for entry in self.concerned(&kind) {
            entry.plugin.charge(attributes).await.inspect_err(|status| log(entry.name, status))?;
        }
        Ok(())
    }

    pub async fn released(&self, target: &Target<'_>, object: &Value) -> Result<Vec<Op>, Status> {
        let mut operations = Vec::new();
        for entry in self.concerned(target.resource.kind()) {
            operations.extend(entry.plugin.released(target, object).await?);
        }
        Ok(operations)
    }
}

/// Reports whether webhooks or policies validate writes, and not only the API itself.
pub fn has_webhooks_or_policies(objects: &dyn Objects) -> bool {
    const PLURALS: [&str; 4] = [
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "mutatingadmissionpolicies",
    ];
    PLURALS.iter().any(|plural| !objects.cached_list("admissionregistration.k8s.io", plural, "").is_empty())
}

fn log(plugin: &str, status: &Status) {
    tracing::debug!(plugin, message = status.message, "admission refused a write");
}
