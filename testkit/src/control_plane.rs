//! An API server with a durable store in this process, and clients of any identity: the control plane without nodes.

use std::sync::Arc;

use bytes::Bytes;
use corten_apiserver::{Server, User};
use corten_client::{Client, Transport};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};

/// A served API; its data is removed with its last holder.
#[derive(Clone)]
pub struct ControlPlane {
    server: Arc<Server>,
    _data: Arc<tempfile::TempDir>,
}

impl ControlPlane {
    /// Starts with an empty store below `dir`.
    pub async fn start_in(dir: &std::path::Path) -> ControlPlane {
        ControlPlane::start(dir, corten_apiserver::Config::default()).await
    }

    /// Starts with a configuration.
    pub async fn start(dir: &std::path::Path, config: corten_apiserver::Config) -> ControlPlane {
        let data = tempfile::tempdir_in(dir).expect("a directory for the store");
        let store = corten_store::Embedded::open(corten_store::Config::new(data.path())).expect("the store opens");
        let server = Server::new(config, store).await.expect("the API server starts");
        ControlPlane { server, _data: Arc::new(data) }
    }

    /// Returns a client that acts as `name` with `groups`, through the same pipeline as every other client.
    pub fn client(&self, name: &str, groups: &[&str]) -> Client {
        let groups = groups.iter().chain(&["system:authenticated"]).map(|group| (*group).to_owned()).collect();
        let user = User { name: name.to_owned(), groups, ..User::default() };
        Client::new(Arc::new(InProcess(self.server.in_process(user))))
    }

    pub fn admin(&self) -> Client {
        self.client("admin", &["system:masters"])
    }
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
