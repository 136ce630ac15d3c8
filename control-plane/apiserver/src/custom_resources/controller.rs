//! The controller of CustomResourceDefinitions: it accepts their names, makes kinds of their served versions, and swaps
//! the table of resources and discovery. It never handles requests; those see only the table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use corten_api::Kind;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::definition::{self, Names, Taken};
use super::known::{Kinds, Known};
use super::{GROUP, PLURAL, ending};
use crate::discovery::Published;
use crate::follow::follow;
use crate::managed_fields::own_status;
use crate::registry::conversion_webhook::is_unresolved;
use crate::registry::{Registry, Resource, Written};

/// Makes kinds of CustomResourceDefinitions.
pub struct Controller {
    registry: Arc<Registry>,
    published: Arc<Published>,
    /// Kinds that are measured, and published with the custom ones.
    measured: Vec<Arc<Kind>>,
    /// Notified when the group versions of custom resources may have changed.
    changed: Arc<Notify>,
    kinds: Kinds,
}

impl Controller {
    pub fn new(
        registry: Arc<Registry>,
        published: Arc<Published>,
        measured: Vec<Arc<Kind>>,
        changed: Arc<Notify>,
    ) -> Controller {
        Controller { registry, published, measured, changed, kinds: Kinds::default() }
    }

    /// Follows the CustomResourceDefinitions until shutdown.
    pub async fn run(&self, shutdown: &CancellationToken) {
        let reconcile = || -> futures::future::BoxFuture<'_, _> {
            Box::pin(async { ending::end_all(&self.registry, self.reconcile().await?).await })
        };
        follow(&self.registry, GROUP, PLURAL, &reconcile, shutdown).await;
    }

    /// Waits until discovery lists the kinds of every CustomResourceDefinition that is established.
    pub async fn settled(&self) {
        drop(self.kinds.establishing.read().await);
    }

    /// Brings status, resource table and discovery in line with the definitions. Doing it twice is harmless.
    ///
    /// Gives the definitions that are on their way out.
    pub async fn reconcile(&self) -> Result<Vec<Arc<Known>>, Status> {
        let resource = self.registry.required(GROUP, "v1", PLURAL)?;
        let mut kinds: BTreeMap<String, Arc<Kind>> = BTreeMap::new();
        let mut definitions: Vec<Arc<Known>> =
            self.registry.cached_list(GROUP, "v1", PLURAL, "").iter().map(|object| self.kinds.of(object)).collect();
        // Who was first keeps its names.
        definitions.sort_by_key(|known| known.object.header.creation_timestamp);
        // Names that are given here count for the next already.
        let mut given: Vec<Names> = Vec::new();
        let mut told: Vec<(&Object, Value)> = Vec::new();
        let mut ending: Vec<Arc<Known>> = Vec::new();
        for known in &definitions {
            let object = &known.object;
            let is_ending = object.header.deletion_timestamp.is_some();
            if is_ending {
                ending.push(Arc::clone(known));
            }
            // Who holds an object or the definition back must be able to let it go.
            let mut is_served = known.is_served;
            let mut own = known.made().kinds.clone();
            if !is_ending && !known.names.are_settled() {
                let definition = object.value();
                let names = definitions.iter().map(|known| &known.names).chain(&given);
                let taken = Taken::in_group(&known.names.group, names);
                let now = jiff::Timestamp::now();
                if let Some(mut accepted) = definition::accepted(&definition, &taken, now) {
                    own_status(&resource, &definition, &mut accepted, now);
                    (is_served, own) = (definition::is_served(&accepted), known.kinds(&accepted));
                    given.push(Names::of(&accepted));
                    told.push((object, accepted));
                }
            }
            // A definition never takes the place of a built-in kind.
            if is_served && !own.iter().any(|kind| self.registry.is_built_in(&kind.group, &kind.plural)) {
                let path = |kind: &Kind| format!("{}/{}/{}", kind.group, kind.version, kind.plural);
                kinds.extend(own.into_iter().map(|kind| (path(&kind), kind)));
            }
        }
        self.kinds.forget_others(&definitions);
        // Measured kinds come and go like custom ones, and are published with them.
        let kinds: Vec<Arc<Kind>> = kinds.into_values().chain(self.measured.iter().cloned()).collect();
        let usable = kinds.iter().filter(|kind| !is_unresolved(kind));
        let described: Vec<Arc<Kind>> = usable.chain(self.registry.beside()).cloned().collect();
        self.published.describe(&described);
        self.registry.set_custom(kinds).await?;
        // One that took the place of another is at its beginning.
        for known in definitions.iter().filter(|known| known.object.header.deletion_timestamp.is_none()) {
            known.made().kinds.iter().for_each(|kind| begin(&self.registry, kind));
        }
        // A client that hears that a definition is established finds its kinds in discovery, and one that finds the kinds can
        // update the definition without a conflict with this status: discovery waits meanwhile.
        let establishing = self.kinds.establishing.write().await;
        let established = accept_all(&self.registry, &resource, told).await;
        self.published.publish_custom(self.kinds.terminating(), self.kinds.announced());
        drop(establishing);
        self.changed.notify_one();
        established?;
        Ok(ending)
    }
}

fn begin(registry: &Registry, kind: &Kind) {
    let resource = registry.resource(&kind.group, &kind.version, &kind.plural);
    if let Some(stored) = resource.as_ref().and_then(|resource| resource.stored.as_ref()) {
        stored.cache.is_ending.store(false, Ordering::SeqCst);
    }
}

async fn accept_all(registry: &Registry, resource: &Resource, accepted: Vec<(&Object, Value)>) -> Result<(), Status> {
    for (object, accepted) in accepted {
        accept(registry, resource, object, &accepted).await?;
    }
    Ok(())
}

/// Writes the conditions of a definition.
async fn accept(registry: &Registry, resource: &Resource, object: &Object, accepted: &Value) -> Result<(), Status> {
    let expect = Expect::ModRevision(object.revision);
    match registry.write(resource, accepted, expect, Vec::new()).await? {
        Written::Done(_) => Ok(()),
        // Somebody changed it meanwhile, which is a change that is seen here again.
        Written::Conflict | Written::CompanionConflict => Ok(()),
    }
}
