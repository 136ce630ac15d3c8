//! The API in memory: the responses of a server, without faults, time or watches.
//!
//! It implements the rules that controllers rely on: it compares resourceVersions and uids, counts generations, keeps
//! objects with finalizers, deletes pods gracefully, applies propagation policies, rejects objects in a terminating
//! namespace, and validates. It must never do more for a controller than the real server would.

use std::collections::BTreeMap;

use corten_api::Kind;
use corten_meta::{GroupKind, GroupResource, Key, Status, Value};
use http::Method;
use jiff::Timestamp;
use serde_json::json;

use super::custom;
use crate::tests::model::Model;

/// The parsed path of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub group: String,
    pub version: String,
    pub namespace: String,
    pub plural: String,
    pub name: String,
    pub subresource: String,
}

impl Place {
    pub fn of(path: &str) -> Place {
        let mut parts = path.trim_matches('/').split('/').map(str::to_owned).collect::<std::collections::VecDeque<_>>();
        let mut next = || parts.pop_front().unwrap_or_default();
        let core = next() == "api";
        let group = if core { String::new() } else { next() };
        let mut place = Place { group, version: next(), plural: next(), ..Place::default() };
        let (first, second) = (next(), next());
        if place.plural == "namespaces" && !second.is_empty() && !["status", "finalize"].contains(&second.as_str()) {
            (place.namespace, place.plural, place.name) = (first, second, next());
            place.subresource = next();
        } else {
            (place.name, place.subresource) = (first, second);
        }
        place
    }

    pub fn kind(&self) -> Result<&'static Kind, Status> {
        custom::lookup(&self.group, &self.version, &self.plural).ok_or_else(Status::path_not_found)
    }

    fn resource(&self) -> GroupResource {
        GroupResource::new(&self.group, &self.plural)
    }
}

/// The state of the API, and the few settings of a world.
pub struct Api {
    pub model: Model,
    pub now: Timestamp,
    /// The CPU load in thousandths, shared by the pods that are ready.
    pub load: i64,
    /// Every issued token: the Secret's uid and the token.
    pub tokens: Vec<(String, String)>,
    /// Writes that validation rejected: always the fault of a controller.
    pub invalid: Vec<String>,
    names: u64,
}

pub type Answer = Result<Value, Status>;

impl Api {
    pub fn new(now: Timestamp) -> Api {
        let model = Model::logged();
        Api { model, now, load: 0, tokens: Vec::new(), invalid: Vec::new(), names: 0 }
    }

    /// Answers every request except a watch.
    pub fn answer(&mut self, method: &Method, path: &str, query: &str, body: &Value) -> Answer {
        if let Some(found) = self.discovery(path) {
            return Ok(found);
        }
        let place = Place::of(path);
        match (place.group.as_str(), place.plural.as_str(), place.subresource.as_str()) {
            ("metrics.k8s.io", ..) => return Ok(self.metrics(&place.namespace)),
            (_, "subjectaccessreviews", _) => return Ok(review(body)),
            // No controller reads events: they are accepted and dropped.
            (_, "events", _) => {
                let metadata = json!({"resourceVersion": self.model.revision.to_string()});
                return Ok(json!({"apiVersion": "v1", "kind": "EventList", "metadata": metadata, "items": []}));
            }
            (_, "nodes", "proxy") => return Ok(json!({})),
            (_, _, "token") => return self.token(&place, body),
            _ => {}
        }
        let kind = place.kind()?;
        self.answers(kind, *method == Method::POST)?;
        match *method {
            Method::GET if place.name.is_empty() => Ok(self.list(kind, &place.namespace, query)),
            Method::GET if place.subresource == "scale" => Ok(scale_of(&self.present(kind, &place)?)),
            Method::GET => self.present(kind, &place),
            Method::POST if place.subresource == "binding" => {
                let current = self.present(kind, &place)?;
                let mut bound = current.clone();
                bound["spec"]["nodeName"] = body["target"]["name"].clone();
                self.replace(kind, &current, bound)
            }
            Method::POST if place.subresource == "eviction" => self.evict(kind, &place, body),
            Method::POST => self.create(kind, &place, body.clone()),
            Method::PUT => self.update(kind, &place, body.clone()),
            Method::PATCH => self.patch(kind, &place, body),
            Method::DELETE if place.name.is_empty() => self.delete_all(kind, &place, body),
            Method::DELETE => self.delete(kind, &place, body),
            _ => Err(Status::method_not_allowed()),
        }
    }

    pub fn present(&self, kind: &Kind, place: &Place) -> Answer {
        let found = self.model.find(&kind.kind, &place.namespace, &place.name);
        found.ok_or_else(|| Status::not_found(&place.resource(), &place.name))
    }

