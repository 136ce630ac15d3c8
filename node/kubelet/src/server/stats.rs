//! What the node tells of itself: its pods, its use of processor and memory, its configuration.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use corten_api::Typed;
use corten_cri::v1 as cri;
use corten_meta::{Value, time};
use http::{Response, StatusCode};
use jiff::Timestamp;
use serde_json::json;

use super::{Body, State, json as json_answer, text};
use crate::container::labels;
use crate::pods::observed::InstanceState;

/// `/pods`: every pod of the node with the status as it is here.
pub fn pods(state: &State) -> Response<Body> {
    pod_list(state, |_| true)
}

/// `/runningpods`: those with a running container.
pub fn running_pods(state: &State) -> Response<Body> {
    pod_list(state, |view| view.observed.running().next().is_some())
}

fn pod_list(state: &State, wanted: impl Fn(&crate::pods::view::View) -> bool) -> Response<Body> {
    let items: Vec<Value> = state
        .views
        .all()
        .into_iter()
        .filter(|view| wanted(view))
        .map(|view| {
            let mut pod = (*view.pod).clone();
            pod.status = Some(view.status);
            pod.to_value()
        })
        .collect();
    json_answer(&json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}))
}

pub fn configz(state: &State) -> Response<Body> {
    let config = &state.services.config;
    json_answer(&json!({"kubeletconfig": {
        "kind": "KubeletConfiguration",
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "port": config.listen.port(),
        "clusterDomain": config.cluster_domain,
        "clusterDNS": config.cluster_dns,
        "maxPods": config.max_pods,
        "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": config.cri_socket,
        "containerLogMaxFiles": config.log_max_files,
        "serializeImagePulls": false,
    }}))
}

/// One container's use, with the pod it belongs to.
struct Usage {
    namespace: String,
    pod: String,
    uid: String,
    container: String,
    cpu_nanoseconds: u64,
    cpu_nanocores: u64,
    memory_bytes: u64,
    working_set: u64,
    time: i64,
}

async fn usages(state: &State) -> crate::error::Result<Vec<Usage>> {
    Ok(state.services.runtime.container_stats().await?.into_iter().filter_map(usage).collect())
}

fn usage(stats: cri::ContainerStats) -> Option<Usage> {
    let attributes = stats.attributes?;
    let label = |name: &str| attributes.labels.get(name).cloned().unwrap_or_default();
    let cpu = stats.cpu.unwrap_or_default();
    let memory = stats.memory.unwrap_or_default();
    let value = |value: Option<cri::UInt64Value>| value.map_or(0, |value| value.value);
    Some(Usage {
        namespace: label(labels::POD_NAMESPACE),
        pod: label(labels::POD_NAME),
        uid: label(labels::POD_UID),
        container: attributes.metadata.as_ref()?.name.clone(),
        cpu_nanoseconds: value(cpu.usage_core_nano_seconds),
        cpu_nanocores: value(cpu.usage_nano_cores),
        memory_bytes: value(memory.usage_bytes),
        working_set: value(memory.working_set_bytes),
        time: cpu.timestamp,
    })
}

/// `/stats/summary`, as far as the runtime tells.
pub async fn summary(state: &Arc<State>) -> Response<Body> {
    let usages = match usages(state).await {
        Ok(usages) => usages,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    let now = time::rfc3339(Timestamp::now());
    let mut pods: BTreeMap<String, (Value, Vec<Value>, [u64; 4])> = BTreeMap::new();
    for usage in &usages {
        let reference = json!({"name": usage.pod, "namespace": usage.namespace, "uid": usage.uid});
        let entry = pods.entry(usage.uid.clone()).or_insert_with(|| (reference, Vec::new(), [0; 4]));
        entry.1.push(
            json!({"name": usage.container, "startTime": now, "cpu": cpu(usage, &now), "memory": memory(usage, &now)}),
        );
        for (total, part) in
            entry.2.iter_mut().zip([usage.cpu_nanoseconds, usage.cpu_nanocores, usage.memory_bytes, usage.working_set])
        {
            *total += part;
        }
    }
    let total = |at: usize| pods.values().map(|(_, _, totals)| totals[at]).sum::<u64>();
    let node = json!({
        "nodeName": state.services.config.node_name,
        "startTime": now,
        "cpu": {"time": now, "usageCoreNanoSeconds": total(0), "usageNanoCores": total(1)},
        "memory": {"time": now, "usageBytes": total(2), "workingSetBytes": total(3)},
    });
    let pods: Vec<Value> = pods
        .into_values()
        .map(|(reference, containers, totals)| {
            json!({
                "podRef": reference,
                "startTime": now,
                "containers": containers,
                "cpu": {"time": now, "usageCoreNanoSeconds": totals[0], "usageNanoCores": totals[1]},
                "memory": {"time": now, "usageBytes": totals[2], "workingSetBytes": totals[3]},
            })
        })
        .collect();
    json_answer(&json!({"node": node, "pods": pods}))
}

fn cpu(usage: &Usage, now: &str) -> Value {
    json!({"time": now, "usageCoreNanoSeconds": usage.cpu_nanoseconds, "usageNanoCores": usage.cpu_nanocores})
}

fn memory(usage: &Usage, now: &str) -> Value {
    json!({"time": now, "usageBytes": usage.memory_bytes, "workingSetBytes": usage.working_set})
}

/// `/metrics/resource`, what metrics-server scrapes.
pub async fn resource_metrics(state: &Arc<State>) -> Response<Body> {
    let usages = match usages(state).await {
        Ok(usages) => usages,
        Err(error) => return text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    };
    let mut page = String::new();
    let cpu_seconds = |nanoseconds: u64| nanoseconds as f64 / 1e9;
    page.push_str("# TYPE container_cpu_usage_seconds_total counter\n");
    for usage in &usages {
        let _ = writeln!(
            page,
            "container_cpu_usage_seconds_total{{{}}} {} {}",
            tags(usage),
            cpu_seconds(usage.cpu_nanoseconds),
            usage.time / 1_000_000
        );
    }
    page.push_str("# TYPE container_memory_working_set_bytes gauge\n");
    for usage in &usages {
        let _ = writeln!(
            page,
            "container_memory_working_set_bytes{{{}}} {} {}",
            tags(usage),
            usage.working_set,
            usage.time / 1_000_000
        );
    }
    page.push_str("# TYPE node_cpu_usage_seconds_total counter\n");
    let _ = writeln!(
        page,
        "node_cpu_usage_seconds_total {}",
        cpu_seconds(usages.iter().map(|usage| usage.cpu_nanoseconds).sum())
    );
    page.push_str("# TYPE node_memory_working_set_bytes gauge\n");
    let _ =
        writeln!(page, "node_memory_working_set_bytes {}", usages.iter().map(|usage| usage.working_set).sum::<u64>());
    text(StatusCode::OK, &page)
}

fn tags(usage: &Usage) -> String {
    format!("container={:?},namespace={:?},pod={:?}", usage.container, usage.namespace, usage.pod)
}

/// `/metrics`: how many pods and containers there are.
pub fn metrics(state: &State) -> Response<Body> {
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
    let mut page = format!(
        "# TYPE kubelet_node_name gauge\nkubelet_node_name{{node={:?}}} 1\n# TYPE kubelet_running_pods gauge\nkubelet_running_pods {running}\n# TYPE kubelet_running_containers gauge\n",
        state.services.config.node_name
    );
    for (name, count) in counts {
        let _ = writeln!(page, "kubelet_running_containers{{container_state={name:?}}} {count}");
    }
    text(StatusCode::OK, &page)
}
