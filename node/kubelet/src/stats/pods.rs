//! The resource usage of pods: the runtime's statistics of their sandboxes and containers, and the size of their logs
//! and volumes.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use corten_api::k8s_openapi::api::core::v1::{Pod, Volume};
use corten_cri::v1 as cri;
use corten_files::Size;

use super::disk;
use super::{Detail, Inner};
use crate::pod::labels;
use crate::pod::spec;
use crate::pod::view::View;
use crate::summary::{
    ClaimReference, ContainerStats, CpuStats, FsStats, InterfaceStats, MemoryStats, NetworkStats, PodReference,
    PodStats, ProcessStats, SwapStats, Time, VolumeStats,
};

impl Inner {
    /// Returns the statistics of every running sandbox as those of its pod; only the newest sandbox of a pod counts.
    pub(super) fn pods(&self, sandboxes: Vec<cri::PodSandboxStats>, detail: Detail) -> Vec<PodStats> {
        let views: HashMap<String, View> =
            self.views.all().into_iter().map(|view| (spec::uid(&view.pod).to_owned(), view)).collect();
        let mut pods: Vec<PodStats> = Vec::new();
        for sandbox in sandboxes {
            let Some((attributes, linux)) = sandbox.attributes.zip(sandbox.linux) else { continue };
            let Some(uid) = attributes.labels.get(labels::POD_UID) else { continue };
            let view = views.get(uid);
            let current = view.and_then(|view| view.observed.sandbox());
            if current.is_some_and(|current| current.id != attributes.id) {
                continue;
            }
            let start_time = Time::from_nanoseconds(current.map_or(0, |sandbox| sandbox.created_at));
            let mut pod = self.pod(&attributes, linux, start_time, view);
            if detail == Detail::All {
                self.add_disk(&mut pod, view);
            }
            pods.push(pod);
        }
        pods.sort_unstable_by(|a, b| {
            (&a.pod_ref.namespace, &a.pod_ref.name).cmp(&(&b.pod_ref.namespace, &b.pod_ref.name))
        });
        pods
    }

    fn pod(
        &self,
        attributes: &cri::PodSandboxAttributes,
        linux: cri::LinuxPodSandboxStats,
        start_time: Time,
        view: Option<&View>,
    ) -> PodStats {
        let label = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
        let containers: Vec<ContainerStats> =
            linux.containers.into_iter().filter_map(|container| self.container(container, view)).collect();
        let started = (start_time != Time::from_nanoseconds(0)).then_some(start_time);
        let swap = containers.iter().filter_map(|container| container.swap.as_ref()?.swap_usage_bytes).sum();
        let time = Time::from_nanoseconds(linux.cpu.as_ref().map_or(0, |cpu| cpu.timestamp));
        PodStats {
            cpu: linux.cpu.map(|cpu| self.cpu(&attributes.id, &cpu, started)),
            memory: linux.memory.map(memory),
            network: linux.network.and_then(network),
            process_stats: linux.process.map(|process| ProcessStats { process_count: number(process.process_count) }),
            swap: Some(SwapStats { time, swap_available_bytes: None, swap_usage_bytes: Some(swap) }),
            pod_ref: PodReference {
                name: label(labels::POD_NAME),
                namespace: label(labels::POD_NAMESPACE),
                uid: label(labels::POD_UID),
            },
            start_time,
            containers,
            volumes: Vec::new(),
            ephemeral_storage: None,
        }
    }

    fn container(&self, stats: cri::ContainerStats, view: Option<&View>) -> Option<ContainerStats> {
        let attributes = stats.attributes?;
        let instance = view.and_then(|view| view.observed.instances.iter().find(|found| found.id == attributes.id));
        let start_time = Time::from_nanoseconds(instance.map_or(0, |instance| instance.started_at));
        let started = instance.map(|_| start_time);
        let rootfs = stats.writable_layer.map(|layer| FsStats {
            used_bytes: layer.used_bytes.map(|value| value.value),
            inodes_used: layer.inodes_used.map(|value| value.value),
            ..empty(Time::from_nanoseconds(layer.timestamp))
        });
        Some(ContainerStats {
            name: attributes.metadata?.name,
            start_time,
            cpu: stats.cpu.map(|cpu| self.cpu(&attributes.id, &cpu, started)),
            memory: stats.memory.map(memory),
            rootfs,
            logs: None,
            swap: stats.swap.map(|swap| SwapStats {
                time: Time::from_nanoseconds(swap.timestamp),
                swap_available_bytes: swap.swap_available_bytes.map(|value| value.value),
                swap_usage_bytes: swap.swap_usage_bytes.map(|value| value.value),
            }),
            id: attributes.id,
        })
    }

    fn cpu(&self, id: &str, usage: &cri::CpuUsage, started: Option<Time>) -> CpuStats {
        let time = Time::from_nanoseconds(usage.timestamp);
        let nanoseconds = number(usage.usage_core_nano_seconds);
        CpuStats {
            time,
            usage_nano_cores: self.rate(id, time, nanoseconds, started),
            usage_core_nano_seconds: Some(nanoseconds),
        }
    }

