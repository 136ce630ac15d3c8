//! Pulls from a registry that is made here: an index, two platforms, a gzip layer, and a password; one that breaks off,
//! one that stalls, and one that sends more than it announced.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use corten_runtime::{ImageStore, PullAuth, RegistryConfig};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper_util::rt::TokioIo;
use sha2::{Digest, Sha256};

/// The stall timeout of the pulls.
const STALL_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

const AUTHORIZATION: &str = "Basic dXNlcjp3b3Jk";

/// A registry with one repository, `team/app`.
struct Registry {
    address: String,
    /// Content by the end of its path.
    content: HashMap<String, Vec<u8>>,
    requests: Mutex<Vec<String>>,
    /// The number of requests with the password.
    authorized: Mutex<usize>,
    /// The paths whose content breaks off, each time it is requested from its beginning.
    breaks_off: Vec<String>,
    /// The paths whose content stops half way, with the connection still open, when it is requested from its beginning.
    stalls: Vec<String>,
    /// The paths that are never answered.
    silent: Vec<String>,
    /// The paths whose content comes byte by byte.
    trickles: Vec<String>,
    /// The paths that are answered by a redirect, with their targets.
    moved: HashMap<String, String>,
}

type Body = http_body_util::combinators::BoxBody<bytes::Bytes, std::io::Error>;

fn complete(bytes: impl Into<bytes::Bytes>) -> Body {
    Full::from(bytes.into()).map_err(|never| match never {}).boxed()
}

/// Sends the first half, then closes the connection.
fn half(bytes: &[u8]) -> Body {
    let first = Ok(hyper::body::Frame::data(bytes::Bytes::copy_from_slice(&bytes[..bytes.len() / 2])));
    // The half is sent before the connection breaks.
    let gone = futures::stream::once(async {
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
        Err(std::io::Error::other("the cable was cut"))
    });
    BodyExt::boxed(StreamBody::new(futures::StreamExt::chain(futures::stream::iter([first]), gone)))
}

/// Sends the first half, then nothing.
fn stalled(bytes: &[u8]) -> Body {
    let first = Ok(hyper::body::Frame::data(bytes::Bytes::copy_from_slice(&bytes[..bytes.len() / 2])));
    BodyExt::boxed(StreamBody::new(futures::StreamExt::chain(
        futures::stream::iter([first]),
        futures::stream::pending(),
    )))
}

/// Sends a byte now and then, without end.
fn trickle() -> Body {
    let byte = |()| async {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        Some((Ok(hyper::body::Frame::data(bytes::Bytes::from_static(b" "))), ()))
    };
    BodyExt::boxed(StreamBody::new(Box::pin(futures::stream::unfold((), byte))))
}

fn open(folder: &std::path::Path) -> ImageStore {
    ImageStore::open(folder).expect("a store").with_program(env!("CARGO_BIN_EXE_corten-runtime"))
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{:x}", Sha256::digest(bytes))
}

fn layer() -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(5);
    header.set_mode(0o644);
    builder.append_data(&mut header, "hello", b"world".as_slice()).expect("append");
    builder.into_inner().expect("a layer")
}

/// Returns the files of a registry; the tag `broken` leads to a layer with another content than its digest.
fn content() -> HashMap<String, Vec<u8>> {
    let layer = layer();
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    gzip.write_all(&layer).expect("compress");
    let blob = gzip.finish().expect("compress");
    let mut content = HashMap::new();
    let config = serde_json::json!({"config": {"User": "7"}, "rootfs": {"diff_ids": [digest(&layer)]}}).to_string();
    let manifest = |config: &str, layer: &str| {
        serde_json::json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest(config.as_bytes()), "size": config.len()},
            "layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": layer, "size": blob.len()}],
        })
        .to_string()
    };
    let good = manifest(&config, &digest(&blob));
    let architecture = if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" };
    let other = format!("sha256:{}", "0".repeat(64));
    let index = serde_json::json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [
            {"digest": other, "size": 1, "platform": {"os": "linux", "architecture": "s390x"}},
            {"digest": digest(good.as_bytes()), "size": good.len(), "platform": {"os": "linux", "architecture": architecture}},
        ],
    })
    .to_string();
    let wrong = serde_json::json!({"rootfs": {"diff_ids": [digest(b"something else")]}}).to_string();
    let broken = manifest(&wrong, &digest(&blob));
    content.insert(format!("manifests/{}", digest(good.as_bytes())), good.into_bytes());
    content.insert("manifests/1".into(), index.into_bytes());
    content.insert("manifests/broken".into(), broken.into_bytes());
    for bytes in [config.into_bytes(), wrong.into_bytes(), blob.clone()] {
        content.insert(format!("blobs/{}", digest(&bytes)), bytes);
    }
    content
}

