//! `corten node revoke`: the credentials of a node are refused from now on.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{ConfigMap, Node};
use corten_apiserver::REVOKED_NODES;
use corten_client::{Client, DeleteOptions, Patch};
use corten_meta::time;
use serde_json::json;

use crate::certificate_cli::NodeCommand;
use crate::directories::Directories;
use crate::node_object::is_control_plane;
use crate::preflight;

const NAMESPACE: &str = "kube-system";

pub async fn run(command: NodeCommand) -> Result<()> {
    let NodeCommand::Revoke(flags) = command;
    preflight::root_for("node revoke")?;
    let problems = corten_meta::names::dns1123_subdomain(&flags.name);
    ensure!(problems.is_empty(), "{:?} is not the name of a node: {}", flags.name, problems.join("; "));
    let path = Directories::of(&flags.directories).kubeconfig("admin");
    let client = Client::from_kubeconfig(&path, None).with_context(|| format!("{} cannot be used", path.display()))?;
    let node = client.find::<Node>("", &flags.name).await.context("the node cannot be read")?;
    ensure!(
        !node.as_ref().is_some_and(|node| is_control_plane(&node.to_value())),
        "{} is a server, which holds the keys of the cluster: delete its Node, and rotate the keys by `corten ca rotate`, \
         `corten service-account-key rotate` and `corten encryption-key rotate`",
        flags.name
    );
    revoke(&client, &flags.name).await?;
    println!("the credentials of {} are refused from now on", flags.name);
    if node.is_none() {
        println!("there is no Node {0}; if {0} is not a machine whose Node was deleted, check the name", flags.name);
    } else {
        match client.delete::<Node>("", &flags.name, &DeleteOptions::default()).await {
            Err(error) if !error.is_not_found() => return Err(error).context("the Node cannot be deleted"),
            _ => println!("its Node is deleted, and its pods are evicted"),
        }
    }
    println!("it may join again with a new token: corten token create --print-join-command");
    Ok(())
}

/// Records the revocation, which every server follows.
async fn revoke(client: &Client, name: &str) -> Result<()> {
    let now = time::now();
    let patch = Patch::Apply {
        object: json!({
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"namespace": NAMESPACE, "name": REVOKED_NODES},
            "data": {name: now.to_string()},
        }),
        // One manager for each node, so that revoking one keeps the others.
        manager: format!("corten-revoke-{name}").chars().take(128).collect(),
        force: true,
    };
    client
        .send_patch::<ConfigMap>(NAMESPACE, REVOKED_NODES, &patch, None)
        .await
        .context("the revocation cannot be kept")?;
    // Certificates have whole seconds: one that is signed within this second is refused too.
    tokio::time::sleep(Duration::from_secs(1)).await;
    Ok(())
}
