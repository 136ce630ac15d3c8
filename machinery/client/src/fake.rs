//! An API server in memory, for tests of this package: enough of create, read, update, patch, delete, list and watch
//! to drive a client, and switches for what real servers do wrong.

use crate::{Body, Client, Error, Transport, WatchEvent};
use bytes::Bytes;
use corten_meta::{GroupResource, Object, Status, Value};
use futures::StreamExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// Where an object is: root (`/api/v1`), plural, namespace, name.
type Place = (String, String, String, String);
type Events = mpsc::UnboundedSender<Result<WatchEvent, Error>>;

#[derive(Clone, Default)]
pub(crate) struct FakeServer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub(crate) struct State {
    revision: u64,
    objects: BTreeMap<Place, Arc<Object>>,
    history: Vec<(Place, WatchEvent, u64)>,
    compacted: u64,
    watchers: Vec<(Place, Events)>,
    /// Method, path and query of every request.
    pub(crate) requests: Vec<String>,
    /// Answer watches with text instead of events.
    pub(crate) text: bool,
    /// Refuse `sendInitialEvents`.
    pub(crate) no_streaming: bool,
    /// Begin such a watch and then say that the storage cannot serve it.
    pub(crate) no_streaming_storage: bool,
}

impl FakeServer {
    pub(crate) fn client(&self) -> Client {
        self.cable().0
    }

    /// A client and the switch that cuts it off.
    pub(crate) fn cable(&self) -> (Client, Arc<AtomicBool>) {
        let cut = Arc::new(AtomicBool::new(false));
        let transport = FakeTransport { server: self.clone(), cut: cut.clone() };
        (Client::new(Arc::new(transport)), cut)
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Ends every watch in order.
    pub(crate) fn drop_watches(&self) {
        self.state().watchers.clear();
    }

    /// Forgets history.
    pub(crate) fn compact(&self) {
        let mut state = self.state();
        state.compacted = state.revision;
        state.history.clear();
    }

    pub(crate) fn object(&self, plural: &str, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let state = self.state();
        let found =
            state.objects.iter().find(|(p, _)| (p.1.as_str(), p.2.as_str(), p.3.as_str()) == (plural, namespace, name));
        found.map(|(_, object)| object.clone())
    }

    pub(crate) fn objects(&self, plural: &str) -> Vec<Arc<Object>> {
        self.state().objects.iter().filter(|(place, _)| place.1 == plural).map(|(_, object)| object.clone()).collect()
    }

    pub(crate) fn put_config_map(&self, namespace: &str, name: &str, metadata: Value, data: &str) {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": data}});
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["name"] = json!(name);
        let place = ("/api/v1".into(), "configmaps".into(), namespace.into(), name.into());
        self.state().put(place, object).unwrap();
    }

    pub(crate) fn delete_config_map(&self, namespace: &str, name: &str) {
        let place = ("/api/v1".into(), "configmaps".into(), namespace.into(), name.into());
        self.state().delete(&place).unwrap();
    }
}

struct FakeTransport {
    server: FakeServer,
    cut: Arc<AtomicBool>,
}

impl Transport for FakeTransport {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let answer = if self.cut.load(Ordering::SeqCst) {
            Err(Error::Transport("the cable is cut".into()))
        } else {
            Ok(match self.server.state().answer(&request) {
                Ok(body) => Response::new(body),
                Err(status) => Response::builder()
                    .status(status.code)
                    .body(Body::Full(status.to_value().to_string().into()))
                    .unwrap(),
            })
        };
        Box::pin(async move { answer })
    }
}

impl State {
    fn answer(&mut self, request: &Request<Bytes>) -> Result<Body, Status> {
        self.requests.push(format!("{} {}", request.method(), request.uri()));
        let place = place(request.uri().path());
        let query = query(request.uri().query().unwrap_or_default());
        let body = || serde_json::from_slice::<Value>(request.body()).unwrap_or(Value::Null);
        let resource = GroupResource::new("", &place.1);
        let missing = || Status::not_found(&resource, &place.3);
        match *request.method() {
            Method::GET if place.3.is_empty() && query.contains_key("watch") => self.watch(place, &query),
            Method::GET if place.3.is_empty() => Ok(self.list(&place, &query)),
            Method::GET => self.objects.get(&place).map(|o| Body::Full(o.wire())).ok_or_else(missing),
            Method::POST => {
                let object = body();
                let place = (place.0, place.1, place.2, corten_meta::name(&object).to_owned());
                if self.objects.contains_key(&place) {
                    return Err(Status::already_exists(&resource, &place.3));
                }
                self.put(place, object)
            }
            Method::PUT => {
                let object = body();
                let old = self.objects.get(&place).ok_or_else(missing)?;
                let version = corten_meta::resource_version(&object);
                if !version.is_empty() && version != old.revision.to_string() {
                    return Err(Status::conflict(&resource, &place.3, "modified"));
                }
                self.put(place, object)
            }
            Method::PATCH => {
                let mut object = self.objects.get(&place).ok_or_else(missing)?.value();
                corten_meta::patch::merge_patch(&mut object, &body());
                self.put(place, object)
            }
            Method::DELETE => {
                if !self.objects.contains_key(&place) {
                    return Err(missing());
                }
                self.delete(&place)
            }
            _ => Err(Status::method_not_allowed()),
        }
    }

