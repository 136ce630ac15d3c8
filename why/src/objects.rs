//! Reading objects as the user who asks.

use corten_client::{Client, Error, ListOptions, Resource};
use corten_meta::Value;
use futures::future::BoxFuture;

/// Reads objects of a cluster.
pub trait Reader: Send + Sync {
    /// Returns an object, or `None` if it does not exist.
    fn get<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, Error>>;

    /// Returns the objects that the options select; an empty namespace means all.
    fn list<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        options: ListOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>, Error>>;

    /// Returns the answer to a SubjectAccessReview or a SelfSubjectAccessReview.
    fn review<'a>(&'a self, review: &'a Value) -> BoxFuture<'a, Result<Value, Error>>;
}

/// Reads by a client, with its user's rights.
pub struct ClientReader(pub Client);

impl Reader for ClientReader {
    fn get<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, Error>> {
        Box::pin(async move {
            match self.0.dynamic(resource).get(namespace, name).await {
                Ok(object) => Ok(Some(object)),
                Err(error) if error.is_not_found() => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn list<'a>(
        &'a self,
        resource: &'a Resource,
        namespace: &'a str,
        options: ListOptions,
    ) -> BoxFuture<'a, Result<Vec<Value>, Error>> {
        Box::pin(async move { Ok(self.0.dynamic(resource).list(namespace, &options).await?.items) })
    }

    fn review<'a>(&'a self, review: &'a Value) -> BoxFuture<'a, Result<Value, Error>> {
        let plural = format!("{}s", text(review, "/kind").to_lowercase());
        Box::pin(async move {
            let resource = Resource::new("authorization.k8s.io", "v1", &plural, false);
            self.0.dynamic(&resource).create("", review).await
        })
    }
}

pub fn pods() -> Resource {
    Resource::new("", "v1", "pods", true)
}

pub fn nodes() -> Resource {
    Resource::new("", "v1", "nodes", false)
}

pub fn events() -> Resource {
    Resource::new("", "v1", "events", true)
}

pub fn services() -> Resource {
    Resource::new("", "v1", "services", true)
}

pub fn claims() -> Resource {
    Resource::new("", "v1", "persistentvolumeclaims", true)
}

pub fn storage_classes() -> Resource {
    Resource::new("storage.k8s.io", "v1", "storageclasses", false)
}

pub fn endpoint_slices() -> Resource {
    Resource::new("discovery.k8s.io", "v1", "endpointslices", true)
}

pub fn ingress_classes() -> Resource {
    Resource::new("networking.k8s.io", "v1", "ingressclasses", false)
}

pub fn core(plural: &str) -> Resource {
    Resource::new("", "v1", plural, true)
}

/// Returns the string at a JSON pointer; empty if there is none.
pub fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// Returns the number at a JSON pointer.
pub fn number(object: &Value, pointer: &str) -> Option<i64> {
    object.pointer(pointer).and_then(Value::as_i64)
}

/// Returns the items of the list at a JSON pointer.
pub fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Returns the condition of a type.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<&'a Value> {
    items(object, "/status/conditions").find(|one| text(one, "/type") == kind)
}

/// Returns a label selector with the pairs of a map such as `matchLabels`.
pub fn selector(labels: Option<&Value>) -> String {
    let pairs = labels.and_then(Value::as_object).into_iter().flatten();
    let pairs: Vec<String> = pairs.filter_map(|(key, value)| Some(format!("{key}={}", value.as_str()?))).collect();
    pairs.join(",")
}

/// Returns the resource that a user names: by its plural, singular, kind or short name, with or without its group.
pub async fn find_resource(client: &Client, word: &str) -> Result<Option<Resource>, Error> {
    let (word, group) = match word.split_once('.') {
        Some((word, group)) => (word.to_lowercase(), Some(group.to_lowercase())),
        None => (word.to_lowercase(), None),
    };
    let core: Value = serde_json::from_slice(&client.get_raw("/api/v1").await?).unwrap_or_default();
    let mut lists = vec![(String::new(), "v1".to_owned(), core)];
    let groups: Value = serde_json::from_slice(&client.get_raw("/apis").await?).unwrap_or_default();
    for one in items(&groups, "/groups") {
        let name = text(one, "/name");
        if group.as_deref().is_some_and(|wanted| wanted != name) {
            continue;
        }
        let version = text(one, "/preferredVersion/version");
        let Ok(list) = client.get_raw(&format!("/apis/{name}/{version}")).await else { continue };
        lists.push((name.to_owned(), version.to_owned(), serde_json::from_slice(&list).unwrap_or_default()));
    }
    let found = lists.iter().filter(|(name, _, _)| group.as_deref().is_none_or(|wanted| wanted == name));
    Ok(found.flat_map(|(name, version, list)| items(list, "/resources").map(move |one| (name, version, one))).find_map(
        |(group, version, one)| {
            let plural = text(one, "/name");
            let is_named = !plural.contains('/')
                && (plural == word
                    || text(one, "/singularName") == word
                    || text(one, "/kind").to_lowercase() == word
                    || items(one, "/shortNames").any(|short| short == word.as_str()));
            let namespaced = one["namespaced"].as_bool().unwrap_or(false);
            is_named.then(|| Resource::new(group, version, plural, namespaced))
        },
    ))
}
