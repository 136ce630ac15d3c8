//! Admission: what may still change or refuse a write after it was authorized and decoded.
//!
//! Each plugin is one file and one entry of the list below, in upstream's order. `admit` may change the object,
//! `validate` only refuses. A plugin never writes to the store itself: what must be stored together with the
//! object is handed over as companions of the write.

mod admin_access;
mod certificate_subject_restriction;
mod claim_status;
mod custom_resource_rules;
mod default_ingress_class;
mod default_storage_class;
mod default_toleration_seconds;
mod device_selectors;
mod expressions;
mod limit_ranger;
mod mountable_secrets;
mod namespace_lifecycle;
mod node_declared_features;
mod node_object;
mod node_restriction;
mod persistent_volume_claim_resize;
mod pod_resize;
mod pod_security;
mod pod_topology_labels;
mod policy;
mod priority;
mod rbac_escalation;
mod reinvocation;
mod resource_quota;
pub mod rules;
mod runtime_class;
mod service_account;
mod service_allocation;
mod service_families;
mod signing_request;
mod storage_object_in_use_protection;
mod taint_nodes_by_condition;
mod touched;
pub(crate) mod webhook;

pub use policy::follow_policies;
pub use service_allocation::ip_address as service_allocation_ip_address;

use std::borrow::Cow;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use corten_api::Kind;
use corten_meta::quote::quote;
use corten_meta::{FieldError, Status, Value};
use corten_store::Op;
use futures::future::BoxFuture;

use crate::error::Error;
use crate::handlers::Target;
use crate::metrics::Exposition;
use crate::metrics::admission::{self as metrics, Durations, Step, handled};
use crate::registry::Resource;
use crate::server::Server;
use crate::verb::Verb;
use reinvocation::Reinvocation;
pub use touched::Touched;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Create,
    Update,
    Delete,
    Connect,
}

impl Operation {
    /// As rules and reviews spell it.
    pub fn word(self) -> &'static str {
        match self {
            Operation::Create => "CREATE",
            Operation::Update => "UPDATE",
            Operation::Delete => "DELETE",
            Operation::Connect => "CONNECT",
        }
    }
}

/// A write on its way.
pub struct Attributes<'a> {
    pub target: &'a Target<'a>,
    pub operation: Operation,
    /// The object to be; null for a deletion.
    pub object: Touched,
    /// The object as it stands; none for a creation.
    pub old: Option<Cow<'a, Value>>,
    /// Operations that must be committed together with the object.
    pub companions: Vec<Op>,
    pub dry_run: bool,
    /// The object with the empty lists and maps that its author gave, when there were some.
    pub given: Option<Value>,
    /// The name that the request is for; a creation may leave it to be made.
    name: String,
    /// What a deletion was asked with; of other operations the query says it.
    delete_options: Option<Value>,
    pub reinvocation: Reinvocation,
}

