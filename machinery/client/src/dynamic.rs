//! Requests for a resource known by name. The typed client is built on them; the garbage collector, the namespace
//! controller and the command line use them directly.

use crate::{Client, DeleteOptions, Error, List, ListOptions, Patch, Resource, WatchEvent};
use bytes::Bytes;
use corten_meta::{Object, Value, parse_wire};
use futures::stream::BoxStream;
use http::Method;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

const JSON: Option<&str> = Some("application/json");

/// A client of one resource.
#[derive(Debug, Clone)]
pub struct Dynamic {
    client: Client,
    resource: Resource,
}

impl Dynamic {
    pub(crate) fn new(client: Client, resource: Resource) -> Dynamic {
        Dynamic { client, resource }
    }

    pub fn resource(&self) -> &Resource {
        &self.resource
    }

    pub async fn get(&self, namespace: &str, name: &str) -> Result<Value, Error> {
        decode(&self.get_bytes(namespace, name, None).await?)
    }

    pub async fn list(&self, namespace: &str, options: &ListOptions) -> Result<List<Value>, Error> {
        decode_list(&self.list_bytes(namespace, options).await?, decode)
    }

    /// Lists encoded objects, as a cache keeps them.
    pub async fn list_objects(&self, namespace: &str, options: &ListOptions) -> Result<List<Arc<Object>>, Error> {
        decode_list(&self.list_bytes(namespace, options).await?, |item| Ok(Arc::new(parse_wire(item)?)))
    }

    pub async fn create(&self, namespace: &str, object: &Value) -> Result<Value, Error> {
        decode(&self.create_bytes(namespace, encode(object)).await?)
    }

    /// Creates an object and does not decode the answer.
    pub async fn post(&self, namespace: &str, object: &Value) -> Result<(), Error> {
        self.create_bytes(namespace, encode(object)).await.map(drop)
    }

    pub async fn update(&self, object: &Value) -> Result<Value, Error> {
        let namespace = corten_meta::namespace(object);
        let name = corten_meta::name(object);
        decode(&self.update_bytes(namespace, name, None, encode(object)).await?)
    }

    pub async fn update_status(&self, object: &Value) -> Result<Value, Error> {
        let namespace = corten_meta::namespace(object);
        let name = corten_meta::name(object);
        decode(&self.update_bytes(namespace, name, Some("status"), encode(object)).await?)
    }

    pub async fn patch(
        &self,
        namespace: &str,
        name: &str,
        patch: &Patch,
        subresource: Option<&str>,
    ) -> Result<Value, Error> {
        decode(&self.patch_bytes(namespace, name, patch, subresource).await?)
    }

    /// Patches an object and does not decode the answer.
    pub async fn send_patch(&self, namespace: &str, name: &str, patch: &Patch) -> Result<(), Error> {
        self.patch_bytes(namespace, name, patch, None).await.map(drop)
    }

    pub async fn delete(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<(), Error> {
        let path = self.resource.object_path(namespace, name, None);
        self.client.exchange(Method::DELETE, &path, JSON, encode(&options.to_value())).await.map(|_| ())
    }

    /// Deletes every object that the selectors match.
    pub async fn delete_collection(
        &self,
        namespace: &str,
        options: &DeleteOptions,
        select: &ListOptions,
    ) -> Result<(), Error> {
        let path = self.resource.path(namespace) + &select.query(false);
        self.client.exchange(Method::DELETE, &path, JSON, encode(&options.to_value())).await.map(|_| ())
    }

    /// Creates a subresource such as `binding`, `eviction` or `token`.
    pub async fn create_subresource(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &Value,
    ) -> Result<Value, Error> {
        decode(&self.create_subresource_bytes(namespace, name, subresource, body).await?)
    }

    /// Creates a subresource and does not decode the answer.
    pub async fn post_subresource(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &Value,
    ) -> Result<(), Error> {
        self.create_subresource_bytes(namespace, name, subresource, body).await.map(drop)
    }

    async fn create_subresource_bytes(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &Value,
    ) -> Result<Bytes, Error> {
        let path = self.resource.object_path(namespace, name, Some(subresource));
        self.client.exchange(Method::POST, &path, JSON, encode(body)).await
    }

    pub async fn get_subresource(&self, namespace: &str, name: &str, subresource: &str) -> Result<Value, Error> {
        decode(&self.get_bytes(namespace, name, Some(subresource)).await?)
    }

    pub async fn update_subresource(
        &self,
        namespace: &str,
        name: &str,
        subresource: &str,
        body: &Value,
    ) -> Result<Value, Error> {
        decode(&self.update_bytes(namespace, name, Some(subresource), encode(body)).await?)
    }

    pub async fn watch(
        &self,
        namespace: &str,
        options: &ListOptions,
    ) -> Result<BoxStream<'static, Result<WatchEvent, Error>>, Error> {
        let path = self.resource.path(namespace) + &options.query(true);
        Ok(self.client.open(Method::GET, &path, None, Bytes::new()).await?.into_body().into_events())
    }

