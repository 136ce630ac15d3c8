//! The objects that every cluster has from its start: written before the server is ready.
//!
//! `plan` compares the desired objects with the store, and writes all missing ones in one commit, so that a start takes
//! one fsync; in several where a store limits their size. It never reverts intended changes of users.

mod api_services;
pub mod flow_control;
pub mod identity;
pub mod kubernetes_service;
mod objects;
mod resource_metrics;
mod server_addresses;
mod site;

use corten_managed_fields::{apply_status, own_created};
use corten_meta::{Status, Value};
use corten_store::{Expect, Op, Outcome, Range};
use serde_json::json;

use crate::authorization::bootstrap_policy;
use crate::config::Trust;
use crate::core::Core;
use crate::error::Error;
use crate::registry::Resource;

/// An object that must exist.
pub struct Wanted {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub object: Value,
    /// Repairs an existing object; returns `None` if it is correct.
    pub repair: fn(&Value, &Value) -> Option<Value>,
    /// The field manager that creates it.
    pub author: &'static str,
    /// The field manager that applies the status; `None` if the status has no manager.
    pub status_author: Option<&'static str>,
    /// The fields of the spec that the server allocates and that have no manager.
    pub allocated: Value,
}

impl Wanted {
    /// Makes an object that is only created, never repaired.
    pub fn new(group: &'static str, version: &'static str, plural: &'static str, object: Value) -> Wanted {
        let author = "kube-apiserver";
        Wanted {
            group,
            version,
            plural,
            object,
            repair: |_, _| None,
            author,
            status_author: None,
            allocated: json!({}),
        }
    }

    pub fn repaired_by(mut self, repair: fn(&Value, &Value) -> Option<Value>) -> Wanted {
        self.repair = repair;
        self
    }
}

/// The maximum number of attempts against another server that bootstraps the same store.
const ATTEMPTS: usize = 5;

/// The prefix of the keys by which earlier versions kept node ports, one each.
const FORMER_PORTS: &str = "/registry/ranges/servicenodeports/";

/// Removes the keys of node ports: the ports are one object now, which is made of the existing Services.
async fn remove_former_ports(core: &Core) -> Result<(), Error> {
    let prefix = core.registry.caches.root().key(FORMER_PORTS);
    let found = core.registry.store.range(Range::prefix(prefix.as_bytes()).keys_only()).await?;
    let operations = found.entries.into_iter().map(|entry| Op::delete(entry.key, Expect::Any)).collect();
    commit(core, operations).await.map(drop)
}

/// Writes the missing objects.
pub async fn run(core: &Core) -> Result<(), Error> {
    remove_former_ports(core).await?;
    for _ in 0..ATTEMPTS {
        let operations = plan(core).await.map_err(|status| Error::Bootstrap(status.message))?;
        if commit(core, operations).await? {
            return Ok(());
        }
        core.registry.caches.fresh().await.map_err(|status| Error::Bootstrap(status.message))?;
    }
    Err(Error::Bootstrap("another server keeps changing the same objects".to_owned()))
}

/// Commits operations, in as few commits as the store can take, and waits for the caches. Returns whether all of them
/// happened; after a conflict with another server, some may have.
async fn commit(core: &Core, mut operations: Vec<Op>) -> Result<bool, Error> {
    let registry = &core.registry;
    while !operations.is_empty() {
        let rest = operations.split_off(registry.store.max_ops().min(operations.len()));
        let Outcome::Committed { .. } = registry.commit_all(operations).await? else { return Ok(false) };
        registry.caches.fresh().await.map_err(|status| Error::Bootstrap(status.message))?;
        operations = rest;
    }
    Ok(true)
}

/// Restores the objects without which no request could be classified, if a client deleted or changed them.
pub async fn restore_mandatory(core: &Core) -> Result<(), Error> {
    let status = |status: Status| Error::Bootstrap(status.message);
    let operations = operations(core, flow_control::mandatory()).await.map_err(status)?;
    if !operations.is_empty() {
        // If another server wrote first, that change leads here again.
        core.registry.commit_all(operations).await?;
    }
    Ok(())
}

/// Publishes the authorities of clients to extension API servers, after a rotation.
pub async fn publish_authorities(core: &Core, trust: &Trust) -> Result<(), Error> {
    let status = |status: Status| Error::Bootstrap(status.message);
    for _ in 0..ATTEMPTS {
        let wanted = vec![objects::authorities(&core.config, &trust.client_ca, trust.requestheader_ca.as_deref())];
        let operations = operations(core, wanted).await.map_err(status)?;
        if commit(core, operations).await? {
            return Ok(());
        }
        core.registry.caches.fresh().await.map_err(status)?;
    }
    Err(Error::Bootstrap("another server keeps changing the same objects".to_owned()))
}

