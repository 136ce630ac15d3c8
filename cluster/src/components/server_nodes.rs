//! The Node of a server holds its etcd member: deleting the Node removes the member.
//!
//! A finalizer says so on the object, so that a deletion is not lost while no server runs, and stays visible while etcd
//! refuses it because too few members would be left.

use std::time::Duration;

use anyhow::Result;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_client::{Caches, ListOptions};
use corten_members::{Member, Members};
use corten_meta::Value;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::members::Started;
use crate::node_object::CONTROL_PLANE;

/// The finalizer of a Node with an etcd member.
const FINALIZER: &str = "corten.dev/etcd-member";
/// The longest time between two looks: members change without a change of a Node.
const INTERVAL: Duration = Duration::from_secs(10);

/// A step for one Node.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Add the finalizer.
    Hold(String),
    /// Remove the member, if there is one, then the finalizer.
    Release { node: String, member: Option<u64> },
}

/// Keeps Nodes and members together until the shutdown.
pub async fn run(caches: Caches, started: Started, shutdown: CancellationToken) -> Result<()> {
    let nodes = caches.filtered::<Node>(ListOptions::labels(CONTROL_PLANE));
    nodes.synced().await;
    let mut changes = nodes.subscribe();
    loop {
        let known: Vec<Value> = nodes.all().iter().map(|node| node.value()).collect();
        let members = started.members.at(started.endpoints.borrow().clone());
        if let Err(error) = reconcile(&caches, &members, &known).await {
            tracing::warn!("the etcd members cannot follow the nodes: {error:#}");
        }
        let changed = async {
            changes.next().await;
            tokio::time::sleep(Duration::from_millis(200)).await;
            while changes.try_next().is_some() {}
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(INTERVAL) => {}
            () = shutdown.cancelled() => return Ok(()),
        }
    }
}

async fn reconcile(caches: &Caches, members: &Members, nodes: &[Value]) -> Result<()> {
    let list = members.list().await?;
    for step in steps(nodes, &list.members) {
        match step {
            Step::Hold(name) => edit(caches, &name, |finalizers| finalizers.push(json!(FINALIZER))).await?,
            Step::Release { node, member } => {
                if let Some(id) = member {
                    tracing::info!(node, "the etcd member of a deleted node is removed");
                    members.remove(id).await?;
                }
                edit(caches, &node, |finalizers| finalizers.retain(|finalizer| finalizer != FINALIZER)).await?;
            }
        }
    }
    Ok(())
}

/// Decides what Nodes and members lack.
fn steps(nodes: &[Value], members: &[Member]) -> Vec<Step> {
    let mut steps = Vec::new();
    for node in nodes {
        let name = corten_meta::name(node);
        let member = members.iter().find(|member| member.name == name).map(|member| member.id);
        let is_deleted = node.pointer("/metadata/deletionTimestamp").is_some();
        match (has_finalizer(node), is_deleted) {
            (true, true) => steps.push(Step::Release { node: name.to_owned(), member }),
            (false, false) if member.is_some() => steps.push(Step::Hold(name.to_owned())),
            _ => {}
        }
    }
    steps
}

fn has_finalizer(node: &Value) -> bool {
    let finalizers = node.pointer("/metadata/finalizers").and_then(Value::as_array);
    finalizers.is_some_and(|finalizers| finalizers.iter().any(|finalizer| finalizer == FINALIZER))
}

/// Changes the finalizers of a Node as it is now; one that is gone, or that another server changed, is left.
async fn edit(caches: &Caches, name: &str, change: impl FnOnce(&mut Vec<Value>)) -> Result<()> {
    let client = caches.client();
    let Some(node) = client.find::<Node>("", name).await? else { return Ok(()) };
    let mut node = node.to_value();
    let mut finalizers = node.pointer("/metadata/finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    let before = finalizers.clone();
    change(&mut finalizers);
    if finalizers == before {
        return Ok(());
    }
    node["metadata"]["finalizers"] = json!(finalizers);
    match client.update(&Node::from_value(node)?).await {
        Err(error) if !error.is_conflict() && !error.is_not_found() => Err(error.into()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_of_a_member_holds_it_until_it_is_deleted() {
        let node = |name: &str, is_held: bool, is_deleted: bool| {
            let mut node = json!({"metadata": {"name": name, "finalizers": ["another"]}});
            if is_held {
                node["metadata"]["finalizers"] = json!(["another", FINALIZER]);
            }
            if is_deleted {
                node["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            node
        };
        let member = |id: u64, name: &str| Member { id, name: name.to_owned(), ..Member::default() };
        let members = [member(1, "one"), member(2, "two")];
        let hold = || Step::Hold("one".to_owned());
        let release = |node: &str, member| Step::Release { node: node.to_owned(), member };
        for (title, node, expected) in [
            ("a new server", node("one", false, false), vec![hold()]),
            ("a server that is held", node("one", true, false), vec![]),
            ("a server that is deleted", node("one", true, true), vec![release("one", Some(1))]),
            ("its member is gone already", node("three", true, true), vec![release("three", None)]),
            ("an agent", node("agent", false, false), vec![]),
            ("an agent that is deleted", node("agent", false, true), vec![]),
            ("deleted before it was held", node("one", false, true), vec![]),
        ] {
            assert_eq!(steps(&[node], &members), expected, "{title}");
        }
    }
}
