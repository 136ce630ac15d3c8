//! The table of all served resources.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, OnceLock};

use corten_api::{Kind, Storage};
use tokio_util::sync::CancellationToken;

use super::conversion_webhook::{self, ConversionWebhook};
use super::resource::{Resource, Stored};
use crate::cache::Caches;
use crate::error::Error;
use crate::outbound::Outbound;

/// The table of resources at a moment.
#[derive(Default)]
pub struct Resources {
    /// The resources by plural; several groups and versions may have the same one.
    by_plural: HashMap<String, Vec<Arc<Resource>>>,
    /// The resources in the order of the kind table, custom resources last.
    pub ordered: Vec<Arc<Resource>>,
}

impl Resources {
    /// Returns the resources of a plural, of every group and version.
    pub fn of_plural(&self, plural: &str) -> &[Arc<Resource>] {
        self.by_plural.get(plural).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the group belongs to the server: one of its kinds has registered paths.
    pub fn has_registered_group(&self, group: &str) -> bool {
        self.ordered.iter().any(|resource| resource.kind.group == group && resource.kind.serving().is_registered)
    }

    /// Returns the resource of this very kind: after a change of the CustomResourceDefinition it is another.
    pub(super) fn same(&self, kind: &Arc<Kind>) -> Option<&Arc<Resource>> {
        self.of_plural(&kind.plural).iter().find(|resource| Arc::ptr_eq(&resource.kind, kind))
    }
}

/// Returns the kinds in their storage version, by their prefix.
pub(super) fn hubs(kinds: &[Arc<Kind>]) -> HashMap<String, Arc<Kind>> {
    let hubs = kinds.iter().filter_map(|kind| match &kind.storage {
        Storage::Stored { prefix, hub: None } => Some((prefix.clone(), Arc::clone(kind))),
        _ => None,
    });
    hubs.collect()
}

/// Makes the table of these kinds, whose caches exist. It takes over the unchanged resources of the table before.
pub(super) fn table(
    caches: &Caches,
    kinds: &[Arc<Kind>],
    hubs: &HashMap<String, Arc<Kind>>,
    outbound: &Arc<Outbound>,
    before: &Resources,
    shutdown: &CancellationToken,
) -> Result<Resources, Error> {
    let mut ordered = Vec::new();
    let mut versions: HashMap<(&str, &str), Vec<Arc<Kind>>> = HashMap::new();
    // Registered kinds have one storage version for ever, and their schema is in the table. A projection is no version.
    let is_version = |kind: &Kind| !kind.serving().is_registered && kind.behaviour.projection().is_none();
    for kind in kinds.iter().filter(|kind| is_version(kind)) {
        versions.entry((&kind.group, &kind.plural)).or_default().push(Arc::clone(kind));
    }
    for kind in kinds {
        let stored = match &kind.storage {
            Storage::Virtual => None,
            Storage::Stored { prefix, .. } => {
                let missing = || Error::Config(format!("no kind is stored as itself under {prefix}"));
                let hub = hubs.get(prefix).cloned().ok_or_else(missing)?;
                let cache = caches.of(prefix).ok_or_else(missing)?;
                Some(Stored { prefix: prefix.clone(), root: caches.root().clone(), hub, cache })
            }
        };
        let versions = versions.get(&(kind.group.as_str(), kind.plural.as_str())).cloned().unwrap_or_default();
        let webhook = ConversionWebhook::of(kind, outbound).filter(|_| versions.len() > 1);
        let retired = before.same(kind).map_or_else(|| shutdown.child_token(), |same| same.retired.clone());
        let conversion_cache = before.same(kind).map_or_else(Arc::default, |same| Arc::clone(&same.conversion_cache));
        ordered.push(Arc::new(Resource {
            kind: Arc::clone(kind),
            stored,
            versions,
            webhook,
            first: OnceLock::new(),
            is_readable: OnceLock::new(),
            is_unresolved: conversion_webhook::is_unresolved(kind),
            conversion_cache,
            retired,
        }));
    }
    // A registered group belongs to the server: discovery lists custom resources in it, but no request reaches them.
    let is_registered = |kind: &Kind| kind.serving().is_registered;
    let own: HashSet<&str> = kinds.iter().filter(|kind| is_registered(kind)).map(|kind| kind.group.as_str()).collect();
    let is_reached = |kind: &Kind| is_registered(kind) || !own.contains(kind.group.as_str());
    let mut by_plural: HashMap<String, Vec<Arc<Resource>>> = HashMap::new();
    for resource in ordered.iter().filter(|resource| is_reached(&resource.kind)) {
        by_plural.entry(resource.kind.plural.clone()).or_default().push(Arc::clone(resource));
    }
    Ok(Resources { by_plural, ordered })
}
