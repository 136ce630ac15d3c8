//! The repair of cluster IPs and node ports, as upstream's repair controllers do it: on a change, and every three
//! minutes, each Service is compared with its IPAddresses and with the bitmap of node ports.
//!
//! Writes of this server keep them together. Other writers of the store may not: a server of another version, a restored
//! backup, a client that deletes an IPAddress, resources in two stores. `addresses` and `ports` decide, in pure functions,
//! and this file acts. Every finding is an Event on its Service.

mod addresses;
mod events;
mod ports;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corten_admission::allocation::{AddressRange, PortBitmap, ip_address};
use corten_managed_fields::own_created;
use corten_meta::{Object, Status};
use corten_store::{Expect, NO_LEASE, Op, Outcome};
use tokio_util::sync::CancellationToken;

use self::addresses::Step;
use self::events::Recorder;
use crate::core::Core;
use crate::error::store_status;
use crate::metrics::{NODE_PORT_ERRORS, NODE_PORT_REPAIR_ERRORS};
use crate::registry::Unserved;

/// The interval of repairs; upstream's.
const INTERVAL: Duration = Duration::from_secs(3 * 60);
/// The time for which further changes are awaited after one: a burst of Services is checked once.
const SETTLE: Duration = Duration::from_secs(2);
/// The attempts against other writers of the bitmap.
const ATTEMPTS: usize = 5;

/// Repairs until shutdown.
pub async fn run(core: &Core, shutdown: &CancellationToken) {
    let cache = |group: &str, plural: &str| core.registry.cache(group, "v1", plural).map(|cache| cache.changes());
    let Some(mut services) = cache("", "services") else { return };
    let Some(mut addresses) = cache("networking.k8s.io", "ipaddresses") else { return };
    let mut recorder = Recorder::new(core.config.hostname.as_deref().unwrap_or_default());
    let mut leaks = BTreeMap::new();
    let mut tick = tokio::time::interval(INTERVAL);
    loop {
        let is_due = tokio::select! {
            () = shutdown.cancelled() => return,
            _ = tick.tick() => true,
            Ok(()) = services.changed() => false,
            Ok(()) = addresses.changed() => false,
        };
        if is_due {
            if let Err(status) = repair_ports(core, &mut recorder, &mut leaks).await {
                core.metrics.add(&NODE_PORT_REPAIR_ERRORS, &[]);
                tracing::warn!(error = status.message, "the node ports could not be repaired");
            }
        } else {
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(SETTLE) => {}
            }
        }
        services.mark_unchanged();
        addresses.mark_unchanged();
        if let Err(status) = repair_addresses(core, &mut recorder).await {
            tracing::warn!(error = status.message, "the cluster IPs could not be repaired");
        }
    }
}

/// Compares the bitmap of node ports with the Services, and repairs it.
async fn repair_ports(core: &Core, recorder: &mut Recorder, leaks: &mut BTreeMap<u16, u32>) -> Result<(), Status> {
    let of = Unserved::node_ports();
    let range = core.config.node_port_range;
    for _ in 0..ATTEMPTS {
        let found = core.registry.read_unserved(&of, of.path).await?;
        let expect = found.as_ref().map_or(Expect::Absent, |found| Expect::ModRevision(found.revision));
        // A bitmap of another range is made anew by the first Service that needs a port.
        let stored = found.and_then(|found| PortBitmap::parse(range, &found.value));
        let Some(stored) = stored else { return Ok(()) };
        core.registry.caches.fresh().await?;
        let services = core.registry.cached_list("", "v1", "services", "");
        let plan = ports::reconcile(&stored, &services, leaks);
        if plan.bitmap != stored {
            let operation = core.registry.put_unserved(&of, of.path, &plan.bitmap.object(), expect, NO_LEASE)?;
            let outcome = core.registry.commit_all(vec![operation]).await.map_err(store_status)?;
            // A Service was written at the same time; then the findings may be wrong too.
            if matches!(outcome, Outcome::Conflict { .. }) {
                continue;
            }
        }
        *leaks = plan.leaks;
        for port in plan.released {
            core.metrics.add(&NODE_PORT_ERRORS, &["leak"]);
            tracing::warn!(port, "the node port appears to have leaked; it is free again");
        }
        for finding in plan.findings {
            core.metrics.add(&NODE_PORT_ERRORS, &[finding.kind.label()]);
            recorder.record(core, &finding.event(range)).await?;
        }
        return Ok(());
    }
    Err(Status::internal("other writers keep changing the node ports".to_owned()))
}

/// Compares the IPAddresses with the Services, and repairs them.
async fn repair_addresses(core: &Core, recorder: &mut Recorder) -> Result<(), Status> {
    let first = find_addresses(core).await?;
    if first.is_empty() {
        return Ok(());
    }
    // A Service and its IPAddress that were written between two reads differ once, and not twice.
    for finding in find_addresses(core).await?.into_iter().filter(|finding| first.contains(finding)) {
        recorder.record(core, &finding.event).await?;
        let Some(operation) = operation(core, &finding).await? else { continue };
        let outcome = core.registry.commit_all(vec![operation]).await.map_err(store_status)?;
        if matches!(outcome, Outcome::Conflict { .. }) {
            tracing::debug!(address = finding.address, "another writer changed the IPAddress first");
        }
    }
    Ok(())
}

async fn find_addresses(core: &Core) -> Result<Vec<addresses::Finding>, Status> {
    core.registry.caches.fresh().await?;
    let services = core.registry.cached_list("", "v1", "services", "");
    let existing = core.registry.cached_list("networking.k8s.io", "v1", "ipaddresses", "");
    let ranges = ranges(core);
    let is_in_range = |ip| ranges.iter().any(|range| range.contains(ip));
    Ok(addresses::reconcile(&services, &existing, is_in_range, jiff::Timestamp::now()))
}

/// Returns the ranges of cluster IPs: the configured ones, and those of every ServiceCIDR.
fn ranges(core: &Core) -> Vec<AddressRange> {
    let mut ranges = AddressRange::parse_list(&core.config.service_cidr).unwrap_or_default();
    for object in core.registry.cached_list("networking.k8s.io", "v1", "servicecidrs", "") {
        let value = object.value();
        let cidrs = value.pointer("/spec/cidrs").and_then(corten_meta::Value::as_array).into_iter().flatten();
        ranges.extend(cidrs.filter_map(corten_meta::Value::as_str).filter_map(AddressRange::parse));
    }
    ranges
}

/// Returns the write that a finding needs, if it needs one.
async fn operation(core: &Core, finding: &addresses::Finding) -> Result<Option<Op>, Status> {
    let registry = &core.registry;
    let resource = registry.required("networking.k8s.io", "v1", "ipaddresses")?;
    let now = jiff::Timestamp::now();
    let ip = finding.address.as_str();
    let new = async |service: &Arc<Object>, expect| {
        let mut object = ip_address(ip, &service.header.namespace, &service.header.name, now);
        own_created(&resource.kind, &mut object, "kube-apiserver", now);
        registry.put(&resource, &object, expect).await.map(|(operation, _)| Some(operation))
    };
    match &finding.step {
        Step::None => Ok(None),
        Step::Create(service) => new(service, Expect::Absent).await,
        Step::Replace { service, revision } => new(service, Expect::ModRevision(*revision)).await,
        Step::Delete { revision } => registry.remove(&resource, "", ip, Expect::ModRevision(*revision)).map(Some),
    }
}
