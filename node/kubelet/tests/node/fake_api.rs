//! A small API server for the kubelet's tests: objects in memory, watches, merge of status patches. It implements only
//! the requests of a kubelet.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use corten_client::{Body, Client, Error, Transport, WatchEvent};
use corten_meta::{Object, Value};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use serde_json::json;
use tokio::sync::broadcast;
use tokio_stream::wrappers::BroadcastStream;

#[derive(Clone)]
pub struct FakeApi {
    inner: Arc<Mutex<Inner>>,
    changes: broadcast::Sender<Change>,
}

#[derive(Clone)]
struct Change {
    collection: String,
    value: Value,
    revision: u64,
    deleted: bool,
    added: bool,
}

#[derive(Default)]
struct Inner {
    /// The objects by path, such as `/api/v1/namespaces/ns/pods/p`.
    objects: BTreeMap<String, Value>,
    revision: u64,
    /// The writes, as `METHOD path`.
    log: Vec<String>,
}

impl FakeApi {
    pub fn new() -> FakeApi {
        FakeApi { inner: Arc::default(), changes: broadcast::channel(1024).0 }
    }

    pub fn client(&self) -> Client {
        Client::new(Arc::new(self.clone()))
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.inner.lock().unwrap().objects.get(path).cloned()
    }

    pub fn log(&self) -> Vec<String> {
        self.inner.lock().unwrap().log.clone()
    }

    /// Returns the events about a pod, as `reason: message`.
    pub fn events(&self) -> Vec<String> {
        let inner = self.inner.lock().unwrap();
        let events = inner.objects.iter().filter(|(path, _)| path.contains("/events/")).map(|(_, event)| event);
        events
            .map(|event| format!("{}: {}", event["reason"].as_str().unwrap(), event["message"].as_str().unwrap()))
            .collect()
    }

    pub fn forget_events(&self) {
        self.inner.lock().unwrap().objects.retain(|path, _| !path.contains("/events/"));
    }

    /// Creates or replaces an object; a new one gets a uid.
    pub fn put(&self, path: &str, mut value: Value) {
        let mut inner = self.inner.lock().unwrap();
        let added = !inner.objects.contains_key(path);
        if value["metadata"]["uid"].is_null() {
            value["metadata"]["uid"] = json!(format!("uid-{}", path.rsplit('/').next().unwrap()));
        }
        self.store(&mut inner, path, value, added);
    }

    /// Changes an object in place.
    pub fn change(&self, path: &str, change: impl FnOnce(&mut Value)) {
        let mut inner = self.inner.lock().unwrap();
        let mut value = inner.objects[path].clone();
        change(&mut value);
        self.store(&mut inner, path, value, false);
    }

    fn store(&self, inner: &mut Inner, path: &str, mut value: Value, added: bool) {
        inner.revision += 1;
        value["metadata"]["resourceVersion"] = json!(inner.revision.to_string());
        inner.objects.insert(path.to_owned(), value.clone());
        let collection = path.rsplit_once('/').unwrap().0.to_owned();
        let _ = self.changes.send(Change { collection, value, revision: inner.revision, deleted: false, added });
    }

    pub fn remove(&self, path: &str) {
        let mut inner = self.inner.lock().unwrap();
        if let Some(value) = inner.objects.remove(path) {
            inner.revision += 1;
            let collection = path.rsplit_once('/').unwrap().0.to_owned();
            let revision = inner.revision;
            let _ = self.changes.send(Change { collection, value, revision, deleted: true, added: false });
        }
    }

