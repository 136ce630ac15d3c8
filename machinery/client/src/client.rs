//! The client of a component: typed requests over any transport.

use crate::dynamic::Dynamic;
use crate::retry::{Again, Refused, retry_after};
use crate::{Body, DeleteOptions, Error, HttpsConfig, Kubeconfig, ListOptions, Patch, Resource, Transport, WatchEvent};
use bytes::Bytes;
use corten_api::Typed;
use corten_meta::{GroupResource, Status, Value};
use futures::stream::BoxStream;
use http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Method, Request, Response};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The longest time to wait for an answer. The server itself gives up on a request after 60 s.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(70);

/// A handle to the API. Cloning is cheap.
#[derive(Clone)]
pub struct Client {
    transport: Arc<dyn Transport>,
    user_agent: HeaderValue,
}

/// One answer to a list request.
#[derive(Debug, Clone)]
pub struct List<K> {
    pub items: Vec<K>,
    pub resource_version: String,
    /// The continue token; not empty if `limit` cut the list.
    pub continue_token: String,
}

impl Client {
    pub fn new(transport: Arc<dyn Transport>) -> Client {
        let user_agent = HeaderValue::from_static(concat!("corten/v", env!("CARGO_PKG_VERSION")));
        Client { transport, user_agent }
    }

    /// Makes a client over HTTPS. It connects at the first request.
    pub fn https(config: HttpsConfig) -> Result<Client, Error> {
        Ok(Client::new(Arc::new(crate::https::Https::new(config)?)))
    }

    /// Makes a client from a kubeconfig file; `context` defaults to the file's current one.
    pub fn from_kubeconfig(path: impl AsRef<Path>, context: Option<&str>) -> Result<Client, Error> {
        Client::https(Kubeconfig::load(path)?.https_config(context)?)
    }

    /// Sets the user agent. The server derives the field manager from the part before the slash.
    pub fn with_user_agent(mut self, user_agent: &str) -> Client {
        if let Ok(value) = HeaderValue::from_str(user_agent) {
            self.user_agent = value;
        }
        self
    }

    /// Counts the client's requests in `metrics` as those to `host`.
    pub fn with_metrics(mut self, metrics: &crate::Metrics, host: &str) -> Client {
        self.transport = metrics.counting(host, self.transport);
        self
    }

    /// Returns a client of a resource that is known by name only.
    pub fn dynamic(&self, resource: &Resource) -> Dynamic {
        Dynamic::new(self.clone(), resource.clone())
    }

    pub fn of<K: Typed>(&self) -> Dynamic {
        Dynamic::new(self.clone(), Resource::of::<K>())
    }

    pub async fn get<K: Typed>(&self, namespace: &str, name: &str) -> Result<K, Error> {
        Ok(K::decode(&self.of::<K>().get_bytes(namespace, name, None).await?)?)
    }

    /// Returns an object, or `None` if it is absent.
    pub async fn find<K: Typed>(&self, namespace: &str, name: &str) -> Result<Option<K>, Error> {
        match self.get(namespace, name).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists a namespace; "" lists all of them.
    pub async fn list<K: Typed>(&self, namespace: &str, options: &ListOptions) -> Result<List<K>, Error> {
        let bytes = self.of::<K>().list_bytes(namespace, options).await?;
        crate::dynamic::decode_list(&bytes, |item| Ok(K::decode(item)?))
    }

    pub async fn create<K: Typed>(&self, object: &K) -> Result<K, Error> {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        Ok(K::decode(&self.of::<K>().create_bytes(namespace, object.encode()).await?)?)
    }

    /// Creates an object and does not decode the answer.
    pub async fn post<K: Typed>(&self, object: &K) -> Result<(), Error> {
        let namespace = object.meta().namespace.as_deref().unwrap_or_default();
        self.of::<K>().create_bytes(namespace, object.encode()).await.map(drop)
    }

    pub async fn update<K: Typed>(&self, object: &K) -> Result<K, Error> {
        self.put(object, None).await
    }

    /// Writes the status only.
    pub async fn update_status<K: Typed>(&self, object: &K) -> Result<K, Error> {
        self.put(object, Some("status")).await
    }

    async fn put<K: Typed>(&self, object: &K, subresource: Option<&str>) -> Result<K, Error> {
        let meta = object.meta();
        let namespace = meta.namespace.as_deref().unwrap_or_default();
        let name = meta.name.as_deref().unwrap_or_default();
        Ok(K::decode(&self.of::<K>().update_bytes(namespace, name, subresource, object.encode()).await?)?)
    }

    pub async fn patch<K: Typed>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Patch,
        subresource: Option<&str>,
    ) -> Result<K, Error> {
        Ok(K::decode(&self.of::<K>().patch_bytes(namespace, name, patch, subresource).await?)?)
    }