/// Restores the `kubernetes` Service, its address and endpoints, if a client deleted them, and the endpoints if servers
/// came or went. A server alone leaves existing objects as they are.
pub async fn restore_service(core: &Core) -> Result<(), Error> {
    let status = |status: Status| Error::Bootstrap(status.message);
    let addresses = server_addresses::list(core).await.map_err(status)?;
    // That no server has an address is an error of the store's state, and never a reason to cut off all clients.
    if addresses.is_empty() {
        return Ok(());
    }
    let mut wanted = kubernetes_service::wanted(&core.config, &addresses).map_err(status)?;
    if !core.registry.store.is_shared() {
        wanted = wanted.into_iter().map(|one| one.repaired_by(|_, _| None)).collect();
    }
    let mut operations = operations(core, wanted).await.map_err(status)?;
    if core.registry.store.is_shared() {
        operations.extend(kubernetes_service::obsolete_slices(core, &addresses).map_err(status)?);
    }
    if !operations.is_empty() {
        // If another server wrote first, the next round compares with what it wrote.
        core.registry.commit_all(operations).await?;
    }
    Ok(())
}

async fn plan(core: &Core) -> Result<Vec<Op>, Status> {
    let mut wanted = objects::wanted(&core.config);
    let policy = bootstrap_policy::wanted().into_iter();
    wanted.extend(policy.map(|(plural, object)| {
        Wanted::new(bootstrap_policy::GROUP, "v1", plural, object).repaired_by(bootstrap_policy::repair)
    }));
    wanted.extend(flow_control::wanted());
    wanted.extend(api_services::wanted(&core.registry.resources().ordered));
    if core.config.kubelet.is_some() {
        wanted.extend(resource_metrics::wanted());
    }
    if let Some(pages) = &core.config.site {
        wanted.extend(site::wanted(pages.as_ref()));
    }
    server_addresses::renew(core).await?;
    wanted.extend(kubernetes_service::wanted(&core.config, &server_addresses::list(core).await?)?);
    operations(core, wanted).await
}

/// Returns the writes that create or repair these objects.
async fn operations(core: &Core, wanted: Vec<Wanted>) -> Result<Vec<Op>, Status> {
    let now = jiff::Timestamp::now();
    let mut operations = Vec::new();
    for wanted in wanted {
        let Some(resource) = core.registry.resource(wanted.group, wanted.version, wanted.plural) else { continue };
        let stored = resource.storage()?;
        let namespace = corten_meta::namespace(&wanted.object);
        let name = corten_meta::name(&wanted.object);
        match stored.cache.get(namespace, name) {
            None => {
                let object = complete(&resource, wanted, now);
                operations.push(core.registry.put(&resource, &object, Expect::Absent).await?.0);
            }
            Some(present) => {
                if let Some(object) = (wanted.repair)(&present.value(), &wanted.object) {
                    let expect = Expect::ModRevision(present.revision);
                    operations.push(core.registry.put(&resource, &object, expect).await?.0);
                }
            }
        }
    }
    Ok(operations)
}

/// Returns an object with the fields that the pipeline adds to a created object.
fn complete(resource: &Resource, wanted: Wanted, now: jiff::Timestamp) -> Value {
    let kind = &resource.kind;
    let mut object = wanted.object;
    object["apiVersion"] = kind.api_version().into();
    object["kind"] = kind.kind.clone().into();
    let status = object.as_object_mut().and_then(|object| object.remove("status"));
    let metadata = &mut object["metadata"];
    metadata["uid"] = uuid::Uuid::new_v4().to_string().into();
    metadata["creationTimestamp"] = corten_meta::time::rfc3339(now).into();
    if kind.rules.generation {
        metadata["generation"] = json!(1);
    }
    kind.default(&mut object);
    // The server is the field manager of the objects that it creates.
    own_created(&resource.kind, &mut object, wanted.author, now);
    for (field, value) in wanted.allocated.as_object().into_iter().flatten() {
        object["spec"][field] = value.clone();
    }
    kind.behaviour.prepare_create(&mut object);
    let Some(status) = status else { return object };
    let owned = wanted.status_author.and_then(|manager| apply_status(&resource.kind, &object, &status, manager, now));
    let mut object = owned.unwrap_or_else(|| {
        object["status"] = status;
        object
    });
    kind.default(&mut object);
    object
}
