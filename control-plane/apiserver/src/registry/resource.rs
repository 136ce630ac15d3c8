//! A served resource: its kind, where its objects are stored, and the versions that they may be in.

use std::sync::{Arc, OnceLock};

use corten_api::Kind;
use corten_fields::before_first;
use corten_meta::{GroupKind, GroupResource, Status, Value};
use tokio_util::sync::CancellationToken;

use super::conversion_webhook::ConversionWebhook;
use super::converted_objects::ConvertedObjects;
use crate::cache::ResourceCache;

/// One served resource of one version.
pub struct Resource {
    /// The kind as this version serves it.
    pub kind: Arc<Kind>,
    /// Where its objects live; `None` for resources that are only answered.
    pub stored: Option<Stored>,
    /// All versions of a custom resource: its stored objects may be in any of them. Of a built-in one, none.
    pub versions: Vec<Arc<Kind>>,
    /// Who converts between the versions, if it is not the kind itself.
    pub webhook: Option<Arc<ConversionWebhook>>,
    pub(super) first: OnceLock<Value>,
    /// Set when every stored object was found to be in one of the versions.
    pub is_readable: OnceLock<()>,
    /// Whether it is heard of but cannot be served, so that requests for it fail and discovery leaves it out.
    pub is_unresolved: bool,
    /// What the webhook made of its objects.
    pub converted: Arc<ConvertedObjects>,
    /// Ends what is told of the resource as it is here: when the server does, or when its definition is another.
    pub retired: CancellationToken,
}

/// The storage of a resource.
pub struct Stored {
    pub prefix: String,
    /// The kind as it is stored.
    pub hub: Arc<Kind>,
    pub cache: Arc<ResourceCache>,
}

impl Stored {
    /// The key of an object.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        format!("{}/{}", self.prefix, self.cache.key(namespace, name))
    }

    /// Refuses a namespace that would lead elsewhere as a part of a key. Of all namespaces none is named.
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

    /// The kind that errors are about: the stored one, whose rules are checked.
    pub fn group_kind(&self) -> GroupKind {
        let kind = self.stored.as_ref().map_or(&self.kind, |stored| &stored.hub);
        GroupKind { group: kind.group.clone(), kind: kind.kind.clone() }
    }

    /// What an object is compared with that was not there before.
    pub fn first(&self) -> &Value {
        self.first.get_or_init(|| before_first(&self.kind))
    }

    /// The storage, for resources that are known to have one.
    pub fn storage(&self) -> Result<&Stored, Status> {
        self.stored.as_ref().ok_or_else(Status::method_not_allowed)
    }
}