    pub(crate) async fn get_bytes(
        &self,
        namespace: &str,
        name: &str,
        subresource: Option<&str>,
    ) -> Result<Bytes, Error> {
        // An empty name would read the collection instead.
        if name.is_empty() {
            return Err(Error::Config("resource name may not be empty".into()));
        }
        let path = self.resource.object_path(namespace, name, subresource);
        self.client.exchange(Method::GET, &path, None, Bytes::new()).await
    }

    pub(crate) async fn list_bytes(&self, namespace: &str, options: &ListOptions) -> Result<Bytes, Error> {
        let path = self.resource.path(namespace) + &options.query(false);
        self.client.exchange(Method::GET, &path, None, Bytes::new()).await
    }

    pub(crate) async fn create_bytes(&self, namespace: &str, body: Bytes) -> Result<Bytes, Error> {
        self.client.exchange(Method::POST, &self.resource.path(namespace), JSON, body).await
    }

    pub(crate) async fn update_bytes(
        &self,
        namespace: &str,
        name: &str,
        subresource: Option<&str>,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let path = self.resource.object_path(namespace, name, subresource);
        self.client.exchange(Method::PUT, &path, JSON, body).await
    }

    pub(crate) async fn patch_bytes(
        &self,
        namespace: &str,
        name: &str,
        patch: &Patch,
        subresource: Option<&str>,
    ) -> Result<Bytes, Error> {
        let path = self.resource.object_path(namespace, name, subresource) + &patch.query();
        self.client.exchange(Method::PATCH, &path, Some(patch.content_type()), encode(patch.body())).await
    }
}

fn encode(value: &Value) -> Bytes {
    value.to_string().into()
}

fn decode(bytes: &[u8]) -> Result<Value, Error> {
    serde_json::from_slice(bytes).map_err(|e| Error::Decode(e.to_string()))
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawList<'a> {
    #[serde(default, borrow)]
    api_version: Cow<'a, str>,
    #[serde(default, borrow)]
    kind: Cow<'a, str>,
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default, borrow)]
    items: Option<Vec<&'a RawValue>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct ListMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    continue_token: String,
}

/// Decodes a list, item by item. Restores `apiVersion` and `kind`, which other servers leave out of items.
pub(crate) fn decode_list<T>(bytes: &[u8], item: impl Fn(&[u8]) -> Result<T, Error>) -> Result<List<T>, Error> {
    let list: RawList<'_> =
        serde_json::from_slice(bytes).map_err(|e| Error::Decode(format!("cannot decode a list: {e}")))?;
    // Another object must not pass for an empty list: a cache would remove all its objects.
    if list.items.is_none() && !list.kind.ends_with("List") {
        return Err(Error::Decode(format!("expected a list, found {:?}", list.kind)));
    }
    let kind = list.kind.strip_suffix("List").unwrap_or_default();
    let mut items = Vec::new();
    for raw in list.items.unwrap_or_default() {
        let text = raw.get();
        if kind.is_empty() || text.starts_with("{\"apiVersion\":") || text.starts_with("{\"kind\":") {
            items.push(item(text.as_bytes())?);
            continue;
        }
        let mut value = decode(text.as_bytes())?;
        if let Some(map) = value.as_object_mut() {
            map.entry("apiVersion").or_insert_with(|| list.api_version.as_ref().into());
            map.entry("kind").or_insert_with(|| kind.into());
        }
        items.push(item(&encode(&value))?);
    }
    let ListMeta { resource_version, continue_token } = list.metadata;
    Ok(List { items, resource_version, continue_token })
}
