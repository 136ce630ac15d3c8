//! An API server over the embedded store in a temporary directory, in this process: the control plane without nodes. It
//! takes requests as they are, and has clients of any identity.

// In a test, a panic is the report.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corten_apiserver::{Body, Config, InProcess, Server, User, WatchEvent};
use corten_client::Client;
use corten_store::{Embedded, Store};
use futures::StreamExt;
use serde_json::Value;

use crate::eventually::eventually;

/// The time limit of one event or one whole body, also on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running server and its directory.
pub struct TestServer {
    pub server: Arc<Server>,
    admin: InProcess,
    /// The server's store, which must not outlive it.
    store: Weak<Embedded>,
    directory: tempfile::TempDir,
}

/// A response.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub headers: http::HeaderMap,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", self.body);
        self.body
    }

    /// Returns the body, or what came in place of the expected code.
    pub fn try_expect(self, code: u16) -> Result<Value, String> {
        if self.code == code { Ok(self.body) } else { Err(format!("{} {}", self.code, self.body)) }
    }

    /// Returns the error's message, if the code is the expected one.
    #[track_caller]
    pub fn message(self, code: u16) -> String {
        self.expect(code)["message"].as_str().unwrap_or_default().to_owned()
    }

    pub fn warnings(&self) -> Vec<String> {
        self.headers.get_all("warning").iter().map(|w| w.to_str().unwrap().to_owned()).collect()
    }
}

/// Returns the settings of a test server.
pub fn config() -> Config {
    Config {
        service_account_keys: vec![rcgen::KeyPair::generate().unwrap().serialize_pem()],
        encryption_keys: vec![corten_apiserver::EncryptionKey::first([3; 32])],
        ..Config::default()
    }
}

impl TestServer {
    pub async fn start() -> TestServer {
        TestServer::with(config()).await
    }

    pub async fn with(config: Config) -> TestServer {
        TestServer::with_store(config, |_| {}).await
    }

    /// Starts a server whose store lies below `parent`.
    pub async fn start_in(parent: &Path, config: Config) -> TestServer {
        let directory = tempfile::tempdir_in(parent).unwrap();
        let store = corten_store::Config::new(directory.path());
        TestServer::over(config, Embedded::open(store).unwrap(), directory).await
    }

    /// Starts a server over a store with other settings.
    pub async fn with_store(config: Config, settings: impl FnOnce(&mut corten_store::Config)) -> TestServer {
        let directory = tempfile::tempdir().unwrap();
        let mut store = corten_store::Config::new(directory.path());
        settings(&mut store);
        TestServer::over(config, Embedded::open(store).unwrap(), directory).await
    }

    async fn over(config: Config, store: Arc<Embedded>, directory: tempfile::TempDir) -> TestServer {
        let weak = Arc::downgrade(&store);
        let server = Server::new(config, store).await.unwrap();
        let admin = server.in_process(User::new("admin", &["system:masters"]));
        TestServer { server, admin, store: weak, directory }
    }

    /// Stops the server and opens the same store again.
    pub async fn restart(self) -> TestServer {
        self.restart_with(config()).await
    }

    /// Does the same, with other settings.
    pub async fn restart_with(self, config: Config) -> TestServer {
        let (store, directory) = self.stop().await;
        TestServer::over(config, store, directory).await
    }

    /// Stops the server; its store is open again.
    pub async fn stop(self) -> (Arc<Embedded>, tempfile::TempDir) {
        let TestServer { server, admin, directory, .. } = self;
        drop(admin);
        server.shut_down();
        drop(server);
        // The feed of the caches holds the store until it has seen the shutdown.
        let store = eventually("the store is unlocked", async || {
            Embedded::open(corten_store::Config::new(directory.path())).map_err(|error| error.to_string())
        });
        (store.await, directory)
    }

    /// Returns the directory of the store's files.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Compacts the history before a revision.
    pub async fn compact(&self, revision: u64) -> Result<(), corten_store::Error> {
        self.store.upgrade().unwrap().compact(revision).await
    }

    /// Returns the revision before which history is compacted.
    pub fn compacted(&self) -> u64 {
        self.store.upgrade().unwrap().compacted()
    }

    /// Returns a caller with another identity.
    pub fn user(&self, name: &str, groups: &[&str]) -> InProcess {
        self.server.in_process(User::new(name, groups))
    }

    /// Returns a client that acts as `name` with `groups`, through the same pipeline as every other client.
    pub fn client(&self, name: &str, groups: &[&str]) -> Client {
        crate::client::in_process(self.user(name, groups))
    }

