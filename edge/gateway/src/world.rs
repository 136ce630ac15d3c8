//! The objects of the cluster as both halves see them: watched, decoded once, and given to [`crate::resolve`].
//!
//! Secrets and ConfigMaps are watched one by one, by name, and only those that a route, Gateway or Ingress names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Caches, Change, Client, Fed, ListOptions, Resource as Kind, Subscription};
use corten_meta::{Key, Value};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::crds::{GROUP, POLICY_GROUP, POLICY_VERSION};
use crate::objects::{Objects, Store, decode_object};
use crate::resolve::{ChangedRoutes, References, RouteName};

/// The parts of objects that a half of the front door reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// All of them.
    Whole,
    /// All but statuses: data nodes write none, and a change of a status is no change to them.
    Routing,
}

/// The objects that have changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    /// The routes of HTTP and gRPC that have.
    pub routes: ChangedRoutes,
    /// Whether another object has.
    pub others: bool,
}

/// Takes the change of an object over into its store, and reports whether the view of it has changed.
type Keep = fn(&mut Objects, &Change, View) -> bool;

/// A watched resource, and where its objects are kept.
struct Watched {
    kind: Kind,
    keep: Keep,
}

/// Returns the resource of Gateway API with a plural name.
pub fn gateway_api(plural: &str) -> Kind {
    Kind::new(GROUP, "v1", plural, plural != "gatewayclasses")
}

/// Returns the resource that a status is written to.
pub fn kind_of(plural: &str) -> Kind {
    match plural {
        "ingresses" => Kind::new("networking.k8s.io", "v1", "ingresses", true),
        "routepolicies" => Kind::new(POLICY_GROUP, POLICY_VERSION, "routepolicies", true),
        plural => gateway_api(plural),
    }
}

pub fn services() -> Kind {
    Kind::new("", "v1", "services", true)
}

pub fn endpoint_slices() -> Kind {
    Kind::new("discovery.k8s.io", "v1", "endpointslices", true)
}

fn watched() -> Vec<Watched> {
    let of = |kind: Kind, keep: Keep| Watched { kind, keep };
    vec![
        of(gateway_api("gatewayclasses"), |objects, change, view| keep(&mut objects.classes, change, view)),
        of(gateway_api("gateways"), |objects, change, view| keep(&mut objects.gateways, change, view)),
        of(gateway_api("listenersets"), |objects, change, view| keep(&mut objects.listener_sets, change, view)),
        of(gateway_api("httproutes"), |objects, change, view| keep(&mut objects.http_routes, change, view)),
        of(gateway_api("grpcroutes"), |objects, change, view| keep(&mut objects.grpc_routes, change, view)),
        of(gateway_api("tlsroutes"), |objects, change, view| keep(&mut objects.tls_routes, change, view)),
        of(gateway_api("tcproutes"), |objects, change, view| keep(&mut objects.tcp_routes, change, view)),
        of(gateway_api("udproutes"), |objects, change, view| keep(&mut objects.udp_routes, change, view)),
        of(gateway_api("referencegrants"), |objects, change, view| keep(&mut objects.grants, change, view)),
        of(gateway_api("backendtlspolicies"), |objects, change, view| keep(&mut objects.policies, change, view)),
        of(kind_of("routepolicies"), |objects, change, view| keep(&mut objects.route_policies, change, view)),
        of(kind_of("ingresses"), |objects, change, view| keep(&mut objects.ingresses, change, view)),
        of(Kind::new("networking.k8s.io", "v1", "ingressclasses", false), |objects, change, view| {
            keep(&mut objects.ingress_classes, change, view)
        }),
        of(services(), |objects, change, view| keep(&mut objects.services, change, view)),
        of(Kind::new("", "v1", "namespaces", false), |objects, change, view| {
            keep(&mut objects.namespaces, change, view)
        }),
    ]
}

