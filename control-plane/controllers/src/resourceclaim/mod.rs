//! The ResourceClaim controllers: create claims from templates, reserve them for pods that are already bound, and
//! deallocate them.
//!
//! Two controllers: [`ClaimMaker`] reconciles a pod and creates its claims; [`release::ClaimReleaser`] reconciles a
//! claim and removes reservations and allocations that no pod uses. The scheduler alone decides which devices a claim
//! gets.

mod release;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Pod, PodResourceClaim};
use corten_api::k8s_openapi::api::resource::v1::{
    ResourceClaim, ResourceClaimConsumerReference, ResourceClaimSpec, ResourceClaimTemplate,
};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use corten_client::Change;
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::json;

use crate::metrics;
use crate::runtime::{Action, Controller, Label, Plan, Reference, Report, ResourceType, View, Watch, decode, key_of};
use crate::workload::owner::{is_controlled_by, owners_of};
use crate::workload::pods;
use crate::workload::resource_claims::{Named, claims_of, named, names_claims};

pub use release::ClaimReleaser;

const CONTROLLER: &str = "resource-claim-controller";
const COMPONENT: &str = "resource_claim";
/// The annotation with the name of the pod's claim that a generated claim stands for.
const POD_CLAIM: &str = "resource.kubernetes.io/pod-claim-name";
/// Leaves room for a hyphen and five random characters in a name of 63.
const MAX_PREFIX: usize = 57;
/// The most pods that may share a claim.
const MAX_RESERVATIONS: usize = 256;

pub struct ClaimMaker;

pub struct Observed {
    pod: Pod,
    /// The existing claims of the pod.
    present: Vec<ResourceClaim>,
    /// The claims that the pod owns.
    own: Vec<ResourceClaim>,
    templates: Vec<ResourceClaimTemplate>,
}

impl Controller for ClaimMaker {
    type Observed = Observed;

    const NAME: &'static str = CONTROLLER;
    const COMPONENT: &'static str = COMPONENT;

    fn watches(&self) -> Vec<Watch> {
        vec![
            Watch::mapped::<Pod>(of_pod),
            Watch::mapped::<ResourceClaim>(of_claim),
            Watch::mapped::<ResourceClaimTemplate>(of_template),
        ]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let pod: Pod = view.typed(key).filter(|pod: &Pod| !pods::is_terminating(pod) && !pods::is_terminal(pod))?;
        claims_of(&pod).next()?;
        let near = |name: String| Key::new(key.namespace.clone(), name);
        let present = claims_of(&pod).filter_map(|claim| match named(&pod, claim) {
            Named::As(name, _) => view.typed(&near(name)),
            _ => None,
        });
        let present: Vec<ResourceClaim> = present.collect();
        let uid = pod.metadata.uid.clone()?;
        let mut own: Vec<ResourceClaim> = view.owned_by(&uid);
        own.retain(|claim| is_controlled_by(&claim.metadata, &uid) && claim.metadata.deletion_timestamp.is_none());
        own.sort_unstable_by(|a, b| a.name().cmp(b.name()));
        let templates =
            claims_of(&pod).filter_map(|claim| view.typed(&near(claim.resource_claim_template_name.clone()?)));
        Some(Observed { present, own, templates: templates.collect(), pod })
    }

    fn reconcile(&self, observed: &Observed, _now: Timestamp) -> Plan {
        let mut plan = Plan::nothing();
        let found = make_missing(&mut plan, observed);
        if !found.is_empty() {
            record(&mut plan, &observed.pod, found);
        }
        if !pods::node_name(&observed.pod).is_empty() {
            reserve(&mut plan, observed);
        }
        plan
    }
}

/// Creates the claims that templates describe and that do not exist; returns those that exist, but are not in the
/// status yet. A new claim is found by the reconcile that its own echo starts: only then is its name known.
fn make_missing(plan: &mut Plan, observed: &Observed) -> Vec<(String, String)> {
    let pod = &observed.pod;
    let mut found = Vec::new();
    for claim in claims_of(pod) {
        let Some(template) = &claim.resource_claim_template_name else { continue };
        let uid = pod.metadata.uid.as_deref().unwrap_or_default();
        let stands = match named(pod, claim) {
            Named::NotNeeded => true,
            Named::NotYet => false,
            Named::As(name, _) => {
                let present = observed.present.iter().find(|one| one.name() == name);
                present.is_some_and(|one| is_controlled_by(&one.metadata, uid))
            }
        };
        if stands {
            continue;
        }
        let generated = |one: &&ResourceClaim| {
            one.metadata.annotations.as_ref().and_then(|all| all.get(POD_CLAIM)) == Some(&claim.name)
        };
        if let Some(one) = observed.own.iter().find(generated) {
            found.push((claim.name.clone(), one.name().to_owned()));
            continue;
        }
        match observed.templates.iter().find(|one| one.name() == template) {
            Some(template) => {
                plan.push(create(pod, claim, template));
                let admin = has_admin_access(&template.spec.spec);
                plan.count(&metrics::CLAIMS_CREATED, [Label::Result("success", "failure"), admin.into()], 1.0);
            }
            None => {
                let missing = format!("resourceclaimtemplate.resource.k8s.io \"{template}\" not found");
                let message =
                    format!("PodResourceClaim {}: resource claim template \"{template}\": {missing}", claim.name);
                plan.push(Action::warning(pod, "FailedResourceClaimCreation", message));
            }
        }
    }
    found
}

