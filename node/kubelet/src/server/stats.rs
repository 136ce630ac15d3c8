//! The JSON endpoints about the node: its pods, their usage, and its configuration.

use std::sync::Arc;

use corten_api::Typed;
use corten_meta::Value;
use http::{Response, StatusCode};
use serde_json::json;

use super::{Body, State, json as json_answer, query, text};
use crate::configuration;
use crate::pod::view::View;
use crate::stats::Detail;

/// Answers `/pods`: every pod of the node with its status on this node.
pub fn pods(state: &State) -> Response<Body> {
    pod_list(state, |_| true)
}

/// Answers `/runningpods`: the pods with a running container.
pub fn running_pods(state: &State) -> Response<Body> {
    pod_list(state, |view| view.observed.running().next().is_some())
}

fn pod_list(state: &State, wanted: impl Fn(&View) -> bool) -> Response<Body> {
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

/// Answers `/configz`: the effective configuration.
pub fn configz(state: &State) -> Response<Body> {
    json_answer(&json!({"kubeletconfig": configuration::document(&state.services.config)}))
}

/// Answers `/stats/summary`, without disks and networks for `only_cpu_and_memory`.
pub async fn summary(state: &Arc<State>, query: Option<&str>) -> Response<Body> {
    let brief = query::flag(&query::pairs(query), &["only_cpu_and_memory"]);
    let detail = if brief { Detail::CpuAndMemory } else { Detail::All };
    let summary = state.collector.summary(detail).await;
    match summary.map(|summary| summary.to_value()) {
        Ok(Ok(summary)) => json_answer(&summary),
        Ok(Err(error)) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        Err(error) => text(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
    }
}
