//! The driver of EBS volumes: the controller's half with its loops beside the cloud controllers of AWS, and the node's half
//! on nodes of AWS, where the kubelet finds it like any other driver.
//!
//! Both run while the cluster's CSIDriver object is the one that Corten made, so that AWS's own driver can take over, and
//! agents need no flag: an object of others is left alone, and Corten's halves end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Node as NodeObject;
use corten_api::k8s_openapi::api::storage::v1::CSIDriver;
use corten_aws::Environment;
use corten_client::{Client, DeleteOptions, Error};
use corten_cloud::providers::aws;
use corten_ebs::{Cloud, Config, Instance, NAME, NodeHalf, Roots};
use corten_meta::Value;
use corten_storage_control::Options;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cloud_options::{CloudOptions, EbsDriver, EbsMode};
use crate::config::Node;
use crate::tasks::Tasks;

/// The provider whose volumes these are.
pub const PROVIDER: &str = "aws";
/// The name of the Lease of the controller's half.
pub const LEASE: &str = "external-storage-ebs.csi.aws.com";
/// The label of the object that Corten made.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
const MANAGER: &str = "corten";
/// The time between two looks at the object.
const POLL: Duration = Duration::from_secs(20);

/// Returns the object of the driver: its volumes are attached to nodes, and their owner is the pod's group.
fn object() -> Value {
    json!({
        "apiVersion": "storage.k8s.io/v1",
        "kind": "CSIDriver",
        "metadata": {"name": NAME, "labels": {MANAGED_BY: MANAGER}},
        "spec": {
            "attachRequired": true,
            "podInfoOnMount": false,
            "fsGroupPolicy": "File",
            "volumeLifecycleModes": ["Persistent"],
        },
    })
}

fn is_ours(object: &CSIDriver) -> bool {
    let labels = object.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).is_some_and(|manager| manager == MANAGER)
}

/// Reports whether the cluster has the object that Corten made.
async fn has_own_object(client: &Client) -> Result<bool, Error> {
    Ok(client.find::<CSIDriver>("", NAME).await?.is_some_and(|object| is_ours(&object)))
}

/// Creates the object if there is none; reports whether it is Corten's.
async fn ensure_object(client: &Client) -> Result<bool, Error> {
    if let Some(object) = client.find::<CSIDriver>("", NAME).await? {
        return Ok(is_ours(&object));
    }
    client.create(&CSIDriver::from_value(object())?).await?;
    Ok(true)
}

/// Pauses; reports whether there was no shutdown.
async fn pause(shutdown: &CancellationToken) -> bool {
    tokio::time::timeout(POLL, shutdown.cancelled()).await.is_err()
}

/// Waits until the object is not Corten's any more. A server that does not answer changes nothing.
async fn lost(client: &Client) {
    loop {
        tokio::time::sleep(POLL).await;
        if matches!(has_own_object(client).await, Ok(false)) {
            return;
        }
    }
}

/// Runs one half until it fails, the object is not Corten's any more, or the shutdown.
async fn while_ours(client: &Client, half: impl Future<Output = Result<()>>, running: CancellationToken) -> Result<()> {
    let ended = running.clone();
    let watch = async move {
        tokio::select! {
            () = lost(client) => running.cancel(),
            () = running.cancelled() => {}
        }
    };
    let watched = async move {
        let served = half.await;
        ended.cancel();
        served
    };
    tokio::join!(watched, watch).0
}

/// The controller's half of a cluster.
pub struct Control {
    pub options: CloudOptions,
    pub client: Client,
    /// The identity of this process in the election of a leader.
    pub identity: String,
}

/// Runs the controller's half and its loops. Where the operator wants none, removes the object that Corten made.
pub async fn control(control: Control, shutdown: CancellationToken) -> Result<()> {
    if !control.options.cloud_volumes {
        retire(&control.client, &shutdown).await;
        return Ok(());
    }
    loop {
        match ensure_object(&control.client).await {
            Ok(true) => {
                if let Err(error) = lead(&control, shutdown.child_token()).await {
                    tracing::error!("the controller of EBS volumes failed, and is started again: {error:#}");
                }
            }
            Ok(false) => tracing::debug!("the driver {NAME} of others is installed"),
            Err(error) => tracing::warn!("the object of the driver {NAME} cannot be made: {error}"),
        }
        if !pause(&shutdown).await {
            return Ok(());
        }
    }
}

/// Deletes the object that Corten made, so that the halves on nodes end.
async fn retire(client: &Client, shutdown: &CancellationToken) {
    while let Err(error) = delete_own_object(client).await {
        tracing::warn!("the object of the driver {NAME} cannot be deleted: {error}");
        if !pause(shutdown).await {
            return;
        }
    }
    shutdown.cancelled().await;
}

async fn delete_own_object(client: &Client) -> Result<(), Error> {
    if has_own_object(client).await? {
        client.delete::<CSIDriver>("", NAME, &DeleteOptions::default()).await?;
    }
    Ok(())
}

async fn lead(control: &Control, running: CancellationToken) -> Result<()> {
    let cloud = open_cloud(&control.options).await?;
    let (channel, serving) = corten_ebs::in_process(cloud, running.clone());
    let options = Options {
        identity: control.identity.clone(),
        default_fs_type: "ext4".to_owned(),
        extra_create_metadata: true,
        ..Options::default()
    };
    let loops = corten_storage_control::run_on(channel, control.client.clone(), options, running.clone());
    let half = async {
        let (served, ()) = tokio::join!(serving, loops);
        Ok(served?)
    };
    while_ours(&control.client, half, running).await
}

