//! The resource usage of the node and its pods: `Collector` measures on request. `/stats/summary`, the metrics
//! endpoints and the eviction manager use it; the eviction manager measures every ten seconds, so that a rate always
//! has a base.
//!
//! The runtime reports containers, the kernel the machine (`node`), the file systems disks (`disk`).

mod disk;
pub(crate) mod node;
mod pods;
mod process;
mod rates;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;

use crate::error::Result;
use crate::pod::view::Views;
use crate::services::Services;
use crate::summary::{ContainerStats, CpuStats, MemoryStats, NodeStats, RuntimeStats, Summary, Time};
use disk::Counts;
use rates::Rates;

/// The time after which samples of deleted containers are dropped.
const FORGET_AFTER: Duration = Duration::from_secs(120);

/// The extent of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// CPU and memory only: no directory is measured.
    CpuAndMemory,
    /// Also the node's disks and networks.
    Node,
    /// Also the logs and volumes of pods.
    All,
}

pub use disk::room;
pub use pods::is_on_node_disk;

/// Measures one node.
#[derive(Clone)]
pub struct Collector {
    inner: Arc<Inner>,
}

struct Inner {
    services: Arc<Services>,
    views: Views,
    rates: Mutex<Rates>,
    counts: Counts,
}

impl Collector {
    pub fn new(services: Arc<Services>, views: Views) -> Collector {
        Collector { inner: Arc::new(Inner { services, views, rates: Mutex::default(), counts: Counts::default() }) }
    }

    /// Measures the node and all its pods.
    pub async fn summary(&self, detail: Detail) -> Result<Summary> {
        let runtime = &self.inner.services.runtime.client;
        let sandboxes = runtime.sandbox_stats().await?;
        let images = match detail {
            Detail::Node | Detail::All => Some(runtime.image_file_systems().await?),
            Detail::CpuAndMemory => None,
        };
        let inner = self.inner.clone();
        // Reading files blocks, and measuring directories can take long.
        let measured = tokio::task::spawn_blocking(move || {
            let pods = inner.pods(sandboxes, detail);
            inner.forget_old();
            Summary { node: inner.node(images.as_ref()), pods }
        });
        measured.await.map_err(|error| crate::error::Error::pod(format!("measuring ended: {error}")))
    }
}

impl Inner {
    fn node(&self, images: Option<&corten_cri::v1::ImageFsInfoResponse>) -> NodeStats {
        let config = &self.services.config;
        let now = Timestamp::now();
        let time = Time(now);
        let cpu = node::cpu();
        let boot = cpu.map_or(now, |(_, boot)| boot);
        let memory = node::memory(time);
        NodeStats {
            node_name: config.node_name.clone(),
            system_containers: self.system_containers(time, boot),
            start_time: Time(boot),
            cpu: cpu.map(|(nanoseconds, _)| CpuStats {
                time,
                usage_nano_cores: self.rate("/", time, nanoseconds, Some(Time(boot))),
                usage_core_nano_seconds: Some(nanoseconds),
            }),
            memory: memory.as_ref().map(|(memory, _)| memory.clone()),
            swap: memory.map(|(_, swap)| swap),
            network: images.and_then(|_| node::network(time)),
            fs: disk::file_system(&config.root_dir, time),
            runtime: images.map(|images| self.runtime_file_systems(images, time)),
            rlimit: node::processes(time),
        }
    }

    /// Returns what upstream shows as system containers: the kubelet, the runtime, and the cgroup of all pods.
    fn system_containers(&self, time: Time, boot: Timestamp) -> Vec<ContainerStats> {
        let own = i32::try_from(std::process::id()).ok();
        let runtime = process::listener(&self.services.config.cri_socket);
        let kubelet = own.and_then(|pid| self.process_container("kubelet", pid, time, boot));
        let runtime = runtime.and_then(|pid| self.process_container("runtime", pid, time, boot));
        [kubelet, runtime, self.pods_container(time)].into_iter().flatten().collect()
    }

