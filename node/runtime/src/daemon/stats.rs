//! The resource usage of containers, pods and images.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use corten_cri::v1;
use corten_files::{Size, size_of};

use super::Daemon;
use super::sandboxes::blocking;
use crate::Error;
use crate::cgroup::Usage;
use crate::container::Container;
use crate::sandbox::{Sandbox, namespaces};
use crate::shim::log::now;

/// The age up to which a disk usage is reused: counting files is slow.
const DISK_USAGE_AGE: Duration = Duration::from_secs(30);

/// Earlier readings, to compute rates from counters and to count files seldom.
#[derive(Debug, Default)]
pub(super) struct Samples {
    cpu: Mutex<HashMap<String, (i64, u64)>>,
    disk: Mutex<HashMap<String, (Instant, Size)>>,
    mount_point: OnceLock<String>,
}

impl Samples {
    /// Returns CPU nanoseconds per second since the previous reading.
    fn rate(&self, id: &str, at: i64, nanoseconds: u64) -> Option<u64> {
        let mut samples = self.cpu.lock().unwrap_or_else(PoisonError::into_inner);
        let (before, counted) = samples.insert(id.to_string(), (at, nanoseconds))?;
        let elapsed = u64::try_from(at - before).ok().filter(|elapsed| *elapsed > 0)?;
        let used = u128::from(nanoseconds.saturating_sub(counted));
        u64::try_from(used * 1_000_000_000 / u128::from(elapsed)).ok()
    }

    fn fresh_disk_usage(&self, id: &str) -> Option<Size> {
        let samples = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        samples.get(id).filter(|(at, _)| at.elapsed() < DISK_USAGE_AGE).map(|(_, usage)| *usage)
    }

    fn keep_disk_usage(&self, id: &str, usage: Size) {
        let mut samples = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        samples.insert(id.to_string(), (Instant::now(), usage));
    }

    /// Returns the sum of the last disk usages of all containers.
    fn disk_total(&self) -> Size {
        let samples = self.disk.lock().unwrap_or_else(PoisonError::into_inner);
        samples.values().fold(Size::default(), |mut sum, (_, usage)| {
            sum += *usage;
            sum
        })
    }

    pub fn forget(&self, id: &str) {
        self.cpu.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
        self.disk.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

impl Daemon {
    /// Measures containers, all in one blocking task: the kernel takes most of the time.
    pub async fn container_stats(
        self: &Arc<Self>,
        containers: Vec<Arc<Container>>,
    ) -> Result<Vec<v1::ContainerStats>, Error> {
        let daemon = self.clone();
        blocking(move || Ok(containers.iter().map(|container| daemon.read_container(container).0).collect())).await
    }

    /// Measures sandboxes with the containers that run in them.
    pub async fn sandbox_stats(
        self: &Arc<Self>,
        sandboxes: Vec<Arc<Sandbox>>,
    ) -> Result<Vec<v1::PodSandboxStats>, Error> {
        let daemon = self.clone();
        blocking(move || Ok(sandboxes.iter().map(|sandbox| daemon.read_sandbox(sandbox)).collect())).await
    }

    /// Returns the statistics of a container, and how many processes it has.
    fn read_container(&self, container: &Container) -> (v1::ContainerStats, u64) {
        let usage = self.hierarchy.group(&container.cgroup()).usage();
        let disk = self.disk_usage(&container.id);
        let at = now();
        let rate = self.samples.rate(&container.id, at, usage.cpu_nanoseconds);
        let stats = v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes {
                id: container.id.clone(),
                metadata: container.config.metadata.clone(),
                labels: container.config.labels.clone(),
                annotations: container.config.annotations.clone(),
            }),
            cpu: Some(cpu(at, &usage, rate)),
            memory: Some(memory(at, &usage)),
            writable_layer: Some(v1::FilesystemUsage {
                timestamp: at,
                fs_id: Some(self.file_system()),
                used_bytes: number(disk.bytes),
                inodes_used: number(disk.inodes),
            }),
            swap: Some(v1::SwapUsage {
                timestamp: at,
                swap_available_bytes: None,
                swap_usage_bytes: number(usage.swap_bytes),
            }),
            io: None,
        };
        (stats, usage.processes)
    }

    /// Returns the file system of the writable layers; its mount does not move while the runtime uses it.
    fn file_system(&self) -> v1::FilesystemIdentifier {
        let mountpoint = self.samples.mount_point.get_or_init(|| mount_point(self.paths.state())).clone();
        v1::FilesystemIdentifier { mountpoint }
    }

    fn disk_usage(&self, id: &str) -> Size {
        self.samples.fresh_disk_usage(id).unwrap_or_else(|| {
            let usage = size_of(&self.paths.container(id).join("upper"));
            self.samples.keep_disk_usage(id, usage);
            usage
        })
    }