impl<'a> Attributes<'a> {
    pub fn new(
        target: &'a Target<'a>,
        operation: Operation,
        object: Value,
        old: Option<Cow<'a, Value>>,
    ) -> Attributes<'a> {
        // Of many that are deleted together nobody is told the names.
        let name = match (&target.context.info.verb, target.name) {
            (Verb::DeleteCollection, _) => "",
            (_, "") => corten_meta::name(&object),
            (_, name) => name,
        };
        Attributes {
            target,
            operation,
            name: name.to_owned(),
            object: Touched::new(object),
            old,
            companions: Vec::new(),
            // Whoever handles the request has refused a wrong value by now.
            dry_run: target.context.dry_run(),
            given: None,
            delete_options: None,
            reinvocation: Reinvocation::default(),
        }
    }

    #[must_use]
    pub fn with_options(self, options: Value, dry_run: bool) -> Attributes<'a> {
        Attributes { delete_options: Some(options), dry_run, ..self }
    }

    /// The options of the operation, as reviews show them.
    pub fn options(&self) -> Value {
        let kind = match self.operation {
            Operation::Connect => return Value::Null,
            Operation::Delete => return self.delete_options.clone().unwrap_or(Value::Null),
            Operation::Create => "CreateOptions",
            Operation::Update => "UpdateOptions",
        };
        let mut options = serde_json::json!({ "kind": kind, "apiVersion": "meta.k8s.io/v1" });
        for field in ["fieldManager", "fieldValidation"] {
            if let Some(value) = self.target.context.info.query.get(field) {
                options[field] = value.into();
            }
        }
        if self.dry_run {
            options["dryRun"] = serde_json::json!(["All"]);
        }
        options
    }

    /// The object as its author gave it, to those to whom nothing and an empty map are not the same.
    pub fn as_given(&self) -> &Value {
        self.given.as_ref().unwrap_or(&self.object)
    }

    /// The name that the request is for; empty if a creation leaves it to be made.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The namespace of the request; a Namespace is in itself.
    pub fn namespace(&self) -> String {
        let kind = &self.target.resource.kind;
        let is_namespace = kind.group.is_empty() && kind.plural == "namespaces";
        if is_namespace { self.name().to_owned() } else { self.target.namespace.to_owned() }
    }

    /// Whether the objects here are of the resource's own kind, and not the body of a subresource.
    pub fn is_about_the_object(&self) -> bool {
        use corten_api::Role;
        let role = self.target.resource.kind.subresource(self.subresource()).map(|sub| sub.role);
        matches!(
            role,
            None | Some(Role::Status | Role::Finalize | Role::EphemeralContainers | Role::Resize | Role::Approval)
        )
    }

    /// Group, version and kind of the objects here, were the request for this version of the resource.
    pub fn kind_in(&self, resource: &Resource) -> (String, String, String) {
        let kind = &resource.kind;
        match kind.subresource(self.subresource()) {
            Some(sub) if !self.is_about_the_object() => {
                let own = sub.version.is_empty();
                let group = if own { kind.group.clone() } else { sub.group.to_owned() };
                let version = if own { kind.version.clone() } else { sub.version.to_owned() };
                (group, version, sub.kind.clone())
            }
            _ => (kind.group.clone(), kind.version.clone(), kind.kind.clone()),
        }
    }

    /// Whether this is about `group`/`plural` itself or, if `subresource` is not empty, about that part of it.
    pub fn is(&self, group: &str, plural: &str, subresource: &str) -> bool {
        let kind = &self.target.resource.kind;
        kind.group == group && kind.plural == plural && self.subresource() == subresource
    }

    /// The subresource, if the request is about one of this very resource (an eviction also touches budgets).
    pub fn subresource(&self) -> &str {
        &self.target.context.info.subresource
    }

    pub fn creates(&self, group: &str, plural: &str) -> bool {
        self.operation == Operation::Create && self.is(group, plural, "")
    }

    pub fn into_parts(self) -> (Value, Vec<Op>) {
        (self.object.into_inner(), self.companions)
    }

    /// A 403 of admission.
    pub fn forbidden(&self, why: impl AsRef<str>) -> Status {
        let prefix = self.object.pointer("/metadata/generateName").and_then(Value::as_str).unwrap_or_default();
        let names = [corten_meta::name(&self.object), self.target.name, prefix];
        // What has no name yet is called by what its name will begin with.
        let name = names.into_iter().find(|name| !name.is_empty()).unwrap_or("Unknown");
        Status::forbidden(&self.target.resource.group_resource(), name, why.as_ref())
    }
}

/// One plugin. Every hook is defaulted.
pub trait Plugin: Send + Sync {
    fn name(&self) -> &'static str;

    /// The resources that it is about, by group and plural; about all of them, if it names none. It is not asked about
    /// others: most plugins have nothing to say about most writes.
    fn resources(&self) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// May change the object or refuse it.
    fn admit<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Gives the object what it holds elsewhere, once nobody changes it any more.
    fn allocate<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// What is wrong with the object beside the errors of its kind, and told together with them.
    fn errors(&self, _: &Attributes<'_>) -> Vec<FieldError> {
        Vec::new()
    }

    /// May refuse the object, which is final now.
    fn validate<'a>(&'a self, _: &'a Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// Charges the object, which is final and valid now, to what is limited; adds companions or refuses it.
    fn charge<'a>(&'a self, _: &'a mut Attributes<'_>) -> BoxFuture<'a, Result<(), Status>> {
        Box::pin(Indifferent)
    }

    /// What an object held that is about to go: to be given back in the same commit.
    fn released<'a>(&'a self, _target: &'a Target<'_>, _object: &'a Value) -> BoxFuture<'a, Result<Vec<Op>, Status>> {
        Box::pin(async { Ok(Vec::new()) })
    }
}

/// The answer of a plugin that has nothing to say. It has no size, so that boxing it takes no memory.
pub struct Indifferent;

impl Future for Indifferent {
    type Output = Result<(), Status>;

    fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(Ok(()))
    }
}

/// The plugins in their order, with what they take.
pub struct Chain {
    plugins: Vec<Counted>,
    steps: Durations,
}

