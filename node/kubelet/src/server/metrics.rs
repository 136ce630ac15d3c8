//! The metrics endpoints: `/metrics` of the kubelet itself and `/metrics/resource` of its containers, with upstream's
//! names.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use http::{Response, StatusCode};

use super::{Body, State, text};
use crate::pod::observed::InstanceState;
use crate::stats::Detail;
use crate::summary::{ContainerStats, FsStats, PodStats, Summary, Time};

/// The kernel's clock ticks per second in /proc.
pub(super) const TICKS: f64 = 100.0;

/// A page in the text format, one family after the other.
#[derive(Default)]
pub(super) struct Page {
    pub text: String,
}

/// The labels of a sample, in the order in which they are written.
pub(super) type Labels<'a> = &'a [(&'a str, &'a str)];

impl Page {
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub fn sample(&mut self, name: &str, labels: Labels<'_>, value: f64, time: Option<Time>) {
        self.text.push_str(name);
        if !labels.is_empty() {
            let labels: Vec<String> =
                labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
            let _ = write!(self.text, "{{{}}}", labels.join(","));
        }
        let _ = match time {
            Some(time) => writeln!(self.text, " {value} {}", time.milliseconds()),
            None => writeln!(self.text, " {value}"),
        };
    }
}

fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Answers `/metrics/resource`, which metrics-server scrapes.
pub async fn resource(state: &Arc<State>) -> Response<Body> {
    let summary = state.collector.summary(Detail::CpuAndMemory).await;
    let mut page = Page::default();
    let failed = summary.is_err();
    if let Ok(summary) = &summary {
        resource_containers(&mut page, summary);
        resource_node_and_pods(&mut page, summary);
    }
    page.family(
        "resource_scrape_error",
        "gauge",
        "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
    );
    page.sample("resource_scrape_error", &[], f64::from(u8::from(failed)), None);
    text(StatusCode::OK, &page.text)
}