    /// Patches an object and does not decode the answer.
    pub async fn send_patch<K: Typed>(
        &self,
        namespace: &str,
        name: &str,
        patch: &Patch,
        subresource: Option<&str>,
    ) -> Result<(), Error> {
        self.of::<K>().patch_bytes(namespace, name, patch, subresource).await.map(drop)
    }

    pub async fn delete<K: Typed>(&self, namespace: &str, name: &str, options: &DeleteOptions) -> Result<(), Error> {
        self.of::<K>().delete(namespace, name, options).await
    }

    /// Watches a namespace, or all of them. The stream is one connection and ends when the server ends it; a
    /// [`crate::Cache`] resumes.
    pub async fn watch<K: Typed>(
        &self,
        namespace: &str,
        options: &ListOptions,
    ) -> Result<BoxStream<'static, Result<WatchEvent, Error>>, Error> {
        self.of::<K>().watch(namespace, options).await
    }

    /// Sends a request as it is, with the client's user agent. Returns any answer, also a failure.
    pub async fn request(&self, mut request: Request<Bytes>) -> Result<Response<Body>, Error> {
        request.headers_mut().entry(USER_AGENT).or_insert_with(|| self.user_agent.clone());
        self.transport.send(request).await
    }

    /// Reads a path such as `/version` or `/readyz`.
    pub async fn get_raw(&self, path: &str) -> Result<Bytes, Error> {
        self.exchange(Method::GET, path, None, Bytes::new()).await
    }

    /// Sends a request without a body to a path that belongs to no kind, such as a proxy path.
    pub async fn send_raw(&self, method: Method, path: &str) -> Result<Bytes, Error> {
        self.exchange(method, path, None, Bytes::new()).await
    }

    /// Sends a request and returns the complete answer; failures become errors.
    pub(crate) async fn exchange(
        &self,
        method: Method,
        path_and_query: &str,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Bytes, Error> {
        let call = Call { method, path_and_query, content_type, body };
        let mut retries = 0;
        loop {
            let exchange = async { Ok(self.attempt(&call, retries > 0).await?.into_body().into_bytes().await?) };
            match tokio::time::timeout(REQUEST_TIMEOUT, exchange).await {
                Ok(Ok(bytes)) => return Ok(bytes),
                Ok(Err(refused)) => Refused::wait(refused, &mut retries).await?,
                Err(_) => return Err(Error::Timeout(REQUEST_TIMEOUT)),
            }
        }
    }

    /// Sends a request and returns the head of a successful answer; failures become errors.
    pub(crate) async fn open(
        &self,
        method: Method,
        path_and_query: &str,
        content_type: Option<&'static str>,
        body: Bytes,
    ) -> Result<Response<Body>, Error> {
        let call = Call { method, path_and_query, content_type, body };
        let mut retries = 0;
        loop {
            match self.attempt(&call, retries > 0).await {
                Ok(response) => return Ok(response),
                Err(refused) => refused.wait(&mut retries).await?,
            }
        }
    }

    async fn attempt(&self, call: &Call<'_>, again: bool) -> Result<Response<Body>, Refused> {
        let mut request = call.request()?;
        if again {
            request.extensions_mut().insert(Again);
        }
        let response = self.request(request).await?;
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status().as_u16();
        let retry_after = retry_after(&response);
        let body = response.into_body().into_bytes().await?;
        Err(Refused { error: Error::Api(failure(code, &call.method, &body)), retry_after })
    }
}

/// A request that may have to be sent more than once.
struct Call<'a> {
    method: Method,
    path_and_query: &'a str,
    content_type: Option<&'static str>,
    body: Bytes,
}

impl Call<'_> {
    fn request(&self) -> Result<Request<Bytes>, Error> {
        let mut request = Request::builder()
            .method(self.method.clone())
            .uri(self.path_and_query)
            .header(ACCEPT, "application/json")
            .body(self.body.clone())
            .map_err(|e| Error::Config(format!("cannot make a request of {:?}: {e}", self.path_and_query)))?;
        if let Some(content_type) = self.content_type {
            request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        Ok(request)
    }
}

/// Returns the `Status` of a failed answer. If the body has none, it is made as client-go does.
fn failure(code: u16, method: &Method, body: &[u8]) -> Status {
    let status = serde_json::from_slice::<Value>(body).ok().as_ref().and_then(Status::from_value);
    status.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(body);
        Status::generic(code, method.as_str(), &GroupResource::default(), "", text.trim())
    })
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("user_agent", &self.user_agent).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
