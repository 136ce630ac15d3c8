//! A write of the server on behalf of a subresource, such as the node of a pod: upstream's GuaranteedUpdate. Admission
//! has seen the request as a Binding or an Eviction.
//!
//! All other fields stay as they are stored, byte by byte: nothing is defaulted or validated again, the generation
//! stays, and so do the owners of fields. A pod is bound once, so this is on the path of every pod.

use std::sync::Arc;

use corten_meta::{Object, Status, Value};
use corten_store::Expect;

use crate::registry::Written;
use crate::write::ATTEMPTS;
use crate::write::Scope;
use crate::write::server_busy;

/// Changes the present object, or refuses.
pub type TryUpdate<'a> = dyn Fn(&mut Value) -> Result<(), Status> + Send + Sync + 'a;

/// Writes a change, and tries again if another writer was first.
pub async fn guaranteed_update(target: &Scope<'_>, try_update: &TryUpdate<'_>) -> Result<Arc<Object>, Status> {
    let registry = &target.core.registry;
    for _ in 0..ATTEMPTS {
        let current = registry.read(target.resource, target.namespace, target.name).await?;
        let current = current.ok_or_else(|| target.not_found())?;
        let served = target.resource.serve(&current).await?;
        let mut value = served.value();
        try_update(&mut value)?;
        let object = Object::from_value(&value, served.revision).map_err(|e| Status::internal(e.to_string()))?;
        if object.bytes == served.bytes {
            return Ok(served);
        }
        if target.context.dry_run() {
            return Ok(Arc::new(object));
        }
        let expect = Expect::ModRevision(current.revision);
        if let Written::Done(object) =
            registry.write_encoded(target.resource, value, object, expect, Vec::new()).await?
        {
            return Ok(object);
        }
    }
    Err(server_busy(target))
}