    fn list(&self, kind: &Kind, namespace: &str, query: &str) -> Value {
        let limit = query.split('&').find_map(|pair| pair.strip_prefix("limit=")?.parse().ok()).unwrap_or(usize::MAX);
        let mut keys = self.model.keys(&kind.kind);
        keys.retain(|key| namespace.is_empty() || key.namespace == namespace);
        let items = keys.iter().take(limit).map(|key| self.model.value(&kind.kind, &key.namespace, &key.name));
        let items: Vec<Value> = items.collect();
        json!({"apiVersion": kind.api_version(), "kind": kind.list_kind, "items": items,
            "metadata": {"resourceVersion": self.model.revision.to_string()}})
    }

    fn create(&mut self, kind: &Kind, place: &Place, mut object: Value) -> Answer {
        if corten_meta::name(&object).is_empty() {
            self.names += 1;
            let prefix = object["metadata"]["generateName"].as_str().unwrap_or_default();
            object["metadata"]["name"] = json!(format!("{prefix}{:05}", self.names));
        }
        let name = corten_meta::name(&object).to_owned();
        if self.model.find(&kind.kind, &place.namespace, &name).is_some() {
            return Err(Status::already_exists(&place.resource(), &name));
        }
        self.takes_in(place, &name)?;
        object["apiVersion"] = json!(kind.api_version());
        object["kind"] = json!(kind.kind);
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for field in ["resourceVersion", "deletionTimestamp", "uid", "creationTimestamp", "generation"] {
                metadata.remove(field);
            }
        }
        self.names += 1;
        object["metadata"]["uid"] = json!(format!("uid-{}", self.names));
        object["metadata"]["creationTimestamp"] = json!(corten_meta::time::rfc3339(self.now));
        object["metadata"]["generation"] = json!(1);
        kind.default(&mut object);
        kind.behaviour.prepare_create(&mut object);
        let errors = kind.validate(&object);
        self.check(kind, &name, errors)?;
        let key = Key::new(place.namespace.clone(), name);
        self.model.put(object);
        Ok(self.model.value(&kind.kind, &key.namespace, &key.name))
    }

    /// Records validation errors: no controller may write an invalid object.
    fn check(&mut self, kind: &Kind, name: &str, errors: Vec<corten_meta::FieldError>) -> Result<(), Status> {
        if errors.is_empty() {
            return Ok(());
        }
        let refused = Status::invalid(&GroupKind::new(&kind.group, &kind.kind), name, errors);
        self.invalid.push(refused.message.clone());
        Err(refused)
    }

    /// Fails unless the namespace exists and is not terminating.
    fn takes_in(&self, place: &Place, name: &str) -> Result<(), Status> {
        if place.namespace.is_empty() {
            return Ok(());
        }
        let Some(namespace) = self.model.find("Namespace", "", &place.namespace) else {
            return Err(Status::not_found(&GroupResource::new("", "namespaces"), &place.namespace));
        };
        if namespace["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        let why =
            format!("unable to create new content in namespace {} because it is being terminated", place.namespace);
        Err(Status::forbidden(&place.resource(), name, &why))
    }

    fn update(&mut self, kind: &Kind, place: &Place, sent: Value) -> Answer {
        let current = self.present(kind, place)?;
        if place.subresource == "scale" {
            self.same(place, &current, &sent)?;
            let mut scaled = current.clone();
            scaled["spec"]["replicas"] = sent["spec"]["replicas"].clone();
            return self.replace(kind, &current, scaled).map(|scaled| scale_of(&scaled));
        }
        self.same(place, &current, &sent)?;
        self.write(kind, place, &current, sent)
    }

    /// Updates an object, as far as the subresource and validation allow.
    fn write(&mut self, kind: &Kind, place: &Place, current: &Value, sent: Value) -> Answer {
        let mut new = merged(kind, &place.subresource, current, sent);
        let errors = match place.subresource.as_str() {
            // An update of other fields is not rejected if the object was invalid before.
            _ if !kind.validate(current).is_empty() => Vec::new(),
            "" => {
                kind.behaviour.prepare_update(&mut new, current);
                kind.validate_update(&new, current)
            }
            "status" => {
                kind.behaviour.prepare_status_update(&mut new, current, self.now);
                kind.behaviour.validate_status_update(&new, current)
            }
            _ => Vec::new(),
        };
        self.check(kind, &place.name, errors)?;
        self.replace(kind, current, new)
    }

    fn same(&self, place: &Place, current: &Value, sent: &Value) -> Result<(), Status> {
        for field in ["uid", "resourceVersion"] {
            let wanted = sent["metadata"][field].as_str().unwrap_or_default();
            if !wanted.is_empty() && current["metadata"][field] != wanted {
                let why = "the object has been modified; please apply your changes to the latest version and try again";
                return Err(Status::conflict(&place.resource(), &place.name, why));
            }
        }
        Ok(())
    }

    fn patch(&mut self, kind: &Kind, place: &Place, patch: &Value) -> Answer {
        let current = self.present(kind, place)?;
        self.same(place, &current, patch)?;
        let mut patched = current.clone();
        corten_meta::patch::merge_patch(&mut patched, patch);
        self.write(kind, place, &current, patched)
    }

    /// Stores the new state if it differs, or removes a deleted object that nothing holds.
    pub fn replace(&mut self, kind: &Kind, current: &Value, mut new: Value) -> Answer {
        for field in ["uid", "resourceVersion", "creationTimestamp", "deletionTimestamp", "generation"] {
            carry(&current["metadata"], &mut new["metadata"], field);
        }
        if new == *current {
            return Ok(new);
        }
        if kind.rules.generation && new["spec"] != current["spec"] {
            new["metadata"]["generation"] = json!(corten_meta::generation(current) + 1);
        }
        if !new["metadata"]["deletionTimestamp"].is_null() && !is_held(&new) {
            self.remove(&new);
            return Ok(new);
        }
        self.model.put(new.clone());
        Ok(self.model.value(&kind.kind, corten_meta::namespace(&new), corten_meta::name(&new)))
    }

    fn remove(&mut self, object: &Value) {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        self.model.remove(&kind, corten_meta::namespace(object), corten_meta::name(object));
    }

    pub fn delete(&mut self, kind: &Kind, place: &Place, options: &Value) -> Answer {
        let current = self.present(kind, place)?;
        self.same(place, &current, &json!({"metadata": options["preconditions"]}))?;
        let mut new = current.clone();
        let policy = options["propagationPolicy"].as_str().unwrap_or_default();
        if !policy.is_empty() {
            let held = current["metadata"]["finalizers"].as_array().into_iter().flatten();
            let mut held: Vec<Value> =
                held.filter(|one| !["orphan", "foregroundDeletion"].iter().any(|ours| *one == ours)).cloned().collect();
            held.extend(match policy {
                "Orphan" => Some(json!("orphan")),
                "Foreground" => Some(json!("foregroundDeletion")),
                _ => None,
            });
            new["metadata"]["finalizers"] = json!(held);
        }
        if kind.rules.graceful_delete {
            let asked = options["gracePeriodSeconds"].as_i64();
            let at_once = new["spec"]["nodeName"].as_str().unwrap_or_default().is_empty()
                || ["Succeeded", "Failed"].iter().any(|phase| new["status"]["phase"] == *phase);
            let left = current["metadata"]["deletionGracePeriodSeconds"].as_i64();
            let grace = if at_once { 0 } else { asked.unwrap_or(30) };
            new["metadata"]["deletionGracePeriodSeconds"] = json!(left.map_or(grace, |left| left.min(grace)));
        }
        if new["metadata"]["deletionTimestamp"].is_null() {
            new["metadata"]["deletionTimestamp"] = json!(corten_meta::time::rfc3339(self.now));
            kind.behaviour.prepare_delete(&mut new, self.now);
        }
        match is_held(&new) {
            true if new != current => self.model.put(new.clone()),
            true => {}
            false => self.remove(&new),
        }
        Ok(new)
    }

    fn delete_all(&mut self, kind: &Kind, place: &Place, options: &Value) -> Answer {
        let keys = self.model.keys(&kind.kind).into_iter().filter(|key| key.namespace == place.namespace);
        for key in keys.collect::<Vec<Key>>() {
            self.delete(kind, &Place { name: key.name, ..place.clone() }, options)?;
        }
        Ok(json!({}))
    }

    fn token(&mut self, place: &Place, request: &Value) -> Answer {
        let account = self.present(place.kind()?, place)?;
        let whose = request["spec"]["boundObjectRef"]["uid"].as_str().unwrap_or_default();
        let token = format!("token-{}-of-{}", self.tokens.len(), corten_meta::uid(&account));
        self.tokens.push((whose.to_owned(), token.clone()));
        Ok(json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "status": {"token": token}}))
    }

    /// Returns resource metrics: the load of the world, shared by the pods that are ready.
    fn metrics(&self, namespace: &str) -> Value {
        let ready = |pod: &Value| {
            let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
            conditions.into_iter().any(|one| one["type"] == "Ready" && one["status"] == "True")
                && pod["metadata"]["deletionTimestamp"].is_null()
        };
        let keys = self.model.keys("Pod").into_iter().filter(|key| key.namespace == namespace);
        let pods: Vec<Value> =
            keys.map(|key| self.model.value("Pod", &key.namespace, &key.name)).filter(ready).collect();
        let share = self.load / i64::try_from(pods.len().max(1)).unwrap_or(1);
        let item = |pod: &Value| {
            json!({"metadata": {"name": corten_meta::name(pod), "namespace": namespace}, "window": "30s",
                "timestamp": corten_meta::time::rfc3339(self.now),
                "containers": [{"name": "c", "usage": {"cpu": format!("{share}m")}}]})
        };
        json!({"kind": "PodMetricsList", "apiVersion": "metrics.k8s.io/v1beta1", "items": pods.iter().map(item).collect::<Vec<_>>()})
    }
}