/// Returns the kinds that routes depend on, Secrets and ConfigMaps apart.
pub fn kinds() -> Vec<Kind> {
    watched().into_iter().map(|one| one.kind).collect()
}

/// Keeps an object by the plural name of its kind, as the watches do. Other kinds are left out.
pub fn keep_by_plural(objects: &mut Objects, plural: &str, change: &Change) {
    match plural {
        "secrets" => {
            ByName::Secret.keep(objects, change);
        }
        "configmaps" => {
            ByName::ConfigMap.keep(objects, change);
        }
        plural => {
            if let Some(known) = watched().into_iter().find(|one| one.kind.plural == plural) {
                (known.keep)(objects, change, View::Whole);
            }
        }
    }
}

fn keep<S: DeserializeOwned + Default>(store: &mut Store<S>, change: &Change, view: View) -> bool {
    let decoded = change.new.as_ref().and_then(|object| decode_object(object));
    let Some(mut object) = decoded else { return store.remove(&change.key).is_some() };
    if view == View::Routing {
        object.status = Value::Null;
        object.metadata.resource_version = String::new();
        if store.get(&change.key).is_some_and(|known| known.metadata.is_same_spec(&object.metadata)) {
            return false;
        }
    }
    store.insert(change.key.clone(), Arc::new(object));
    true
}

/// The pause before the API server is asked again for Gateway API.
const DISCOVERY_PAUSE: Duration = Duration::from_millis(200);

/// Waits until the API server serves all kinds of Gateway API; false at shutdown.
async fn served(client: &Client, shutdown: &CancellationToken) -> bool {
    loop {
        if serves(client, GROUP, "v1").await && serves(client, POLICY_GROUP, POLICY_VERSION).await {
            return true;
        }
        tokio::select! {
            () = tokio::time::sleep(DISCOVERY_PAUSE) => {}
            () = shutdown.cancelled() => return false,
        }
    }
}

/// Reports whether the API server serves all kinds of a group that are watched.
async fn serves(client: &Client, group: &str, version: &str) -> bool {
    let Ok(answer) = client.get_raw(&format!("/apis/{group}/{version}")).await else { return false };
    let list: Value = serde_json::from_slice(&answer).unwrap_or_default();
    let has = |plural: &str| list["resources"].as_array().into_iter().flatten().any(|one| one["name"] == plural);
    watched().iter().filter(|one| one.kind.group == group).all(|one| has(&one.kind.plural))
}

/// A kind whose objects are watched by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ByName {
    Secret,
    ConfigMap,
}

impl ByName {
    fn kind(self) -> Kind {
        let plural = if self == ByName::Secret { "secrets" } else { "configmaps" };
        Kind::new("", "v1", plural, true)
    }

    fn keep(self, objects: &mut Objects, change: &Change) -> bool {
        match self {
            ByName::Secret => keep(&mut objects.secrets, change, View::Whole),
            ByName::ConfigMap => keep(&mut objects.config_maps, change, View::Whole),
        }
    }
}

/// A watch of one object.
struct OneObject {
    cache: Arc<Cache>,
    subscription: Subscription,
    /// Whether the object has been read, or was found not to exist.
    is_read: bool,
    stop: CancellationToken,
}

impl OneObject {
    /// Reads an object, and rings the bell once it has been read, also if it does not exist.
    fn new(caches: &Caches, kind: ByName, key: &Key, bell: &Arc<Notify>, stop: CancellationToken) -> OneObject {
        let options = ListOptions::fields(format!("metadata.name={}", key.name));
        let cache = caches.resource(&kind.kind(), &key.namespace, options);
        let subscription = cache.subscribe_with(bell);
        let (read, bell) = (Arc::clone(&cache), Arc::clone(bell));
        let stopped = stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = read.synced() => bell.notify_one(),
                () = stopped.cancelled() => {}
            }
        });
        OneObject { cache, subscription, is_read: false, stop }
    }
}