    fn read_sandbox(&self, sandbox: &Sandbox) -> v1::PodSandboxStats {
        let mut running = self.containers_of(&sandbox.id);
        running.retain(|container| container.state() == v1::ContainerState::ContainerRunning);
        let (containers, processes): (Vec<_>, Vec<u64>) =
            running.iter().map(|container| self.read_container(container)).unzip();
        let usage = self.hierarchy.group(&sandbox.cgroup_parent()).usage();
        let at = now();
        let rate = self.samples.rate(&sandbox.id, at, usage.cpu_nanoseconds);
        let interfaces = self.interfaces(sandbox, &running);
        let process_count = number(usage.processes + processes.iter().sum::<u64>());
        v1::PodSandboxStats {
            attributes: Some(v1::PodSandboxAttributes {
                id: sandbox.id.clone(),
                metadata: sandbox.config.metadata.clone(),
                labels: sandbox.config.labels.clone(),
                annotations: sandbox.config.annotations.clone(),
            }),
            linux: Some(v1::LinuxPodSandboxStats {
                cpu: Some(cpu(at, &usage, rate)),
                memory: Some(memory(at, &usage)),
                network: Some(v1::NetworkUsage {
                    timestamp: at,
                    default_interface: interfaces.iter().find(|found| found.name == "eth0").cloned(),
                    interfaces: interfaces.into_iter().filter(|found| found.name != "eth0").collect(),
                }),
                process: Some(v1::ProcessUsage { timestamp: at, process_count }),
                containers,
                io: None,
            }),
        }
    }

    /// Returns the counters of the interfaces in a pod's network. The kernel shows the network of any process; only a
    /// pod without processes has to be entered, which costs a thread.
    fn interfaces(&self, sandbox: &Sandbox, running: &[Arc<Container>]) -> Vec<v1::NetworkInterfaceUsage> {
        let content = match sandbox.uses_node_network() {
            true => std::fs::read_to_string("/proc/self/net/dev").ok(),
            false => running
                .iter()
                .find_map(|container| std::fs::read_to_string(format!("/proc/{}/net/dev", container.pid()?)).ok()),
        };
        let content = content.or_else(|| {
            let namespace = self.paths.run_sandbox(&sandbox.id).join("net");
            let read = || {
                let path = "/proc/thread-self/net/dev";
                std::fs::read_to_string(path).map_err(Error::file("read", path))
            };
            namespaces::in_network(Some(&namespace), read).ok()
        });
        let lines = content.as_deref().unwrap_or_default().lines();
        lines.filter_map(interface).filter(|interface| interface.name != "lo").collect()
    }

    /// Returns the disk usage of images and writable layers.
    pub async fn filesystem_usage(&self) -> Result<v1::ImageFsInfoResponse, Error> {
        let images = self.images.clone();
        let used = blocking(move || images.usage()).await?;
        let written = self.samples.disk_total();
        let usage = |bytes: u64, inodes: u64, path: &Path| v1::FilesystemUsage {
            timestamp: now(),
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: mount_point(path) }),
            used_bytes: number(bytes),
            inodes_used: number(inodes),
        };
        Ok(v1::ImageFsInfoResponse {
            image_filesystems: vec![usage(used.bytes, used.inodes, &self.paths.images())],
            container_filesystems: vec![usage(written.bytes, written.inodes, &self.paths.containers())],
        })
    }
}

fn number(value: u64) -> Option<v1::UInt64Value> {
    Some(v1::UInt64Value { value })
}

fn cpu(at: i64, usage: &Usage, rate: Option<u64>) -> v1::CpuUsage {
    v1::CpuUsage {
        timestamp: at,
        usage_core_nano_seconds: number(usage.cpu_nanoseconds),
        usage_nano_cores: rate.and_then(number),
        psi: None,
    }
}

fn memory(at: i64, usage: &Usage) -> v1::MemoryUsage {
    let available = usage.memory_limit.map(|limit| limit.saturating_sub(usage.working_set_bytes));
    v1::MemoryUsage {
        timestamp: at,
        working_set_bytes: number(usage.working_set_bytes),
        available_bytes: available.and_then(number),
        usage_bytes: number(usage.memory_bytes),
        rss_bytes: number(usage.rss_bytes),
        page_faults: number(usage.page_faults),
        major_page_faults: number(usage.major_page_faults),
        psi: None,
    }
}

/// Returns the mount that a path is on; eviction compares these.
fn mount_point(path: &Path) -> String {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|metadata| metadata.dev()).ok();
    let mut found = PathBuf::from(path);
    while let Some(parent) = found.parent().map(Path::to_path_buf) {
        if device(&parent) != device(&found) {
            break;
        }
        found = parent;
    }
    found.display().to_string()
}

/// Parses a line of `/proc/net/dev`; pure.
fn interface(line: &str) -> Option<v1::NetworkInterfaceUsage> {
    let (name, counters) = line.split_once(':')?;
    let counters: Vec<u64> = counters.split_whitespace().filter_map(|counter| counter.parse().ok()).collect();
    Some(v1::NetworkInterfaceUsage {
        name: name.trim().to_string(),
        rx_bytes: number(*counters.first()?),
        rx_errors: number(*counters.get(2)?),
        tx_bytes: number(*counters.get(8)?),
        tx_errors: number(*counters.get(10)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_need_two_readings() {
        let samples = Samples::default();
        assert_eq!(samples.rate("a", 0, 100), None);
        assert_eq!(samples.rate("a", 2_000_000_000, 1_000_000_100), Some(500_000_000));
        samples.forget("a");
        assert_eq!(samples.rate("a", 3_000_000_000, 0), None);
    }

    #[test]
    fn interface_counters_are_read_by_column() {
        let line = "  eth0: 1000 10 1 0 0 0 0 0 2000 20 2 0 0 0 0 0";
        let found = interface(line).expect("an interface");
        assert_eq!((found.name.as_str(), found.tx_bytes, found.tx_errors), ("eth0", number(2000), number(2)));
        assert!(interface("Inter-|   Receive").is_none());
    }
}
