//! The cluster once, as plain tables: for pipes and files.

use corten_client::{Client, Error, ListOptions};
use corten_meta::Value;
use jiff::Timestamp;

use crate::rows::{self, age, cores, mebibytes, percent};
use crate::state::{Section, State};
use crate::text::clean;
use crate::{actions, live};

/// Returns the nodes and the pods as tables.
pub async fn table(client: &Client, namespace: &str) -> Result<String, Error> {
    let mut state = State::default();
    let list = |section: Section, namespace: &str| {
        let objects = client.dynamic(&actions::resource(section));
        let namespace = namespace.to_owned();
        async move { objects.list(&namespace, &ListOptions::default()).await }
    };
    // A user of a namespace may not read nodes.
    let nodes: Vec<Value> = list(Section::Nodes, "").await.map(|list| list.items).unwrap_or_default();
    for object in &nodes {
        let row = rows::node(object);
        state.nodes.insert(row.name.clone(), row);
    }
    for object in &list(Section::Pods, namespace).await?.items {
        let row = rows::pod(object);
        state.pods.insert(format!("{}/{}", row.namespace, row.name), row);
    }
    let usage = live::usage(client, namespace).await;
    state.node_usage = usage.nodes;
    state.pod_usage = usage.pods;
    Ok(tables(&state, Timestamp::now()))
}

pub fn tables(state: &State, now: Timestamp) -> String {
    let nodes = state.nodes.values().map(|row| {
        let used = state.node_usage.get(&row.name).copied().unwrap_or_default();
        vec![
            row.name.clone(),
            row.status.clone(),
            cores(used.cpu),
            percent(used.cpu, row.allocatable.cpu),
            mebibytes(used.memory),
            percent(used.memory, row.allocatable.memory),
            age(row.created, now),
        ]
    });
    let pods = state.pods.iter().map(|(key, row)| {
        let used = state.pod_usage.get(key).copied().unwrap_or_default();
        vec![
            row.namespace.clone(),
            row.name.clone(),
            format!("{}/{}", row.ready, row.containers),
            row.status.clone(),
            row.restarts.to_string(),
            cores(used.cpu),
            mebibytes(used.memory),
            row.node.clone(),
            age(row.created, now),
        ]
    });
    let mut text = aligned(&["NODE", "STATUS", "CPU", "CPU%", "MEMORY", "MEMORY%", "AGE"], nodes.collect());
    text.push('\n');
    let headers = ["NAMESPACE", "POD", "READY", "STATUS", "RESTARTS", "CPU", "MEMORY", "NODE", "AGE"];
    text.push_str(&aligned(&headers, pods.collect()));
    text
}

/// Returns lines whose columns are as wide as their widest cell.
fn aligned(headers: &[&str], rows: Vec<Vec<String>>) -> String {
    let mut lines: Vec<Vec<String>> = vec![headers.iter().map(|header| (*header).to_owned()).collect()];
    lines.extend(rows.into_iter().map(|row| row.iter().map(|cell| clean(cell)).collect()));
    let widths: Vec<usize> = (0..headers.len())
        .map(|column| lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut text = String::new();
    for line in lines {
        let cells = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
        text.push_str(cells.collect::<Vec<_>>().join("   ").trim_end());
        text.push('\n');
    }
    text
}