/// Returns the object after a write to the main resource or to a subresource.
fn merged(kind: &Kind, subresource: &str, current: &Value, mut sent: Value) -> Value {
    let mut new = current.clone();
    match subresource {
        "" => {
            if kind.rules.has_status {
                carry(current, &mut sent, "status");
            }
            if kind.kind == "Namespace" {
                carry(&current["spec"], &mut sent["spec"], "finalizers");
            }
            kind.default(&mut sent);
            return sent;
        }
        "approval" => carry(&sent["status"], &mut new["status"], "conditions"),
        "finalize" => carry(&sent["spec"], &mut new["spec"], "finalizers"),
        _ => {
            carry(&sent, &mut new, "status");
            if !kind.rules.status_keeps_metadata {
                carry(&sent, &mut new, "metadata");
            }
            if kind.rules.status_keeps_labels {
                carry(&current["metadata"], &mut new["metadata"], "labels");
            }
        }
    }
    new
}

/// Copies a field, also its absence.
fn carry(from: &Value, to: &mut Value, field: &str) {
    match (from.get(field).filter(|value| !value.is_null()), to.as_object_mut()) {
        (Some(value), _) => to[field] = value.clone(),
        (None, Some(fields)) => drop(fields.remove(field)),
        (None, None) => {}
    }
}

