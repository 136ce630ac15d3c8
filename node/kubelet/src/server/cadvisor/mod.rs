//! `/metrics/cadvisor`: the resource usage of containers, pods and the machine, under the names and labels of
//! upstream's kubelet, which dashboards use. Everything is read from the cgroup file systems and from /proc on request;
//! nothing is cached. Only the sizes of file systems come from the runtime.

mod cgroup;
mod processes;

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use corten_meta::metrics::{Exposition, Family};
use http::{Response, StatusCode};

use super::{Body, State, text};
use crate::container::cgroups::Cgroups;
use crate::metrics::cadvisor::*;
use crate::node::Host;
use crate::pod::resources;
use crate::pod::spec;
use crate::stats::Detail;
use crate::summary::{FsStats, Time};

/// A sample: its family, its labels beyond those of its cgroup, its value.
type Figure = (&'static Family, Vec<(&'static str, String)>, f64);

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
    let mut page = Exposition::default();
    machine(&mut page, host);
    let figures: Vec<(&Row, Vec<Figure>)> = rows.iter().map(|row| (row, figures(row, cgroups, now))).collect();
    for family in FAMILIES {
        let all = figures.iter().flat_map(|(row, list)| list.iter().map(move |figure| (row, figure)));
        let mut samples = all.filter(|(_, figure)| figure.0.name == family.name).peekable();
        if samples.peek().is_some() {
            page.family(family);
        }
        for (row, (_, own, value)) in samples {
            let labels: Vec<&str> = family.labels.iter().map(|label| row.label(own, label)).collect();
            page.sample_at(family, &labels, *value, now.milliseconds());
        }
    }
    page.single(&CONTAINER_SCRAPE_ERROR, 0.0);
    page.finish()
}

impl Row {
    /// Returns the value of a label: one of the sample's own, or of the cgroup.
    fn label<'a>(&'a self, own: &'a [(&str, String)], label: &str) -> &'a str {
        match label {
            "container" => &self.container,
            "id" => &self.cgroup,
            "image" => &self.image,
            "name" => &self.name,
            "namespace" => &self.namespace,
            "pod" => &self.pod,
            _ => own.iter().find(|(name, _)| *name == label).map_or("", |(_, value)| value),
        }
    }
}

fn machine(page: &mut Exposition, host: &Host) {
    let (cores, sockets) = crate::cpus::physical();
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let swap =
        meminfo.lines().find_map(|line| line.strip_prefix("SwapTotal:")?.split_whitespace().next()?.parse().ok());
    page.family(&CADVISOR_VERSION_INFO);
    page.sample(&CADVISOR_VERSION_INFO, &["", "", "", &host.kernel_version, &host.os_image], 1.0);
    let labels = [&*host.boot_id, &*host.machine_id, &*host.system_uuid];
    for (family, value) in [
        (&MACHINE_CPU_CORES, host.cpus as f64),
        (&MACHINE_CPU_PHYSICAL_CORES, cores as f64),
        (&MACHINE_CPU_SOCKETS, sockets as f64),
        (&MACHINE_MEMORY_BYTES, host.memory_bytes as f64),
        (&MACHINE_SWAP_BYTES, swap.unwrap_or(0.0) * 1024.0),
    ] {
        page.family(family);
        page.sample(family, &labels, value);
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
    let mut one =
        |family: &'static Family, value: Option<f64>| list.extend(value.map(|value| (family, Vec::new(), value)));
    one(&CONTAINER_LAST_SEEN, Some(seconds));
    one(&CONTAINER_START_TIME_SECONDS, (row.started_at > 0).then_some(row.started_at as f64 / 1e9));
    match cgroups.is_unified() {
        true => cgroup::unified(&read, &mut list),
        false => cgroup::legacy(&read, &mut list),
    }
    processes::figures(&read, row, &mut list);
    if let Some(rootfs) = &row.rootfs {
        let device = || vec![("device", String::new())];
        for (name, value) in [
            (&CONTAINER_FS_INODES_FREE, rootfs.inodes_free),
            (&CONTAINER_FS_INODES_TOTAL, rootfs.inodes),
            (&CONTAINER_FS_LIMIT_BYTES, rootfs.capacity_bytes),
            (&CONTAINER_FS_USAGE_BYTES, rootfs.used_bytes),
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

fn common(list: &mut Vec<Figure>, figures: &[(&'static Family, Option<f64>)]) {
    list.extend(figures.iter().filter_map(|(family, value)| Some((*family, Vec::new(), (*value)?))));
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
        let shown = |(family, labels, value): &Figure| {
            let labels: String = labels.iter().map(|(name, value)| format!(" {name}={value}")).collect();
            format!("{}{labels} {value}", family.name.trim_start_matches("container_"))
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
    fn every_figure_has_a_family_with_its_labels() {
        let mut list = Vec::new();
        cgroup::legacy(&|_, _| Some("1\n".into()), &mut list);
        cgroup::unified(&|_, _| Some("1\n".into()), &mut list);
        let of_list = |family: &Family| FAMILIES.iter().any(|known| std::ptr::eq(*known, family));
        let has_labels = |(family, own, _): &Figure| own.iter().all(|(label, _)| family.labels.contains(label));
        assert!(!list.is_empty() && list.iter().all(|figure| of_list(figure.0) && has_labels(figure)));
    }
}
