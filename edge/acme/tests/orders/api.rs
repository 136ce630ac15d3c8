//! An API server in memory: enough of create, read, patch, delete, list and watch for controllers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use corten_client::{Body, Client, Error, Transport, WatchEvent};
use corten_meta::{GroupResource, Object, Status, Value};
use futures::StreamExt as _;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::UnboundedReceiverStream;

/// The place of an object: its plural name, namespace and name. No two groups of these tests share a plural name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    plural: String,
    namespace: String,
    name: String,
}

/// The objects that a list or watch is about.
#[derive(Clone, Default)]
struct Selection {
    place: Place,
    label: Option<String>,
    name: Option<String>,
}

struct Watcher {
    selection: Selection,
    events: mpsc::UnboundedSender<Result<WatchEvent, Error>>,
}

#[derive(Default)]
struct State {
    revision: u64,
    objects: BTreeMap<Place, Arc<Object>>,
    watchers: Vec<Watcher>,
}

/// The API server. Clones share it.
#[derive(Clone, Default)]
pub struct Api {
    state: Arc<Mutex<State>>,
}

impl Transport for Api {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let response = match self.state().answer(&request) {
            Ok(body) => Response::new(body),
            Err(status) => {
                let body = Body::Full(status.to_value().to_string().into());
                Response::builder().status(status.code).body(body).unwrap()
            }
        };
        Box::pin(async move { Ok(response) })
    }
}

impl Api {
    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Stores an object.
    pub fn put(&self, plural: &str, object: Value) {
        let place = Place {
            plural: plural.to_owned(),
            namespace: corten_meta::namespace(&object).to_owned(),
            name: corten_meta::name(&object).to_owned(),
        };
        self.state().put(place, object).unwrap();
    }

    pub fn get(&self, plural: &str, namespace: &str, name: &str) -> Option<Value> {
        let place = Place { plural: plural.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() };
        self.state().objects.get(&place).map(|object| object.value())
    }

    pub fn list(&self, plural: &str) -> Vec<Value> {
        let state = self.state();
        state.objects.iter().filter(|(place, _)| place.plural == plural).map(|(_, object)| object.value()).collect()
    }
}

impl Selection {
    fn of(request: &Request<Bytes>) -> Selection {
        let query = query(request.uri().query().unwrap_or_default());
        let name = query.get("fieldSelector").and_then(|selector| selector.strip_prefix("metadata.name="));
        Selection {
            place: place(request.uri().path()),
            label: query.get("labelSelector").cloned(),
            name: name.map(str::to_owned),
        }
    }

    fn contains(&self, place: &Place, object: &Object) -> bool {
        let has_label = |selector: &String| match selector.split_once('=') {
            Some((label, value)) => object.header.labels.get(label).is_some_and(|found| found == value),
            None => object.header.labels.contains_key(selector.as_str()),
        };
        self.place.plural == place.plural
            && (self.place.namespace.is_empty() || self.place.namespace == place.namespace)
            && self.name.as_ref().is_none_or(|name| *name == place.name)
            && self.label.as_ref().is_none_or(has_label)
    }
}