    /// Adds logs and volumes, and the pod's usage of the node's ephemeral storage.
    fn add_disk(&self, pod: &mut PodStats, view: Option<&View>) {
        let config = &self.services.config;
        let time = Time(jiff::Timestamp::now());
        let Some(room) = disk::file_system(&config.root_dir, time) else { return };
        let reference = &pod.pod_ref;
        let logs = config.pod_log_dir(&reference.namespace, &reference.name, &reference.uid);
        let mut local = Size::default();
        for container in &mut pod.containers {
            let size = self.counts.of(&logs.join(&container.name));
            container.logs = Some(disk::part_of(&room, size));
            local += size;
            if let Some(rootfs) = &mut container.rootfs {
                let size = Size { bytes: rootfs.used_bytes.unwrap_or(0), inodes: rootfs.inodes_used.unwrap_or(0) };
                *rootfs = disk::part_of(&room, size);
                local += size;
            }
        }
        let pod_dir = config.pod_dir(&pod.pod_ref.uid);
        for volume in view.iter().flat_map(|view| spec::spec(&view.pod).volumes.iter().flatten()) {
            let Some(stats) = self.volume(view.map(|view| view.pod.as_ref()), volume, &pod_dir, time) else { continue };
            if is_on_node_disk(volume) {
                local += Size { bytes: stats.fs.used_bytes.unwrap_or(0), inodes: stats.fs.inodes_used.unwrap_or(0) };
            }
            pod.volumes.push(stats);
        }
        local += Size { bytes: self.counts.of(&pod_dir.join("etc-hosts")).bytes, inodes: 1 };
        pod.ephemeral_storage = Some(disk::part_of(&room, local));
    }

    /// Returns the statistics of a volume below the pod's directory, or on a file system of its own.
    fn volume(&self, pod: Option<&Pod>, volume: &Volume, pod_dir: &Path, time: Time) -> Option<VolumeStats> {
        let uid = pod.map(spec::uid).unwrap_or_default();
        let reported = self.services.volumes.csi.usage_of(uid, &volume.name, time);
        let path = volume_path(pod_dir, &volume.name);
        let claim = volume.persistent_volume_claim.as_ref().map(|source| source.claim_name.clone());
        let claim = claim.or_else(|| {
            volume.ephemeral.as_ref().map(|_| format!("{}-{}", spec::name(pod?).to_owned(), volume.name).into())?
        });
        let fs = match (reported, path) {
            (Some(reported), _) => reported,
            (None, Some(path)) if volume.csi.is_none() => {
                let room = disk::file_system(&path, time)?;
                if claim.is_some() { room } else { disk::part_of(&room, self.counts.of(&path)) }
            }
            _ => return None,
        };
        let namespace = pod.map(|pod| spec::namespace(pod).to_owned()).unwrap_or_default();
        Some(VolumeStats { fs, name: volume.name.clone(), claim: claim.map(|name| ClaimReference { name, namespace }) })
    }
}

/// Returns the path of the volume with this name, of any plugin.
fn volume_path(pod_dir: &Path, name: &str) -> Option<PathBuf> {
    let plugins = std::fs::read_dir(pod_dir.join("volumes")).ok()?;
    plugins.flatten().map(|plugin| plugin.path().join(name)).find(|path| path.is_dir())
}

/// Reports whether its content counts as the pod's use of ephemeral storage.
pub fn is_on_node_disk(volume: &Volume) -> bool {
    let in_memory = volume.empty_dir.as_ref().is_some_and(|source| source.medium.as_deref() == Some("Memory"));
    (volume.empty_dir.is_some() && !in_memory) || volume.config_map.is_some()
}

fn number(value: Option<cri::UInt64Value>) -> u64 {
    value.map_or(0, |value| value.value)
}

fn empty(time: Time) -> FsStats {
    FsStats {
        time,
        available_bytes: None,
        capacity_bytes: None,
        used_bytes: None,
        inodes_free: None,
        inodes: None,
        inodes_used: None,
        room_bytes: None,
    }
}

fn memory(usage: cri::MemoryUsage) -> MemoryStats {
    let value = |value: Option<cri::UInt64Value>| value.map(|value| value.value);
    MemoryStats {
        time: Time::from_nanoseconds(usage.timestamp),
        available_bytes: value(usage.available_bytes),
        usage_bytes: value(usage.usage_bytes),
        working_set_bytes: value(usage.working_set_bytes),
        rss_bytes: value(usage.rss_bytes),
        page_faults: value(usage.page_faults),
        major_page_faults: value(usage.major_page_faults),
    }
}

fn network(usage: cri::NetworkUsage) -> Option<NetworkStats> {
    let interface = |usage: cri::NetworkInterfaceUsage| InterfaceStats {
        name: usage.name,
        rx_bytes: number(usage.rx_bytes),
        rx_errors: number(usage.rx_errors),
        tx_bytes: number(usage.tx_bytes),
        tx_errors: number(usage.tx_errors),
    };
    let default = interface(usage.default_interface?);
    let others = usage.interfaces.into_iter().map(interface);
    let interfaces = std::iter::once(default.clone()).chain(others).collect();
    Some(NetworkStats { time: Time::from_nanoseconds(usage.timestamp), default, interfaces })
}
