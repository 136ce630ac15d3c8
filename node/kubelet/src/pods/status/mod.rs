//! The status of a pod, from its spec, its state in the runtime and the worker's memory: containers, phase, conditions,
//! addresses. Pure: it reads no clock and sends nothing.

mod conditions;
mod containers;
mod patch;
mod phase;
mod terminations;

use std::collections::HashMap;
use std::net::IpAddr;

use corten_api::k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodStatus, ResourceRequirements, ResourceStatus};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::Timestamp;

pub use patch::status_patch;
pub use terminations::new_terminations;

use super::plan::{Memory, usable_sandbox};
use crate::pod::observed::Observed;
use crate::pod::phase::is_terminal;
use crate::pod::resources::{self, ResourceList};
use crate::pod::spec;
use crate::pod::waiting::Waiting;

/// The inputs of a status.
pub struct Facts<'a> {
    pub pod: &'a Pod,
    pub observed: &'a Observed,
    pub memory: &'a Memory,
    /// The reason why the next start has not happened, by container name.
    pub waiting: &'a HashMap<String, Waiting>,
    /// The health of the devices that main containers have, by container name.
    pub device_health: &'a HashMap<String, Vec<ResourceStatus>>,
    pub host_ips: &'a [IpAddr],
    /// The scheme of container ids: `corten` in `corten://<id>`.
    pub runtime_name: &'a str,
    /// Whether the pod has terminated and nothing of it will run again.
    pub ended: bool,
    pub now: Timestamp,
}

/// Returns the status to report.
pub fn status(facts: &Facts<'_>) -> PodStatus {
    let old = spec::status(facts.pod);
    if was_rejected(facts, old) {
        return rejected(facts, old);
    }
    let mut new = PodStatus {
        start_time: old.start_time.clone().or(Some(Time(facts.now))),
        qos_class: Some(resources::qos_class(facts.pod).to_string()),
        observed_generation: facts.pod.metadata.generation,
        nominated_node_name: old.nominated_node_name.clone(),
        resource_claim_statuses: old.resource_claim_statuses.clone(),
        extended_resource_claim_status: old.extended_resource_claim_status.clone(),
        container_statuses: Some(containers::main(facts)),
        init_container_statuses: Some(containers::init(facts)).filter(|list| !list.is_empty()),
        ephemeral_container_statuses: Some(containers::ephemeral(facts)).filter(|list| !list.is_empty()),
        ..PodStatus::default()
    };
    set_addresses(facts, old, &mut new);
    set_phase(facts, old, &mut new);
    new.allocated_resources = Some(resources::request_quantities(facts.pod)).filter(|list| !list.is_empty());
    new.resources = Some(pod_level(facts, &new));
    new.conditions = Some(conditions::conditions(facts, &new));
    new
}

/// Returns the requests and limits of the pod: those of its cgroup while it runs, else the allocated ones.
fn pod_level(facts: &Facts<'_>, new: &PodStatus) -> ResourceRequirements {
    let listed = |list: ResourceList| Some(list).filter(|list| !list.is_empty());
    let own = spec::spec(facts.pod).resources.clone().unwrap_or_default();
    if new.phase.as_deref() != Some("Running") {
        let requests = listed(resources::request_quantities(facts.pod));
        return ResourceRequirements { requests, limits: listed(resources::limit_quantities(facts.pod)), ..own };
    }
    let applied = facts.memory.applied_to_pod.clone().unwrap_or_else(|| resources::pod_level(facts.pod));
    let with = |own: Option<ResourceList>, applied: Option<ResourceList>| {
        let mut list = own.unwrap_or_default();
        list.retain(|name, _| !resources::is_compute(name));
        list.extend(applied.unwrap_or_default());
        listed(list)
    };
    let requests = with(own.requests.clone(), applied.requests);
    ResourceRequirements { requests, limits: with(own.limits.clone(), applied.limits), ..own }
}

/// Reports whether this node or another component failed the pod before it had any container.
fn was_rejected(facts: &Facts<'_>, old: &PodStatus) -> bool {
    let ended_untouched = old.phase.as_deref().is_some_and(is_terminal) && old.container_statuses.is_none();
    let rejected = facts.memory.termination.as_ref().is_some_and(|termination| termination.rejected);
    rejected || (ended_untouched && facts.observed.instances.is_empty())
}

/// Returns the status of a rejected pod, without container statuses: a waiting container would hide the reason.
fn rejected(facts: &Facts<'_>, old: &PodStatus) -> PodStatus {
    let mut new = PodStatus {
        start_time: old.start_time.clone().or(Some(Time(facts.now))),
        qos_class: Some(resources::qos_class(facts.pod).to_string()),
        observed_generation: facts.pod.metadata.generation,
        ..old.clone()
    };
    set_phase(facts, old, &mut new);
    new
}

fn set_addresses(facts: &Facts<'_>, old: &PodStatus, new: &mut PodStatus) {
    let host: Vec<String> = facts.host_ips.iter().map(IpAddr::to_string).collect();
    new.host_ip = host.first().cloned();
    new.host_ips = Some(host.iter().map(|ip| HostIP { ip: ip.clone() }).collect());
    let pod_ips = if spec::host_network(facts.pod) {
        host
    } else if let Some(sandbox) = usable_sandbox(facts.pod, facts.observed) {
        sandbox.ips.clone()
    } else {
        // The last known address stays while there is no sandbox, as upstream's terminated pods keep theirs.
        old.pod_ips.iter().flatten().map(|ip| ip.ip.clone()).collect()
    };
    new.pod_ip = pod_ips.first().cloned();
    new.pod_ips = Some(pod_ips.into_iter().map(|ip| PodIP { ip }).collect()).filter(|ips: &Vec<_>| !ips.is_empty());
}

/// Sets the phase, which never leaves a terminal one, with its reason and message.
fn set_phase(facts: &Facts<'_>, old: &PodStatus, new: &mut PodStatus) {
    // As long as a container runs, the pod does not count as terminated for the controller that would replace it.
    let over = facts.observed.running().next().is_none();
    let failed = facts.memory.termination.as_ref().and_then(|termination| termination.failed.as_ref());
    let failed = failed.filter(|_| over);
    let reported = old.phase.as_deref().filter(|phase| is_terminal(phase));
    let phase = match (reported, failed) {
        (Some(phase), _) => phase.to_owned(),
        (None, Some(_)) => "Failed".to_owned(),
        (None, None) => phase::phase(facts, new).to_owned(),
    };
    if let Some((reason, message)) = failed {
        (new.reason, new.message) = (Some(reason.clone()), Some(message.clone()));
    } else if old.phase.as_deref() == Some(&phase) {
        (new.reason, new.message) = (old.reason.clone(), old.message.clone());
    }
    new.phase = Some(phase);
}