/// A plugin, and how long it took where upstream has one of its name.
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

    /// Whether it is a plugin of upstream's too: the others are rules of the API itself.
    fn can_be_disabled(&self) -> bool {
        self.handles.iter().any(|operations| !operations.is_empty())
    }

    /// Whether it has something to say about objects of this kind.
    fn concerns(&self, kind: &Kind) -> bool {
        let is_it = |(group, plural): &(&str, &str)| kind.plural == *plural && kind.group == *group;
        self.resources.is_empty() || self.resources.iter().any(is_it)
    }

    /// Counts a write that it had nothing to say about, which took no time.
    fn passed_over(&self, operation: Operation, step: Step) {
        if self.handles[step as usize].contains(&operation) {
            self.durations.observe_none(operation, step);
        }
    }

    /// Counts what the plugin answered since `began`, and tells when it did.
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
    /// All but those that are `disabled` by name.
    pub fn new(disabled: &[String]) -> Result<Chain, Error> {
        let plugins: Vec<Box<dyn Plugin>> = vec![
            Box::new(custom_resource_rules::CustomResourceRules),
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
        let mut plugins: Vec<Counted> = plugins.into_iter().map(Counted::new).collect();
        let is_unknown =
            |name: &&String| !plugins.iter().any(|counted| counted.can_be_disabled() && counted.name == **name);
        if let Some(unknown) = disabled.iter().find(is_unknown) {
            return Err(Error::Config(format!("there is no admission plugin {} to disable", quote(unknown))));
        }
        plugins.retain(|counted| !disabled.iter().any(|name| name == counted.name));
        Ok(Chain { plugins, steps: Durations::default() })
    }

    pub fn render_metrics(&self, out: &mut Exposition) {
        metrics::render(out, &self.steps, self.plugins.iter().map(|counted| (counted.name, &counted.durations)));
    }

    /// The plugins that have something to say about the resource of a request.
    fn concerned<'c>(&'c self, target: &'c Target<'_>) -> impl Iterator<Item = &'c dyn Plugin> {
        let kind = &target.resource.kind;
        self.plugins.iter().filter(|counted| counted.concerns(kind)).map(|counted| counted.plugin.as_ref())
    }

    /// Lets the plugins change the object, and then allocate for it.
    pub async fn admit(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        self.change(attributes).await?;
        self.allocate(attributes).await
    }

    /// Lets the plugins change the object, a second time if one of them wants it.
    pub async fn change(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        let began = Instant::now();
        let changed = self.change_in_turn(attributes, began).await;
        self.steps.observe(attributes.operation, Step::Admit, changed.is_err(), began);
        changed
    }

    /// Gives the object what it holds elsewhere.
    pub async fn allocate(&self, attributes: &mut Attributes<'_>) -> Result<(), Status> {
        for plugin in self.concerned(attributes.target) {
            plugin.allocate(attributes).await.inspect_err(|status| log(plugin, status))?;
        }
        Ok(())
    }

    async fn change_in_turn(&self, attributes: &mut Attributes<'_>, mut began: Instant) -> Result<(), Status> {
        loop {
            for counted in &self.plugins {
                if !counted.concerns(&attributes.target.resource.kind) {
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

    /// Admits what is answered and not stored: the body of a subresource, a review, or the options of a connection.
    pub async fn pass(&self, target: &Target<'_>, operation: Operation, object: Value) -> Result<Value, Status> {
        let mut attributes = Attributes::new(target, operation, object, None);
        self.admit(&mut attributes).await?;
        self.validate(&attributes).await?;
        Ok(attributes.into_parts().0)
    }

    /// Everything that plugins find wrong with the object itself.
    pub fn errors(&self, attributes: &Attributes<'_>) -> Vec<FieldError> {
        self.concerned(attributes.target).flat_map(|plugin| plugin.errors(attributes)).collect()
    }

    pub async fn validate(&self, attributes: &Attributes<'_>) -> Result<(), Status> {
        let began = Instant::now();
        let validated = self.judge(attributes, began).await;
        self.steps.observe(attributes.operation, Step::Validate, validated.is_err(), began);
        validated
    }

    async fn judge(&self, attributes: &Attributes<'_>, mut began: Instant) -> Result<(), Status> {
        for counted in &self.plugins {
            if !counted.concerns(&attributes.target.resource.kind) {
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
        for plugin in self.concerned(attributes.target) {
            plugin.charge(attributes).await.inspect_err(|status| log(plugin, status))?;
        }
        Ok(())
    }

    pub async fn released(&self, target: &Target<'_>, object: &Value) -> Result<Vec<Op>, Status> {
        let mut operations = Vec::new();
        for plugin in self.concerned(target) {
            operations.extend(plugin.released(target, object).await?);
        }
        Ok(operations)
    }
}

/// Whether writes are judged by more than the API itself: by webhooks or policies.
pub fn has_judges(server: &Server) -> bool {
    const PLURALS: [&str; 4] = [
        "validatingwebhookconfigurations",
        "mutatingwebhookconfigurations",
        "validatingadmissionpolicies",
        "mutatingadmissionpolicies",
    ];
    PLURALS.iter().any(|plural| !server.cached_list("admissionregistration.k8s.io", "v1", plural, "").is_empty())
}

fn log(plugin: &dyn Plugin, status: &Status) {
    tracing::debug!(plugin = plugin.name(), message = status.message, "admission refused a write");
}
