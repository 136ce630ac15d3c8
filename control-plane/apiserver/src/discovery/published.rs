//! The published discovery and OpenAPI documents, kept current while kinds are added and removed.

use std::collections::{BTreeSet, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use corten_api::Kind;

use super::groups::Discovery;
use super::openapi::OpenApi;
use super::remote::RemoteVersion;
use crate::registry::Registry;

/// The present discovery and OpenAPI.
pub struct Published {
    address: String,
    registry: Arc<Registry>,
    discovery: ArcSwap<Discovery>,
    openapi: Arc<OpenApi>,
    sources: Mutex<Sources>,
}

/// The inputs of discovery beside the registry.
#[derive(Default)]
struct Sources {
    /// The names of the CustomResourceDefinitions whose objects are being deleted.
    terminating: HashSet<String>,
    /// The group versions of CustomResourceDefinitions, established or not.
    announced: BTreeSet<(String, String)>,
    remote: Vec<RemoteVersion>,
}

impl Published {
    /// Makes the documents of a registry that is served at this address.
    pub fn new(address: String, registry: Arc<Registry>) -> Published {
        let sources = Sources::default();
        let resources = registry.resources();
        Published {
            discovery: ArcSwap::from_pointee(discovery(&address, &registry, &sources)),
            openapi: Arc::new(OpenApi::new(&resources.ordered)),
            sources: Mutex::new(sources),
            address,
            registry,
        }
    }

    pub fn discovery(&self) -> Arc<Discovery> {
        self.discovery.load_full()
    }

    pub fn openapi(&self) -> &Arc<OpenApi> {
        &self.openapi
    }

    /// Returns the group versions of CustomResourceDefinitions.
    pub fn announced(&self) -> BTreeSet<(String, String)> {
        self.sources().announced.clone()
    }

    /// Describes these custom kinds in OpenAPI from now on.
    pub fn describe(&self, kinds: &[Arc<Kind>]) {
        self.openapi.set_custom(kinds);
    }

    /// Publishes discovery with the present CustomResourceDefinitions.
    pub fn publish_custom(&self, terminating: HashSet<String>, announced: BTreeSet<(String, String)>) {
        let mut sources = self.sources();
        sources.terminating = terminating;
        sources.announced = announced;
        self.publish(&sources);
    }

    /// Publishes discovery and OpenAPI with the group versions of other servers.
    pub fn publish_remote(&self, remote: Vec<RemoteVersion>) {
        let mut sources = self.sources();
        self.openapi.set_remote(&remote);
        sources.remote = remote;
        self.publish(&sources);
    }

    fn publish(&self, sources: &Sources) {
        self.discovery.store(Arc::new(discovery(&self.address, &self.registry, sources)));
    }

    fn sources(&self) -> MutexGuard<'_, Sources> {
        self.sources.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn discovery(address: &str, registry: &Registry, sources: &Sources) -> Discovery {
    let resources = registry.resources();
    Discovery::new(address, &resources.ordered, &sources.remote, &sources.terminating, &sources.announced)
}
