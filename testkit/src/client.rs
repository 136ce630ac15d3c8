//! Clients of the package `corten-client` that call an API server in this process, without a socket.

use std::sync::Arc;

use bytes::Bytes;
use corten_client::{Client, Transport};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

/// Returns a client that calls a server under one identity.
pub fn in_process(calls: corten_apiserver::InProcess) -> Client {
    Client::new(transport(calls))
}

/// Returns the transport of such a client.
pub fn transport(calls: corten_apiserver::InProcess) -> Arc<dyn Transport> {
    Arc::new(InProcess(calls))
}

struct InProcess(corten_apiserver::InProcess);

impl Transport for InProcess {
    fn send(
        &self,
        request: http::Request<Bytes>,
    ) -> BoxFuture<'static, Result<http::Response<corten_client::Body>, corten_client::Error>> {
        let call = self.0.clone();
        async move { Ok(call.call(request).await.map(body)) }.boxed()
    }
}

fn body(body: corten_apiserver::Body) -> corten_client::Body {
    use corten_apiserver::WatchEvent as From;
    use corten_client::WatchEvent as To;
    let event = |event| match event {
        From::Added(object) => To::Added(object),
        From::Modified(object) => To::Modified(object),
        From::Deleted(object) => To::Deleted(object),
        From::Bookmark { revision, initial_events_end } => To::Bookmark { revision, initial_events_end },
        From::Error(status) => To::Error(status),
    };
    match body {
        corten_apiserver::Body::Full(bytes) => corten_client::Body::Full(bytes),
        corten_apiserver::Body::List(list) => corten_client::Body::Full(list.join()),
        corten_apiserver::Body::Watch(watch) => {
            corten_client::Body::Events(watch.events().map(move |e| Ok(event(e))).boxed())
        }
        corten_apiserver::Body::Stream(stream) => corten_client::Body::Stream(
            stream.map(|chunk| chunk.map_err(|error| corten_client::Error::Transport(error.to_string()))).boxed(),
        ),
    }
}
