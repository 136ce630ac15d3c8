//! The leader's half: installs Gateway API, and writes statuses, Services and their EndpointSlices.
//!
//! One loop: a change of routes resolves these routes, any other change everything, and what differs is written. A write
//! that fails, or that another writer came before, is made again on the next round, which resolves everything, from what
//! the cache shows then.
//!
//! Invariant: no object is changed that this controller did not make, apart from statuses.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use corten_client::{
    Cache, Client, DeleteOptions, Error, EventRecorder, EventType, LeaderConfig, LeaderElector, ListOptions, ObjectRef,
    Patch, Resource as Kind, Subscription,
};
use corten_crds::covers;
use corten_meta::{Key, Object, Value};
use jiff::Timestamp;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::crds;
use crate::data::{MISSED_KEYS, SERVES, leases};
use crate::key_sets::{Fetching, KeySets, Missed, config_maps};
use crate::objects::DataNode;
use crate::resolve::{
    self, Allocated, CLASS, CONTROLLER, ChangedRoutes, INGRESS_CONTROLLER, KEYS_LABEL, KeySource, Live, NAMESPACE,
    OWNED_LABEL, PortRange, References, Resolution, Resolved, WantedEvent, WantedStatus,
};
use crate::world::{View, World, endpoint_slices, kind_of, services};

/// The group of the data half's users, which gets to read the Secrets that Gateways name.
pub const DATA_GROUP: &str = "system:corten:edge";
/// The name of the Roles that allow it.
const ROLE: &str = "corten-edge";
/// The name of the Lease by which one of several processes leads.
const LEASE: &str = "corten-gateway";
/// Leases of nodes expire without a change: they are looked at again after this time.
const TICK: Duration = Duration::from_secs(10);
/// The pause before failed writes are made again.
const RETRY: Duration = Duration::from_secs(1);
/// Changes that come within this time are resolved together.
const SETTLE: Duration = Duration::from_millis(10);

/// The settings of the leader's half.
#[derive(Clone, Debug)]
pub struct Config {
    /// The identity of this process in the leader election.
    pub identity: String,
    /// Whether other processes may do the same work.
    pub leader_elect: bool,
    pub ports: PortRange,
    /// How keys of tokens are fetched.
    pub fetching: Fetching,
}

/// Runs the leader's half until shutdown, whenever this process leads.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) {
    if !config.leader_elect {
        return lead(&config, client, shutdown).await;
    }
    while !shutdown.is_cancelled() {
        let lease = LeaderConfig::new("kube-system", LEASE, &config.identity);
        let elector = LeaderElector::new(client.clone(), lease);
        elector.run(shutdown.clone(), |leading| lead(&config, client.clone(), leading)).await;
    }
}

async fn lead(config: &Config, client: Client, shutdown: CancellationToken) {
    if !install(&client, &shutdown).await {
        return;
    }
    let Some(mut world) = World::open(client.clone(), View::Whole, shutdown.clone()).await else { return };
    let mut key_sets = KeySets::new(config.fetching, client.clone());
    let Some(mut leader) = Leader::open(config.clone(), client, &world, &shutdown).await else { return };
    let bell = world.bell().clone();
    let mut last: Option<Round> = None;
    while !shutdown.is_cancelled() {
        let changed = world.take_changes();
        let is_touched = leader.take_changes();
        let nodes = leader.nodes(corten_meta::time::now());
        let is_changed = is_touched || changed.others || nodes != world.objects().nodes;
        world.objects_mut().nodes = nodes;
        let known = last.as_mut().filter(|last| last.is_whole && !is_changed);
        let updated = known.and_then(|last| last.update(&world, &changed.routes));
        let is_whole = match (updated, &mut last) {
            (Some(statuses), Some(last)) => {
                last.is_whole = leader.write_changes(&world, &statuses).await;
                last.is_whole
            }
            _ => {
                let round = Round::new(&mut world, &mut leader).await;
                last.insert(round).is_whole
            }
        };
        let references = last.as_ref().map(|last| &last.key_sets);
        key_sets.follow(references.unwrap_or(&BTreeMap::new()), &leader.missed_keys());
        let pause = if is_whole { TICK } else { RETRY };
        tokio::select! {
            () = bell.notified() => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(pause) => {}
            () = key_sets.changed() => {}
            () = shutdown.cancelled() => {}
        }
    }
}

