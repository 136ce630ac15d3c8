//! The metrics endpoints: `/metrics` of the kubelet itself and `/metrics/resource` of its containers, with upstream's
//! names.

use std::collections::BTreeMap;
use std::sync::Arc;

use corten_meta::metrics::{Exposition, Family};
use http::{Response, StatusCode};

use super::{Body, State, text};
use crate::metrics::resource::{
    CONTAINER_CPU, CONTAINER_MEMORY, CONTAINER_STARTED, CONTAINER_SWAP, NODE_CPU, NODE_MEMORY, NODE_SWAP, POD_CPU,
    POD_MEMORY, SCRAPE_ERROR,
};
use crate::metrics::{
    ACTIVE_PODS, BUILD_INFO, NODE_NAME, PROCESS_CPU, PROCESS_MAX_FDS, PROCESS_OPEN_FDS, PROCESS_RESIDENT,
    PROCESS_STARTED, PROCESS_VIRTUAL, RUNNING_CONTAINERS, RUNNING_PODS, VOLUME_AVAILABLE, VOLUME_CAPACITY,
    VOLUME_INODES, VOLUME_INODES_FREE, VOLUME_INODES_USED, VOLUME_USED,
};
use crate::pod::observed::InstanceState;
use crate::stats::Detail;
use crate::summary::{ContainerStats, FsStats, PodStats, Summary, Time};

/// The kernel's clock ticks per second in /proc.
pub(super) const TICKS: f64 = 100.0;

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Answers `/metrics/resource`, which metrics-server scrapes.
pub async fn resource(state: &Arc<State>) -> Response<Body> {
    let summary = state.collector.summary(Detail::CpuAndMemory).await;
    let mut page = Exposition::default();
    let failed = summary.is_err();
    if let Ok(summary) = &summary {
        resource_containers(&mut page, summary);
        resource_node_and_pods(&mut page, summary);
    }
    page.single(&SCRAPE_ERROR, f64::from(u8::from(failed)));
    text(StatusCode::OK, &page.finish())
}

