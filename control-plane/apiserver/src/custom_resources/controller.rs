//! The controller of CustomResourceDefinitions: it accepts their names, makes kinds of their served versions, and
//! replaces the table of resources and discovery. It never handles requests; those use only the table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use corten_api::Kind;
use corten_managed_fields::own_status;
use corten_meta::{Object, Status, Value};
use corten_store::Expect;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::crd::{self, Names, Taken};
use super::known::{Kinds, Known};
use super::{GROUP, PLURAL, finalizer};
use crate::discovery::Published;
use crate::follow::follow;
use crate::registry::conversion_webhook::is_unresolved;
use crate::registry::{Registry, Resource, Written};

/// The controller of CustomResourceDefinitions.
pub struct Controller {
    registry: Arc<Registry>,
    published: Arc<Published>,
    /// The kinds of measured resources, published with the custom ones.
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

    /// Watches the CustomResourceDefinitions until shutdown.
    pub async fn run(&self, shutdown: &CancellationToken) {
        let reconcile = || -> futures::future::BoxFuture<'_, _> {
            Box::pin(async { finalizer::finalize_all(&self.registry, self.reconcile().await?).await })
        };
        follow(&self.registry, GROUP, PLURAL, &reconcile, shutdown).await;
    }

    /// Waits until discovery lists the kinds of every CustomResourceDefinition that is established.
    pub async fn settled(&self) {
        drop(self.kinds.establishing.read().await);
    }

    /// Reconciles status, resource table and discovery with the CRDs. Doing it twice is harmless.
    ///
    /// Returns the CRDs that are being deleted.
    pub async fn reconcile(&self) -> Result<Vec<Arc<Known>>, Status> {
        let resource = self.registry.required(GROUP, "v1", PLURAL)?;
        let mut kinds: BTreeMap<String, Arc<Kind>> = BTreeMap::new();
        let mut crds: Vec<Arc<Known>> =
            self.registry.cached_list(GROUP, "v1", PLURAL, "").iter().map(|object| self.kinds.of(object)).collect();
        // The oldest CRD keeps its names.
        crds.sort_by_key(|known| known.object.header.creation_timestamp);
        // Names that are accepted here are taken for the next CRD already.
        let mut newly_accepted: Vec<Names> = Vec::new();
        let mut updates: Vec<(&Object, Value)> = Vec::new();
        let mut terminating: Vec<Arc<Known>> = Vec::new();
        for known in &crds {
            let object = &known.object;
            let is_being_deleted = object.header.deletion_timestamp.is_some();
            if is_being_deleted {
                terminating.push(Arc::clone(known));
            }
            // The resource stays served during deletion, so that clients can remove finalizers from its objects and the
            // CRD.
            let mut is_served = known.is_served;
            let mut own = known.made().kinds.clone();
            if !is_being_deleted && !known.names.are_settled() {
                let crd = object.value();
                let names = crds.iter().map(|known| &known.names).chain(&newly_accepted);
                let taken = Taken::in_group(&known.names.group, names);
                let now = jiff::Timestamp::now();
                if let Some(mut accepted) = crd::accepted(&crd, &taken, now) {
                    own_status(&resource.kind, &crd, &mut accepted, now);
                    is_served = crd::is_served(&accepted);
                    own = known.kinds(&accepted);
                    newly_accepted.push(Names::of(&accepted));
                    updates.push((object, accepted));
                }
            }
            // A CRD never replaces a built-in kind.
            if is_served && !own.iter().any(|kind| self.registry.is_built_in(&kind.group, &kind.plural)) {
                let path = |kind: &Kind| format!("{}/{}/{}", kind.group, kind.version, kind.plural);
                kinds.extend(own.into_iter().map(|kind| (path(&kind), kind)));
            }
        }
        self.kinds.forget_others(&crds);
        // Kinds of measured resources change as custom ones do, and are published with them.
        let kinds: Vec<Arc<Kind>> = kinds.into_values().chain(self.measured.iter().cloned()).collect();
        let usable = kinds.iter().filter(|kind| !is_unresolved(kind));
        let described: Vec<Arc<Kind>> = usable.chain(self.registry.built_in_custom()).cloned().collect();
        self.published.describe(&described);
        self.registry.set_custom(kinds).await?;
        // A CRD that replaces a deleted one starts anew.
        for known in crds.iter().filter(|known| known.object.header.deletion_timestamp.is_none()) {
            known.made().kinds.iter().for_each(|kind| restart(&self.registry, kind));
        }
        // A client that sees an established CRD finds its kinds in discovery, and a client that finds the kinds can
        // update the CRD without a conflict with this status: discovery waits for the write.
        let establishing = self.kinds.establishing.write().await;
        let established = accept_all(&self.registry, &resource, updates).await;
        self.published.publish_custom(self.kinds.terminating(), self.kinds.announced());
        drop(establishing);
        self.changed.notify_one();
        established?;
        Ok(terminating)
    }
}

fn restart(registry: &Registry, kind: &Kind) {
    let resource = registry.resource(&kind.group, &kind.version, &kind.plural);
    if let Some(stored) = resource.as_ref().and_then(|resource| resource.stored.as_ref()) {
        stored.cache.is_terminating.store(false, Ordering::SeqCst);
    }
}

async fn accept_all(registry: &Registry, resource: &Resource, accepted: Vec<(&Object, Value)>) -> Result<(), Status> {
    for (object, accepted) in accepted {
        accept(registry, resource, object, &accepted).await?;
    }
    Ok(())
}

/// Writes the conditions of a CRD.
async fn accept(registry: &Registry, resource: &Resource, object: &Object, accepted: &Value) -> Result<(), Status> {
    let expect = Expect::ModRevision(object.revision);
    match registry.write(resource, accepted, expect, Vec::new()).await? {
        Written::Done(_) => Ok(()),
        // Another client changed the CRD, and this controller reconciles that change again.
        Written::Conflict | Written::CompanionConflict => Ok(()),
    }
}