/// The last resolution of everything.
struct Round {
    live: Live,
    key_sets: BTreeMap<Key, KeySource>,
    /// Whether all writes since then succeeded.
    is_whole: bool,
}

impl Round {
    /// Resolves everything, and writes what differs.
    async fn new(world: &mut World, leader: &mut Leader) -> Round {
        let now = corten_meta::time::rfc3339(corten_meta::time::now());
        let Resolution { resolved, live } = resolve::resolve_for(world.objects(), Some(&now));
        world.follow(&resolved.references);
        let is_whole = leader.write(world, &resolved).await;
        leader.record(&resolved.events);
        Round { live, key_sets: resolved.references.key_sets, is_whole }
    }

    /// Returns the statuses that follow from changes of routes; None if everything is to be resolved.
    fn update(&mut self, world: &World, changed: &ChangedRoutes) -> Option<Vec<WantedStatus>> {
        if changed.is_empty() {
            return Some(Vec::new());
        }
        let now = corten_meta::time::rfc3339(corten_meta::time::now());
        self.live.update(world.objects(), changed, Some(&now)).map(|update| update.statuses)
    }
}

/// Installs Gateway API, the namespace and the classes, trying until it succeeds; false at shutdown.
async fn install(client: &Client, shutdown: &CancellationToken) -> bool {
    loop {
        match install_once(client).await {
            Ok(()) => return true,
            Err(error) => tracing::info!(%error, "Gateway API cannot be installed yet"),
        }
        tokio::select! {
            () = tokio::time::sleep(RETRY) => {}
            () = shutdown.cancelled() => return false,
        }
    }
}

async fn install_once(client: &Client) -> Result<(), Error> {
    let definitions: Vec<Value> = crds::definitions().into_iter().chain([crate::issuer::definition()]).collect();
    corten_crds::install(client, &definitions, |installed, _| crds::is_newer(installed)).await?;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}});
    create(client, &Kind::new("", "v1", "namespaces", false), &namespace).await?;
    for object in lease_role() {
        let plural = if object["kind"] == "Role" { "roles" } else { "rolebindings" };
        create(client, &Kind::new("rbac.authorization.k8s.io", "v1", plural, true), &object).await?;
    }
    let class = json!({
        "apiVersion": format!("{}/v1", crds::GROUP),
        "kind": "GatewayClass",
        "metadata": {"name": CLASS},
        "spec": {"controllerName": CONTROLLER},
    });
    create(client, &kind_of("gatewayclasses"), &class).await?;
    let class = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": {"name": CLASS, "annotations": {"ingressclass.kubernetes.io/is-default-class": "true"}},
        "spec": {"controller": INGRESS_CONTROLLER},
    });
    create(client, &Kind::new("networking.k8s.io", "v1", "ingressclasses", false), &class).await
}

/// Creates an object unless it exists: its owner may have changed it.
async fn create(client: &Client, kind: &Kind, object: &Value) -> Result<(), Error> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default();
    match client.dynamic(kind).post(namespace, object).await {
        Err(error) if error.is_already_exists() => Ok(()),
        written => written,
    }
}

fn nodes() -> Kind {
    Kind::new("", "v1", "nodes", false)
}

fn roles() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "roles", true)
}

fn role_bindings() -> Kind {
    Kind::new("rbac.authorization.k8s.io", "v1", "rolebindings", true)
}

/// The caches of the leader beside those of the world, and its client.
struct Leader {
    config: Config,
    client: Client,
    leases: Arc<Cache>,
    nodes: Arc<Cache>,
    slices: Arc<Cache>,
    roles: Arc<Cache>,
    role_bindings: Arc<Cache>,
    key_sets: Arc<Cache>,
    /// The changes of Leases and Nodes, whose content [`Leader::nodes`] returns.
    of_nodes: Vec<Subscription>,
    /// The changes of objects that the leader writes.
    of_written: Vec<Subscription>,
    recorder: EventRecorder,
    /// The events that were written, so that each is written once.
    recorded: BTreeSet<(String, String)>,
    renewals: Renewals,
}

/// The times at which this process first saw each Lease as it is now.
///
/// A Lease expires by the clock of its reader, as leases of elections do. After an outage of the API server all Leases
/// are old; their nodes serve on, and get the time of a Lease to renew it.
#[derive(Default)]
struct Renewals(BTreeMap<String, Renewal>);

struct Renewal {
    renew_time: String,
    seen: Timestamp,
}

