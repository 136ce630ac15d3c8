//! `/metrics/cadvisor`: the resource usage of containers, pods and the machine, under the names and labels of
//! upstream's kubelet, which dashboards use. Everything is read from the cgroup file systems and from /proc on request;
//! nothing is cached. Only the sizes of file systems come from the runtime.

mod cgroup;
mod processes;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use http::{Response, StatusCode};

use super::metrics::Page;
use super::{Body, State, text};
use crate::container::cgroups::Cgroups;
use crate::node::Host;
use crate::pod::resources;
use crate::pod::spec;
use crate::stats::Detail;
use crate::summary::{FsStats, Time};

/// The name, type and help of every family, in the order of the output.
#[rustfmt::skip]
const FAMILIES: &[(&str, &str, &str)] = &[
    ("container_blkio_device_usage_total", "counter", "Blkio Device bytes usage"),
    ("container_cpu_cfs_periods_total", "counter", "Number of elapsed enforcement period intervals."),
    ("container_cpu_cfs_throttled_periods_total", "counter", "Number of throttled period intervals."),
    ("container_cpu_cfs_throttled_seconds_total", "counter", "Total time duration the container has been throttled."),
    ("container_cpu_system_seconds_total", "counter", "Cumulative system cpu time consumed in seconds."),
    ("container_cpu_usage_seconds_total", "counter", "Cumulative cpu time consumed in seconds."),
    ("container_cpu_user_seconds_total", "counter", "Cumulative user cpu time consumed in seconds."),
    ("container_file_descriptors", "gauge", "Number of open file descriptors for the container."),
    ("container_fs_inodes_free", "gauge", "Number of available Inodes"),
    ("container_fs_inodes_total", "gauge", "Number of Inodes"),
    ("container_fs_limit_bytes", "gauge", "Number of bytes that can be consumed by the container on this filesystem."),
    ("container_fs_reads_bytes_total", "counter", "Cumulative count of bytes read"),
    ("container_fs_reads_total", "counter", "Cumulative count of reads completed"),
    ("container_fs_usage_bytes", "gauge", "Number of bytes that are consumed by the container on this filesystem."),
    ("container_fs_writes_bytes_total", "counter", "Cumulative count of bytes written"),
    ("container_fs_writes_total", "counter", "Cumulative count of writes completed"),
    ("container_last_seen", "gauge", "Last time a container was seen by the exporter"),
    ("container_memory_cache", "gauge", "Number of bytes of page cache memory."),
    ("container_memory_failcnt", "counter", "Number of memory usage hits limits"),
    ("container_memory_failures_total", "counter", "Cumulative count of memory allocation failures."),
    ("container_memory_kernel_usage", "gauge", "Size of kernel memory allocated in bytes."),
    ("container_memory_mapped_file", "gauge", "Size of memory mapped files in bytes."),
    ("container_memory_max_usage_bytes", "gauge", "Maximum memory usage recorded in bytes"),
    ("container_memory_rss", "gauge", "Size of RSS in bytes."),
    ("container_memory_swap", "gauge", "Container swap usage in bytes."),
    ("container_memory_total_active_file_bytes", "gauge", "Current total active file in bytes."),
    ("container_memory_total_inactive_file_bytes", "gauge", "Current total inactive file in bytes."),
    ("container_memory_usage_bytes", "gauge", "Current memory usage in bytes, including all memory regardless of when it was accessed"),
    ("container_memory_working_set_bytes", "gauge", "Current working set in bytes."),
    ("container_network_receive_bytes_total", "counter", "Cumulative count of bytes received"),
    ("container_network_receive_errors_total", "counter", "Cumulative count of errors encountered while receiving"),
    ("container_network_receive_packets_dropped_total", "counter", "Cumulative count of packets dropped while receiving"),
    ("container_network_receive_packets_total", "counter", "Cumulative count of packets received"),
    ("container_network_transmit_bytes_total", "counter", "Cumulative count of bytes transmitted"),
    ("container_network_transmit_errors_total", "counter", "Cumulative count of errors encountered while transmitting"),
    ("container_network_transmit_packets_dropped_total", "counter", "Cumulative count of packets dropped while transmitting"),
    ("container_network_transmit_packets_total", "counter", "Cumulative count of packets transmitted"),
    ("container_oom_events_total", "counter", "Count of out of memory events observed for the container"),
    ("container_pressure_cpu_stalled_seconds_total", "counter", "Total time duration no tasks in the container could make progress due to CPU congestion."),
    ("container_pressure_cpu_waiting_seconds_total", "counter", "Total time duration tasks in the container have waited due to CPU congestion."),
    ("container_pressure_io_stalled_seconds_total", "counter", "Total time duration no tasks in the container could make progress due to IO congestion."),
    ("container_pressure_io_waiting_seconds_total", "counter", "Total time duration tasks in the container have waited due to IO congestion."),
    ("container_pressure_memory_stalled_seconds_total", "counter", "Total time duration no tasks in the container could make progress due to memory congestion."),
    ("container_pressure_memory_waiting_seconds_total", "counter", "Total time duration tasks in the container have waited due to memory congestion."),
    ("container_processes", "gauge", "Number of processes running inside the container."),
    ("container_sockets", "gauge", "Number of open sockets for the container."),
    ("container_spec_cpu_period", "gauge", "CPU period of the container."),
    ("container_spec_cpu_quota", "gauge", "CPU quota of the container."),
    ("container_spec_cpu_shares", "gauge", "CPU share of the container."),
    ("container_spec_memory_limit_bytes", "gauge", "Memory limit for the container."),
    ("container_spec_memory_reservation_limit_bytes", "gauge", "Memory reservation limit for the container."),
    ("container_spec_memory_swap_limit_bytes", "gauge", "Memory swap limit for the container."),
    ("container_start_time_seconds", "gauge", "Start time of the container since unix epoch in seconds."),
    ("container_threads", "gauge", "Number of threads running inside the container"),
    ("container_threads_max", "gauge", "Maximum number of threads allowed inside the container, infinity if value is zero"),
    ("container_ulimits_soft", "gauge", "Soft ulimit values for the container root process. Unlimited if -1, except priority and nice"),
];

