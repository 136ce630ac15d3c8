//! Events about objects, as `kubectl describe` shows them.
//!
//! Recording never blocks and never fails: events wait in a bounded queue for one task that writes them, and are
//! dropped when the queue is full. The [`correlator`] aggregates and filters them first. The task ends when the last
//! recorder is dropped and the queue is empty.

pub mod correlator;
pub mod series;

use crate::backoff::jitter;
use crate::{Client, Error, Patch};
use correlator::{Correlator, Verdict};
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use corten_meta::{Object, Value, names};
use jiff::Timestamp;
use serde_json::json;
use std::time::Duration;
use tokio::sync::mpsc;

/// The number of events that may wait to be written.
const QUEUE: usize = 1000;
/// The number of attempts to write an event when the server does not answer.
const TRIES: u32 = 12;
/// The pause between two attempts.
const PAUSE: Duration = Duration::from_secs(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    Normal,
    Warning,
}

impl EventType {
    fn as_str(self) -> &'static str {
        match self {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        }
    }
}

/// The object that an event is about.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObjectRef {
    pub api_version: String,
    pub kind: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    /// The path of a part of the object, such as `spec.containers{web}`.
    pub field_path: String,
}

impl ObjectRef {
    /// Returns a reference to a typed object.
    pub fn of<K: Typed>(object: &K) -> ObjectRef {
        let meta = object.meta();
        let text = |field: &Option<String>| field.clone().unwrap_or_default();
        ObjectRef {
            api_version: K::API_VERSION.into(),
            kind: K::KIND.into(),
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
            resource_version: text(&meta.resource_version),
            field_path: String::new(),
        }
    }

    /// Returns a reference to an encoded object of kind `K`.
    pub fn of_object<K: Typed>(object: &Object) -> ObjectRef {
        ObjectRef {
            api_version: K::API_VERSION.into(),
            kind: K::KIND.into(),
            namespace: object.header.namespace.clone(),
            name: object.header.name.clone(),
            uid: object.header.uid.clone(),
            resource_version: object.revision.to_string(),
            field_path: String::new(),
        }
    }

    /// Sets the path of a part of the object.
    pub fn field(mut self, path: impl Into<String>) -> ObjectRef {
        self.field_path = path.into();
        self
    }
}

/// Records events in the name of one component. Clones share the queue and the correlator.
#[derive(Clone)]
pub struct EventRecorder {
    queue: mpsc::Sender<Event>,
    component: String,
    host: String,
}

impl EventRecorder {
    /// Starts a recorder. `host` is the node for components of a node, and empty for others. Needs a running tokio
    /// runtime.
    pub fn new(client: Client, component: impl Into<String>, host: impl Into<String>) -> EventRecorder {
        let (queue, events) = mpsc::channel(QUEUE);
        tokio::spawn(write_all(client, events));
        EventRecorder { queue, component: component.into(), host: host.into() }
    }

    /// Records an event now.
    pub fn event(&self, about: &ObjectRef, kind: EventType, reason: &str, message: impl Into<String>) {
        let event = self.make(about, kind, reason, message.into(), corten_meta::time::now());
        if self.queue.try_send(event).is_err() {
            tracing::warn!(reason, name = %about.name, "too many queued events, dropped one");
        }
    }

    fn make(&self, about: &ObjectRef, kind: EventType, reason: &str, message: String, now: Timestamp) -> Event {
        let some = |text: &str| Some(text.to_owned()).filter(|t| !t.is_empty());
        let namespace = if about.namespace.is_empty() { "default" } else { &about.namespace };
        Event {
            metadata: ObjectMeta {
                name: Some(event_name(&about.name, now)),
                namespace: Some(namespace.to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: ObjectReference {
                api_version: some(&about.api_version),
                kind: some(&about.kind),
                namespace: some(&about.namespace),
                name: some(&about.name),
                uid: some(&about.uid),
                resource_version: some(&about.resource_version),
                field_path: some(&about.field_path),
            },
            reason: some(reason),
            message: Some(message),
            type_: Some(kind.as_str().to_owned()),
            count: Some(1),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: some(&self.component), host: some(&self.host) }),
            reporting_component: some(&self.component),
            reporting_instance: some(&self.host),
            ..Event::default()
        }
    }
}

/// Returns `<object>.<nanoseconds in hex>`, or a random name if that is too long or invalid.
fn event_name(object: &str, now: Timestamp) -> String {
    let name = format!("{object}.{:x}", now.as_nanosecond());
    if names::dns1123_subdomain(&name).is_empty() { name } else { uuid::Uuid::new_v4().to_string() }
}

async fn write_all(client: Client, mut events: mpsc::Receiver<Event>) {
    let mut correlator = Correlator::default();
    while let Some(event) = events.recv().await {
        match correlator.correlate(event, corten_meta::time::now()) {
            Verdict::Drop => {}
            Verdict::Create(event) => write(&client, &mut correlator, &event, None, &events).await,
            Verdict::Count(event) => {
                let patch = patch_of(&event);
                write(&client, &mut correlator, &event, Some(patch), &events).await;
            }
        }
    }
}

/// Returns the patch of a repeated event.
fn patch_of(event: &Event) -> Value {
    let last = event.last_timestamp.as_ref().map(|time| corten_meta::time::rfc3339(time.0));
    json!({"count": event.count, "lastTimestamp": last, "message": event.message})
}

/// Writes one event. Every answer of the server is final, also a refusal; without an answer it is retried as long as a
/// recorder exists.
async fn write(
    client: &Client,
    correlator: &mut Correlator,
    event: &Event,
    mut patch: Option<Value>,
    recorders: &mpsc::Receiver<Event>,
) {
    let name = event.metadata.name.clone().unwrap_or_default();
    let namespace = event.metadata.namespace.clone().unwrap_or_default();
    for attempt in 0..TRIES {
        let result = match &patch {
            Some(patch) => client.send_patch::<Event>(&namespace, &name, &Patch::Strategic(patch.clone()), None).await,
            None => client.post(event).await,
        };
        match result {
            Ok(()) => return,
            // The event expired in the meantime: the count goes on in a new one.
            Err(error) if error.is_not_found() && patch.take().is_some() => continue,
            Err(Error::Api(status)) => {
                tracing::debug!(%status, event = %name, "the server rejected an event");
                correlator.forget(event);
                return;
            }
            Err(error) if attempt + 1 == TRIES || recorders.is_closed() => {
                tracing::warn!(%error, event = %name, "cannot write an event");
                return;
            }
            Err(_) => tokio::time::sleep(PAUSE.mul_f64(if attempt == 0 { jitter() } else { 1.0 })).await,
        }
    }
}

#[cfg(test)]
mod tests;
