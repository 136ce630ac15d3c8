//! What webhooks made of the objects of one request in other versions, by which managers of those versions are known.
//!
//! A change never waits: a conversion that only a webhook can do is noted, asked for after the change was tried, and the
//! change is tried again with the answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_api::Kind;
use corten_meta::{Status, Value};

use super::resource::Resource;

/// How often a change is tried for its conversions: each try asks for what follows from the last.
const TRIES: usize = 128;

#[derive(Default)]
pub struct ConversionMemo(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By the object as text, and the version it is wanted in.
    answers: HashMap<(String, String), Result<Value, Status>>,
    questions: Vec<Question>,
}

struct Question {
    object: Value,
    resource: Arc<Resource>,
    to: Arc<Kind>,
}

/// An object without what no conversion may depend on.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

impl ConversionMemo {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object in another version, or why that cannot be had; if it is not known yet the question is noted, and what
    /// comes of the error is forgotten.
    pub fn get(&self, object: &Value, resource: &Arc<Resource>, to: &Arc<Kind>) -> Result<Value, Status> {
        let object = plain(object);
        let key = (object.to_string(), to.api_version());
        let mut known = self.known();
        if let Some(answer) = known.answers.get(&key) {
            return answer.clone();
        }
        known.questions.push(Question { object, resource: Arc::clone(resource), to: Arc::clone(to) });
        Err(Status::internal("a conversion is not known yet"))
    }

    /// Asks what was noted. Says whether there was anything.
    async fn ask(&self) -> bool {
        let questions = std::mem::take(&mut self.known().questions);
        let any = !questions.is_empty();
        for Question { object, resource, to } in questions {
            let key = (object.to_string(), to.api_version());
            let answer = resource.ask_webhook(object, &to).await;
            self.known().answers.insert(key, answer);
        }
        any
    }

    /// What comes of a change when all conversions are known.
    pub async fn settled<T>(&self, mut change: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
        for _ in 1..TRIES {
            let changed = change();
            if !self.ask().await {
                return changed;
            }
        }
        change()
    }
}