/// Returns the Secrets and ConfigMaps that are named.
fn wanted(references: &References) -> BTreeSet<(ByName, Key)> {
    let secrets = references.secrets.iter().map(|key| (ByName::Secret, key.clone()));
    let config_maps = references.config_maps.iter().map(|key| (ByName::ConfigMap, key.clone()));
    secrets.chain(config_maps).collect()
}

/// The changes of a watched resource.
struct Followed {
    subscription: Subscription,
    keep: Keep,
    /// The kind of HTTPRoutes and GRPCRoutes.
    route_kind: Option<&'static str>,
}

/// Returns the kind of routes whose changes are listed one by one, by the plural name.
fn route_kind(plural: &str) -> Option<&'static str> {
    match plural {
        "httproutes" => Some("HTTPRoute"),
        "grpcroutes" => Some("GRPCRoute"),
        _ => None,
    }
}

/// A watch whose first list may still be on its way.
enum Opened {
    /// The leader compares what it writes with the objects as they are.
    Cache(Arc<Cache>),
    /// A data node keeps what it resolved, and no second copy.
    Feed(Fed),
}

impl Opened {
    fn new(caches: &Caches, watched: &Watched, view: View, bell: &Arc<Notify>) -> Opened {
        match view {
            View::Whole => Opened::Cache(caches.dynamic(&watched.kind)),
            View::Routing => Opened::Feed(caches.feed(&watched.kind, bell)),
        }
    }

    /// Waits for the first list, and returns all changes from then on.
    async fn synced(self, bell: &Arc<Notify>) -> Subscription {
        match self {
            Opened::Cache(cache) => {
                cache.synced().await;
                cache.subscribe_with(bell)
            }
            Opened::Feed(fed) => {
                fed.feed.synced().await;
                fed.subscription
            }
        }
    }
}

/// The objects, kept current.
pub struct World {
    caches: Caches,
    view: View,
    shutdown: CancellationToken,
    bell: Arc<Notify>,
    subscriptions: Vec<Followed>,
    by_name: BTreeMap<(ByName, Key), OneObject>,
    objects: Objects,
}

impl World {
    /// Opens the watches, and waits until all of them are synced; `None` at shutdown.
    pub async fn open(client: Client, view: View, shutdown: CancellationToken) -> Option<World> {
        if !served(&client, &shutdown).await {
            return None;
        }
        let caches = Caches::new(client, shutdown.clone());
        let bell = Arc::new(Notify::new());
        let watched = watched();
        let opened: Vec<Opened> = watched.iter().map(|one| Opened::new(&caches, one, view, &bell)).collect();
        let mut subscriptions = Vec::new();
        for (opened, one) in opened.into_iter().zip(&watched) {
            let subscription = tokio::select! {
                subscription = opened.synced(&bell) => subscription,
                () = shutdown.cancelled() => return None,
            };
            subscriptions.push(Followed { subscription, keep: one.keep, route_kind: route_kind(&one.kind.plural) });
        }
        let objects = Objects::default();
        let mut world = World { caches, view, shutdown, bell, subscriptions, by_name: BTreeMap::new(), objects };
        world.take_changes();
        Some(world)
    }

    pub fn caches(&self) -> &Caches {
        &self.caches
    }

    /// The bell that rings on every change. A caller with further subscriptions shares it.
    pub fn bell(&self) -> &Arc<Notify> {
        &self.bell
    }

    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    pub fn objects_mut(&mut self) -> &mut Objects {
        &mut self.objects
    }