impl Renewals {
    /// Returns the Leases with the times at which they were seen in the place of their own.
    fn observe(&mut self, leases: Vec<Arc<Object>>, now: Timestamp) -> Vec<(String, Value)> {
        let mut renewals = BTreeMap::new();
        let mut observed = Vec::new();
        for lease in leases {
            let name = lease.header.name.clone();
            let mut value = lease.value();
            let renew_time = value["spec"]["renewTime"].as_str().unwrap_or_default().to_owned();
            let known = self.0.remove(&name).filter(|known| known.renew_time == renew_time);
            let renewal = known.unwrap_or(Renewal { renew_time, seen: now });
            value["spec"]["renewTime"] = corten_meta::time::rfc3339_micro(renewal.seen).into();
            observed.push((name.clone(), value));
            renewals.insert(name, renewal);
        }
        self.0 = renewals;
        observed
    }
}

impl Leader {
    /// Opens the watches, and waits until all of them are synced: a Lease or a Node that has not been read yet would take
    /// its node out of service. `None` at shutdown.
    async fn open(config: Config, client: Client, world: &World, shutdown: &CancellationToken) -> Option<Leader> {
        let caches = world.caches();
        let leases = caches.resource(&leases(), NAMESPACE, ListOptions::default());
        let nodes = caches.dynamic(&nodes());
        let slices = caches.resource(&endpoint_slices(), "", ListOptions::labels(format!("{OWNED_LABEL}=nodes")));
        let certificates = || ListOptions::labels(format!("{OWNED_LABEL}=certificates"));
        let roles = caches.resource(&roles(), "", certificates());
        let role_bindings = caches.resource(&role_bindings(), "", certificates());
        let key_sets =
            caches.resource(&config_maps(), NAMESPACE, ListOptions::labels(format!("{OWNED_LABEL}={KEYS_LABEL}")));
        for cache in [&leases, &nodes, &slices, &roles, &role_bindings, &key_sets] {
            tokio::select! {
                () = cache.synced() => {}
                () = shutdown.cancelled() => return None,
            }
        }
        let of_nodes = [&leases, &nodes].map(|cache| cache.subscribe_with(world.bell())).into();
        let of_written = [&slices, &roles, &role_bindings, &key_sets];
        let of_written = of_written.map(|cache| cache.subscribe_with(world.bell())).into();
        let recorder = EventRecorder::new(client.clone(), "gateway-controller", "");
        Some(Leader {
            config,
            client,
            leases,
            nodes,
            slices,
            roles,
            role_bindings,
            key_sets,
            of_nodes,
            of_written,
            recorder,
            recorded: BTreeSet::new(),
            renewals: Renewals::default(),
        })
    }

    /// Takes all changes that have arrived, and reports whether an object has changed that the leader writes.
    fn take_changes(&mut self) -> bool {
        for subscription in &mut self.of_nodes {
            while subscription.try_next().is_some() {}
        }
        let mut is_touched = false;
        for subscription in &mut self.of_written {
            while subscription.try_next().is_some() {
                is_touched = true;
            }
        }
        is_touched
    }

    /// Returns the nodes whose Lease has not expired, with the Gateways that they serve.
    fn nodes(&mut self, now: Timestamp) -> BTreeMap<String, DataNode> {
        let leases = self.renewals.observe(self.leases.all(), now);
        let node = |(name, lease): (String, Value)| {
            let node = self.nodes.get(&Key::new("", name.clone()))?;
            data_node(&lease, &node.value(), now).map(|node| (name, node))
        };
        leases.into_iter().filter_map(node).collect()
    }

    /// Returns the key sets in which nodes missed keys.
    fn missed_keys(&self) -> Missed {
        let mut missed = Missed::new();
        for lease in self.leases.all() {
            let value = lease.value();
            let reports = value["metadata"]["annotations"][MISSED_KEYS].as_str().unwrap_or_default();
            let reports: BTreeMap<String, String> = serde_json::from_str(reports).unwrap_or_default();
            for (set, report) in reports {
                missed.entry(set).or_default().insert(lease.header.name.clone(), report);
            }
        }
        missed
    }