/// A metric of one container, with the time of its measurement if it has one of its own.
type Figure = (&'static str, &'static str, &'static str, fn(&ContainerStats) -> Option<(f64, Option<Time>)>);

const CONTAINER_FIGURES: &[Figure] = &[
    (
        "container_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
        |container| {
            let cpu = container.cpu.as_ref()?;
            Some((seconds(cpu.usage_core_nano_seconds?), Some(cpu.time)))
        },
    ),
    (
        "container_memory_working_set_bytes",
        "gauge",
        "[STABLE] Current working set of the container in bytes",
        |container| {
            let memory = container.memory.as_ref()?;
            Some((memory.working_set_bytes? as f64, Some(memory.time)))
        },
    ),
    (
        "container_start_time_seconds",
        "gauge",
        "[STABLE] Start time of the container since unix epoch in seconds",
        |container| {
            let started = container.start_time.milliseconds();
            (started > 0).then(|| (started as f64 / 1e3, None))
        },
    ),
    (
        "container_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
        |container| {
            let swap = container.swap.as_ref()?;
            Some((swap.swap_usage_bytes? as f64, Some(swap.time)))
        },
    ),
];

fn resource_containers(page: &mut Page, summary: &Summary) {
    for (name, kind, help, figure) in CONTAINER_FIGURES {
        page.family(name, kind, help);
        for pod in &summary.pods {
            for container in &pod.containers {
                let Some((value, time)) = figure(container) else { continue };
                let labels = [
                    ("container", container.name.as_str()),
                    ("namespace", pod.pod_ref.namespace.as_str()),
                    ("pod", pod.pod_ref.name.as_str()),
                ];
                page.sample(name, &labels, value, time);
            }
        }
    }
}

fn resource_node_and_pods(page: &mut Page, summary: &Summary) {
    let node = &summary.node;
    page.family(
        "node_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
    );
    if let Some((cpu, total)) = node.cpu.as_ref().and_then(|cpu| Some((cpu, cpu.usage_core_nano_seconds?))) {
        page.sample("node_cpu_usage_seconds_total", &[], seconds(total), Some(cpu.time));
    }
    page.family("node_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the node in bytes");
    if let Some((memory, bytes)) = node.memory.as_ref().and_then(|memory| Some((memory, memory.working_set_bytes?))) {
        page.sample("node_memory_working_set_bytes", &[], bytes as f64, Some(memory.time));
    }
    page.family(
        "node_swap_usage_bytes",
        "gauge",
        "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
    );
    if let Some((swap, bytes)) = node.swap.as_ref().and_then(|swap| Some((swap, swap.swap_usage_bytes?))) {
        page.sample("node_swap_usage_bytes", &[], bytes as f64, Some(swap.time));
    }
    page.family(
        "pod_cpu_usage_seconds_total",
        "counter",
        "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
    );
    each_pod(page, summary, "pod_cpu_usage_seconds_total", |pod| {
        let cpu = pod.cpu.as_ref()?;
        Some((seconds(cpu.usage_core_nano_seconds?), cpu.time))
    });
    page.family("pod_memory_working_set_bytes", "gauge", "[STABLE] Current working set of the pod in bytes");
    each_pod(page, summary, "pod_memory_working_set_bytes", |pod| {
        let memory = pod.memory.as_ref()?;
        Some((memory.working_set_bytes? as f64, memory.time))
    });
}

fn each_pod(page: &mut Page, summary: &Summary, name: &str, figure: impl Fn(&PodStats) -> Option<(f64, Time)>) {
    for pod in &summary.pods {
        let Some((value, time)) = figure(pod) else { continue };
        let labels = [("namespace", pod.pod_ref.namespace.as_str()), ("pod", pod.pod_ref.name.as_str())];
        page.sample(name, &labels, value, Some(time));
    }
}

/// Answers `/metrics`: the metrics of the kubelet itself.
pub async fn kubelet(state: &State) -> Response<Body> {
    let views = state.views.all();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for instance in views.iter().flat_map(|view| &view.observed.instances) {
        let name = match instance.state {
            InstanceState::Created => "created",
            InstanceState::Running => "running",
            InstanceState::Exited => "exited",
            InstanceState::Unknown => "unknown",
        };
        *counts.entry(name).or_default() += 1;
    }
    let running = views.iter().filter(|view| view.observed.running().next().is_some()).count();
    let mut page = Page::default();
    page.family("kubelet_node_name", "gauge", "[ALPHA] The node's name. The count is always 1.");
    page.sample("kubelet_node_name", &[("node", &state.services.config.node_name)], 1.0, None);
    page.family("kubelet_running_pods", "gauge", "[BETA] Number of pods that have a running pod sandbox");
    page.sample("kubelet_running_pods", &[], running as f64, None);
    page.family("kubelet_running_containers", "gauge", "[BETA] Number of containers currently running");
    for (name, count) in counts {
        page.sample("kubelet_running_containers", &[("container_state", name)], count as f64, None);
    }
    page.family("kubelet_active_pods", "gauge", "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods.");
    page.sample("kubelet_active_pods", &[], views.len() as f64, None);
    page.family("kubernetes_build_info", "gauge", "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.");
    page.sample(
        "kubernetes_build_info",
        &[("git_version", &state.services.config.version), ("major", "1"), ("minor", "36")],
        1.0,
        None,
    );
    if let Ok(summary) = state.collector.summary(Detail::All).await {
        volumes(&mut page, &summary);
    }
    state.services.metrics.write(&mut page.text, |family| !family.is_of_probes());
    process(&mut page);
    text(StatusCode::OK, &page.text)
}

/// Answers `/metrics/probes`.
pub fn probes(state: &State) -> Response<Body> {
    let mut page = Page::default();
    state.services.metrics.write(&mut page.text, crate::metrics::Family::is_of_probes);
    text(StatusCode::OK, &page.text)
}

/// Answers `/metrics/slis`.
pub fn slis(state: &State) -> Response<Body> {
    text(StatusCode::OK, &state.checks.render(started()))
}

/// Returns the fields of `/proc/self/stat` after the process name, which may contain any characters.
fn stat_fields() -> Vec<String> {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    rest.split_whitespace().map(str::to_owned).collect()
}

/// Returns the start time of the process, in Unix seconds.
fn started() -> Option<f64> {
    let system = std::fs::read_to_string("/proc/stat").ok()?;
    let booted: f64 = system.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
    let ticks: f64 = stat_fields().get(19)?.parse().ok()?;
    Some(booted + ticks / TICKS)
}

/// Writes the metrics of the kubelet's process; in a cluster of one process, of all components.
fn process(page: &mut Page) {
    let mut one = |name: &str, kind: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            page.family(name, kind, help);
            page.sample(name, &[], value, None);
        }
    };
    let text = |file: &str| std::fs::read_to_string(format!("/proc/{file}")).unwrap_or_default();
    let status = text("self/status");
    let limits = text("self/limits");
    let fields = stat_fields();
    let field = |at: usize| fields.get(at).and_then(|field| field.parse::<f64>().ok());
    let bytes = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key))?;
        Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
    };
    let most = limits.lines().find_map(|line| line.strip_prefix("Max open files")?.split_whitespace().next());
    let cpu = field(11).zip(field(12)).map(|(user, system)| (user + system) / TICKS);
    let open = std::fs::read_dir("/proc/self/fd").ok().map(|files| files.count() as f64);
    one("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.", cpu);
    one(
        "process_max_fds",
        "gauge",
        "Maximum number of open file descriptors.",
        most.and_then(|text| text.parse().ok()),
    );
    one("process_open_fds", "gauge", "Number of open file descriptors.", open);
    one("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.", bytes("VmRSS:"));
    one("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started());
    one("process_virtual_memory_bytes", "gauge", "Virtual memory size in bytes.", bytes("VmSize:"));
}

