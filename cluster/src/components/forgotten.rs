//! A server that the cluster was recovered without: its member is gone, and its Node is still there.
//!
//! `kubectl delete node` removes both, so that a server whose Node is gone stays away until it is asked to join again.

use std::time::Duration;

use anyhow::Context;
use corten_apiserver::StoredReader;
use corten_members::{Config, Members};
use corten_meta::Value;
use corten_store::Store;
use corten_store::etcd::{self, Etcd};

use crate::membership::member;
use crate::store_options::StoreOptions;

/// The prefix of Nodes, as their kind declares it.
const DECLARED: &str = "/registry/minions/";
/// The longest time that the Node is asked for.
const PATIENCE: Duration = Duration::from_secs(30);

/// Reports whether the cluster still has the Node of this server, and does not delete it.
pub async fn is_wanted(config: &Config, members: &Members, flags: &StoreOptions) -> bool {
    match tokio::time::timeout(PATIENCE, node(config, members, flags)).await {
        Ok(Ok(Some(node))) => node.pointer("/metadata/deletionTimestamp").is_none(),
        Ok(Ok(None)) | Err(_) => false,
        Ok(Err(error)) => {
            tracing::warn!("the Node of this server cannot be read: {error:#}");
            false
        }
    }
}

/// Reads the Node of this server from the members that answer.
async fn node(config: &Config, members: &Members, flags: &StoreOptions) -> anyhow::Result<Option<Value>> {
    let endpoints = members.endpoints().to_vec();
    let options = StoreOptions { etcd_servers: endpoints, ..member::store_options(config, flags) };
    let Some(client) = options.etcd()? else { return Ok(None) };
    let store = Etcd::open(etcd::Config { compaction_interval: Duration::ZERO, ..client }).await?;
    let key = format!("/{}/minions/{}", options.etcd_prefix.trim_matches('/'), config.name);
    let (_, entry) = store.get(key.as_bytes()).await?;
    let Some(entry) = entry else { return Ok(None) };
    let reader = StoredReader::new(None)?;
    let kind = reader.built_in(DECLARED).context("nodes are not built in")?;
    let plain = reader.open(kind, &entry.key, &entry.value).await.map_err(anyhow::Error::msg)?;
    let node = reader.decode(kind, plain).map_err(anyhow::Error::msg)?;
    Ok(Some(node.value()))
}
