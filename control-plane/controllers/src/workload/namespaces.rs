//! Namespaces in which a controller creates objects.

use corten_api::k8s_openapi::api::core::v1::Namespace;
use corten_meta::Key;

use crate::runtime::{ResourceType, View};

/// Returns the name of the namespace unless it is terminating.
pub fn live_namespace(view: &dyn View, key: &Key) -> Option<String> {
    let namespace = view.get(ResourceType::of::<Namespace>(), key)?;
    namespace.header.deletion_timestamp.is_none().then(|| namespace.header.name.clone())
}