    fn put(&mut self, place: Place, object: Value) -> Result<Body, Status> {
        self.revision += 1;
        let object = Object::from_value(&object, self.revision).map_err(Status::internal)?;
        let object = Arc::new(object);
        let old = self.objects.insert(place.clone(), object.clone());
        let event =
            if old.is_some() { WatchEvent::Modified(object.clone()) } else { WatchEvent::Added(object.clone()) };
        self.tell(place, event);
        Ok(Body::Full(object.wire()))
    }

    fn delete(&mut self, place: &Place) -> Result<Body, Status> {
        self.revision += 1;
        let Some(old) = self.objects.remove(place) else { return Err(Status::path_not_found()) };
        let gone = Arc::new(Object { revision: self.revision, ..(*old).clone() });
        self.tell(place.clone(), WatchEvent::Deleted(gone));
        Ok(Body::Full(Bytes::from_static(b"{}")))
    }

    fn tell(&mut self, place: Place, event: WatchEvent) {
        self.watchers.retain(|(collection, events)| {
            if covers(collection, &place) { events.send(Ok(event.clone())).is_ok() } else { !events.is_closed() }
        });
        self.history.push((place, event, self.revision));
    }

    fn list(&self, collection: &Place, query: &HashMap<String, String>) -> Body {
        let limit = query.get("limit").and_then(|l| l.parse().ok()).unwrap_or(usize::MAX);
        let start: usize = query.get("continue").and_then(|l| l.parse().ok()).unwrap_or(0);
        let all: Vec<_> = self.objects.iter().filter(|(place, _)| covers(collection, place)).collect();
        let page: Vec<Value> = all.iter().skip(start).take(limit).map(|(_, object)| object.value()).collect();
        let next = start + page.len();
        let token = if next < all.len() { next.to_string() } else { String::new() };
        let metadata = json!({"resourceVersion": self.revision.to_string(), "continue": token});
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page});
        Body::Full(list.to_string().into())
    }

    fn watch(&mut self, collection: Place, query: &HashMap<String, String>) -> Result<Body, Status> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let since: u64 = query.get("resourceVersion").and_then(|v| v.parse().ok()).unwrap_or(0);
        if query.contains_key("sendInitialEvents") {
            if self.no_streaming {
                return Err(Status::bad_request("sendInitialEvents is forbidden"));
            }
            if self.no_streaming_storage {
                let _ = sender.send(Ok(WatchEvent::Error(Status::internal("the storage cannot"))));
                return Ok(Body::Events(UnboundedReceiverStream::new(receiver).boxed()));
            }
            for (_, object) in self.objects.iter().filter(|(place, _)| covers(&collection, place)) {
                let _ = sender.send(Ok(WatchEvent::Added(object.clone())));
            }
            let end = WatchEvent::Bookmark { revision: self.revision, initial_events_end: true };
            let _ = sender.send(Ok(end));
            self.watchers.push((collection, sender));
        } else if since < self.compacted {
            let _ = sender.send(Ok(WatchEvent::Error(Status::expired("too old resource version"))));
        } else {
            for (_, event, _) in self.history.iter().filter(|(p, _, at)| covers(&collection, p) && *at > since) {
                let _ = sender.send(Ok(event.clone()));
            }
            self.watchers.push((collection, sender));
        }
        let events = UnboundedReceiverStream::new(receiver);
        if self.text {
            return Ok(Body::Stream(events.map(|event| event.map(|event| text(&event))).boxed()));
        }
        Ok(Body::Events(events.boxed()))
    }
}

fn text(event: &WatchEvent) -> Bytes {
    let (kind, object) = match event {
        WatchEvent::Added(object) => ("ADDED", object.value()),
        WatchEvent::Modified(object) => ("MODIFIED", object.value()),
        WatchEvent::Deleted(object) => ("DELETED", object.value()),
        WatchEvent::Bookmark { revision, initial_events_end } => {
            let end = initial_events_end.to_string();
            let annotations = json!({"k8s.io/initial-events-end": end});
            ("BOOKMARK", json!({"metadata": {"resourceVersion": revision.to_string(), "annotations": annotations}}))
        }
        WatchEvent::Error(status) => ("ERROR", status.to_value()),
    };
    (json!({"type": kind, "object": object}).to_string() + "\n").into()
}

fn covers(collection: &Place, place: &Place) -> bool {
    collection.0 == place.0 && collection.1 == place.1 && (collection.2.is_empty() || collection.2 == place.2)
}

fn place(path: &str) -> Place {
    let mut parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    let root = parts.drain(..if parts[0] == "api" { 2 } else { 3 }).fold(String::new(), |root, part| root + "/" + part);
    let namespace = if parts[0] == "namespaces" && parts.len() > 2 {
        let namespace = parts[1].to_owned();
        parts.drain(..2);
        namespace
    } else {
        String::new()
    };
    (root, parts[0].into(), namespace, parts.get(1).copied().unwrap_or_default().into())
}

fn query(text: &str) -> HashMap<String, String> {
    text.split('&').filter_map(|pair| pair.split_once('=')).map(|(k, v)| (k.into(), v.into())).collect()
}
