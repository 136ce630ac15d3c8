//! Applies allocated requests and limits to a running pod: first the increases of its cgroup, then its containers, then
//! the decreases of its cgroup, so that no container ever has more than its pod. A memory limit below the current usage
//! is refused before anything changes, because the kernel would kill processes.

use corten_api::k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use corten_cri::v1 as cri;
use jiff::Timestamp;

use super::plan::{Applied, are_containers_resizing, is_pod_resizing};
use super::worker::Worker;
use crate::pod::observed::Observed;
use crate::pod::resources;
use crate::pod::spec;

/// The name of the step among the retries; those of single containers begin with it.
pub(super) const RESIZE: &str = "/resize";

/// A memory limit that decreases, and the current usage.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Decrease {
    /// `pod`, or `container "name"`.
    of: String,
    limit: i64,
    usage: Option<u64>,
}

impl Worker {
    /// Takes the resources that an earlier kubelet reported for the containers and the pod.
    pub(super) fn note_applied(&mut self, observed: &Observed) {
        self.memory.applied.retain(|id, _| observed.running().any(|instance| instance.id == *id));
        for instance in observed.running() {
            if !self.memory.applied.contains_key(&instance.id) {
                let applied = self.reported(&instance.id, &instance.name);
                self.memory.applied.insert(instance.id.clone(), applied);
            }
        }
        if self.memory.applied_to_pod.is_none() && !observed.sandboxes.is_empty() {
            self.memory.applied_to_pod = Some(self.reported_of_pod());
        }
    }

    /// Returns the resources in a container's status, or else in its spec.
    fn reported(&self, id: &str, name: &str) -> Applied {
        let status = spec::status(&self.pod);
        let mut all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let known = all.find(|known| known.container_id.as_deref().is_some_and(|known| known.ends_with(id)));
        let declared = spec::container(&self.pod, name).map(|declared| declared.container.into_owned());
        let declared = declared.unwrap_or_default();
        let own = known.and_then(|known| known.resources.clone()).or(declared.resources.clone());
        let mut applied = Applied::new(&self.pod, &Container { resources: own, ..declared });
        let shown = status.resources.as_ref().and_then(|resources| resources.limits.as_ref());
        for (name, limit) in &mut applied.limits {
            let is_own = applied.own.limits.as_ref().is_some_and(|own| own.get(name) == Some(limit));
            if let Some(shown) = shown.and_then(|shown| shown.get(name)).filter(|_| !is_own) {
                limit.clone_from(shown);
            }
        }
        applied
    }

    fn reported_of_pod(&self) -> ResourceRequirements {
        let status = spec::status(&self.pod);
        let Some(mut shown) = status.resources.clone().filter(|_| status.phase.as_deref() == Some("Running")) else {
            return resources::pod_level(&self.pod);
        };
        for list in [&mut shown.requests, &mut shown.limits] {
            list.iter_mut().for_each(|list| list.retain(|name, _| resources::is_compute(name)));
            *list = list.take().filter(|list| !list.is_empty());
        }
        shown
    }

    /// Applies the allocated resources to the pod and its running containers; returns whether something changed.
    pub(super) async fn resize(&mut self, resize: &[(String, String)], observed: &Observed, now: Timestamp) -> bool {
        let concerned = !resize.is_empty() || is_pod_resizing(&self.pod, &self.memory);
        if !concerned || self.retries.blocked(RESIZE, now) {
            return false;
        }
        if let Some(error) = refusal(&self.decreases(resize).await) {
            // The status must show the reason before the next attempt.
            self.resize_failed(&error);
            self.retries.failed(RESIZE, now);
            return true;
        }
        let mut resized = false;
        for (id, name) in resize {
            resized |= self.resize_container(id, name, now).await;
        }
        self.shrink_pod(observed) || resized
    }

    async fn resize_container(&mut self, id: &str, name: &str, now: Timestamp) -> bool {
        let step = format!("{RESIZE}/{name}");
        let Some(declared) = spec::container(&self.pod, name).filter(|_| !self.retries.blocked(&step, now)) else {
            return false;
        };
        let linux =
            resources::container_resources(&self.pod, &declared.container, self.services.resources.memory_capacity);
        let applied = Applied::new(&self.pod, &declared.container);
        match self.services.runtime.client.update_resources(id, linux).await {
            Ok(()) => {
                self.memory.applied.insert(id.to_owned(), applied);
                self.retries.succeeded(&step);
                true
            }
            Err(error) => {
                self.resize_failed(&error.to_string());
                self.retries.failed(&step, now);
                // The status must show the reason before the next attempt.
                true
            }
        }
    }

    /// Returns the memory limits of the pod and of these containers that decrease.
    async fn decreases(&self, resize: &[(String, String)]) -> Vec<Decrease> {
        let mut decreases = Vec::new();
        let wanted = resources::pod_resources(&self.pod).memory_limit_in_bytes;
        let applied = self.memory.applied_to_pod.as_ref().map(resources::cgroup_resources).unwrap_or_default();
        if is_decrease(applied.memory_limit_in_bytes, wanted) {
            let cgroup = resources::pod_cgroup(&self.services.config.cgroup_root, &self.pod);
            let usage = self.services.resources.cgroups.usage(&cgroup).map(|usage| usage.memory_bytes);
            decreases.push(Decrease { of: "pod".into(), limit: wanted, usage });
        }
        let mut shrunk = Vec::new();
        for (id, name) in resize {
            let Some(declared) = spec::container(&self.pod, name) else { continue };
            let memory = |applied: &Applied| applied.limits.get("memory").map_or(0, resources::value);
            let wanted = memory(&Applied::new(&self.pod, &declared.container));
            if is_decrease(self.memory.applied.get(id).map_or(0, memory), wanted) {
                shrunk.push((id, name, wanted));
            }
        }
        if !shrunk.is_empty() {
            let used = self.services.runtime.client.memory_in_use(spec::uid(&self.pod)).await.unwrap_or_default();
            let decrease = |(id, name, limit): (&String, &String, i64)| Decrease {
                of: format!("container {name:?}"),
                limit,
                usage: used.get(id).copied(),
            };
            decreases.extend(shrunk.into_iter().map(decrease));
        }
        decreases
    }

