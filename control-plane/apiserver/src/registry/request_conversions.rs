//! The webhook conversions of one request: the objects of this request in the versions of their other field managers.
//! They live as long as the request. (`conversion_cache.rs` has the conversions of stored objects, which all requests
//! share.)
//!
//! A change is a synchronous function: a conversion that only a webhook can do is recorded, done after the change was
//! tried, and the change is tried again with the result.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_api::Kind;
use corten_meta::{Status, Value};

use super::resource::Resource;

/// The limit of tries of a change: each try needs the conversions that follow from the last.
const TRIES: usize = 128;

#[derive(Default)]
pub struct RequestConversions(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// The results, by the object's JSON and the wanted version.
    results: HashMap<(String, String), Result<Value, Status>>,
    pending: Vec<PendingConversion>,
}

struct PendingConversion {
    object: Value,
    resource: Arc<Resource>,
    to: Arc<Kind>,
}

/// Returns an object without its managers, on which no conversion may depend.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

impl RequestConversions {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the object in another version, or the error of its conversion. A conversion that is not done yet is
    /// recorded, and the caller's result of the error is discarded.
    pub fn get(&self, object: &Value, resource: &Arc<Resource>, to: &Arc<Kind>) -> Result<Value, Status> {
        let object = plain(object);
        let key = (object.to_string(), to.api_version());
        let mut known = self.known();
        if let Some(result) = known.results.get(&key) {
            return result.clone();
        }
        known.pending.push(PendingConversion { object, resource: Arc::clone(resource), to: Arc::clone(to) });
        Err(Status::internal("a conversion is not known yet"))
    }

    /// Calls the webhook for the pending conversions. Returns whether there were any.
    async fn convert_pending(&self) -> bool {
        let pending = std::mem::take(&mut self.known().pending);
        let any = !pending.is_empty();
        for PendingConversion { object, resource, to } in pending {
            let key = (object.to_string(), to.api_version());
            let result = resource.convert_by_webhook(object, &to).await;
            self.known().results.insert(key, result);
        }
        any
    }

    /// Repeats a change until all its conversions are done, and returns its result.
    pub async fn complete<T>(&self, mut change: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
        for _ in 1..TRIES {
            let changed = change();
            if !self.convert_pending().await {
                return changed;
            }
        }
        change()
    }
}
