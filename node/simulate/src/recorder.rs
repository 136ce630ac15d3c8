//! Measures every request of the simulation, by verb, resource and scope: from the call until the answer is read.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use bytes::Bytes;
use corten_client::{Body, Error, Transport};
use futures::future::BoxFuture;
use http::{HeaderValue, Method, Request, Response};

use crate::histogram::Histogram;

/// The scope of a request, as upstream's service levels distinguish them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// One object.
    Resource,
    /// The objects of a namespace.
    Namespace,
    /// The objects of all namespaces.
    Cluster,
}

impl Scope {
    pub fn name(self) -> &'static str {
        match self {
            Scope::Resource => "resource",
            Scope::Namespace => "namespace",
            Scope::Cluster => "cluster",
        }
    }
}

/// A kind of request.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct CallKind {
    pub verb: &'static str,
    /// The plural of the resource, and the subresource after a slash.
    pub resource: String,
    pub scope: Scope,
}

/// The answers to requests of one kind.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    pub latencies: Histogram,
    /// The answers that are no success, and requests without an answer.
    pub failures: u64,
}

/// The measurements of all requests. Cloning shares them.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<BTreeMap<CallKind, Answers>>>);

impl Recorder {
    /// Returns a transport whose requests are measured.
    pub fn measured(&self, inner: Arc<dyn Transport>) -> Arc<dyn Transport> {
        Arc::new(Measured { inner, recorder: self.clone() })
    }

    /// Returns the measurements so far, and begins again.
    pub fn take(&self) -> BTreeMap<CallKind, Answers> {
        std::mem::take(&mut *self.lock())
    }

    fn add(&self, kind: CallKind, began: Instant, succeeded: bool) {
        let mut all = self.lock();
        let answers = all.entry(kind).or_default();
        answers.latencies.add(began.elapsed());
        answers.failures += u64::from(!succeeded);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<CallKind, Answers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A transport that measures its requests; watches, which have no end, are not measured.
struct Measured {
    inner: Arc<dyn Transport>,
    recorder: Recorder,
}

impl Transport for Measured {
    fn send(&self, request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let kind = kind(request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
        let sent = self.inner.send(request);
        let Some(kind) = kind else { return sent };
        let recorder = self.recorder.clone();
        Box::pin(async move {
            let began = Instant::now();
            let answer = async {
                let (head, body) = sent.await?.into_parts();
                Ok(Response::from_parts(head, Body::Full(body.into_bytes().await?)))
            };
            let answer: Result<Response<Body>, Error> = answer.await;
            recorder.add(kind, began, answer.as_ref().is_ok_and(|answer| answer.status().is_success()));
            answer
        })
    }
}

/// Returns the kind of a request; `None` for watches and for paths that belong to no resource.
fn kind(method: &Method, path: &str, query: &str) -> Option<CallKind> {
    let mut segments = path.split('/').filter(|segment| !segment.is_empty());
    match segments.next()? {
        "api" => segments.next()?,
        "apis" => segments.nth(1)?,
        _ => return None,
    };
    let rest: Vec<&str> = segments.collect();
    let (namespaced, rest) = match rest.as_slice() {
        ["namespaces", _, rest @ ..] if !rest.is_empty() => (true, rest),
        rest => (false, rest),
    };
    let (plural, name, subresource) = match rest {
        [plural] => (*plural, None, None),
        [plural, name] => (*plural, Some(*name), None),
        [plural, name, subresource, ..] => (*plural, Some(*name), Some(*subresource)),
        [] => return None,
    };
    let is_watch = query.split('&').any(|option| option == "watch=true" || option == "watch=1");
    let verb = match (method, name) {
        (&Method::GET, None) if is_watch => return None,
        (&Method::GET, None) => "list",
        (&Method::GET, Some(_)) => "get",
        (&Method::POST, _) => "create",
        (&Method::PUT, _) => "update",
        (&Method::PATCH, _) => "patch",
        (&Method::DELETE, Some(_)) => "delete",
        (&Method::DELETE, None) => "deletecollection",
        _ => return None,
    };
    let scope = match (name, verb, namespaced) {
        (Some(_), _, _) | (None, "create", _) => Scope::Resource,
        (None, _, true) => Scope::Namespace,
        (None, _, false) => Scope::Cluster,
    };
    let resource = match subresource {
        Some(subresource) => format!("{plural}/{subresource}"),
        None => plural.to_owned(),
    };
    Some(CallKind { verb, resource, scope })
}

/// Returns a transport whose requests are sent as the user of a node.
pub fn as_node(inner: Arc<dyn Transport>, node: &str) -> Arc<dyn Transport> {
    match HeaderValue::from_str(&format!("system:node:{node}")) {
        Ok(user) => Arc::new(Impersonating { inner, user }),
        Err(_) => inner,
    }
}

struct Impersonating {
    inner: Arc<dyn Transport>,
    user: HeaderValue,
}

impl Transport for Impersonating {
    fn send(&self, mut request: Request<Bytes>) -> BoxFuture<'static, Result<Response<Body>, Error>> {
        let headers = request.headers_mut();
        headers.insert("impersonate-user", self.user.clone());
        headers.insert("impersonate-group", HeaderValue::from_static("system:nodes"));
        self.inner.send(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_sorted_by_verb_resource_and_scope() {
        for (request, expected) in [
            ("GET /api/v1/pods", "list pods cluster"),
            ("GET /api/v1/pods?limit=500&watch=false", "list pods cluster"),
            ("GET /api/v1/namespaces/prod/pods", "list pods namespace"),
            ("GET /api/v1/namespaces/prod/pods/web", "get pods resource"),
            ("POST /api/v1/namespaces/prod/pods", "create pods resource"),
            ("PATCH /api/v1/namespaces/prod/pods/web/status", "patch pods/status resource"),
            ("PUT /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/n1", "update leases resource"),
            ("GET /api/v1/namespaces/prod", "get namespaces resource"),
            ("POST /api/v1/nodes", "create nodes resource"),
            ("DELETE /api/v1/nodes", "deletecollection nodes cluster"),
            ("GET /api/v1/pods?watch=true", "-"),
            ("GET /version", "-"),
            ("GET /api/v1", "-"),
            ("GET /", "-"),
        ] {
            let (method, uri) = request.split_once(' ').unwrap();
            let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
            let found = kind(&method.parse().unwrap(), path, query);
            let found = found.map(|kind| format!("{} {} {}", kind.verb, kind.resource, kind.scope.name()));
            assert_eq!(found.as_deref().unwrap_or("-"), expected, "{request}");
        }
    }
}