/// A sample: its family, its labels beyond those of its cgroup, its value.
type Figure = (&'static str, Vec<(&'static str, String)>, f64);

/// A cgroup, and the pod and container that it belongs to.
#[derive(Default)]
struct Row {
    cgroup: String,
    namespace: String,
    pod: String,
    container: String,
    image: String,
    /// The id of a container.
    name: String,
    started_at: i64,
    /// Whether the row has the network of its processes.
    network: bool,
    rootfs: Option<FsStats>,
}

pub async fn page(state: &Arc<State>) -> Response<Body> {
    let rows = rows(state).await;
    let cgroups = state.services.resources.cgroups.clone();
    let host = Host::read(&state.services.config);
    let written = tokio::task::spawn_blocking(move || write(&rows, &cgroups, &host)).await;
    match written {
        Ok(page) => text(StatusCode::OK, &page),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}

/// Returns the machine, the cgroups above pods, the pods and their running containers.
async fn rows(state: &Arc<State>) -> Vec<Row> {
    let root = state.services.config.cgroup_root.trim_end_matches('/').to_owned();
    let above = ["", "/kubepods", "/kubepods/burstable", "/kubepods/besteffort"];
    let mut rows: Vec<Row> = above
        .iter()
        .map(|name| Row {
            cgroup: if name.is_empty() { "/".into() } else { format!("{root}{name}") },
            ..Row::default()
        })
        .collect();
    // Without the runtime's answer only the sizes of file systems are missing.
    let summary = state.collector.summary(Detail::All).await.ok();
    let stats = summary.iter().flat_map(|summary| &summary.pods).flat_map(|pod| &pod.containers);
    let mut rootfs: BTreeMap<&str, &FsStats> =
        stats.filter_map(|container| Some((container.id.as_str(), container.rootfs.as_ref()?))).collect();
    for view in state.views.all() {
        let cgroup = resources::pod_cgroup(&state.services.config.cgroup_root, &view.pod);
        let namespace = spec::namespace(&view.pod).to_owned();
        let pod = spec::name(&view.pod).to_owned();
        for instance in view.observed.running() {
            rows.push(Row {
                cgroup: format!("{cgroup}/{}", instance.id),
                namespace: namespace.clone(),
                pod: pod.clone(),
                container: instance.name.clone(),
                image: instance.image.clone(),
                name: instance.id.clone(),
                started_at: instance.started_at,
                network: false,
                rootfs: rootfs.remove(instance.id.as_str()).cloned(),
            });
        }
        let started_at = view.observed.sandbox().map_or(0, |sandbox| sandbox.created_at);
        let network = !spec::host_network(&view.pod);
        rows.push(Row { cgroup, namespace, pod, started_at, network, ..Row::default() });
    }
    rows
}

fn write(rows: &[Row], cgroups: &Cgroups, host: &Host) -> String {
    let now = Time(jiff::Timestamp::now());
    let mut page = Page::default();
    machine(&mut page, host);
    let figures: Vec<(&Row, Vec<Figure>)> = rows.iter().map(|row| (row, figures(row, cgroups, now))).collect();
    for (name, kind, help) in FAMILIES {
        let mut samples = figures.iter().flat_map(|(row, list)| list.iter().map(move |figure| (row, figure)));
        let Some(first) = samples.find(|(_, figure)| figure.0 == *name) else { continue };
        page.family(name, kind, help);
        for (row, (_, own, value)) in std::iter::once(first).chain(samples.filter(|(_, figure)| figure.0 == *name)) {
            let mut labels: Vec<(&str, &str)> = own.iter().map(|(name, value)| (*name, value.as_str())).collect();
            labels.extend([
                ("container", row.container.as_str()),
                ("id", row.cgroup.as_str()),
                ("image", row.image.as_str()),
                ("name", row.name.as_str()),
                ("namespace", row.namespace.as_str()),
                ("pod", row.pod.as_str()),
            ]);
            labels.sort_unstable();
            page.sample(name, &labels, *value, Some(now));
        }
    }
    page.family(
        "container_scrape_error",
        "gauge",
        "1 if there was an error while getting container metrics, 0 otherwise",
    );
    page.sample("container_scrape_error", &[], 0.0, None);
    page.text
}

fn machine(page: &mut Page, host: &Host) {
    let (cores, sockets) = crate::cpus::physical();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let swap =
        meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:")?.split_whitespace().next()?.parse().ok());
    let version = [
        ("cadvisorRevision", ""),
        ("cadvisorVersion", ""),
        ("dockerVersion", ""),
        ("kernelVersion", host.kernel_version.as_str()),
        ("osVersion", host.os_image.as_str()),
    ];
    page.family("cadvisor_version_info", "gauge", "A metric with a constant '1' value labeled by kernel version, OS version, docker version, cadvisor version & cadvisor revision.");
    page.sample("cadvisor_version_info", &version, 1.0, None);
    let labels = [("boot_id", &*host.boot_id), ("machine_id", &*host.machine_id), ("system_uuid", &*host.system_uuid)];
    for (name, help, value) in [
        ("machine_cpu_cores", "Number of logical CPU cores.", host.cpus as f64),
        ("machine_cpu_physical_cores", "Number of physical CPU cores.", cores as f64),
        ("machine_cpu_sockets", "Number of CPU sockets.", sockets as f64),
        ("machine_memory_bytes", "Amount of memory installed on the machine.", host.memory_bytes as f64),
        ("machine_swap_bytes", "Amount of swap memory available on the machine.", swap.unwrap_or(0.0) * 1024.0),
    ] {
        page.family(name, "gauge", help);
        page.sample(name, &labels, value, None);
    }
}

/// Returns all samples of a cgroup.
fn figures(row: &Row, cgroups: &Cgroups, now: Time) -> Vec<Figure> {
    let read = |controller: &str, file: &str| cgroups.read(controller, &row.cgroup, file);
    let mut list: Vec<Figure> = Vec::new();
    if read("memory", "cgroup.procs").is_none() {
        return list;
    }
    let seconds = now.milliseconds() as f64 / 1e3;
    let mut one = |name: &'static str, value: Option<f64>| list.extend(value.map(|value| (name, Vec::new(), value)));
    one("container_last_seen", Some(seconds));
    one("container_start_time_seconds", (row.started_at > 0).then_some(row.started_at as f64 / 1e9));
    match cgroups.is_unified() {
        true => cgroup::unified(&read, &mut list),
        false => cgroup::legacy(&read, &mut list),
    }
    processes::figures(&read, row, &mut list);
    if let Some(rootfs) = &row.rootfs {
        let device = || vec![("device", String::new())];
        for (name, value) in [
            ("container_fs_inodes_free", rootfs.inodes_free),
            ("container_fs_inodes_total", rootfs.inodes),
            ("container_fs_limit_bytes", rootfs.capacity_bytes),
            ("container_fs_usage_bytes", rootfs.used_bytes),
        ] {
            list.extend(value.map(|value| (name, device(), value as f64)));
        }
    }
    list
}

type Read<'a> = &'a dyn Fn(&str, &str) -> Option<String>;

fn number(text: Option<String>) -> Option<f64> {
    text?.trim().parse().ok()
}

fn common(list: &mut Vec<Figure>, figures: &[(&'static str, Option<f64>)]) {
    list.extend(figures.iter().filter_map(|(name, value)| Some((*name, Vec::new(), (*value)?))));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes the files of a cgroup and returns its samples as lines.
    fn check(mount: &std::path::Path, files: &[(&str, &str)]) -> Vec<String> {
        for (path, content) in files {
            let path = mount.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let row = Row { cgroup: "/k/c".into(), container: "c".into(), ..Row::default() };
        let list = figures(&row, &Cgroups::detect(mount), Time::from_nanoseconds(0));
        let shown = |(name, labels, value): &Figure| {
            let labels: String = labels.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            format!("{}{labels} {value}", name.trim_start_matches("container_"))
        };
        list.iter().map(shown).collect()
    }

    #[test]
    fn both_cgroup_versions_have_the_same_metrics() {
        let old = tempfile::tempdir().unwrap();
        let new = tempfile::tempdir().unwrap();
        let old = check(
            old.path(),
            &[
                ("memory/k/c/cgroup.procs", ""),
                ("memory/k/c/memory.usage_in_bytes", "100\n"),
                ("memory/k/c/memory.stat", "pgfault 3\ntotal_inactive_file 40\ntotal_rss 7\ntotal_cache 60\n"),
                ("memory/k/c/memory.limit_in_bytes", "9223372036854771712\n"),
                ("memory/k/c/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"),
                ("cpu/k/c/cpu.cfs_quota_us", "20000\n"),
                ("cpu/k/c/cpu.cfs_period_us", "100000\n"),
                ("cpu/k/c/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_time 2000000000\n"),
                ("cpuacct/k/c/cpuacct.usage", "1500000000\n"),
                ("cpuacct/k/c/cpuacct.stat", "user 100\nsystem 50\n"),
                ("pids/k/c/pids.current", "5\n"),
                ("pids/k/c/pids.max", "max\n"),
                ("blkio/k/c/blkio.throttle.io_service_bytes_recursive", "253:9 Read 4096\n253:9 Write 0\nTotal 4096\n"),
            ],
        );
        let new = check(
            new.path(),
            &[
                ("cgroup.controllers", "cpu memory"),
                ("k/c/cgroup.procs", ""),
                ("k/c/memory.current", "100\n"),
                ("k/c/memory.stat", "anon 7\nfile 60\ninactive_file 40\npgfault 3\n"),
                ("k/c/memory.max", "max\n"),
                ("k/c/memory.events", "low 0\nmax 0\noom_kill 2\n"),
                ("k/c/cpu.max", "20000 100000\n"),
                (
                    "k/c/cpu.stat",
                    "usage_usec 1500000\nuser_usec 1000000\nsystem_usec 500000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 2000000\n",
                ),
                ("k/c/pids.current", "5\n"),
                ("k/c/pids.max", "max\n"),
                ("k/c/io.stat", "253:9 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0\n"),
                (
                    "k/c/cpu.pressure",
                    "some avg10=0.00 avg60=0.00 avg300=0.00 total=3000000\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
                ),
            ],
        );
        for figure in [
            "cpu_usage_seconds_total cpu=total 1.5",
            "cpu_user_seconds_total 1",
            "cpu_system_seconds_total 0.5",
            "cpu_cfs_periods_total 10",
            "cpu_cfs_throttled_periods_total 4",
            "cpu_cfs_throttled_seconds_total 2",
            "memory_usage_bytes 100",
            "memory_working_set_bytes 60",
            "memory_rss 7",
            "memory_cache 60",
            "memory_failures_total failure_type=pgfault scope=container 3",
            "oom_events_total 2",
            "spec_cpu_quota 20000",
            "spec_cpu_period 100000",
            "spec_memory_limit_bytes 0",
            "threads 5",
            "threads_max 0",
            "fs_reads_bytes_total device= 4096",
            "blkio_device_usage_total device= major=253 minor=9 operation=Read 4096",
        ] {
            assert!(old.iter().any(|line| line == figure), "v1 does not say {figure:?}: {old:#?}");
            assert!(new.iter().any(|line| line == figure), "v2 does not say {figure:?}: {new:#?}");
        }
        assert!(new.contains(&"pressure_cpu_waiting_seconds_total 3".to_owned()), "{new:#?}");
    }

    #[test]
    fn interfaces_are_read_but_the_loopback() {
        let text = "Inter-|   Receive  |  Transmit\n face |bytes packets\n    lo: 1 1 0 0 0 0 0 0 1 1 0 0 0 0 0 0\n  eth0: 10 2 3 4 0 0 0 0 50 6 7 8 0 0 0 0\n";
        let mut list = Vec::new();
        processes::interfaces(text, &mut list);
        let values: Vec<f64> = list.iter().map(|(_, _, value)| *value).collect();
        assert_eq!(values, [10.0, 2.0, 3.0, 4.0, 50.0, 6.0, 7.0, 8.0]);
        assert!(list.iter().all(|(_, labels, _)| labels[0].1 == "eth0"));
    }

    #[test]
    fn every_figure_belongs_to_a_family() {
        let names: Vec<&str> = FAMILIES.iter().map(|(name, _, _)| *name).collect();
        assert!(names.is_sorted(), "families are written in the order of their names");
        let mut list = Vec::new();
        cgroup::legacy(&|_, _| Some("1\n".into()), &mut list);
        cgroup::unified(&|_, _| Some("1\n".into()), &mut list);
        assert!(!list.is_empty() && list.iter().all(|(name, _, _)| names.contains(name)));
    }
}