/// Reports whether finalizers or the grace period of a pod hold a deleted object.
fn is_held(object: &Value) -> bool {
    let some = |list: &Value| list.as_array().is_some_and(|all| !all.is_empty());
    some(&object["metadata"]["finalizers"])
        || object["kind"] == "Namespace" && some(&object["spec"]["finalizers"])
        || object["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|left| left > 0)
}

/// Reviews access: only users whose name begins with `node-` may have certificates.
fn review(body: &Value) -> Value {
    let allowed = body["spec"]["user"].as_str().is_some_and(|user| user.starts_with("system:node:"));
    let mut answer = body.clone();
    answer["status"] = json!({"allowed": allowed});
    answer
}

fn scale_of(object: &Value) -> Value {
    let labels = object["spec"]["selector"]["matchLabels"].as_object().into_iter().flatten();
    let selector: Vec<String> =
        labels.map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default())).collect();
    let metadata = &object["metadata"];
    json!({"apiVersion": "autoscaling/v1", "kind": "Scale",
        "metadata": {"name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]},
        "spec": {"replicas": object["spec"]["replicas"].as_i64().unwrap_or(0)},
        "status": {"replicas": object["status"]["replicas"].as_i64().unwrap_or(0), "selector": selector.join(",")}})
}

impl Api {
    /// Returns the groups, or the resources of one version of a group.
    fn discovery(&self, path: &str) -> Option<Value> {
        let kinds = self.served();
        if path == "/apis" {
            let groups: BTreeMap<&str, String> = kinds
                .iter()
                .rev()
                .filter(|kind| !kind.group.is_empty())
                .map(|kind| (kind.group.as_str(), kind.api_version()))
                .collect();
            let entry = |(group, version): (&str, String)| json!({"name": group, "preferredVersion": {"groupVersion": version}});
            return Some(json!({"groups": groups.into_iter().map(entry).collect::<Vec<_>>()}));
        }
        let version = path.strip_prefix("/apis/").or_else(|| path.strip_prefix("/api/"))?;
        let of = kinds.iter().filter(|kind| kind.api_version() == version);
        let mut resources = Vec::new();
        for kind in of {
            resources.push(
                json!({"name": kind.plural, "kind": kind.kind, "namespaced": kind.namespaced, "verbs": kind.verbs}),
            );
            for below in &kind.subresources {
                let name = format!("{}/{}", kind.plural, below.name);
                resources.push(
                    json!({"name": name, "kind": below.kind, "namespaced": kind.namespaced, "verbs": below.verbs}),
                );
            }
        }
        (!resources.is_empty()).then(|| json!({ "resources": resources }))
    }
}