    /// Writes events that are new. Those of objects that no longer cause them are forgotten.
    fn record(&mut self, events: &[WantedEvent]) {
        let identity = |event: &WantedEvent| (event.uid.clone(), event.message.clone());
        let wanted: BTreeSet<(String, String)> = events.iter().map(identity).collect();
        for event in events.iter().filter(|event| !self.recorded.contains(&identity(event))) {
            let about = ObjectRef {
                api_version: event.api_version.to_owned(),
                kind: event.kind.to_owned(),
                namespace: event.key.namespace.clone(),
                name: event.key.name.clone(),
                uid: event.uid.clone(),
                ..ObjectRef::default()
            };
            self.recorder.event(&about, EventType::Warning, event.reason, event.message.clone());
        }
        self.recorded = wanted;
    }

    /// Writes everything that differs, and reports whether all writes succeeded.
    async fn write(&self, world: &World, resolved: &Resolved) -> bool {
        let objects = world.objects();
        let allocated = resolve::allocate(&objects.services, &resolved.services, self.config.ports);
        let mut is_whole = true;
        for service in &allocated {
            let current = world.caches().dynamic(&services()).get(&service.key).map(|object| object.value());
            is_whole &= done(self.put(&services(), current, &service.object).await, "Service");
            if objects.services.get(&service.key).is_some_and(|service| resolve::is_owned(service)) {
                is_whole &= self.write_slices(objects, service).await;
            }
        }
        is_whole &= self.delete_services(objects, &allocated).await;
        is_whole &= self.write_roles(&resolved.references).await;
        is_whole &= self.delete_leases(corten_meta::time::now()).await;
        is_whole &= self.delete_key_sets(&resolved.references).await;
        is_whole & self.write_statuses(world, &resolved.statuses).await
    }

    /// Writes the statuses that follow from changes of routes, and deletes Leases that expired meanwhile.
    async fn write_changes(&self, world: &World, statuses: &[WantedStatus]) -> bool {
        let is_whole = self.delete_leases(corten_meta::time::now()).await;
        is_whole & self.write_statuses(world, statuses).await
    }

    async fn write_statuses(&self, world: &World, statuses: &[WantedStatus]) -> bool {
        let mut is_whole = true;
        for wanted in statuses {
            is_whole &= self.write_status(world, wanted).await;
        }
        is_whole
    }

    async fn write_slices(&self, objects: &crate::objects::Objects, service: &Allocated) -> bool {
        let mut is_whole = true;
        for slice in resolve::slices(objects, service) {
            let name = slice["metadata"]["name"].as_str().unwrap_or_default();
            let current = self.slices.get(&Key::new(service.key.namespace.clone(), name.to_owned()));
            let current = current.map(|object| object.value());
            is_whole &= done(self.put(&endpoint_slices(), current, &slice).await, "EndpointSlice");
        }
        is_whole
    }