    /// Returns a process as a system container. In a cluster of one process it is that of all components.
    fn process_container(&self, name: &str, pid: i32, time: Time, boot: Timestamp) -> Option<ContainerStats> {
        let usage = process::usage(pid)?;
        let start_time = Time(process::start_time(&usage, boot));
        let counter = format!("/{name}/{pid}");
        Some(ContainerStats {
            name: name.into(),
            start_time,
            cpu: Some(CpuStats {
                time,
                usage_nano_cores: self.rate(&counter, time, usage.cpu_nanoseconds, Some(start_time)),
                usage_core_nano_seconds: Some(usage.cpu_nanoseconds),
            }),
            memory: Some(MemoryStats {
                time,
                available_bytes: None,
                usage_bytes: Some(usage.resident_bytes),
                working_set_bytes: Some(usage.resident_bytes),
                rss_bytes: Some(usage.anonymous_bytes),
                page_faults: Some(usage.page_faults),
                major_page_faults: Some(usage.major_page_faults),
            }),
            rootfs: None,
            logs: None,
            swap: None,
            id: counter,
        })
    }

    /// Returns the cgroup of all pods, which upstream shows as the system container `pods`.
    fn pods_container(&self, time: Time) -> Option<ContainerStats> {
        let root = self.services.config.cgroup_root.trim_end_matches('/');
        let usage = self.services.resources.cgroups.usage(&format!("{root}/kubepods"))?;
        let limit = self.services.resources.allocatable().get("memory").map(crate::pod::resources::value)?;
        let limit = u64::try_from(limit).unwrap_or(0);
        Some(ContainerStats {
            name: "pods".into(),
            start_time: time,
            cpu: usage.cpu_nanoseconds.map(|nanoseconds| CpuStats {
                time,
                usage_nano_cores: self.rate("/kubepods", time, nanoseconds, None),
                usage_core_nano_seconds: Some(nanoseconds),
            }),
            memory: Some(MemoryStats {
                time,
                available_bytes: Some(limit.saturating_sub(usage.working_set_bytes)),
                usage_bytes: Some(usage.memory_bytes),
                working_set_bytes: Some(usage.working_set_bytes),
                rss_bytes: None,
                page_faults: None,
                major_page_faults: None,
            }),
            rootfs: None,
            logs: None,
            swap: None,
            id: "/kubepods".into(),
        })
    }

    fn runtime_file_systems(&self, images: &corten_cri::v1::ImageFsInfoResponse, time: Time) -> RuntimeStats {
        let of = |list: &[corten_cri::v1::FilesystemUsage]| {
            let usage = list.first()?;
            let mount = usage.fs_id.as_ref().map(|id| id.mountpoint.clone()).unwrap_or_default();
            let room = disk::file_system(Path::new(&mount), time)?;
            let value = |value: &Option<corten_cri::v1::UInt64Value>| value.as_ref().map_or(0, |value| value.value);
            let size = corten_files::Size { bytes: value(&usage.used_bytes), inodes: value(&usage.inodes_used) };
            Some(disk::part_of(&room, size))
        };
        RuntimeStats { image_fs: of(&images.image_filesystems), container_fs: of(&images.container_filesystems) }
    }

    fn rate(&self, name: &str, at: Time, nanoseconds: u64, since: Option<Time>) -> Option<u64> {
        let at = nanoseconds_of(at);
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.note(name, at, nanoseconds, since.map(nanoseconds_of))
    }

    fn forget_old(&self) {
        let now = nanoseconds_of(Time(Timestamp::now()));
        let age = i64::try_from(FORGET_AFTER.as_nanos()).unwrap_or(i64::MAX);
        self.rates.lock().unwrap_or_else(PoisonError::into_inner).forget_before(now - age);
        self.counts.forget_old();
    }
}

fn nanoseconds_of(time: Time) -> i64 {
    i64::try_from(time.0.as_nanosecond()).unwrap_or(0)
}