/// Returns whether a claim has admin access, as a label value.
pub(super) fn has_admin_access(spec: &ResourceClaimSpec) -> &'static str {
    let requests = spec.devices.iter().flat_map(|devices| devices.requests.iter().flatten());
    let mut exact = requests.filter_map(|request| request.exactly.as_ref());
    if exact.any(|request| request.admin_access == Some(true)) { "true" } else { "false" }
}

fn create(pod: &Pod, claim: &PodResourceClaim, template: &ResourceClaimTemplate) -> Action {
    let from = template.spec.metadata.clone().unwrap_or_default();
    let mut annotations = from.annotations.unwrap_or_default();
    annotations.insert(POD_CLAIM.to_owned(), claim.name.clone());
    let owner = OwnerReference {
        api_version: Pod::API_VERSION.to_owned(),
        kind: Pod::KIND.to_owned(),
        name: pod.name().to_owned(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let made = ResourceClaim {
        metadata: ObjectMeta {
            generate_name: Some(prefix(pod.name(), &claim.name)),
            namespace: pod.metadata.namespace.clone(),
            labels: from.labels,
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: template.spec.spec.clone(),
        status: None,
    };
    let report = Report {
        about: Reference::to(pod),
        success: ("", "".into()),
        failure: (
            "FailedResourceClaimCreation",
            format!("PodResourceClaim {}: create ResourceClaim : ", claim.name).into(),
        ),
    };
    Action::create_reported(&made, report)
}

/// Returns the prefix of a generated name. If pod and claim names do not both fit, each is shortened in proportion.
fn prefix(pod: &str, claim: &str) -> String {
    let full_name = format!("{pod}-{claim}-");
    if full_name.len() <= MAX_PREFIX {
        return full_name;
    }
    let cut = |text: &str| text.chars().take(text.len() * MAX_PREFIX / full_name.len()).collect::<String>();
    format!("{}-{}", cut(pod), cut(claim))
}

/// Writes the names of generated claims into the pod's status: the whole list, since a merge patch replaces it.
fn record(plan: &mut Plan, pod: &Pod, found: Vec<(String, String)>) {
    let before = pod.status.iter().flat_map(|status| status.resource_claim_statuses.iter().flatten());
    let mut all: Vec<_> = before
        .filter(|status| !found.iter().any(|(name, _)| *name == status.name))
        .map(|status| match &status.resource_claim_name {
            Some(name) => json!({"name": status.name, "resourceClaimName": name}),
            None => json!({"name": status.name}),
        })
        .collect();
    all.extend(found.iter().map(|(name, claim)| json!({"name": name, "resourceClaimName": claim})));
    let version = &pod.metadata.resource_version;
    plan.push(Action::patch_status(
        pod,
        json!({"metadata": {"resourceVersion": version}, "status": {"resourceClaimStatuses": all}}),
    ));
}

/// Reserves allocated claims for a pod that was bound without the scheduler.
fn reserve(plan: &mut Plan, observed: &Observed) {
    let pod = &observed.pod;
    let uid = pod.metadata.uid.clone().unwrap_or_default();
    for claim in &observed.present {
        let status = claim.status.clone().unwrap_or_default();
        let reserved = status.reserved_for.clone().unwrap_or_default();
        let has_place = reserved.iter().any(|one| one.uid == uid);
        let closed = claim.metadata.deletion_timestamp.is_some() || reserved.len() >= MAX_RESERVATIONS;
        if status.allocation.is_none() || has_place || closed {
            continue;
        }
        let mut updated = claim.clone();
        updated.status.get_or_insert_default().reserved_for.get_or_insert_default().push(
            ResourceClaimConsumerReference {
                api_group: None,
                resource: Pod::PLURAL.to_owned(),
                name: pod.name().to_owned(),
                uid: uid.clone(),
            },
        );
        plan.push(Action::update_status(&updated));
    }
}

fn of_pod(_: &dyn View, change: &Change) -> Vec<Key> {
    let concerned = change.new.as_ref().is_some_and(|pod| names_claims(pod));
    if concerned { vec![change.key.clone()] } else { Vec::new() }
}

/// Returns the pods that own the claim or have a reservation in it.
fn of_claim(_: &dyn View, change: &Change) -> Vec<Key> {
    let mut keys = owners_of(change, Pod::KIND);
    let claim = change.new.as_ref().and_then(decode::<ResourceClaim>);
    let reserved = claim.and_then(|claim| claim.status?.reserved_for).unwrap_or_default();
    keys.extend(reserved.into_iter().map(|one| Key::new(change.key.namespace.clone(), one.name)));
    keys
}

/// Returns the pods that wait for a template that was created.
fn of_template(view: &dyn View, change: &Change) -> Vec<Key> {
    if change.old.is_some() {
        return Vec::new();
    }
    let all = view.list(ResourceType::of::<Pod>(), &change.key.namespace);
    let mut users: Vec<Pod> = all.iter().filter(|pod| names_claims(pod)).filter_map(decode).collect();
    let names = |claim: &PodResourceClaim| claim.resource_claim_template_name.as_ref() == Some(&change.key.name);
    users.retain(|pod| claims_of(pod).any(names));
    users.iter().map(key_of).collect()
}

#[cfg(test)]
mod tests;