    /// Creates an object, or changes the one that this controller made before.
    async fn put(&self, kind: &Kind, current: Option<Value>, wanted: &Value) -> Result<(), Error> {
        let namespace = wanted["metadata"]["namespace"].as_str().unwrap_or_default();
        let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
        match current {
            None => self.client.dynamic(kind).post(namespace, wanted).await,
            Some(current) if current["metadata"]["labels"][OWNED_LABEL].is_null() => Ok(()),
            Some(current) if covers(&current, wanted) => Ok(()),
            Some(current) => {
                let mut patch = wanted.clone();
                patch["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
                self.client.dynamic(kind).send_patch(namespace, name, &Patch::Merge(patch)).await
            }
        }
    }

    /// Deletes Services of Gateways that no longer want one.
    async fn delete_services(&self, objects: &crate::objects::Objects, allocated: &[Allocated]) -> bool {
        let mut is_whole = true;
        let is_stale = |key: &Key| !allocated.iter().any(|one| one.key == *key);
        for (key, service) in objects.services.iter().filter(|(key, _)| is_stale(key)) {
            if resolve::is_owned(service) && service.metadata.deletion_timestamp.is_none() {
                let options = DeleteOptions::uid(service.metadata.uid.clone());
                let deleted = self.client.dynamic(&services()).delete(&key.namespace, &key.name, &options).await;
                is_whole &= done(deleted, "Service");
            }
        }
        is_whole
    }

    /// Deletes the expired Leases of nodes that are gone.
    async fn delete_leases(&self, now: Timestamp) -> bool {
        let mut is_whole = true;
        for lease in self.leases.all() {
            let name = &lease.header.name;
            let is_gone = self.nodes.get(&Key::new("", name.clone())).is_none();
            if is_gone && is_expired(&lease.value(), now) {
                let options = DeleteOptions::uid(lease.header.uid.clone());
                let deleted = self.client.dynamic(&leases()).delete(NAMESPACE, name, &options).await;
                is_whole &= done(deleted, "Lease");
            }
        }
        is_whole
    }

    /// Deletes the keys that no policy names any longer.
    async fn delete_key_sets(&self, references: &References) -> bool {
        let mut is_whole = true;
        for stale in self.key_sets.all().iter().filter(|map| !references.config_maps.contains(&map.key())) {
            let options = DeleteOptions::uid(stale.header.uid.clone());
            let deleted = self.client.dynamic(&config_maps()).delete(NAMESPACE, &stale.header.name, &options).await;
            is_whole &= done(deleted, "ConfigMap");
        }
        is_whole
    }

    /// Allows data nodes to read the Secrets and ConfigMaps that are named, and no others.
    async fn write_roles(&self, references: &References) -> bool {
        let all = references.secrets.iter().chain(&references.config_maps);
        let namespaces: BTreeSet<&str> = all.map(|key| key.namespace.as_str()).collect();
        let mut is_whole = true;
        for namespace in &namespaces {
            let [role, binding] = role_in(namespace, references);
            let key = Key::new(*namespace, ROLE);
            let current = self.roles.get(&key).map(|object| object.value());
            is_whole &= done(self.put(&roles(), current, &role).await, "Role");
            if self.role_bindings.get(&key).is_none() {
                is_whole &= self.bind(&binding).await;
            }
        }
        for stale in self.roles.all().iter().filter(|role| !namespaces.contains(role.header.namespace.as_str())) {
            let options = DeleteOptions::uid(stale.header.uid.clone());
            let deleted = self.client.dynamic(&roles()).delete(&stale.header.namespace, ROLE, &options).await;
            is_whole &= done(deleted, "Role");
        }
        is_whole
    }

    /// Creates a RoleBinding. Its Role may be too new for the authorizer of the API server, which then does not find it:
    /// the binding is tried again.
    async fn bind(&self, binding: &Value) -> bool {
        match create(&self.client, &role_bindings(), binding).await {
            Err(error) if error.is_not_found() => false,
            created => done(created, "RoleBinding"),
        }
    }

    async fn write_status(&self, world: &World, wanted: &WantedStatus) -> bool {
        if world.objects().status(wanted.plural, &wanted.key).is_some_and(|current| covers(current, &wanted.status)) {
            return true;
        }
        let kind = kind_of(wanted.plural);
        let Some(current) = world.caches().dynamic(&kind).get(&wanted.key).map(|object| object.value()) else {
            return true;
        };
        if covers(&current["status"], &wanted.status) {
            return true;
        }
        let patch = json!({
            "metadata": {"resourceVersion": current["metadata"]["resourceVersion"]},
            "status": wanted.status,
        });
        let written = self.client.dynamic(&kind);
        let written =
            written.patch(&wanted.key.namespace, &wanted.key.name, &Patch::Merge(patch), Some("status")).await;
        done(written.map(drop), "status")
    }
}

/// Logs an error, and reports whether there was none. An object that is gone, or that another writer changed before,
/// is no failure: the cache shows it soon.
fn done(written: Result<(), Error>, what: &str) -> bool {
    match written {
        Ok(()) => true,
        Err(error) if error.is_not_found() || error.is_already_exists() => true,
        Err(error) if error.is_conflict() => false,
        Err(error) => {
            tracing::warn!(%error, "cannot write a {what}");
            false
        }
    }
}

/// Returns the Role and RoleBinding by which data nodes read the named objects of a namespace.
fn role_in(namespace: &str, references: &References) -> [Value; 2] {
    let names = |keys: &BTreeSet<Key>| -> Vec<String> {
        keys.iter().filter(|key| key.namespace == namespace).map(|key| key.name.clone()).collect()
    };
    let rule = |resource: &str, names: Vec<String>| {
        let verbs = ["get", "list", "watch"];
        (!names.is_empty())
            .then(|| json!({"apiGroups": [""], "resources": [resource], "resourceNames": names, "verbs": verbs}))
    };
    let rules = [rule("secrets", names(&references.secrets)), rule("configmaps", names(&references.config_maps))];
    let metadata = json!({"name": ROLE, "namespace": namespace, "labels": {OWNED_LABEL: "certificates"}});
    let group = "rbac.authorization.k8s.io";
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata,
        "rules": rules.into_iter().flatten().collect::<Vec<_>>(),
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": ROLE},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": DATA_GROUP}],
    });
    [role, binding]
}

