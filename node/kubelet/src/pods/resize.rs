//! Resizes of a running pod. The node may have no room for the new requests yet; until it has, the worker goes on with
//! the allocated resources. Allocation comes first, the containers follow.

use std::sync::Arc;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Container, Pod};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use corten_meta::Value;
use serde_json::json;

use super::actuate::RESIZE;
use super::allocated::Allocated;
use super::plan::{Pending, is_resizing};
use super::worker::Worker;
use crate::admission::NodeInfo;
use crate::config::Config;
use crate::events::{NORMAL, WARNING};
use crate::pod::observed::Observed;
use crate::pod::resources::{QosClass, ResourceList, qos_class};
use crate::pod::spec;

/// Returns the resources in the spec.
pub fn resources_of(pod: &Pod) -> Allocated {
    let init = spec::spec(pod).init_containers.iter().flatten();
    let all = spec::spec(pod).containers.iter().chain(init);
    let of = |container: &Container| (container.name.clone(), container.resources.clone().unwrap_or_default());
    Allocated { pod_level: spec::spec(pod).resources.clone(), containers: all.map(of).collect() }
}

/// Returns the allocation of an earlier kubelet: the resources of the spec, unless the status reports a pending resize.
pub fn last_allocated(pod: &Pod) -> Allocated {
    let mut allocated = resources_of(pod);
    let status = spec::status(pod);
    let waits = status.conditions.iter().flatten().any(|condition| condition.type_ == "PodResizePending");
    if waits {
        for container in status.container_statuses.iter().chain(&status.init_container_statuses).flatten() {
            if let (Some(entry), Some(reported)) = (allocated.containers.get_mut(&container.name), &container.resources)
            {
                *entry = reported.clone();
            }
        }
        if let (Some(pod_level), Some(reported)) = (&mut allocated.pod_level, &status.resources) {
            take_reported(&mut pod_level.requests, reported.requests.as_ref());
            take_reported(&mut pod_level.limits, reported.limits.as_ref());
        }
    }
    allocated
}

/// Replaces pod-level resources by the reported ones, and drops those that are not reported.
fn take_reported(requests: &mut Option<ResourceList>, reported: Option<&ResourceList>) {
    let Some(list) = requests else { return };
    list.retain(|name, _| reported.is_some_and(|reported| reported.contains_key(name)));
    for (name, quantity) in list {
        if let Some(reported) = reported.and_then(|reported| reported.get(name)) {
            quantity.clone_from(reported);
        }
    }
}

/// Returns the pod with the allocated requests and limits in place of those in its spec.
pub fn with_resources(pod: &Arc<Pod>, allocated: Option<&Allocated>) -> Arc<Pod> {
    let Some(allocated) = allocated.filter(|allocated| **allocated != resources_of(pod)) else { return pod.clone() };
    let mut pod = Pod::clone(pod);
    let set = |container: &mut Container| {
        if let Some(allocated) = allocated.containers.get(&container.name) {
            container.resources = Some(allocated.clone());
        }
    };
    if let Some(spec) = &mut pod.spec {
        spec.resources.clone_from(&allocated.pod_level);
        spec.containers.iter_mut().for_each(set);
        spec.init_containers.iter_mut().flatten().for_each(set);
    }
    Arc::new(pod)
}

