//! The Node object: registers it, updates its status, and renews its Lease. `host` reads the machine, `status` decides
//! what to report, `lease` is the heartbeat; this file is the loop between them.

mod host;
mod lease;
mod status;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, NodeStatus};
use corten_client::{Cache, Client, ListOptions, Patch};
use corten_meta::Key;
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use host::Host;
pub use lease::renew_lease;

use crate::config::Config;
use crate::cri::Runtime;
use crate::devices::Counts;
use crate::error::Result;
use crate::events::{Events, NORMAL};
use crate::services::Services;

const CHECK_WHEN_READY: Duration = Duration::from_secs(10);
const FIRST_CHECK_WHEN_NOT: Duration = Duration::from_millis(20);
const LAST_CHECK_WHEN_NOT: Duration = Duration::from_secs(1);
/// The time for which a restarted kubelet waits for the runtime and its network before it reports a node that was ready
/// as not ready: its pods have run all the time, and a node that is not ready is taken out of load balancers.
const RESTART_TIME: Duration = Duration::from_secs(10);

/// Returns the list options for this node's own object.
pub fn own_node(config: &Config) -> ListOptions {
    ListOptions::fields(format!("metadata.name={}", config.node_name))
}

/// Registers the node; retries until it succeeds or the kubelet stops.
pub async fn register(config: &Config, client: &Client, host: &Host, runtime: &Runtime, shutdown: &CancellationToken) {
    let mut wait = FIRST_CHECK_WHEN_NOT;
    loop {
        match try_register(config, client, host, runtime).await {
            Ok(()) => {
                info!(node = config.node_name, "Successfully registered node");
                return;
            }
            Err(error) => warn!(%error, node = config.node_name, "node not registered"),
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(wait) => wait = (wait * 2).min(LAST_CHECK_WHEN_NOT),
        }
    }
}

async fn try_register(config: &Config, client: &Client, host: &Host, runtime: &Runtime) -> Result<()> {
    let facts = status::Facts {
        config,
        host,
        runtime: &status::RuntimeFacts::of(runtime).await,
        pressures: BTreeSet::new(),
        shutting_down: false,
        volumes_in_use: BTreeSet::new(),
        devices: Counts::default(),
        node: None,
        now: Timestamp::now(),
    };
    let node = status::initial_node(&facts);
    match client.create(&node).await {
        Err(error) if error.is_already_exists() => {
            let wanted =
                json!({"metadata": {"labels": node.metadata.labels, "annotations": node.metadata.annotations}});
            client.patch::<Node>("", &config.node_name, &Patch::Strategic(wanted), None).await?;
            Ok(())
        }
        other => Ok(other.map(drop)?),
    }
}

/// Reports the node's status: at once when it changed, and periodically when it did not.
pub struct Reporter {
    services: Arc<Services>,
    host: Host,
    cache: Arc<Cache>,
    last: Option<(NodeStatus, Timestamp)>,
    pod_cidr: String,
    started: tokio::time::Instant,
}

impl Reporter {
    pub fn new(services: Arc<Services>, host: Host, cache: Arc<Cache>) -> Reporter {
        let started = tokio::time::Instant::now();
        Reporter { services, host, cache, last: None, pod_cidr: String::new(), started }
    }