    /// Takes all changes that have arrived, and reports those that the view has.
    pub fn take_changes(&mut self) -> Changed {
        let mut changed = Changed::default();
        for Followed { subscription, keep, route_kind } in &mut self.subscriptions {
            while let Some(change) = subscription.try_next() {
                if !keep(&mut self.objects, &change, self.view) {
                    continue;
                }
                match *route_kind {
                    Some(kind) => drop(changed.routes.insert(RouteName { kind, key: change.key })),
                    None => changed.others = true,
                }
            }
        }
        for ((kind, _), one) in &mut self.by_name {
            let was_read = std::mem::replace(&mut one.is_read, one.cache.is_synced());
            changed.others |= one.is_read != was_read;
            while let Some(change) = one.subscription.try_next() {
                changed.others |= kind.keep(&mut self.objects, &change);
            }
        }
        changed
    }

    /// Reports whether Secrets or ConfigMaps are followed.
    pub fn is_following(&self) -> bool {
        !self.by_name.is_empty()
    }

    /// Waits until the Secrets and ConfigMaps that are followed have been read. One that may not be read yet keeps it
    /// waiting, so the caller sets a time limit.
    pub async fn followed(&self) {
        for one in self.by_name.values() {
            one.cache.synced().await;
        }
    }

    /// Reports whether these Secrets and ConfigMaps have been read. One that may not be read yet has not.
    pub fn has_read(&self, references: &References) -> bool {
        wanted(references).iter().all(|place| self.by_name.get(place).is_some_and(|one| one.is_read))
    }

    /// Watches the Secrets and ConfigMaps that are named now, and no others.
    pub fn follow(&mut self, references: &References) {
        let wanted = wanted(references);
        let objects = &mut self.objects;
        self.by_name.retain(|place, one| {
            let stays = wanted.contains(place);
            if !stays {
                one.stop.cancel();
                let (kind, key) = place;
                kind.keep(objects, &Change { key: key.clone(), old: None, new: None });
            }
            stays
        });
        for place in wanted {
            if self.by_name.contains_key(&place) {
                continue;
            }
            let stop = self.shutdown.child_token();
            let caches = Caches::new(self.caches.client().clone(), stop.clone());
            let one = OneObject::new(&caches, place.0, &place.1, &self.bell, stop);
            self.by_name.insert(place, one);
        }
    }
}

#[cfg(test)]
mod tests {
    use corten_meta::Object;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_of_a_status_alone_is_no_change_of_routes() {
        let mut objects = Objects::default();
        let mut is_changed = |generation: i64, annotation: &str, status: &str, view: View| {
            let value = json!({
                "apiVersion": "gateway.networking.k8s.io/v1", "kind": "HTTPRoute",
                "metadata": {"name": "a", "namespace": "b", "generation": generation, "annotations": {"c": annotation}},
                "spec": {"hostnames": ["d.test"]},
                "status": {"parents": [{"controllerName": status}]},
            });
            let object = Object::from_value(&value, 7).map(Arc::new).ok();
            let change = Change { key: Key::new("b", "a"), old: None, new: object };
            keep(&mut objects.http_routes, &change, view)
        };
        assert!(is_changed(1, "", "one", View::Routing));
        assert!(!is_changed(1, "", "two", View::Routing));
        assert!(is_changed(1, "x", "two", View::Routing));
        assert!(is_changed(2, "x", "two", View::Routing));
        assert!(is_changed(2, "x", "three", View::Whole));
        let route = objects.http_routes.get(&Key::new("b", "a")).expect("the route");
        assert_eq!(route.metadata.resource_version, "7");
        assert_eq!(route.status["parents"][0]["controllerName"], "three");
    }

    #[test]
    fn an_object_without_a_generation_always_changes() {
        let mut objects = Objects::default();
        let value = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a", "namespace": "b"}});
        let object = Object::from_value(&value, 7).map(Arc::new).ok();
        let change = Change { key: Key::new("b", "a"), old: None, new: object };
        assert!(keep(&mut objects.services, &change, View::Routing));
        assert!(keep(&mut objects.services, &change, View::Routing));
        assert!(keep(&mut objects.services, &Change { new: None, ..change.clone() }, View::Routing));
        assert!(!keep(&mut objects.services, &Change { new: None, ..change }, View::Routing));
    }
}