    /// Raises the limits of the pod's cgroup, so that containers may have more.
    pub(super) fn grow_pod(&self) {
        let Some(applied) = self.memory.applied_to_pod.as_ref().filter(|_| is_pod_resizing(&self.pod, &self.memory))
        else {
            return;
        };
        let larger = larger(&resources::cgroup_resources(applied), &resources::pod_resources(&self.pod));
        let cgroup = resources::pod_cgroup(&self.services.config.cgroup_root, &self.pod);
        self.services.resources.cgroups.create(&cgroup, &larger);
    }

    /// Sets the pod's cgroup to exactly the allocated resources, once no container has more; returns whether that is
    /// new.
    fn shrink_pod(&mut self, observed: &Observed) -> bool {
        let is_due = is_pod_resizing(&self.pod, &self.memory);
        if !is_due || are_containers_resizing(&self.pod, observed, &self.memory) {
            return false;
        }
        self.set_pod_cgroup();
        self.memory.resize.error = None;
        true
    }

    /// Creates the pod's cgroup or sets the pod's current limits.
    pub(super) fn set_pod_cgroup(&mut self) {
        let cgroup = resources::pod_cgroup(&self.services.config.cgroup_root, &self.pod);
        self.services.resources.cgroups.create(&cgroup, &resources::pod_resources(&self.pod));
        self.services.resources.cgroups.limit_processes(&cgroup, self.services.resources.pod_pids_limit);
        self.services.resources.share_cpu(&self.services.config.cgroup_root);
        self.memory.applied_to_pod = Some(resources::pod_level(&self.pod));
    }
}

/// Reports whether a memory limit is new or smaller; 0 is none.
fn is_decrease(applied: i64, wanted: i64) -> bool {
    wanted > 0 && (applied == 0 || wanted < applied)
}

/// Returns the reason why the limits cannot be lowered, in upstream's words.
fn refusal(decreases: &[Decrease]) -> Option<String> {
    let refused: Vec<String> = decreases
        .iter()
        .filter_map(|Decrease { of, limit, usage }| match usage {
            None => Some(format!("missing {of} memory usage")),
            Some(usage) if i64::try_from(*usage).is_ok_and(|usage| usage < *limit) => None,
            Some(usage) => Some(format!("attempting to set {of} memory limit ({limit}) below current usage ({usage})")),
        })
        .collect();
    match refused.as_slice() {
        [] => None,
        [one] => Some(format!("cannot decrease memory limits: {one}")),
        several => Some(format!("cannot decrease memory limits: [{}]", several.join(", "))),
    }
}

/// Returns the larger value of each resource; no limit is the largest.
fn larger(a: &cri::LinuxContainerResources, b: &cri::LinuxContainerResources) -> cri::LinuxContainerResources {
    let limit = |a: i64, b: i64| if a == 0 || b == 0 { 0 } else { a.max(b) };
    cri::LinuxContainerResources {
        cpu_shares: a.cpu_shares.max(b.cpu_shares),
        cpu_quota: limit(a.cpu_quota, b.cpu_quota),
        memory_limit_in_bytes: limit(a.memory_limit_in_bytes, b.memory_limit_in_bytes),
        ..b.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_grows_before_it_shrinks() {
        let of = |cpu_shares, cpu_quota, memory_limit_in_bytes| cri::LinuxContainerResources {
            cpu_shares,
            cpu_quota,
            memory_limit_in_bytes,
            ..cri::LinuxContainerResources::default()
        };
        assert_eq!(larger(&of(1, 20, 300), &of(2, 10, 400)), of(2, 20, 400));
        assert_eq!(larger(&of(2, 0, 300), &of(1, 10, 0)), of(2, 0, 0), "no limit is the largest");
    }

    #[test]
    fn memory_in_use_is_not_taken_away() {
        assert!(is_decrease(0, 5) && is_decrease(6, 5));
        assert!(!is_decrease(5, 0) && !is_decrease(5, 5) && !is_decrease(5, 6));
        let decrease = |of: &str, usage| Decrease { of: of.into(), limit: 10, usage };
        for (decreases, expected) in [
            (vec![], None),
            (vec![decrease("pod", Some(9))], None),
            (
                vec![decrease("pod", Some(10))],
                Some("cannot decrease memory limits: attempting to set pod memory limit (10) below current usage (10)"),
            ),
            (
                vec![decrease("container \"c\"", None), decrease("pod", Some(u64::MAX))],
                Some(
                    "cannot decrease memory limits: [missing container \"c\" memory usage, attempting to set pod memory limit (10) below current usage (18446744073709551615)]",
                ),
            ),
        ] {
            assert_eq!(refusal(&decreases).as_deref(), expected);
        }
    }
}