/// Opens EC2 with the flags and the environment of the cloud controllers.
async fn open_cloud(options: &CloudOptions) -> Result<Cloud> {
    let access = aws::volume_access(&options.setup()?).await.map_err(anyhow::Error::msg)?;
    Ok(Cloud::new(access.ec2, access.cluster))
}

/// Starts the node's half of a node that a cloud initializes; its sockets are below the kubelet's directory.
pub fn start(node: &Node, kubelet_root: PathBuf, client: Client, tasks: &mut Tasks) {
    let provider = node.kubelet.cloud_provider.as_deref();
    if provider.is_some_and(|name| name == PROVIDER || name == "external") {
        tasks.spawn("EBS driver", follow(node.name.clone(), kubelet_root, client, tasks.shutdown()));
    }
}

/// Runs the node's half while the node is one of AWS and the driver Corten's.
async fn follow(name: String, kubelet_root: PathBuf, client: Client, shutdown: CancellationToken) -> Result<()> {
    loop {
        match wanted(&client, &name).await {
            Ok(Some(instance)) => {
                let running = shutdown.child_token();
                let half = serve_node(instance, &kubelet_root, running.clone());
                if let Err(error) = while_ours(&client, half, running).await {
                    tracing::error!("the driver of EBS volumes failed, and is started again: {error:#}");
                }
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("it is not known whether EBS volumes are wanted: {error:#}"),
        }
        if !pause(&shutdown).await {
            return Ok(());
        }
    }
}

/// Returns the instance of this node, if it is one of AWS and the driver is Corten's.
async fn wanted(client: &Client, name: &str) -> Result<Option<Instance>> {
    if !has_own_object(client).await? {
        return Ok(None);
    }
    let node = client.find::<NodeObject>("", name).await?.ok_or_else(|| anyhow!("the node is not registered"))?;
    let provider_id = node.spec.as_ref().and_then(|spec| spec.provider_id.clone()).unwrap_or_default();
    let Some(instance) = instance(&provider_id) else { return Ok(None) };
    let labels = node.metadata.labels.unwrap_or_default();
    let kind = labels.get("node.kubernetes.io/instance-type").map_or("", String::as_str);
    let roots = crate::files::trusted_roots();
    let metadata = Environment { variable: &variable, roots: &roots }.metadata().map_err(anyhow::Error::msg)?;
    Ok(Some(instance.limited(kind, &metadata).await))
}

/// Returns the instance of a provider ID, `aws:///ZONE/i-…`.
fn instance(provider_id: &str) -> Option<Instance> {
    let (zone, id) = provider_id.strip_prefix("aws:///")?.split_once('/')?;
    let is_whole = !zone.is_empty() && id.starts_with("i-");
    is_whole.then(|| Instance { id: id.to_owned(), zone: zone.to_owned(), most_volumes: 0 })
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

async fn serve_node(instance: Instance, kubelet_root: &Path, running: CancellationToken) -> Result<()> {
    let config = Config {
        controller: None,
        node: Some(NodeHalf::new(instance, Roots::default())),
        socket: kubelet_root.join("plugins").join(NAME).join("csi.sock"),
        registration: Some(kubelet_root.join("plugins_registry").join(format!("{NAME}-reg.sock"))),
    };
    Ok(corten_ebs::run(config, running).await?)
}

/// Runs `corten ebs-driver`: the driver alone, beside the sidecars of upstream.
pub async fn alone(flags: EbsDriver, shutdown: CancellationToken) -> Result<()> {
    let controller = match flags.mode {
        EbsMode::Controller | EbsMode::All => Some(open_cloud(&flags.cloud).await?),
        EbsMode::Node => None,
    };
    let node = match flags.mode {
        EbsMode::Node | EbsMode::All => Some(node_half(&flags).await?),
        EbsMode::Controller => None,
    };
    let socket = flags.endpoint.strip_prefix("unix://").unwrap_or(&flags.endpoint).into();
    let config = Config { controller, node, socket, registration: flags.registration_socket };
    Ok(corten_ebs::run(config, shutdown).await?)
}

async fn node_half(flags: &EbsDriver) -> Result<NodeHalf> {
    let roots = crate::files::trusted_roots();
    let metadata = Environment { variable: &variable, roots: &roots }.metadata().map_err(anyhow::Error::msg)?;
    let found = Instance::discover(&metadata).await.map_err(anyhow::Error::msg);
    let mut instance = found.context("the node's half needs the metadata service of its instance")?;
    if let Some(limit) = flags.volume_attach_limit {
        instance.most_volumes = limit;
    }
    Ok(NodeHalf::new(instance, Roots { sys: flags.sys_root.clone(), dev: flags.dev_root.clone() }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_are_those_of_provider_ids() {
        let found = instance("aws:///eu-central-1a/i-0abc").unwrap();
        assert_eq!((found.zone.as_str(), found.id.as_str()), ("eu-central-1a", "i-0abc"));
        for other in ["", "aws:///i-0abc", "hcloud://1", "aws:////i-0abc"] {
            assert_eq!(instance(other), None, "{other}");
        }
    }

    #[test]
    fn an_object_of_others_is_recognized() {
        let ours = CSIDriver::from_value(object()).unwrap();
        assert!(is_ours(&ours));
        let theirs = CSIDriver { metadata: Default::default(), ..ours };
        assert!(!is_ours(&theirs));
    }
}