impl Registry {
    async fn start() -> Arc<Self> {
        Self::start_with(|_| {}).await
    }

    async fn start_with(change: impl FnOnce(&mut Self)) -> Arc<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("an address").to_string();
        let content = content();
        let mut registry = Self {
            address,
            content,
            requests: Mutex::default(),
            authorized: Mutex::default(),
            breaks_off: Vec::new(),
            stalls: Vec::new(),
            silent: Vec::new(),
            trickles: Vec::new(),
            moved: HashMap::new(),
        };
        change(&mut registry);
        let registry = Arc::new(registry);
        let serving = registry.clone();
        tokio::spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let registry = serving.clone();
                let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let answer = registry.answer(&request);
                    let silent = registry.silent.iter().any(|path| request.uri().path().ends_with(path));
                    async move {
                        if silent {
                            std::future::pending::<()>().await;
                        }
                        Ok::<_, std::convert::Infallible>(answer)
                    }
                });
                tokio::spawn(
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service),
                );
            }
        });
        registry
    }

    fn answer(&self, request: &http::Request<hyper::body::Incoming>) -> http::Response<Body> {
        let path = request.uri().path();
        self.requests.lock().expect("the list").push(path.to_string());
        let authorized = request.headers().get("authorization").is_some_and(|value| value == AUTHORIZATION);
        *self.authorized.lock().expect("the count") += usize::from(authorized);
        let response = http::Response::builder();
        if !authorized {
            let challenge = response.status(401).header("www-authenticate", "Basic realm=\"test\"");
            return challenge.body(complete("")).expect("an answer");
        }
        let name = path.trim_start_matches("/v2/").trim_start_matches("team/app/");
        if let Some(target) = self.moved.get(name) {
            let redirect = response.status(307).header("location", format!("/v2/team/app/{target}"));
            return redirect.body(complete("")).expect("an answer");
        }
        match self.content.get(name) {
            Some(bytes) => {
                let kind = serde_json::from_slice::<serde_json::Value>(bytes).ok();
                let kind = kind.and_then(|value| Some(value.get("mediaType")?.as_str()?.to_string()));
                let response = response
                    .header("content-type", kind.unwrap_or_else(|| "application/octet-stream".into()))
                    .header("docker-content-digest", digest(bytes));
                let range = request.headers().get("range").and_then(|value| value.to_str().ok());
                let from =
                    range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
                match from {
                    Some(from) => response.status(206).body(complete(bytes[from..].to_vec())),
                    None if self.breaks_off.iter().any(|broken| broken == name) => {
                        response.header("content-length", bytes.len()).body(half(bytes))
                    }
                    None if self.stalls.iter().any(|stalled| stalled == name) => {
                        response.header("content-length", bytes.len()).body(stalled(bytes))
                    }
                    None if self.trickles.iter().any(|trickling| trickling == name) => response.body(trickle()),
                    None => response.body(complete(bytes.clone())),
                }
            }
            None if path == "/v2/" => response.body(complete("")),
            None => response.status(404).body(complete("{\"errors\":[]}")),
        }
        .expect("an answer")
    }

    fn store(&self, folder: &std::path::Path) -> ImageStore {
        self.store_with_stall_timeout(folder, std::time::Duration::from_secs(300))
    }

    /// Opens a store with this stall timeout; on a slow machine, also a working registry is silent for a while.
    fn store_with_stall_timeout(&self, folder: &std::path::Path, stall_timeout: std::time::Duration) -> ImageStore {
        let settings = RegistryConfig {
            host: self.address.clone(),
            plain_http: true,
            stall_timeout: Some(stall_timeout),
            ..RegistryConfig::default()
        };
        open(folder).with_registries(vec![settings])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_image_is_pulled_for_this_machine_and_only_once() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    let registry = Registry::start().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let store = registry.store(folder.path());
    let name = format!("{}/team/app:1", registry.address);
    let auth = PullAuth::Basic("user".into(), "word".into());
    let image = store.pull(&name, auth.clone()).await.expect("pull");
    assert_eq!(image.tags, std::slice::from_ref(&name));
    assert_eq!(image.size, 5);
    assert!(!image.pinned && image.digests[0].starts_with(&format!("{}/team/app@sha256:", registry.address)));
    assert_eq!(store.find(&image.digests[0]).expect("find").expect("by digest").id, image.id);

    registry.requests.lock().expect("the list").clear();
    store.pull(&name, auth).await.expect("pull again");
    let requests = registry.requests.lock().expect("the list").clone();
    let blobs = requests.iter().filter(|path| path.contains("/blobs/")).count();
    assert_eq!(blobs, 1, "only the configuration is fetched again: {requests:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn wrong_passwords_missing_tags_and_false_layers_are_refused() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    let registry = Registry::start().await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let store = registry.store(folder.path());
    let right = PullAuth::Basic("user".into(), "word".into());
    let wrong = PullAuth::Basic("user".into(), "guess".into());
    for (tag, auth) in [("1", wrong), ("1", PullAuth::Anonymous), ("none", right.clone()), ("broken", right)] {
        let name = format!("{}/team/app:{tag}", registry.address);
        let error = store.pull(&name, auth).await.expect_err(tag).to_string();
        assert!(!error.is_empty());
    }
    assert!(store.list().expect("list").is_empty());
    assert_eq!(std::fs::read_dir(folder.path().join("layers")).expect("layers").count(), 0);
}

/// Returns the path of the layer's blob: the only one that is not JSON.
fn layer_path(content: &HashMap<String, Vec<u8>>) -> String {
    let is_layer = |(path, bytes): &(&String, &Vec<u8>)| path.starts_with("blobs/") && bytes.first() == Some(&0x1f);
    content.iter().find(is_layer).expect("a layer").0.clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_download_that_breaks_off_or_stalls_resumes() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    let faults: [fn(&mut Registry, Vec<String>); 2] =
        [|registry, layers| registry.breaks_off = layers, |registry, layers| registry.stalls = layers];
    for fault in faults {
        let registry = Registry::start_with(|registry| fault(registry, vec![layer_path(&registry.content)])).await;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let name = format!("{}/team/app:1", registry.address);
        let auth = PullAuth::Basic("user".into(), "word".into());
        let store = registry.store_with_stall_timeout(folder.path(), STALL_TIMEOUT);
        let image = store.pull(&name, auth).await.expect("pull");
        assert_eq!(image.size, 5);
        let layer = layer_path(&registry.content);
        let requests = registry.requests.lock().expect("the list").iter().filter(|path| path.ends_with(&layer)).count();
        assert_eq!(requests, 2, "the half and the rest");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_that_does_not_answer_is_named_in_the_error() {
    let config = |content: &HashMap<String, Vec<u8>>| {
        let is_config =
            |(path, bytes): &(&String, &Vec<u8>)| path.starts_with("blobs/") && bytes.starts_with(b"{\"config");
        content.iter().find(is_config).expect("a configuration").0.clone()
    };
    for silent in [|_: &HashMap<String, Vec<u8>>| "manifests/1".to_owned(), config] {
        let registry = Registry::start_with(|registry| registry.silent = vec![silent(&registry.content)]).await;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let store = registry.store_with_stall_timeout(folder.path(), STALL_TIMEOUT);
        let name = format!("{}/team/app:1", registry.address);
        let pulled = store.pull(&name, PullAuth::Basic("user".into(), "word".into())).await;
        let error = pulled.expect_err("no answer").to_string();
        assert!(error.ends_with(&format!("{} sent nothing for 5s", registry.address)), "{error}");
        assert_eq!(std::fs::read_dir(folder.path().join("tmp")).expect("tmp").count(), 0, "nothing is left behind");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_blob_is_read_no_further_than_its_size_in_the_manifest() {
    let registry = Registry::start_with(|registry| {
        let layer = layer_path(&registry.content);
        registry.content.get_mut(&layer).expect("the layer").extend_from_slice(&[0; 4096]);
    })
    .await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let store = registry.store(folder.path());
    let name = format!("{}/team/app:1", registry.address);
    let error = store.pull(&name, PullAuth::Basic("user".into(), "word".into())).await.expect_err("a lie").to_string();
    assert!(error.contains("is longer than the"), "{error}");
    assert_eq!(std::fs::read_dir(folder.path().join("tmp")).expect("tmp").count(), 0, "nothing is left behind");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_registry_on_this_machine_needs_no_settings_to_be_asked_without_tls() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    // The registry of upstream's suite answers a tag by a redirect to the digest.
    let registry = Registry::start_with(|registry| {
        let index = registry.content.remove("manifests/1").expect("the tag");
        let path = format!("manifests/{}", digest(&index));
        registry.moved.insert("manifests/1".to_owned(), path.clone());
        registry.content.insert(path, index);
    })
    .await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let auth = PullAuth::Basic("user".into(), "word".into());
    let name = format!("{}/team/app:1", registry.address);
    let image = open(folder.path()).pull(&name, auth).await.expect("pull");
    assert_eq!(image.tags, [name]);
}

#[tokio::test(flavor = "multi_thread")]
async fn mirrors_are_tried_first_and_never_see_the_password() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    let registry = Registry::start().await;
    let mirror = Registry::start_with(|mirror| mirror.content.clear()).await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let plain = |host: &str| RegistryConfig { host: host.to_owned(), plain_http: true, ..RegistryConfig::default() };
    let own = RegistryConfig { mirrors: vec![mirror.address.clone()], ..plain(&registry.address) };
    let store = open(folder.path()).with_registries(vec![own, plain(&mirror.address)]);
    let name = format!("{}/team/app:1", registry.address);
    let image = store.pull(&name, PullAuth::Basic("user".into(), "word".into())).await.expect("pull");
    assert_eq!(image.tags, [name], "the image keeps the name of its registry");
    assert!(!mirror.requests.lock().expect("the list").is_empty(), "the mirror got requests");
    assert_eq!(*mirror.authorized.lock().expect("the count"), 0, "and shown no password");
}

/// A layer of another repository may be on the node. Its digest is no secret, and naming it is not enough.
#[tokio::test(flavor = "multi_thread")]
async fn a_layer_of_another_repository_must_be_brought_again() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: unpacking a layer changes owners, which needs root");
        return;
    }
    let registry = Registry::start_with(|registry| {
        let own: Vec<_> = registry.content.iter().map(|(path, bytes)| (path.clone(), bytes.clone())).collect();
        for (path, bytes) in own {
            // `other/app` has the image too; `thief/app` has its manifests and configurations alone.
            registry.content.insert(format!("other/app/{path}"), bytes.clone());
            if path != layer_path(&registry.content) {
                registry.content.insert(format!("thief/app/{path}"), bytes);
            }
        }
    })
    .await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let store = registry.store(folder.path());
    let auth = || PullAuth::Basic("user".into(), "word".into());
    let name = |repository: &str| format!("{}/{repository}/app:1", registry.address);
    store.pull(&name("team"), auth()).await.expect("pull");
    let refused = store.pull(&name("thief"), auth()).await.expect_err("no layer").to_string();
    assert!(refused.contains("404"), "{refused}");
    assert!(store.find(&name("thief")).expect("find").is_none());
    for times in [1, 1] {
        store.pull(&name("other"), auth()).await.expect("pull");
        let layer = layer_path(&registry.content);
        let requests = registry.requests.lock().expect("the list").clone();
        let downloads = requests.iter().filter(|path| path.contains("/other/") && path.ends_with(&layer)).count();
        assert_eq!(downloads, times, "downloaded once: {requests:?}");
    }
}

/// A registry that sends a byte now and then is never silent, and never done.
#[tokio::test(flavor = "multi_thread")]
async fn a_document_that_trickles_is_given_up() {
    let registry = Registry::start_with(|registry| registry.trickles = vec!["manifests/1".into()]).await;
    let folder = tempfile::tempdir().expect("a temporary directory");
    let store = registry.store_with_stall_timeout(folder.path(), std::time::Duration::from_secs(1));
    let name = format!("{}/team/app:1", registry.address);
    let pulled = store.pull(&name, PullAuth::Basic("user".into(), "word".into())).await;
    let error = pulled.expect_err("never complete").to_string();
    assert!(error.contains("did not send manifests/1 whole within 4s"), "{error}");
}
