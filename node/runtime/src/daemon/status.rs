//! The CRI status of sandboxes and containers.

use std::collections::HashMap;
use std::sync::Arc;

use corten_cri::v1;

use super::Daemon;
use crate::container::Container;
use crate::sandbox::Sandbox;

impl Daemon {
    pub fn sandbox_status(&self, sandbox: &Sandbox) -> v1::PodSandboxStatus {
        let record = sandbox.record();
        let mut ips = record.ips.iter().map(ToString::to_string);
        let network = v1::PodSandboxNetworkStatus {
            ip: ips.next().unwrap_or_default(),
            additional_ips: ips.map(|ip| v1::PodIp { ip }).collect(),
        };
        v1::PodSandboxStatus {
            id: sandbox.id.clone(),
            metadata: sandbox.config.metadata.clone(),
            state: sandbox_state(sandbox).into(),
            created_at: record.created_at,
            network: Some(network),
            linux: Some(v1::LinuxPodSandboxStatus {
                namespaces: Some(v1::Namespace { options: Some(sandbox.namespace_options()) }),
            }),
            labels: sandbox.config.labels.clone(),
            annotations: sandbox.config.annotations.clone(),
            runtime_handler: record.runtime_handler,
        }
    }

    pub fn list_sandboxes(&self, filter: &v1::PodSandboxFilter) -> Vec<v1::PodSandbox> {
        let matches = |sandbox: &Arc<Sandbox>| {
            (filter.id.is_empty() || sandbox.id.starts_with(&filter.id))
                && filter.state.as_ref().is_none_or(|state| state.state() == sandbox_state(sandbox))
                && matches_labels(&filter.label_selector, &sandbox.config.labels)
        };
        let mut items: Vec<v1::PodSandbox> = self
            .all_sandboxes()
            .iter()
            .filter(|sandbox| matches(sandbox))
            .map(|sandbox| v1::PodSandbox {
                id: sandbox.id.clone(),
                metadata: sandbox.config.metadata.clone(),
                state: sandbox_state(sandbox).into(),
                created_at: sandbox.record().created_at,
                labels: sandbox.config.labels.clone(),
                annotations: sandbox.config.annotations.clone(),
                runtime_handler: sandbox.record().runtime_handler,
            })
            .collect();
        items.sort_by_key(|item| std::cmp::Reverse(item.created_at));
        items
    }

    pub fn list_containers(&self, filter: &v1::ContainerFilter) -> Vec<v1::Container> {
        let matches = |container: &Arc<Container>| {
            (filter.id.is_empty() || container.id.starts_with(&filter.id))
                && (filter.pod_sandbox_id.is_empty() || container.is_of(&filter.pod_sandbox_id))
                && filter.state.as_ref().is_none_or(|state| state.state() == container.state())
                && matches_labels(&filter.label_selector, &container.config.labels)
        };
        let mut items: Vec<v1::Container> =
            self.all_containers().iter().filter(|container| matches(container)).map(|found| listed(found)).collect();
        items.sort_by_key(|item| std::cmp::Reverse(item.created_at));
        items
    }

    pub fn container_status(&self, container: &Container) -> v1::ContainerStatus {
        let record = container.record();
        let user = record.identity.as_ref().map(|identity| v1::ContainerUser {
            linux: Some(v1::LinuxContainerUser {
                uid: identity.uid.into(),
                gid: identity.gid.into(),
                supplemental_groups: identity.groups.iter().map(|group| i64::from(*group)).collect(),
            }),
        });
        let exit = record.exit.clone().unwrap_or_default();
        v1::ContainerStatus {
            id: container.id.clone(),
            metadata: container.config.metadata.clone(),
            state: container.state().into(),
            created_at: record.created_at,
            started_at: record.started_at.unwrap_or(0),
            finished_at: exit.finished_at,
            exit_code: exit.code,
            image: container.config.image.clone(),
            image_ref: record.image_ref.clone(),
            reason: reason(container),
            message: record.message.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
            mounts: container.config.mounts.clone(),
            log_path: record.log_path.clone(),
            resources: Some(v1::ContainerResources { linux: Some(resources(&record)) }),
            image_id: record.image_id.clone(),
            user,
            stop_signal: container.config.stop_signal,
        }
    }

    /// Returns debugging information beyond the CRI, for `crictl inspect`.
    pub fn container_info(&self, container: &Container) -> HashMap<String, String> {
        let record = container.record();
        let info = serde_json::json!({
            "pid": record.pid.unwrap_or(0),
            "sandboxID": record.sandbox_id,
            "cgroup": record.cgroup,
        });
        HashMap::from([("info".to_string(), info.to_string())])
    }
}

fn reason(container: &Container) -> String {
    let record = container.record();
    match &record.exit {
        None => String::new(),
        Some(_) if !record.reason.is_empty() => record.reason,
        Some(exit) if exit.oom_killed => "OOMKilled".into(),
        Some(exit) if exit.code == 0 => "Completed".into(),
        Some(_) => "Error".into(),
    }
}

fn listed(container: &Container) -> v1::Container {
    let record = container.record();
    v1::Container {
        id: container.id.clone(),
        pod_sandbox_id: record.sandbox_id,
        metadata: container.config.metadata.clone(),
        image: container.config.image.clone(),
        image_ref: record.image_ref,
        state: container.state().into(),
        created_at: record.created_at,
        labels: container.config.labels.clone(),
        annotations: container.config.annotations.clone(),
        image_id: record.image_id,
    }
}

fn resources(record: &crate::container::ContainerRecord) -> v1::LinuxContainerResources {
    let limits = &record.limits;
    v1::LinuxContainerResources {
        cpu_period: limits.cpu_period,
        cpu_quota: limits.cpu_quota,
        cpu_shares: limits.cpu_shares,
        memory_limit_in_bytes: limits.memory,
        oom_score_adj: record.oom_score_adj,
        cpuset_cpus: limits.cpuset_cpus.clone(),
        cpuset_mems: limits.cpuset_mems.clone(),
        hugepage_limits: limits
            .hugepages
            .iter()
            .map(|(page_size, limit)| v1::HugepageLimit { page_size: page_size.clone(), limit: *limit })
            .collect(),
        unified: limits.unified.clone().into_iter().collect(),
        memory_swap_limit_in_bytes: limits.memory_swap,
    }
}

fn sandbox_state(sandbox: &Sandbox) -> v1::PodSandboxState {
    match sandbox.record().ready {
        true => v1::PodSandboxState::SandboxReady,
        false => v1::PodSandboxState::SandboxNotready,
    }
}

/// Reports whether every wanted label is present with its value.
pub(crate) fn matches_labels(wanted: &HashMap<String, String>, labels: &HashMap<String, String>) -> bool {
    wanted.iter().all(|(name, value)| labels.get(name) == Some(value))
}
