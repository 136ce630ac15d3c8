//! A served resource: its kind, its storage, and the versions of its stored objects.

use std::sync::{Arc, OnceLock};

use corten_api::Kind;
use corten_managed_fields::before_first;
use corten_meta::{GroupKind, GroupResource, Status, Value};
use corten_store::Store;
use tokio_util::sync::CancellationToken;

use super::conversion_cache::ConversionCache;
use super::conversion_webhook::ConversionWebhook;
use crate::cache::ResourceCache;
use crate::storage_format::Root;

/// One served resource of one version.
pub struct Resource {
    /// The kind as this version serves it.
    pub kind: Arc<Kind>,
    /// The storage of its objects; `None` for virtual resources.
    pub stored: Option<Stored>,
    /// All versions of a custom resource: its stored objects may be in any of them. Empty for a built-in one.
    pub versions: Vec<Arc<Kind>>,
    /// The conversion webhook, if the kind itself does not convert.
    pub webhook: Option<Arc<ConversionWebhook>>,
    pub(super) first: OnceLock<Value>,
    /// Set when every stored object was found to be in one of the versions.
    pub is_readable: OnceLock<()>,
    /// Whether it is known but cannot be served: requests for it fail, and discovery leaves it out.
    pub is_unresolved: bool,
    /// The objects that the webhook converted to this version.
    pub conversion_cache: Arc<ConversionCache>,
    /// Cancelled when the server stops or the CustomResourceDefinition changes; watches of the resource end with it.
    pub retired: CancellationToken,
}

/// The storage of a resource.
pub struct Stored {
    /// The prefix that the kind declares.
    pub prefix: String,
    /// The root of the keys in the store.
    pub root: Root,
    /// The kind in its storage version.
    pub hub: Arc<Kind>,
    pub cache: Arc<ResourceCache>,
}

impl Stored {
    /// Returns the key of an object.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.key_prefix(), self.cache.key(namespace, name))
    }

    /// Returns the part that the keys of all objects begin with.
    pub fn key_prefix(&self) -> String {
        self.root.key(&self.prefix)
    }

    /// Returns the store that has the objects.
    pub fn store(&self) -> &dyn Store {
        &*self.cache.feed.store
    }

    /// Refuses a namespace that would change the path of a key. An empty one is all namespaces.
    pub fn check_namespace(&self, namespace: &str, name: &str) -> Result<(), Status> {
        if !matches!(namespace, "." | "..") {
            return Ok(());
        }
        let prefix = self.prefix.trim_start_matches("/registry");
        let end = if name.is_empty() { String::new() } else { format!("/{name}") };
        let message = format!("invalid key: \"{prefix}/{namespace}{end}\"");
        Err(Status { code: 500, message, ..Status::default() })
    }
}

impl Resource {
    pub fn group_resource(&self) -> GroupResource {
        GroupResource { group: self.kind.group.clone(), resource: self.kind.plural.clone() }
    }

    /// Returns the kind that errors name: the stored one, whose rules are validated.
    pub fn group_kind(&self) -> GroupKind {
        let kind = self.stored.as_ref().map_or(&self.kind, |stored| &stored.hub);
        GroupKind { group: kind.group.clone(), kind: kind.kind.clone() }
    }

    /// Returns the value that a new object is compared with.
    pub fn first(&self) -> &Value {
        self.first.get_or_init(|| before_first(&self.kind))
    }

    /// Returns the storage, for resources that are known to have one.
    pub fn storage(&self) -> Result<&Stored, Status> {
        self.stored.as_ref().ok_or_else(Status::method_not_allowed)
    }
}
