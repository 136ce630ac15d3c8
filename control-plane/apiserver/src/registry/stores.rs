//! The stores of a server: one for everything, and stores of their own for some resources.

use std::sync::Arc;

use corten_api::{Kind, Storage};
use corten_store::Store;

use crate::cache::OverriddenPrefixes;
use crate::error::Error;

/// The store of everything, and the stores of some resources.
pub struct Stores {
    pub main: Arc<dyn Store>,
    pub overrides: Vec<StoreOverride>,
}

/// A store of its own for some built-in resources.
pub struct StoreOverride {
    pub store: Arc<dyn Store>,
    /// The resources, each as `group/resource`; the core group is empty.
    pub resources: Vec<String>,
}

impl Stores {
    /// Returns the prefixes of the keys that each store of its own has.
    pub(super) fn overridden_prefixes(&self, kinds: &[Arc<Kind>]) -> Result<Vec<OverriddenPrefixes>, Error> {
        let mut all: Vec<OverriddenPrefixes> = Vec::with_capacity(self.overrides.len());
        for StoreOverride { store, resources } in &self.overrides {
            let mut prefixes = Vec::with_capacity(resources.len());
            for resource in resources {
                let prefix = prefix(kinds, resource)?;
                let is_taken = all.iter().any(|one| one.prefixes.contains(&prefix)) || prefixes.contains(&prefix);
                if is_taken {
                    return Err(Error::Config(format!("the resource {resource} has two stores")));
                }
                prefixes.push(prefix);
            }
            all.push(OverriddenPrefixes { store: Arc::clone(store), prefixes });
        }
        Ok(all)
    }
}

/// Returns the prefix of a built-in resource, which is named as `group/resource`.
fn prefix(kinds: &[Arc<Kind>], resource: &str) -> Result<String, Error> {
    let unknown = || Error::Config(format!("there is no built-in resource {resource} that could have its own store"));
    let (group, plural) = resource.split_once('/').ok_or_else(unknown)?;
    let found = kinds.iter().filter(|kind| kind.group == group && kind.plural == plural);
    let mut prefixes = found.filter_map(|kind| match &kind.storage {
        Storage::Stored { prefix, .. } => Some(prefix.clone()),
        Storage::Virtual => None,
    });
    prefixes.next().ok_or_else(unknown)
}