    pub fn admin(&self) -> Client {
        crate::client::in_process(self.admin.clone())
    }

    pub async fn get(&self, path: &str) -> Answer {
        call(&self.admin, "GET", path, None, "application/json").await
    }

    /// Reads a path until the answer has this code.
    pub async fn until(&self, path: &str, code: u16) -> Value {
        eventually(&format!("{path} answers {code}"), async || self.get(path).await.try_expect(code)).await
    }

    pub async fn post(&self, path: &str, body: Value) -> Answer {
        call(&self.admin, "POST", path, Some(body), "application/json").await
    }

    pub async fn put(&self, path: &str, body: Value) -> Answer {
        call(&self.admin, "PUT", path, Some(body), "application/json").await
    }

    pub async fn delete(&self, path: &str, options: Option<Value>) -> Answer {
        call(&self.admin, "DELETE", path, options, "application/json").await
    }

    /// Sends a patch: `kind` is `merge`, `strategic` or `json`.
    pub async fn patch(&self, path: &str, kind: &str, body: Value) -> Answer {
        let content_type = match kind {
            "merge" => "application/merge-patch+json",
            "strategic" => "application/strategic-merge-patch+json",
            "json" => "application/json-patch+json",
            other => other,
        };
        call(&self.admin, "PATCH", path, Some(body), content_type).await
    }

    /// Sends a body as it is.
    pub async fn raw(&self, method: &str, path: &str, body: &str) -> Answer {
        let admin = self.user("admin", &["system:masters"]);
        send(&admin, method, path, body.to_owned().into(), &[("content-type", "application/json")]).await
    }

    pub async fn watch(&self, path: &str) -> futures::stream::BoxStream<'static, WatchEvent> {
        self.try_watch(path).await.expect("the history is there")
    }

    /// Returns a watch as the network would carry it.
    pub async fn watch_text(&self, path: &str) -> corten_apiserver::HttpBody {
        let request = http::Request::get(path).body(bytes::Bytes::new()).unwrap();
        let reply = self.admin.call(request).await;
        assert_eq!(reply.status(), 200);
        reply.into_body().into_http()
    }

    /// Returns the same, or nothing if the history that it needs is compacted.
    pub async fn try_watch(&self, path: &str) -> Option<futures::stream::BoxStream<'static, WatchEvent>> {
        let request = http::Request::get(path).body(bytes::Bytes::new()).unwrap();
        let reply = self.admin.call(request).await;
        if reply.status() == 410 {
            return None;
        }
        match reply.into_body() {
            Body::Watch(watch) => Some(watch.events()),
            other => panic!("not a watch: {other:?}"),
        }
    }
}

/// Sends one request.
pub async fn call(client: &InProcess, method: &str, path: &str, body: Option<Value>, content_type: &str) -> Answer {
    let bytes = body.map(|b| b.to_string()).unwrap_or_default();
    send(client, method, path, bytes.into(), &[("content-type", content_type)]).await
}

/// Sends one request with bytes and headers as they are.
pub async fn send(
    client: &InProcess,
    method: &str,
    path: &str,
    body: bytes::Bytes,
    headers: &[(&str, &str)],
) -> Answer {
    let mut request = http::Request::builder().method(method).uri(path);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let reply = client.call(request.body(body).unwrap()).await;
    let (parts, body) = reply.into_parts();
    let bytes = match body {
        Body::Full(bytes) => bytes,
        other => panic!("not a whole body: {other:?}"),
    };
    let body =
        serde_json::from_slice(&bytes).unwrap_or_else(|_| Value::String(String::from_utf8_lossy(&bytes).into_owned()));
    Answer { code: parts.status.as_u16(), body, headers: parts.headers }
}

/// Returns the next event, as `TYPE name` or `BOOKMARK`; fails if none comes.
pub async fn next(events: &mut futures::stream::BoxStream<'static, WatchEvent>) -> String {
    let event = tokio::time::timeout(PATIENCE, events.next()).await.expect("no event in time");
    match event {
        Some(WatchEvent::Added(o)) => format!("ADDED {}", o.header.name),
        Some(WatchEvent::Modified(o)) => format!("MODIFIED {}", o.header.name),
        Some(WatchEvent::Deleted(o)) => format!("DELETED {}", o.header.name),
        Some(WatchEvent::Bookmark { initial_events_end, .. }) => format!("BOOKMARK {initial_events_end}"),
        Some(WatchEvent::Error(status)) => format!("ERROR {}", status.code),
        None => "END".to_owned(),
    }
}
