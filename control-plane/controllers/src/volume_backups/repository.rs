//! VolumeBackupRepositories: finds the node that opens, prunes and verifies a repository.

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node;
use corten_meta::Key;
use corten_snapshots::{READY, VolumeBackupRepository, with_condition};
use jiff::Timestamp;
use serde_json::json;

use super::ACCOUNT;
use crate::runtime::{Action, Controller, Plan, View, Watch, key_of};

/// The label of nodes that run the storage driver.
const DRIVER_LABEL: &str = "topology.storage.corten.dev/node";

pub struct RepositoryController;

pub struct Observed {
    repository: VolumeBackupRepository,
    /// The names of the ready nodes with the storage driver, in order.
    nodes: Vec<String>,
}

impl Controller for RepositoryController {
    type Observed = Observed;

    const NAME: &'static str = ACCOUNT;

    fn watches(&self) -> Vec<Watch> {
        let all = |view: &dyn View, _: &corten_client::Change| -> Vec<Key> {
            view.all::<VolumeBackupRepository>("").iter().map(key_of).collect()
        };
        vec![Watch::own::<VolumeBackupRepository>(), Watch::mapped::<Node>(all)]
    }

    fn observe(&self, view: &dyn View, key: &Key) -> Option<Observed> {
        let repository: VolumeBackupRepository = view.typed(key)?;
        let nodes: Vec<Node> = view.all("");
        let mut nodes: Vec<String> =
            nodes.iter().filter(|node| can_serve(node)).map(|node| node.name().to_owned()).collect();
        nodes.sort_unstable();
        Some(Observed { repository, nodes })
    }

    fn reconcile(&self, observed: &Observed, now: Timestamp) -> Plan {
        let repository = &observed.repository;
        let current = repository.status.as_ref().and_then(|status| status.node_name.as_ref());
        let named = repository.spec.directory.as_ref().and_then(|directory| directory.node_name.as_ref());
        let is_usable = |node: &&String| observed.nodes.contains(node);
        let wanted = match named {
            Some(named) => Some(named).filter(is_usable),
            None => current.filter(is_usable).or_else(|| observed.nodes.first()),
        };
        let (node, reason, message) = match wanted {
            Some(node) if current == Some(node) => return Plan::nothing(),
            Some(node) => (Some(node), "Assigned", format!("waits for node {node}")),
            None => {
                let message = match named {
                    Some(node) => format!("node {node} is not ready, or does not run the storage driver"),
                    None => "no node is ready and runs the storage driver".to_owned(),
                };
                (None, "NoNode", message)
            }
        };
        let conditions = with_condition(repository.conditions(), READY, false, reason, &message, now);
        let mut status = json!({"nodeName": node});
        match conditions {
            Some(conditions) => status["conditions"] = conditions,
            None if node.is_none() && current.is_none() => return Plan::nothing(),
            None => {}
        }
        Plan::from(Action::patch_status(repository, json!({"status": status})))
    }
}

/// Reports whether a node is ready and runs the storage driver.
fn can_serve(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|one| one.type_ == "Ready" && one.status == "True");
    is_ready && node.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(DRIVER_LABEL))
}