/// Returns the reason why a resize is infeasible on this node: the static policies of the CPU and memory managers fix
/// the exclusive resources of a Guaranteed pod at admission.
fn infeasible(config: &Config, wanted: &Pod, allocated: &Allocated, resources: &Allocated) -> Option<String> {
    if qos_class(wanted) != QosClass::Guaranteed {
        return None;
    }
    let requests = |allocated: &Allocated, resource: &str| -> Vec<Option<Quantity>> {
        allocated.containers.values().map(|of| of.requests.as_ref()?.get(resource).cloned()).collect()
    };
    let is_refused =
        |is_static: bool, resource: &str| is_static && requests(allocated, resource) != requests(resources, resource);
    let why = |manager: &str| format!("Resize is infeasible for Guaranteed Pods alongside {manager}");
    if is_refused(config.static_cpu_policy, "cpu") {
        return Some(why(r#"CPU Manager policy "static""#));
    }
    is_refused(config.static_memory_policy, "memory").then(|| why(r#"Memory Manager policy "Static""#))
}

impl Worker {
    /// Allocates the resources of a changed spec, and returns the pod with its allocated resources.
    pub(super) fn allocate(&mut self, wanted: &Arc<Pod>) -> Arc<Pod> {
        let Some(allocated) = &self.allocated else { return wanted.clone() };
        let resources = resources_of(wanted);
        if *allocated == resources || self.memory.termination.is_some() {
            if self.memory.resize.pending.take().is_some() && self.memory.termination.is_none() {
                self.services.resources.allocations.withdraw(wanted);
            }
            return with_resources(wanted, self.allocated.as_ref());
        }
        if let Some(why) = infeasible(&self.services.config, wanted, allocated, &resources) {
            self.set_pending(wanted, "Infeasible", Pending::Infeasible(why));
            return with_resources(wanted, self.allocated.as_ref());
        }
        let node_info = NodeInfo { allocatable: self.services.resources.allocatable(), ..NodeInfo::default() };
        match self.services.resources.allocations.resize(wanted, &node_info, &self.waker) {
            Ok(()) => {
                self.allocated = Some(resources);
                self.memory.resize = super::plan::Resize::default();
                self.retries.allow_retry(RESIZE);
                self.services.api.events.pod(
                    wanted,
                    NORMAL,
                    "ResizeStarted",
                    &message("Pod resize started", wanted, None),
                );
                self.resizing = true;
            }
            Err(rejection) => self.set_pending(wanted, &rejection.reason, Pending::Deferred(rejection.message)),
        }
        with_resources(wanted, self.allocated.as_ref())
    }

    /// Records the reason of a pending resize, with one event.
    fn set_pending(&mut self, wanted: &Pod, reason: &str, pending: Pending) {
        if self.memory.resize.pending.as_ref() != Some(&pending) {
            let text = message(&format!("Pod resize {reason}"), wanted, Some(pending.message()));
            self.services.api.events.pod(wanted, WARNING, &format!("Resize{}", pending.reason()), &text);
        }
        self.memory.resize.pending = Some(pending);
    }

    /// Records once that the containers have the allocated resources.
    pub(super) fn note_resized(&mut self, observed: &Observed) {
        if self.resizing && !is_resizing(&self.pod, observed, &self.memory) {
            self.resizing = false;
            let text = message("Pod resize completed", &self.pod, None);
            self.services.api.events.pod(&self.pod, NORMAL, "ResizeCompleted", &text);
        }
    }

    pub(super) fn resize_failed(&mut self, error: &str) {
        let text = message("Pod resize error", &self.pod, Some(error));
        self.services.api.events.pod(&self.pod, WARNING, "ResizeError", &text);
        self.memory.resize.error = Some(error.to_owned());
    }
}

/// Returns the message of an event, with all requests and limits as upstream appends them.
fn message(what: &str, pod: &Pod, error: Option<&str>) -> String {
    let spec = Pod { spec: pod.spec.clone(), ..Pod::default() }.to_value();
    let list = |field: &str| -> Option<Value> {
        let containers = spec.pointer(&format!("/spec/{field}"))?.as_array()?;
        let short = containers
            .iter()
            .map(|one| json!({"name": one["name"], "resources": one.get("resources").cloned().unwrap_or(json!({}))}));
        Some(short.collect())
    };
    let mut summary = json!({"generation": pod.metadata.generation});
    for field in ["initContainers", "containers"] {
        if let Some(list) = list(field) {
            summary[field] = list;
        }
    }
    if let Some(error) = error {
        summary["error"] = error.into();
    }
    format!("{what}: {summary}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn pod(cpu: &str) -> Pod {
        let resources = format!(r#"{{"requests":{{"cpu":"{cpu}"}}}}"#);
        fixtures::pod(&format!(r#"{{"containers":[{{"name":"c","resources":{resources}}},{{"name":"d"}}]}}"#))
    }

    #[test]
    fn a_pod_has_its_allocated_resources() {
        let wanted = Arc::new(pod("2"));
        let promised = resources_of(&pod("1"));
        assert_eq!(resources_of(&with_resources(&wanted, Some(&promised))), promised);
        assert!(Arc::ptr_eq(&with_resources(&wanted, Some(&resources_of(&wanted))), &wanted));
        assert!(Arc::ptr_eq(&with_resources(&wanted, None), &wanted));
    }

    #[test]
    fn a_deferred_resize_survives_a_restart() {
        let mut pod = pod("2");
        let status = json!({
            "conditions": [{"type": "PodResizePending", "status": "True"}],
            "containerStatuses": [{"name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                                   "resources": {"requests": {"cpu": "1"}}}],
        });
        let with_status = Pod::from_value(json!({"metadata": {}, "status": status})).unwrap();
        assert_eq!(last_allocated(&pod), resources_of(&pod));
        pod.status = with_status.status;
        assert_eq!(last_allocated(&pod), resources_of(&self::pod("1")));
    }

    #[test]
    fn a_deferred_resize_of_pod_level_resources_survives_a_restart() {
        let pod = |cpu: &str| {
            let resources = format!(r#"{{"requests":{{"cpu":"{cpu}"}},"limits":{{"memory":"1Gi"}}}}"#);
            fixtures::pod(&format!(r#"{{"resources":{resources},"containers":[{{"name":"c"}}]}}"#))
        };
        let mut wanted = pod("2");
        let status = json!({
            "conditions": [{"type": "PodResizePending", "status": "True"}],
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "1Gi"}},
        });
        wanted.status = Pod::from_value(json!({"metadata": {}, "status": status})).unwrap().status;
        assert_eq!(last_allocated(&wanted), resources_of(&pod("1")));
        let seen = with_resources(&Arc::new(wanted), Some(&resources_of(&pod("1"))));
        assert_eq!(spec::spec(&seen).resources, spec::spec(&pod("1")).resources);
    }

    #[test]
    fn static_managers_make_a_resize_of_a_guaranteed_pod_infeasible() {
        let pod = |cpu: &str, memory: &str| {
            let list = format!(r#"{{"cpu":"{cpu}","memory":"{memory}"}}"#);
            let resources = format!(r#"{{"requests":{list},"limits":{list}}}"#);
            fixtures::pod(&format!(r#"{{"containers":[{{"name":"c","resources":{resources}}}]}}"#))
        };
        let allocated = resources_of(&pod("1", "1Gi"));
        let why = |config: &Config, wanted: &Pod| infeasible(config, wanted, &allocated, &resources_of(wanted));
        let mut config = Config { static_cpu_policy: true, ..Config::default() };
        assert_eq!(
            why(&config, &pod("2", "1Gi")).unwrap(),
            r#"Resize is infeasible for Guaranteed Pods alongside CPU Manager policy "static""#
        );
        assert_eq!(why(&config, &pod("1", "2Gi")), None, "memory is not the CPU manager's");
        assert_eq!(why(&config, &self::pod("2")), None, "it is not Guaranteed");
        config.static_cpu_policy = false;
        assert_eq!(why(&config, &pod("2", "1Gi")), None);
        config.static_memory_policy = true;
        assert_eq!(
            why(&config, &pod("1", "2Gi")).unwrap(),
            r#"Resize is infeasible for Guaranteed Pods alongside Memory Manager policy "Static""#
        );
    }

    #[test]
    fn events_name_all_resources() {
        assert_eq!(
            message("Pod resize started", &pod("2"), None),
            r#"Pod resize started: {"containers":[{"name":"c","resources":{"requests":{"cpu":"2"}}},{"name":"d","resources":{}}],"generation":1}"#
        );
    }
}