/// A metric of one container, with the time of its measurement if it has one of its own.
type Figure = (&'static Family, fn(&ContainerStats) -> Option<(f64, Option<Time>)>);

const CONTAINER_FIGURES: &[Figure] = &[
    (&CONTAINER_CPU, |container| {
        let cpu = container.cpu.as_ref()?;
        Some((seconds(cpu.usage_core_nano_seconds?), Some(cpu.time)))
    }),
    (&CONTAINER_MEMORY, |container| {
        let memory = container.memory.as_ref()?;
        Some((memory.working_set_bytes? as f64, Some(memory.time)))
    }),
    (&CONTAINER_STARTED, |container| {
        let started = container.start_time.milliseconds();
        (started > 0).then(|| (started as f64 / 1e3, None))
    }),
    (&CONTAINER_SWAP, |container| {
        let swap = container.swap.as_ref()?;
        Some((swap.swap_usage_bytes? as f64, Some(swap.time)))
    }),
];

fn resource_containers(page: &mut Exposition, summary: &Summary) {
    for (family, figure) in CONTAINER_FIGURES {
        page.family(family);
        for pod in &summary.pods {
            for container in &pod.containers {
                let Some((value, time)) = figure(container) else { continue };
                let labels = [&*container.name, &*pod.pod_ref.namespace, &*pod.pod_ref.name];
                match time {
                    Some(time) => page.sample_at(family, &labels, value, time.milliseconds()),
                    None => page.sample(family, &labels, value),
                }
            }
        }
    }
}

fn resource_node_and_pods(page: &mut Exposition, summary: &Summary) {
    let node = &summary.node;
    page.family(&NODE_CPU);
    if let Some((cpu, total)) = node.cpu.as_ref().and_then(|cpu| Some((cpu, cpu.usage_core_nano_seconds?))) {
        page.sample_at(&NODE_CPU, &[], seconds(total), cpu.time.milliseconds());
    }
    page.family(&NODE_MEMORY);
    if let Some((memory, bytes)) = node.memory.as_ref().and_then(|memory| Some((memory, memory.working_set_bytes?))) {
        page.sample_at(&NODE_MEMORY, &[], bytes as f64, memory.time.milliseconds());
    }
    page.family(&NODE_SWAP);
    if let Some((swap, bytes)) = node.swap.as_ref().and_then(|swap| Some((swap, swap.swap_usage_bytes?))) {
        page.sample_at(&NODE_SWAP, &[], bytes as f64, swap.time.milliseconds());
    }
    each_pod(page, summary, &POD_CPU, |pod| {
        let cpu = pod.cpu.as_ref()?;
        Some((seconds(cpu.usage_core_nano_seconds?), cpu.time))
    });
    each_pod(page, summary, &POD_MEMORY, |pod| {
        let memory = pod.memory.as_ref()?;
        Some((memory.working_set_bytes? as f64, memory.time))
    });
}

fn each_pod(
    page: &mut Exposition,
    summary: &Summary,
    family: &Family,
    figure: impl Fn(&PodStats) -> Option<(f64, Time)>,
) {
    page.family(family);
    for pod in &summary.pods {
        let Some((value, time)) = figure(pod) else { continue };
        page.sample_at(family, &[&pod.pod_ref.namespace, &pod.pod_ref.name], value, time.milliseconds());
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
    let mut page = Exposition::default();
    page.family(&NODE_NAME);
    page.sample(&NODE_NAME, &[&state.services.config.node_name], 1.0);
    page.single(&RUNNING_PODS, running as f64);
    page.family(&RUNNING_CONTAINERS);
    for (name, count) in counts {
        page.sample(&RUNNING_CONTAINERS, &[name], count as f64);
    }
    page.single(&ACTIVE_PODS, views.len() as f64);
    page.family(&BUILD_INFO);
    page.sample(&BUILD_INFO, &[&state.services.config.version, "1", "36"], 1.0);
    if let Ok(summary) = state.collector.summary(Detail::All).await {
        volumes(&mut page, &summary);
    }
    let mut process = Exposition::default();
    write_process(&mut process);
    text(StatusCode::OK, &(page.finish() + &state.services.metrics.render() + &process.finish()))
}

/// Answers `/metrics/probes`.
pub fn probes(state: &State) -> Response<Body> {
    text(StatusCode::OK, &state.services.metrics.render_probes())
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
fn write_process(page: &mut Exposition) {
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
    for (family, value) in [
        (&PROCESS_CPU, cpu),
        (&PROCESS_MAX_FDS, most.and_then(|text| text.parse().ok())),
        (&PROCESS_OPEN_FDS, open),
        (&PROCESS_RESIDENT, bytes("VmRSS:")),
        (&PROCESS_STARTED, started()),
        (&PROCESS_VIRTUAL, bytes("VmSize:")),
    ] {
        if let Some(value) = value {
            page.single(family, value);
        }
    }
}

/// A metric of a volume's file system.
type VolumeFigure = (&'static Family, fn(&FsStats) -> Option<u64>);

const VOLUME_FIGURES: &[VolumeFigure] = &[
    (&VOLUME_AVAILABLE, |fs| fs.available_bytes),
    (&VOLUME_CAPACITY, |fs| fs.capacity_bytes),
    (&VOLUME_INODES, |fs| fs.inodes),
    (&VOLUME_INODES_FREE, |fs| fs.inodes_free),
    (&VOLUME_INODES_USED, |fs| fs.inodes_used),
    (&VOLUME_USED, |fs| fs.used_bytes),
];

/// Writes the usage of the volumes of claims; a claim of several pods is shown once.
fn volumes(page: &mut Exposition, summary: &Summary) {
    let all = summary.pods.iter().flat_map(|pod| &pod.volumes);
    let claims: BTreeMap<(&str, &str), &FsStats> = all
        .filter_map(|volume| {
            let claim = volume.claim.as_ref()?;
            Some(((claim.namespace.as_str(), claim.name.as_str()), &volume.fs))
        })
        .collect();
    for (family, figure) in VOLUME_FIGURES {
        page.family(family);
        for ((namespace, claim), fs) in &claims {
            let Some(value) = figure(fs) else { continue };
            page.sample(family, &[namespace, claim], value as f64);
        }
    }
}
