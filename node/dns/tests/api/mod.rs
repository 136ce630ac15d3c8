//! An API for tests: initial objects of a watch, and its further changes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use corten_client::{Body, Client, Error, Transport, WatchEvent};
use corten_meta::Object;
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::BoxFuture;

/// Watches of every resource, with streamed lists; nothing else is answered.
#[derive(Clone, Default)]
pub struct Api {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    revision: u64,
    resources: BTreeMap<String, Resource>,
}

#[derive(Default)]
struct Resource {
    objects: BTreeMap<String, Arc<Object>>,
    watches: Vec<UnboundedSender<WatchEvent>>,
}

impl Api {
    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    /// Creates or changes an object of a resource such as `services`.
    pub fn put(&self, resource: &str, json: &str) {
        let mut state = self.state.lock().unwrap();
        state.revision += 1;
        let object = Arc::new(Object::parse(Bytes::from(json.to_owned()), state.revision).unwrap());
        let resource = state.resources.entry(resource.to_owned()).or_default();
        let before = resource.objects.insert(object.key().to_string(), object.clone());
        let event = if before.is_some() { WatchEvent::Modified(object) } else { WatchEvent::Added(object) };
        resource.watches.retain(|watch| watch.unbounded_send(event.clone()).is_ok());
    }

    /// Deletes an object by namespace and name.
    pub fn delete(&self, resource: &str, namespace: &str, name: &str) {
        let mut state = self.state.lock().unwrap();
        state.revision += 1;
        let revision = state.revision;
        let resource = state.resources.entry(resource.to_owned()).or_default();
        let key = corten_meta::Key::new(namespace, name).to_string();
        let object = resource.objects.remove(&key).expect("only an existing object can be deleted");
        let deleted = Arc::new(Object { revision, ..Object::clone(&object) });
        resource.watches.retain(|watch| watch.unbounded_send(WatchEvent::Deleted(deleted.clone())).is_ok());
    }
}

impl Transport for Api {
    fn send(&self, request: http::Request<Bytes>) -> BoxFuture<'static, Result<http::Response<Body>, Error>> {
        let resource = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let mut state = self.state.lock().unwrap();
        let revision = state.revision;
        let resource = state.resources.entry(resource).or_default();
        let (sender, receiver) = unbounded();
        for object in resource.objects.values() {
            sender.unbounded_send(WatchEvent::Added(object.clone())).unwrap();
        }
        sender.unbounded_send(WatchEvent::Bookmark { revision, initial_events_end: true }).unwrap();
        resource.watches.push(sender);
        let response = http::Response::new(Body::Events(receiver.map(Ok).boxed()));
        Box::pin(async move { Ok(response) })
    }
}