/// Returns the Role and RoleBinding by which data nodes write their Leases.
fn lease_role() -> [Value; 2] {
    let group = "rbac.authorization.k8s.io";
    let metadata = json!({"name": "corten-edge-leases", "namespace": NAMESPACE});
    let verbs = ["get", "create", "patch", "delete"];
    let role = json!({
        "apiVersion": format!("{group}/v1"), "kind": "Role", "metadata": metadata,
        "rules": [{"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": verbs}],
    });
    let binding = json!({
        "apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": metadata,
        "roleRef": {"apiGroup": group, "kind": "Role", "name": "corten-edge-leases"},
        "subjects": [{"apiGroup": group, "kind": "Group", "name": DATA_GROUP}],
    });
    [role, binding]
}

/// Reports whether a Lease has expired. One without a time has.
fn is_expired(lease: &Value, now: Timestamp) -> bool {
    let spec = &lease["spec"];
    let renewed = spec["renewTime"].as_str().and_then(|time| time.parse::<Timestamp>().ok());
    let seconds = spec["leaseDurationSeconds"].as_i64().unwrap_or_default();
    renewed.is_none_or(|renewed| now.as_second() - renewed.as_second() > seconds)
}

/// Returns the generations that a node serves by its Lease; None if the Lease has expired.
pub fn served_by(lease: &Value, now: Timestamp) -> Option<BTreeMap<Key, i64>> {
    if is_expired(lease, now) {
        return None;
    }
    let serves = lease["metadata"]["annotations"][SERVES].as_str()?;
    let serves: BTreeMap<String, i64> = serde_json::from_str(serves).ok()?;
    let key = |text: &str| match text.split_once('/') {
        Some((namespace, name)) => Key::new(namespace, name),
        None => Key::new("", text),
    };
    Some(serves.iter().map(|(text, generation)| (key(text), *generation)).collect())
}

/// Returns a data node by its Lease and its Node; None if the Lease has expired.
fn data_node(lease: &Value, node: &Value, now: Timestamp) -> Option<DataNode> {
    let serves = served_by(lease, now)?;
    let addresses = node["status"]["addresses"].as_array().into_iter().flatten();
    let internal = addresses.filter(|address| address["type"] == "InternalIP");
    Some(DataNode {
        addresses: internal.filter_map(|address| address["address"].as_str()?.parse::<IpAddr>().ok()).collect(),
        serves,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_that_was_old_when_it_was_first_seen_has_its_time_to_be_renewed() {
        let lease = |renew_time: &str| {
            let value = json!({
                "metadata": {"name": "a", "annotations": {SERVES: "{}"}},
                "spec": {"renewTime": renew_time, "leaseDurationSeconds": 40},
            });
            Arc::new(Object::from_value(&value, 1).expect("an object"))
        };
        let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
        let mut renewals = Renewals::default();
        let mut is_alive = |second: i64, renew_time: &str| {
            let now = start + jiff::SignedDuration::from_secs(second);
            let observed = renewals.observe(vec![lease(renew_time)], now);
            observed.iter().all(|(_, lease)| served_by(lease, now).is_some())
        };
        assert!(is_alive(0, "2025-12-31T00:00:00.000000Z"));
        assert!(is_alive(40, "2025-12-31T00:00:00.000000Z"));
        assert!(!is_alive(41, "2025-12-31T00:00:00.000000Z"));
        assert!(is_alive(50, "2025-12-31T00:10:00.000000Z"), "a renewal counts, whatever the clock of its node says");
    }

    #[test]
    fn a_node_is_ready_until_its_lease_expires() {
        let lease = json!({
            "metadata": {"annotations": {SERVES: "{\"a/b\": 3, \"corten\": 1}"}},
            "spec": {"renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 40},
        });
        let node = json!({"status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.1"}]}});
        let at = |second: i64| {
            let start: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
            data_node(&lease, &node, start + jiff::SignedDuration::from_secs(second))
        };
        let ready = at(40).expect("the node is ready");
        assert_eq!(ready.addresses, ["192.0.2.1".parse::<IpAddr>().expect("an address")]);
        assert_eq!(ready.serves.get(&Key::new("a", "b")), Some(&3));
        assert_eq!(ready.serves.get(&Key::new("", "corten")), Some(&1));
        assert_eq!(at(41), None);
    }
}