impl State {
    fn answer(&mut self, request: &Request<Bytes>) -> Result<Body, Status> {
        let path = request.uri().path();
        if path.trim_matches('/').split('/').count() == 3 && path.starts_with("/apis/") {
            let names = corten_gateway::crds::resources().into_iter().chain(["routepolicies".to_owned()]);
            let resources: Vec<Value> = names.map(|name| json!({"name": name})).collect();
            return Ok(Body::Full(json!({"resources": resources}).to_string().into()));
        }
        let selection = Selection::of(request);
        let place = selection.place.clone();
        let body = || serde_json::from_slice::<Value>(request.body()).unwrap_or(Value::Null);
        let resource = GroupResource::new("", &place.plural);
        let missing = || Status::not_found(&resource, &place.name);
        match *request.method() {
            Method::GET if place.name.is_empty() && request.uri().query().unwrap_or_default().contains("watch=") => {
                Ok(self.watch(selection, request))
            }
            Method::GET if place.name.is_empty() => Ok(self.list(&selection)),
            Method::GET => self.objects.get(&place).map(|object| Body::Full(object.wire())).ok_or_else(missing),
            Method::POST => {
                let object = body();
                let place = Place { name: corten_meta::name(&object).to_owned(), ..place };
                match self.objects.contains_key(&place) {
                    true => Err(Status::already_exists(&resource, &place.name)),
                    false => self.put(place, object),
                }
            }
            Method::PATCH => {
                let current = self.objects.get(&place).ok_or_else(missing)?;
                let patch = body();
                let version = corten_meta::resource_version(&patch);
                if !version.is_empty() && version != current.revision.to_string() {
                    return Err(Status::conflict(&resource, &place.name, "modified"));
                }
                let mut object = current.value();
                corten_meta::patch::merge_patch(&mut object, &patch);
                self.put(place, object)
            }
            Method::DELETE => {
                let gone = self.objects.remove(&place).ok_or_else(missing)?;
                self.revision += 1;
                let gone = Arc::new(Object { revision: self.revision, ..(*gone).clone() });
                self.notify(&place, &gone, WatchEvent::Deleted(gone.clone()));
                Ok(Body::Full(Bytes::from_static(b"{}")))
            }
            _ => Err(Status::method_not_allowed()),
        }
    }

    fn put(&mut self, place: Place, mut object: Value) -> Result<Body, Status> {
        self.revision += 1;
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.revision));
            object["metadata"]["generation"] = json!(1);
            object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        let object = Arc::new(Object::from_value(&object, self.revision).map_err(Status::internal)?);
        let old = self.objects.insert(place.clone(), object.clone());
        let event = match old {
            Some(_) => WatchEvent::Modified(object.clone()),
            None => WatchEvent::Added(object.clone()),
        };
        self.notify(&place, &object, event);
        Ok(Body::Full(object.wire()))
    }

    fn notify(&mut self, place: &Place, object: &Object, event: WatchEvent) {
        self.watchers.retain(|watcher| match watcher.selection.contains(place, object) {
            true => watcher.events.send(Ok(event.clone())).is_ok(),
            false => !watcher.events.is_closed(),
        });
    }

    fn list(&self, selection: &Selection) -> Body {
        let selected = self.objects.iter().filter(|(place, object)| selection.contains(place, object));
        let items: Vec<Value> = selected.map(|(_, object)| object.value()).collect();
        let metadata = json!({"resourceVersion": self.revision.to_string()});
        Body::Full(json!({"kind": "List", "apiVersion": "v1", "metadata": metadata, "items": items}).to_string().into())
    }

    /// Begins a watch with all objects: the tests never resume one.
    fn watch(&mut self, selection: Selection, request: &Request<Bytes>) -> Body {
        let (events, receiver) = mpsc::unbounded_channel();
        if request.uri().query().unwrap_or_default().contains("sendInitialEvents") {
            for (_, object) in self.objects.iter().filter(|(place, object)| selection.contains(place, object)) {
                events.send(Ok(WatchEvent::Added(object.clone()))).unwrap();
            }
            let end = WatchEvent::Bookmark { revision: self.revision, initial_events_end: true };
            events.send(Ok(end)).unwrap();
        }
        self.watchers.push(Watcher { selection, events });
        Body::Events(UnboundedReceiverStream::new(receiver).boxed())
    }
}

/// Returns the place that a path names: `/api/v1/…` or `/apis/GROUP/VERSION/…`.
fn place(path: &str) -> Place {
    let mut parts = path.trim_matches('/').split('/');
    let prefix = if parts.next() == Some("api") { 1 } else { 2 };
    let mut rest = parts.skip(prefix).map(str::to_owned).collect::<Vec<_>>().into_iter();
    let first = rest.next().unwrap_or_default();
    let mut place = Place { plural: first.clone(), ..Place::default() };
    if first == "namespaces" && rest.len() > 1 {
        place.namespace = rest.next().unwrap_or_default();
        place.plural = rest.next().unwrap_or_default();
    }
    place.name = rest.next().unwrap_or_default();
    place
}

fn query(text: &str) -> HashMap<String, String> {
    let decode = |text: &str| text.replace("%2F", "/").replace("%3D", "=");
    text.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, value)| (decode(name), decode(value))).collect()
}
