//! An API server in memory, for tests of this package: enough of create, read, update, patch, delete, list and watch to
//! drive a client, and switches for the misbehaviour of real servers.

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

/// The path of an object: root (`/api/v1`), plural, namespace, name.
type ObjectPath = (String, String, String, String);
type Events = mpsc::UnboundedSender<Result<WatchEvent, Error>>;

#[derive(Clone, Default)]
pub(crate) struct FakeServer {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
pub(crate) struct State {
    revision: u64,
    objects: BTreeMap<ObjectPath, Arc<Object>>,
    history: Vec<(ObjectPath, WatchEvent, u64)>,
    compacted: u64,
    watchers: Vec<(ObjectPath, Events)>,
    /// The method, path and query of every request.
    pub(crate) requests: Vec<String>,
    /// Whether watches are answered with bytes instead of events.
    pub(crate) text: bool,
    /// Whether `sendInitialEvents` is refused.
    pub(crate) no_streaming: bool,
    /// Whether a streaming watch begins and then fails because the storage does not support it.
    pub(crate) no_streaming_storage: bool,
}

impl FakeServer {
    pub(crate) fn client(&self) -> Client {
        self.cable().0
    }

    /// Returns a client and the switch that disconnects it.
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

    /// Compacts the history.
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
        self.state()
            .objects
            .iter()
            .filter(|(object_path, _)| object_path.1 == plural)
            .map(|(_, object)| object.clone())
            .collect()
    }

    pub(crate) fn put_config_map(&self, namespace: &str, name: &str, metadata: Value, data: &str) {
        let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"x": data}});
        object["metadata"]["namespace"] = json!(namespace);
        object["metadata"]["name"] = json!(name);
        let object_path = ("/api/v1".into(), "configmaps".into(), namespace.into(), name.into());
        self.state().put(object_path, object).unwrap();
    }

    pub(crate) fn delete_config_map(&self, namespace: &str, name: &str) {
        let object_path = ("/api/v1".into(), "configmaps".into(), namespace.into(), name.into());
        self.state().delete(&object_path).unwrap();
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
        let object_path = object_path(request.uri().path());
        let query = query(request.uri().query().unwrap_or_default());
        let body = || serde_json::from_slice::<Value>(request.body()).unwrap_or(Value::Null);
        let resource = GroupResource::new("", &object_path.1);
        let missing = || Status::not_found(&resource, &object_path.3);
        match *request.method() {
            Method::GET if object_path.3.is_empty() && query.contains_key("watch") => self.watch(object_path, &query),
            Method::GET if object_path.3.is_empty() => Ok(self.list(&object_path, &query)),
            Method::GET => self.objects.get(&object_path).map(|o| Body::Full(o.wire())).ok_or_else(missing),
            Method::POST => {
                let object = body();
                let object_path = (object_path.0, object_path.1, object_path.2, corten_meta::name(&object).to_owned());
                if self.objects.contains_key(&object_path) {
                    return Err(Status::already_exists(&resource, &object_path.3));
                }
                self.put(object_path, object)
            }
            Method::PUT => {
                let object = body();
                let old = self.objects.get(&object_path).ok_or_else(missing)?;
                let version = corten_meta::resource_version(&object);
                if !version.is_empty() && version != old.revision.to_string() {
                    return Err(Status::conflict(&resource, &object_path.3, "modified"));
                }
                self.put(object_path, object)
            }
            Method::PATCH => {
                let mut object = self.objects.get(&object_path).ok_or_else(missing)?.value();
                corten_meta::patch::merge_patch(&mut object, &body());
                self.put(object_path, object)
            }
            Method::DELETE => {
                if !self.objects.contains_key(&object_path) {
                    return Err(missing());
                }
                self.delete(&object_path)
            }
            _ => Err(Status::method_not_allowed()),
        }
    }

    fn put(&mut self, object_path: ObjectPath, object: Value) -> Result<Body, Status> {
        self.revision += 1;
        let object = Object::from_value(&object, self.revision).map_err(Status::internal)?;
        let object = Arc::new(object);
        let old = self.objects.insert(object_path.clone(), object.clone());
        let event =
            if old.is_some() { WatchEvent::Modified(object.clone()) } else { WatchEvent::Added(object.clone()) };
        self.notify(object_path, event);
        Ok(Body::Full(object.wire()))
    }

    fn delete(&mut self, object_path: &ObjectPath) -> Result<Body, Status> {
        self.revision += 1;
        let Some(old) = self.objects.remove(object_path) else { return Err(Status::path_not_found()) };
        let gone = Arc::new(Object { revision: self.revision, ..(*old).clone() });
        self.notify(object_path.clone(), WatchEvent::Deleted(gone));
        Ok(Body::Full(Bytes::from_static(b"{}")))
    }

    fn notify(&mut self, object_path: ObjectPath, event: WatchEvent) {
        self.watchers.retain(|(collection, events)| {
            if covers(collection, &object_path) { events.send(Ok(event.clone())).is_ok() } else { !events.is_closed() }
        });
        self.history.push((object_path, event, self.revision));
    }

    fn list(&self, collection: &ObjectPath, query: &HashMap<String, String>) -> Body {
        let limit = query.get("limit").and_then(|l| l.parse().ok()).unwrap_or(usize::MAX);
        let start: usize = query.get("continue").and_then(|l| l.parse().ok()).unwrap_or(0);
        let all: Vec<_> = self.objects.iter().filter(|(object_path, _)| covers(collection, object_path)).collect();
        let page: Vec<Value> = all.iter().skip(start).take(limit).map(|(_, object)| object.value()).collect();
        let next = start + page.len();
        let token = if next < all.len() { next.to_string() } else { String::new() };
        let metadata = json!({"resourceVersion": self.revision.to_string(), "continue": token});
        let list = json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": page});
        Body::Full(list.to_string().into())
    }

    fn watch(&mut self, collection: ObjectPath, query: &HashMap<String, String>) -> Result<Body, Status> {
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
            for (_, object) in self.objects.iter().filter(|(object_path, _)| covers(&collection, object_path)) {
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

fn covers(collection: &ObjectPath, object_path: &ObjectPath) -> bool {
    collection.0 == object_path.0
        && collection.1 == object_path.1
        && (collection.2.is_empty() || collection.2 == object_path.2)
}

fn object_path(path: &str) -> ObjectPath {
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