/// A metric of a volume's file system.
type VolumeFigure = (&'static str, &'static str, fn(&FsStats) -> Option<u64>);

const VOLUME_FIGURES: &[VolumeFigure] = &[
    ("kubelet_volume_stats_available_bytes", "[ALPHA] Number of available bytes in the volume", |fs| {
        fs.available_bytes
    }),
    ("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume", |fs| fs.capacity_bytes),
    ("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume", |fs| fs.inodes),
    ("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume", |fs| fs.inodes_free),
    ("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume", |fs| fs.inodes_used),
    ("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume", |fs| fs.used_bytes),
];

/// Writes the usage of the volumes of claims; a claim of several pods is shown once.
fn volumes(page: &mut Page, summary: &Summary) {
    let all = summary.pods.iter().flat_map(|pod| &pod.volumes);
    let claims: BTreeMap<(&str, &str), &FsStats> = all
        .filter_map(|volume| {
            let claim = volume.claim.as_ref()?;
            Some(((claim.namespace.as_str(), claim.name.as_str()), &volume.fs))
        })
        .collect();
    for (name, help, figure) in VOLUME_FIGURES {
        page.family(name, "gauge", help);
        for ((namespace, claim), fs) in &claims {
            let Some(value) = figure(fs) else { continue };
            let labels = [("namespace", *namespace), ("persistentvolumeclaim", *claim)];
            page.sample(name, &labels, value as f64, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_written_as_prometheus_reads_them() {
        let mut page = Page::default();
        page.family("m", "gauge", "Help.");
        page.sample("m", &[("a", "x\"y\\z\n"), ("b", "")], 1.5, Some(Time::from_nanoseconds(2_000_000)));
        page.sample("m", &[], 3.0, None);
        let expected = "# HELP m Help.\n# TYPE m gauge\nm{a=\"x\\\"y\\\\z\\n\",b=\"\"} 1.5 2\nm 3\n";
        assert_eq!(page.text, expected);
    }
}
