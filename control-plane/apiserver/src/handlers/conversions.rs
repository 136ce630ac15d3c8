//! What webhooks made of the objects of one request in other versions, by which managers of those versions are known.
//!
//! A change never waits: a conversion that only a webhook can do is noted, asked for after the change was tried, and the
//! change is tried again with the answer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corten_meta::{Status, Value};

use crate::registry::Resource;

/// How often a change is tried for its conversions: each try may ask for what follows from the last.
const TRIES: usize = 8;

#[derive(Default)]
pub struct Conversions(Mutex<Known>);

#[derive(Default)]
struct Known {
    /// By the object as text, and the version it is wanted in.
    answers: HashMap<(String, String), Value>,
    questions: Vec<Question>,
    /// Why the last that failed did.
    failed: Option<Status>,
}

struct Question {
    object: Value,
    from: Arc<Resource>,
    to: Arc<Resource>,
}

/// An object without what no conversion may depend on.
fn plain(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

impl Conversions {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object in another version, if that is known; if not, the question is noted.
    pub fn get(&self, object: &Value, from: &Arc<Resource>, to: &Arc<Resource>) -> Option<Value> {
        let object = plain(object);
        let key = (object.to_string(), to.kind.api_version());
        let mut known = self.known();
        let answer = known.answers.get(&key).cloned();
        if answer.is_none() {
            known.questions.push(Question { object, from: Arc::clone(from), to: Arc::clone(to) });
        }
        answer
    }

    /// Why a conversion failed: an apply fails with it, and of what is updated nobody owns anything any more.
    pub fn failure(&self) -> Option<Status> {
        self.known().failed.clone()
    }

    /// Asks what was noted. Says whether there was anything.
    async fn ask(&self) -> bool {
        let questions = std::mem::take(&mut self.known().questions);
        let any = !questions.is_empty();
        for Question { object, from, to } in questions {
            let key = (object.to_string(), to.kind.api_version());
            let answer = match from.convert(object.clone(), &to).await {
                Ok(mut answer) => {
                    to.kind.rewrite(&mut answer);
                    answer
                }
                Err(status) => {
                    self.known().failed = Some(status);
                    object
                }
            };
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
