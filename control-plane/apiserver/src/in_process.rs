//! Calls from inside the process, through the same pipeline as all others.

use std::sync::Arc;

use bytes::Bytes;
use corten_access::User;
use corten_meta::{Status, Value};
use futures::future::BoxFuture;

use crate::body::{Body, Reply, RequestBody};
use crate::peer::{Identity, Peer};
use crate::server::Server;

impl Server {
    /// Returns a client that calls this server as `user`, without a socket.
    pub fn in_process(self: &Arc<Self>, user: User) -> InProcess {
        let identity = Identity::InProcess(user.authenticated());
        InProcess { server: Arc::clone(self), peer: Arc::new(Peer { identity, ..Peer::default() }) }
    }
}

/// Calls from inside the process, under one identity.
#[derive(Clone)]
pub struct InProcess {
    server: Arc<Server>,
    peer: Arc<Peer>,
}

impl InProcess {
    /// Sends one request through the pipeline. The future is boxed so that the pipeline is compiled in this package.
    pub fn call(&self, request: http::Request<Bytes>) -> BoxFuture<'_, Reply> {
        Box::pin(async move { self.server.handle(request.map(RequestBody::Full), &self.peer).await.map(Body::joined) })
    }

    /// Runs admission on new objects for a path without storing them, to measure its cost.
    pub async fn admit(&self, path: &str, objects: Vec<Value>) -> Result<(), Status> {
        let request = http::Request::post(path).body(()).map_err(|e| Status::bad_request(e.to_string()))?;
        self.server.admit(request, &self.peer, objects).await
    }
}
