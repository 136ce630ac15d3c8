//! The chain of admission plugins, in upstream's order.

use std::sync::Arc;
use std::time::Instant;

use corten_api::Kind;
use corten_meta::metrics::Exposition;
use corten_meta::quote::quote;
use corten_meta::{FieldError, Status, Value};
use corten_store::Op;

use super::attributes::Attributes;
use super::durations::{self, Durations, Step, handled};
use super::operation::Operation;
use super::plugin::Plugin;
use super::{
    admin_access, advice, certificate_subject_restriction, claim_status, default_ingress_class, default_storage_class,
    default_toleration_seconds, device_selectors, limit_ranger, namespace_lifecycle, node_declared_features,
    node_restriction, persistent_volume_claim_resize, pod_resize, pod_security, pod_topology_labels, policy, priority,
    rbac_escalation, resource_quota, runtime_class, service_account, service_allocation, signing_request,
    storage_object_in_use_protection, taint_nodes_by_condition, webhook,
};
use crate::advice::Adviser;
use crate::door::{Objects, Target};

/// The plugins in upstream's order, with the durations of admission.
pub struct Chain {
    plugins: Vec<Counted>,
    steps: Durations,
}

/// A plugin, and its durations if upstream has a plugin of that name.
struct Counted {
    plugin: Box<dyn Plugin>,
    name: &'static str,
    resources: &'static [(&'static str, &'static str)],
    handles: [&'static [Operation]; 2],
    durations: Durations,
}

impl Counted {
    fn new(plugin: Box<dyn Plugin>) -> Counted {
        let (name, handles) = handled(plugin.name()).unwrap_or((plugin.name(), [&[], &[]]));
        let resources = plugin.resources();
        Counted { plugin, name, resources, handles, durations: Durations::default() }
    }

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
            log(self.plugin.as_ref(), status);
        }
        if !self.handles[step as usize].contains(&operation) {
            return began;
        }
        self.durations.observe(operation, step, answer.is_err(), began)
    }
}

impl Chain {
    /// Makes the chain of all plugins except those that are `disabled` by name. The plugin `first` precedes them.
    pub fn new(
        first: Box<dyn Plugin>,
        disabled: &[String],
        adviser: Option<Arc<dyn Adviser>>,
    ) -> Result<Chain, String> {
        let mut plugins: Vec<Box<dyn Plugin>> = vec![
            first,
            Box::new(namespace_lifecycle::NamespaceLifecycle),
            Box::new(limit_ranger::LimitRanger),
            Box::new(service_account::ServiceAccount),
            Box::new(node_restriction::NodeRestriction),
            Box::new(taint_nodes_by_condition::TaintNodesByCondition),
            Box::new(pod_security::PodSecurity),
            Box::new(priority::Priority),
            Box::new(default_toleration_seconds::DefaultTolerationSeconds),
            Box::new(default_storage_class::DefaultStorageClass),
            Box::new(storage_object_in_use_protection::StorageObjectInUseProtection),
            Box::new(persistent_volume_claim_resize::PersistentVolumeClaimResize),
            Box::new(runtime_class::RuntimeClass),
            Box::new(signing_request::SigningRequest),
            Box::new(certificate_subject_restriction::CertificateSubjectRestriction),
            Box::new(default_ingress_class::DefaultIngressClass),
            Box::new(pod_topology_labels::PodTopologyLabels),
            Box::new(node_declared_features::NodeDeclaredFeatureValidator),
            Box::new(pod_resize::PodResizeValidator),
            Box::new(policy::MutatingAdmissionPolicy::new()),
            Box::new(webhook::MutatingAdmissionWebhook::new()),
            Box::new(policy::ValidatingAdmissionPolicy::new()),
            Box::new(webhook::ValidatingAdmissionWebhook::new()),
            Box::new(admin_access::AdminAccess),
            Box::new(claim_status::ClaimStatus),
            Box::new(device_selectors::DeviceSelectors),
            Box::new(policy::Expressions),
            Box::new(rbac_escalation::RbacEscalation),
            Box::new(service_allocation::ServiceAllocation),
            Box::new(resource_quota::ResourceQuota),
        ];
        plugins.extend(adviser.map(|adviser| Box::new(advice::Advice(adviser)) as Box<dyn Plugin>));
        let mut plugins: Vec<Counted> = plugins.into_iter().map(Counted::new).collect();
        let is_unknown =
            |name: &&String| !plugins.iter().any(|counted| counted.can_be_disabled() && counted.name == **name);
        if let Some(unknown) = disabled.iter().find(is_unknown) {
            return Err(format!("there is no admission plugin {} to disable", quote(unknown)));
        }
        plugins.retain(|counted| !disabled.iter().any(|name| name == counted.name));
        Ok(Chain { plugins, steps: Durations::default() })
    }

    pub fn render_metrics(&self, out: &mut Exposition) {
        durations::render(out, &self.steps, self.plugins.iter().map(|counted| (counted.name, &counted.durations)));
    }

    /// Returns the plugins that handle objects of a kind.
    fn concerned<'c>(&'c self, kind: &'c Kind) -> impl Iterator<Item = &'c dyn Plugin> {
        self.plugins.iter().filter(|counted| counted.concerns(kind)).map(|counted| counted.plugin.as_ref())
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
        for plugin in self.concerned(&kind) {
            plugin.allocate(attributes).await.inspect_err(|status| log(plugin, status))?;
        }
        Ok(())
    }

    async fn change_in_turn(&self, attributes: &mut Attributes<'_>, mut began: Instant) -> Result<(), Status> {
        loop {
            for counted in &self.plugins {
                if !counted.concerns(attributes.target.resource.kind()) {
                    counted.passed_over(attributes.operation, Step::Admit);
                    continue;
                }
                let answer = counted.plugin.admit(attributes).await;
                began = counted.answered(attributes.operation, Step::Admit, &answer, began);
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
        self.concerned(attributes.target.resource.kind()).flat_map(|plugin| plugin.errors(attributes)).collect()
    }

    pub async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        let began = Instant::now();
        let validated = self.validate_in_turn(attributes, began).await;
        self.steps.observe(attributes.operation, Step::Validate, validated.is_err(), began);
        validated
    }

    async fn validate_in_turn(&self, attributes: &Attributes<'_>, mut began: Instant) -> Result<(), Status> {
        for counted in &self.plugins {
            if !counted.concerns(attributes.target.resource.kind()) {
                counted.passed_over(attributes.operation, Step::Validate);
                continue;
            }
            let answer = counted.plugin.validate(attributes).await;
            began = counted.answered(attributes.operation, Step::Validate, &answer, began);
            answer?;
        }
        Ok(())
    }

    pub async fn charge(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let kind = Arc::clone(attributes.target.resource.kind());
        for plugin in self.concerned(&kind) {
            plugin.charge(attributes).await.inspect_err(|status| log(plugin, status))?;
        }
        Ok(())
    }

    pub async fn released(&self, target: &Target<'_>, object: &Value) -> Result<Vec<Op>, Status> {
        let mut operations = Vec::new();
        for plugin in self.concerned(target.resource.kind()) {
            operations.extend(plugin.released(target, object).await?);
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

fn log(plugin: &dyn Plugin, status: &Status) {
    tracing::debug!(plugin = plugin.name(), message = status.message, "admission refused a write");
}