    /// Runs until shutdown; also reconciles on a change of the Node object (its podCIDR).
    pub async fn run(mut self, shutdown: CancellationToken) {
        let mut changes = self.cache.subscribe();
        let mut pressure = self.services.signals.pressure.subscribe();
        let mut shutting_down = self.services.signals.shutting_down.subscribe();
        let mut in_use = self.services.volumes.csi.in_use();
        let mut devices = self.services.resources.devices.counts();
        let mut quick = FIRST_CHECK_WHEN_NOT;
        loop {
            let ready = match self.report().await {
                Ok(ready) => ready,
                Err(error) => {
                    warn!(%error, "node status not reported");
                    false
                }
            };
            let wait = if ready { CHECK_WHEN_READY } else { quick };
            // The interval grows by a quarter: a node that becomes ready is reported late by that part of the time that
            // it took.
            quick = if ready { FIRST_CHECK_WHEN_NOT } else { (quick * 5 / 4).min(LAST_CHECK_WHEN_NOT) };
            tokio::select! {
                () = shutdown.cancelled() => return,
                change = changes.next() => if change.is_none() { return },
                changed = pressure.changed() => if changed.is_err() { return },
                changed = shutting_down.changed() => if changed.is_err() { return },
                changed = in_use.changed() => if changed.is_err() { return },
                changed = devices.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Observes the node and the runtime and writes the changed status; returns whether the node is ready.
    async fn report(&mut self) -> Result<bool> {
        let services = self.services.clone();
        let config = &services.config;
        let node: Option<Node> = self.cache.typed(&Key { namespace: String::new(), name: config.node_name.clone() });
        self.update_pod_cidr(node.as_ref()).await?;
        let now = Timestamp::now();
        let runtime = status::RuntimeFacts::of(&services.runtime.client).await;
        let pressures = services.signals.pressure.borrow().clone();
        let host = &self.host;
        let volumes_in_use = services.volumes.csi.in_use().borrow().clone();
        let devices = services.resources.devices.counts().borrow().clone();
        let facts = status::Facts {
            config,
            host,
            runtime: &runtime,
            pressures,
            shutting_down: *services.signals.shutting_down.borrow(),
            volumes_in_use,
            devices,
            node: node.as_ref(),
            now,
        };
        let last = self.last.as_ref().map(|(status, _)| status);
        let new = status::status(&facts, last.or(node.as_ref().and_then(|node| node.status.as_ref())));
        let ready = status::is_ready(&new);
        let reported = node.as_ref().and_then(|node| node.status.as_ref());
        let due = self.last.as_ref().is_none_or(|(last, at)| {
            status::changed(last, &new)
                || status::contradicts(reported, &new)
                || Duration::try_from(now.duration_since(*at)).is_ok_and(|age| age >= config.status_report_interval)
        });
        let is_starting =
            self.last.is_none() && self.started.elapsed() < RESTART_TIME && status::was_ready(reported, &new);
        if due && node.is_some() && (ready || facts.shutting_down || !is_starting) {
            self.write(last, &new).await?;
            record_changes(&services.api.events, &config.node_name, last, &new);
            self.last = Some((new, now));
        }
        Ok(ready && node.is_some())
    }

    /// Passes the node's pod CIDR to the runtime, whose pod network may wait for it.
    async fn update_pod_cidr(&mut self, node: Option<&Node>) -> Result<()> {
        let spec = node.and_then(|node| node.spec.as_ref());
        let all = spec.and_then(|spec| spec.pod_cidrs.as_ref()).filter(|all| !all.is_empty());
        let assigned = all.map(|all| all.join(",")).or_else(|| spec?.pod_cidr.clone()).unwrap_or_default();
        if assigned != self.pod_cidr {
            self.services.runtime.client.set_pod_cidr(&assigned).await?;
            self.pod_cidr = assigned;
        }
        Ok(())
    }

    async fn write(&self, last: Option<&NodeStatus>, status: &NodeStatus) -> Result<()> {
        let node = Node { status: Some(status.clone()), ..Node::default() };
        let mut patch = json!({"status": node.to_value().get("status")});
        // A strategic merge patch merges the list by type, of which a dual-stack node has two entries, so the list is
        // replaced.
        if let Some(addresses) = patch.pointer_mut("/status/addresses").and_then(Value::as_array_mut) {
            addresses.push(json!({"$patch": "replace"}));
        }
        for gone in status::withdrawn(last, status) {
            patch["status"]["allocatable"][gone] = Value::Null;
        }
        let name = &self.services.config.node_name;
        self.services.api.client.patch::<Node>("", name, &Patch::Strategic(patch), Some("status")).await?;
        Ok(())
    }
}

pub use status::{allocatable, kept_back, limits};

/// Records an event for every new or changed condition.
fn record_changes(events: &Events, node: &str, last: Option<&NodeStatus>, new: &NodeStatus) {
    for condition in new.conditions.iter().flatten() {
        let before = last.and_then(|last| last.conditions.iter().flatten().find(|old| old.type_ == condition.type_));
        if before.is_some_and(|before| before.status == condition.status) {
            continue;
        }
        let good = condition.status == if condition.type_ == "Ready" { "True" } else { "False" };
        let reason = match (condition.type_.as_str(), good) {
            ("Ready", true) => "NodeReady",
            ("Ready", false) => "NodeNotReady",
            ("MemoryPressure", true) => "NodeHasSufficientMemory",
            ("DiskPressure", true) => "NodeHasNoDiskPressure",
            ("PIDPressure", true) => "NodeHasSufficientPID",
            ("MemoryPressure", false) => "NodeHasInsufficientMemory",
            ("DiskPressure", false) => "NodeHasDiskPressure",
            ("PIDPressure", false) => "NodeHasInsufficientPID",
            _ => continue,
        };
        // Upstream records bad and good conditions as normal events.
        events.node(NORMAL, reason, &format!("Node {node} status is now: {reason}"));
    }
}