    fn handle(&self, request: &http::Request<Bytes>) -> http::Response<Body> {
        let path = request.uri().path().to_owned();
        let query = request.uri().query().unwrap_or_default().to_owned();
        let body: Value = serde_json::from_slice(request.body()).unwrap_or(Value::Null);
        if request.method() != http::Method::GET && !path.contains("/events") && !path.contains("leases") {
            self.inner.lock().unwrap().log.push(format!("{} {path}", request.method()));
        }
        match request.method().as_str() {
            "GET" if is_collection(&path) && query.contains("watch=") => return self.watch(&path, &query),
            "GET" if is_collection(&path) => return self.list(&path, &query),
            "GET" => {}
            "POST" if path.ends_with("/token") => {
                return answer(
                    201,
                    &json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "metadata": {},
                    "status": {"token": "the-token", "expirationTimestamp": "2099-01-01T00:00:00Z"}}),
                );
            }
            "POST" => {
                let name = body["metadata"]["name"].as_str().unwrap_or("generated").to_owned();
                let object = format!("{path}/{name}");
                if self.get(&object).is_some() {
                    return failure(409, "AlreadyExists");
                }
                self.put(&object, body);
                return answer(201, &self.get(&object).unwrap());
            }
            "PUT" => self.put(&path, body),
            "PATCH" => {
                let object = path.trim_end_matches("/status").to_owned();
                let Some(known) = self.get(&object) else { return failure(404, "NotFound") };
                let uid = &body["metadata"]["uid"];
                if !uid.is_null() && *uid != known["metadata"]["uid"] {
                    return failure(422, "Invalid");
                }
                self.change(&object, |value| merge(value, &body));
                return answer(200, &self.get(&object).unwrap());
            }
            "DELETE" => {
                self.remove(&path);
                return answer(200, &json!({"kind": "Status", "status": "Success"}));
            }
            _ => return failure(405, "MethodNotAllowed"),
        }
        match self.get(&path) {
            Some(value) => answer(200, &value),
            None => failure(404, "NotFound"),
        }
    }

    fn selected(&self, collection: &str, query: &str) -> Vec<Value> {
        let inner = self.inner.lock().unwrap();
        let under = |path: &str| in_collection(path.rsplit_once('/').unwrap().0, collection);
        inner
            .objects
            .iter()
            .filter(|(path, _)| under(path))
            .map(|(_, value)| value.clone())
            .filter(|value| selects(query, value))
            .collect()
    }

    fn list(&self, collection: &str, query: &str) -> http::Response<Body> {
        let items = self.selected(collection, query);
        let revision = self.inner.lock().unwrap().revision.to_string();
        answer(
            200,
            &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": revision}, "items": items}),
        )
    }

    fn watch(&self, collection: &str, query: &str) -> http::Response<Body> {
        let changes = BroadcastStream::new(self.changes.subscribe());
        let initial = query.contains("sendInitialEvents=true") || !query.contains("resourceVersion=");
        let first: Vec<WatchEvent> = if initial {
            self.selected(collection, query).iter().map(|value| WatchEvent::Added(object(value))).collect()
        } else {
            Vec::new()
        };
        let revision = self.inner.lock().unwrap().revision;
        let mark = query
            .contains("sendInitialEvents=true")
            .then_some(WatchEvent::Bookmark { revision, initial_events_end: true });
        let collection = collection.to_owned();
        let query = query.to_owned();
        let rest = changes.filter_map(move |change| {
            let event = change
                .ok()
                .filter(|change| in_collection(&change.collection, &collection) && selects(&query, &change.value));
            futures::future::ready(event.map(|change| {
                let mut value = change.value.clone();
                value["metadata"]["resourceVersion"] = json!(change.revision.to_string());
                let object = object(&value);
                if change.deleted {
                    WatchEvent::Deleted(object)
                } else if change.added {
                    WatchEvent::Added(object)
                } else {
                    WatchEvent::Modified(object)
                }
            }))
        });
        let events = futures::stream::iter(first.into_iter().chain(mark)).chain(rest).map(Ok).boxed();
        http::Response::new(Body::Events(events))
    }
}

impl Transport for FakeApi {
    fn send(&self, request: http::Request<Bytes>) -> BoxFuture<'static, Result<http::Response<Body>, Error>> {
        let response = self.handle(&request);
        futures::future::ready(Ok(response)).boxed()
    }
}

fn object(value: &Value) -> Arc<Object> {
    let revision = value["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
    Arc::new(Object::from_value(value, revision).unwrap())
}

const PLURALS: [&str; 15] = [
    "pods",
    "nodes",
    "services",
    "configmaps",
    "secrets",
    "leases",
    "events",
    "serviceaccounts",
    "persistentvolumes",
    "persistentvolumeclaims",
    "csidrivers",
    "csinodes",
    "volumeattachments",
    "resourceclaims",
    "resourceslices",
];

fn is_collection(path: &str) -> bool {
    PLURALS.contains(&path.rsplit('/').next().unwrap())
}

/// Reports whether a path is in a collection; `/api/v1/pods` has the pods of every namespace.
fn in_collection(collection: &str, wanted: &str) -> bool {
    collection == wanted
        || (!wanted.contains("/namespaces/") && collection.rsplit('/').next() == wanted.rsplit('/').next())
}

/// Evaluates field selectors of the form `path=value`, percent-encoded or not.
fn selects(query: &str, value: &Value) -> bool {
    let query = query.replace("%3D", "=").replace("%2C", ",");
    let Some(selector) = query.split('&').find_map(|part| part.strip_prefix("fieldSelector=")) else { return true };
    selector.split(',').all(|requirement| {
        let (path, wanted) = requirement.split_once('=').unwrap();
        let pointer = format!("/{}", path.replace('.', "/"));
        value.pointer(&pointer).and_then(Value::as_str) == Some(wanted)
    })
}

/// Applies a strategic merge patch as far as a kubelet's patches need it: conditions by type, marked lists replaced.
fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(fields) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = json!({});
    }
    for (name, new) in fields {
        match new {
            Value::Null => {
                value.as_object_mut().unwrap().remove(name);
            }
            Value::Array(new) if name == "conditions" => {
                let mut old = value[name].as_array().cloned().unwrap_or_default();
                for condition in new {
                    if condition["$patch"] == "delete" {
                        old.retain(|old| old["type"] != condition["type"]);
                        continue;
                    }
                    match old.iter_mut().find(|old| old["type"] == condition["type"]) {
                        Some(old) => merge(old, condition),
                        None => old.push(condition.clone()),
                    }
                }
                value[name] = Value::Array(old);
            }
            Value::Array(new) => {
                value[name] = Value::Array(new.iter().filter(|item| item.get("$patch").is_none()).cloned().collect());
            }
            Value::Object(_) => merge(&mut value[name], new),
            other => value[name] = other.clone(),
        }
    }
}

fn answer(code: u16, value: &Value) -> http::Response<Body> {
    let body = Body::Full(value.to_string().into());
    http::Response::builder().status(code).body(body).unwrap()
}

fn failure(code: u16, reason: &str) -> http::Response<Body> {
    answer(
        code,
        &json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": reason, "metadata": {}}),
    )
}
