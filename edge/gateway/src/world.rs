//! The objects of the cluster as both halves see them: watched, decoded once, and given to [`crate::resolve`].
//!
//! Secrets and ConfigMaps are watched one by one, by name, and only those that a route, Gateway or Ingress names.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use corten_client::{Cache, Caches, Change, Client, ListOptions, Resource as Kind, Subscription};
use corten_meta::{Key, Value};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::crds::{GROUP, POLICY_GROUP, POLICY_VERSION};
use crate::objects::{Objects, Store, decode};
use crate::resolve::References;

/// Takes the change of an object over into its store.
type Keep = fn(&mut Objects, &Change);

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
        of(gateway_api("gatewayclasses"), |objects, change| keep(&mut objects.classes, change)),
        of(gateway_api("gateways"), |objects, change| keep(&mut objects.gateways, change)),
        of(gateway_api("listenersets"), |objects, change| keep(&mut objects.listener_sets, change)),
        of(gateway_api("httproutes"), |objects, change| keep(&mut objects.http_routes, change)),
        of(gateway_api("grpcroutes"), |objects, change| keep(&mut objects.grpc_routes, change)),
        of(gateway_api("tlsroutes"), |objects, change| keep(&mut objects.tls_routes, change)),
        of(gateway_api("tcproutes"), |objects, change| keep(&mut objects.tcp_routes, change)),
        of(gateway_api("udproutes"), |objects, change| keep(&mut objects.udp_routes, change)),
        of(gateway_api("referencegrants"), |objects, change| keep(&mut objects.grants, change)),
        of(gateway_api("backendtlspolicies"), |objects, change| keep(&mut objects.policies, change)),
        of(kind_of("routepolicies"), |objects, change| keep(&mut objects.route_policies, change)),
        of(kind_of("ingresses"), |objects, change| keep(&mut objects.ingresses, change)),
        of(Kind::new("networking.k8s.io", "v1", "ingressclasses", false), |objects, change| {
            keep(&mut objects.ingress_classes, change);
        }),
        of(services(), |objects, change| keep(&mut objects.services, change)),
        of(Kind::new("", "v1", "namespaces", false), |objects, change| keep(&mut objects.namespaces, change)),
    ]
}

/// Returns the kinds that routes depend on, Secrets and ConfigMaps apart.
pub fn kinds() -> Vec<Kind> {
    watched().into_iter().map(|one| one.kind).collect()
}

/// Keeps an object by the plural name of its kind, as the watches do. Other kinds are left out.
pub fn keep_by_plural(objects: &mut Objects, plural: &str, change: &Change) {
    match plural {
        "secrets" => ByName::Secret.keep(objects, change),
        "configmaps" => ByName::ConfigMap.keep(objects, change),
        plural => {
            if let Some(known) = watched().into_iter().find(|one| one.kind.plural == plural) {
                (known.keep)(objects, change);
            }
        }
    }
}

fn keep<S: DeserializeOwned + Default>(store: &mut Store<S>, change: &Change) {
    let decoded = change.new.as_ref().and_then(|object| decode(object.value()));
    match decoded {
        Some(object) => store.insert(change.key.clone(), Arc::new(object)),
        None => store.remove(&change.key),
    };
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

    fn keep(self, objects: &mut Objects, change: &Change) {
        match self {
            ByName::Secret => keep(&mut objects.secrets, change),
            ByName::ConfigMap => keep(&mut objects.config_maps, change),
        }
    }
}

/// A watch of one object.
struct OneObject {
    cache: Arc<Cache>,
    subscription: Subscription,
    stop: CancellationToken,
}

/// The objects, kept current.
pub struct World {
    caches: Caches,
    shutdown: CancellationToken,
    bell: Arc<Notify>,
    subscriptions: Vec<(Subscription, Keep)>,
    by_name: BTreeMap<(ByName, Key), OneObject>,
    objects: Objects,
}

impl World {
    /// Opens the watches, and waits until all of them are synced; `None` at shutdown.
    pub async fn open(client: Client, shutdown: CancellationToken) -> Option<World> {
        if !served(&client, &shutdown).await {
            return None;
        }
        let caches = Caches::new(client, shutdown.clone());
        let bell = Arc::new(Notify::new());
        let watched = watched();
        let opened: Vec<Arc<Cache>> = watched.iter().map(|one| caches.dynamic(&one.kind)).collect();
        for cache in &opened {
            tokio::select! {
                () = cache.synced() => {}
                () = shutdown.cancelled() => return None,
            }
        }
        let subscriptions =
            opened.iter().zip(&watched).map(|(cache, one)| (cache.subscribe_with(&bell), one.keep)).collect();
        let mut world =
            World { caches, shutdown, bell, subscriptions, by_name: BTreeMap::new(), objects: Objects::default() };
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

    /// Takes all changes that have arrived, and reports whether there was one.
    pub fn take_changes(&mut self) -> bool {
        let mut any = false;
        for (subscription, keep) in &mut self.subscriptions {
            while let Some(change) = subscription.try_next() {
                keep(&mut self.objects, &change);
                any = true;
            }
        }
        for ((kind, _), one) in &mut self.by_name {
            while let Some(change) = one.subscription.try_next() {
                kind.keep(&mut self.objects, &change);
                any = true;
            }
        }
        any
    }

    /// Waits until the Secrets and ConfigMaps that are followed have been read. One that may not be read yet keeps it
    /// waiting, so the caller sets a time limit.
    pub async fn followed(&self) {
        for one in self.by_name.values() {
            one.cache.synced().await;
        }
    }

    /// Watches the Secrets and ConfigMaps that are named now, and no others.
    pub fn follow(&mut self, references: &References) {
        let secrets = references.secrets.iter().map(|key| (ByName::Secret, key.clone()));
        let config_maps = references.config_maps.iter().map(|key| (ByName::ConfigMap, key.clone()));
        let wanted: BTreeSet<(ByName, Key)> = secrets.chain(config_maps).collect();
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
            let (kind, key) = &place;
            let stop = self.shutdown.child_token();
            let caches = Caches::new(self.caches.client().clone(), stop.clone());
            let options = ListOptions::fields(format!("metadata.name={}", key.name));
            let cache = caches.resource(&kind.kind(), &key.namespace, options);
            let subscription = cache.subscribe_with(&self.bell);
            self.by_name.insert(place, OneObject { cache, subscription, stop });
        }
    }
}
