//! Tests of the storage formats against other implementations, of rotation, and of a KMS plugin that is a gRPC server
//! of this test.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use base64::Engine;
use bytes::Bytes;
use corten_api::Kind;
use http_body_util::BodyExt;
use hyper::body::Frame;
use prost::Message;
use serde_json::json;
use tokio::sync::watch;

use super::ciphers::{Algorithm, Keys};
use super::envelope::{EncryptedObject, SEED, Source};
use super::plugin::{
    DECRYPT, DecryptRequest, DecryptResponse, ENCRYPT, EncryptRequest, EncryptResponse, STATUS, StatusResponse,
};
use super::{Transformer, configuration};
use crate::config::{Config, EncryptionKey};

const PLACE: &[u8] = b"/registry/secrets/default/a";
const PLAIN: &[u8] = b"{\"kind\":\"Secret\"}";

fn decode_hex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn secrets() -> Kind {
    Kind::new("", "v1", "Secret", "secrets")
}

/// Returns a configuration of one rule, in JSON, which is YAML.
fn rule(resources: &[&str], providers: serde_json::Value) -> String {
    configuration_of(json!([{ "resources": resources, "providers": providers }]))
}

fn configuration_of(rules: serde_json::Value) -> String {
    let kind = "EncryptionConfiguration";
    json!({ "apiVersion": "apiserver.config.k8s.io/v1", "kind": kind, "resources": rules }).to_string()
}

fn transformer(own: Option<[u8; 32]>, configuration: Option<&str>) -> Transformer {
    let encryption_configuration = configuration.map(|config_file| watch::channel(config_file.to_owned()).1);
    let encryption_keys = own.map(EncryptionKey::first).into_iter().collect();
    Transformer::new(&Config { encryption_keys, encryption_configuration, ..Config::default() }).unwrap()
}

#[test]
fn values_of_the_first_builds_are_readable_and_stale() {
    let kind = secrets();
    let sealed: Bytes = Keys::unnamed(Algorithm::AesGcm, &[7; 32]).unwrap().seal(PLACE, PLAIN).unwrap().into();
    let configured = configuration_of(json!([{"resources": ["secrets"], "providers": [{"identity": {}}]}]));
    for configuration in [None, Some(configured.as_str())] {
        let opened = transformer(Some([7; 32]), configuration).open(&kind, PLACE, &sealed).unwrap();
        assert!(opened.plain == PLAIN && opened.stale);
    }
    assert!(transformer(Some([8; 32]), None).open(&kind, PLACE, &sealed).is_err());
}

#[test]
fn values_of_other_implementations_are_readable() {
    let key: Vec<u8> = (0..32).collect();
    for (algorithm, size, sealed) in [
        (
            Algorithm::Secretbox,
            32,
            "6465666768696a6b6c6d6e6f707172737475767778797a7baa93d2c2be2ff25c283a43ccfaa1df9f799bf2a054d2ecd392ae46f745e1d73a43",
        ),
        (
            Algorithm::AesGcm,
            16,
            "6465666768696a6b6c6d6e6f614025ccb5669ac0b96d3273f4af5fce4d10e14ca48efae5ec1bb7f716fb183978",
        ),
        (
            Algorithm::AesGcm,
            24,
            "6465666768696a6b6c6d6e6f924ad0153ccb2c02f18287628897ef9ca0bf2352e823af9b90c469cabeb31c8b11",
        ),
        (
            Algorithm::AesGcm,
            32,
            "6465666768696a6b6c6d6e6f3339b50f178d74a41c313a8ba8001edf3f63464ca7ac0bbfb4833e1159d370af14",
        ),
        (
            Algorithm::AesCbc,
            16,
            "6465666768696a6b6c6d6e6f7071727384dae64f6f36421d0828c8a3d20c4f27e85f41babf54108d611eb5aa6d4b488d",
        ),
        (
            Algorithm::AesCbc,
            24,
            "6465666768696a6b6c6d6e6f7071727352efc26e767f4d8852369f65ebadc68c967712f2835ba5aa421d3d9443296c9b",
        ),
        (
            Algorithm::AesCbc,
            32,
            "6465666768696a6b6c6d6e6f7071727344283a8a80a45cba29966b60a5c5bdab4a4b98a357c1999c0391ccbce1378672",
        ),
    ] {
        let keys = Keys::new(algorithm, vec![("key1".to_owned(), key[..size].to_vec())]).unwrap();
        let prefix = format!("k8s:enc:{}:v1:key1:", algorithm.field());
        let stored = Bytes::from([prefix.as_bytes(), &decode_hex(sealed)].concat());
        assert_eq!(keys.open(PLACE, &stored).unwrap().unwrap().plain, PLAIN, "{algorithm:?} {size}");
        let own = Bytes::from(keys.seal(PLACE, PLAIN).unwrap());
        assert!(own.starts_with(prefix.as_bytes()));
        assert_eq!(own.len(), stored.len());
        assert_eq!(keys.open(PLACE, &own).unwrap().unwrap().plain, PLAIN);
        // Every damage is an error, wherever it is; only AES-CBC cannot detect all of it.
        let mut damaged = own.to_vec();
        *damaged.last_mut().unwrap() ^= 1;
        let opened = keys.open(PLACE, &damaged.into()).unwrap();
        assert!(opened.is_err() || algorithm == Algorithm::AesCbc, "{algorithm:?}");
        for cut in prefix.len()..own.len() {
            let opened = keys.open(PLACE, &own.slice(..cut)).unwrap();
            assert!(opened.is_err() || algorithm == Algorithm::AesCbc, "{algorithm:?} {cut}");
        }
        if algorithm == Algorithm::AesGcm {
            assert!(keys.open(b"/registry/secrets/default/b", &stored).unwrap().is_err(), "it was moved");
        }
    }
    let seed = Source::new(SEED, &key).unwrap();
    let sealed = "c8c9cacbcccdcecfd0d1d2d3d4d5d6d7d8d9dadbdcdddedfe0e1e2e3e4e5e6e76465666768696a6b6c6d6e6f58d2a087ea7a0b714eca1496fd9c3ce2b4e15e64cf718ae441cc31277abf3686ef";
    assert_eq!(seed.open(PLACE, &decode_hex(sealed)).unwrap(), PLAIN);
}

#[test]
fn the_first_key_seals_and_all_open() {
    let secret = |byte: u8| base64::engine::general_purpose::STANDARD.encode([byte; 32]);
    let secretbox = |names: &[(&str, u8)]| {
        let keys = names.iter().map(|(name, byte)| json!({ "name": name, "secret": secret(*byte) }));
        json!({ "secretbox": { "keys": keys.collect::<Vec<_>>() } })
    };
    let kind = secrets();
    let old = transformer(None, Some(&rule(&["secrets"], json!([secretbox(&[("a", 1)]), { "identity": {} }]))));
    let sealed = old.seal(&kind, PLACE, PLAIN.into()).unwrap();
    assert!(sealed.starts_with(b"k8s:enc:secretbox:v1:a:"));
    assert!(!sealed.windows(6).any(|w| w == b"Secret"));
    assert!(!old.open(&kind, PLACE, &sealed).unwrap().stale);
    let plain = old.open(&kind, PLACE, &PLAIN.into()).unwrap();
    assert!(
        plain.stale && plain.plain == PLAIN,
        "what was stored in the clear is read, and sealed with its next write"
    );

    let rotated = rule(&["secrets"], json!([secretbox(&[("b", 2), ("a", 1)])]));
    let rotated = transformer(None, Some(&rotated));
    let opened = rotated.open(&kind, PLACE, &sealed).unwrap();
    assert!(opened.stale && opened.plain == PLAIN);
    assert!(rotated.seal(&kind, PLACE, PLAIN.into()).unwrap().starts_with(b"k8s:enc:secretbox:v1:b:"));
    assert!(rotated.open(&kind, PLACE, &PLAIN.into()).is_err(), "no provider reads what is plain");

    // Another key of the same name does not open the value.
    let wrong = transformer(None, Some(&rule(&["secrets"], json!([secretbox(&[("a", 3)])]))));
    assert!(wrong.open(&kind, PLACE, &sealed).err().unwrap().contains("cannot be opened with this key"));
    let without = transformer(None, None);
    assert_eq!(without.open(&kind, PLACE, &sealed).err().unwrap(), "no matching prefix found");

    // The cluster's own key opens its values, also under a configuration that does not name it.
    let own = transformer(Some([9; 32]), None);
    let sealed = own.seal(&kind, PLACE, PLAIN.into()).unwrap();
    assert!(sealed.starts_with(b"k8s:enc:secretbox:v1:corten:"));
    let moved = transformer(Some([9; 32]), Some(&rule(&["secrets"], json!([secretbox(&[("b", 2)])]))));
    assert!(moved.open(&kind, PLACE, &sealed).unwrap().stale);
}

#[test]
fn a_kind_has_the_closest_rule() {
    let named = |name: &str| {
        let secret = base64::engine::general_purpose::STANDARD.encode([1; 32]);
        json!([{ "aesgcm": { "keys": [{ "name": name, "secret": secret }] } }])
    };
    let config_file = configuration_of(json!([
        { "resources": ["widgets.example.com"], "providers": named("exact") },
        { "resources": ["*.example.com", "configmaps"], "providers": named("group") },
        { "resources": ["*."], "providers": named("core") },
        { "resources": ["*.*"], "providers": named("all") },
    ]));
    let transformer = transformer(None, Some(&config_file));
    for (group, plural, key) in [
        ("example.com", "widgets", "exact"),
        ("example.com", "gadgets", "group"),
        ("", "configmaps", "group"),
        ("", "secrets", "core"),
        ("apps", "deployments", "all"),
    ] {
        let kind = Kind::new(group, "v1", "Any", plural);
        let sealed = transformer.seal(&kind, PLACE, PLAIN.into()).unwrap();
        assert!(sealed.starts_with(format!("k8s:enc:aesgcm:v1:{key}:").as_bytes()), "{plural}");
    }
}

#[test]
fn invalid_configurations_are_refused() {
    let key = |secret: &str| json!([{ "aesgcm": { "keys": [{ "name": "k", "secret": secret }] } }]);
    let good = base64::engine::general_purpose::STANDARD.encode([1; 32]);
    let kms = |field: &str, value: serde_json::Value| {
        let mut kms = json!({ "apiVersion": "v2", "name": "n", "endpoint": "unix:///run/kms.sock" });
        kms[field] = value;
        json!([{ "kms": kms }])
    };
    for (config_file, error) in [
        ("{}".to_owned(), "it is no EncryptionConfiguration"),
        (configuration_of(json!([])), "at least one resources is required"),
        (rule(&["secrets"], json!([])), "resources[0].providers: Required value"),
        (rule(&[], json!([{ "identity": {} }])), "resources[0].resources: Required value"),
        (rule(&["secrets"], json!([{}])), "does not contain any of the expected providers"),
        (rule(&["secrets"], json!([{ "identity": {}, "aescbc": {} }])), "more than one provider specified"),
        (
            rule(&["secrets"], key("c2hvcnQ=")),
            "secret is not of the expected length, got 5, expected one of [16 24 32]",
        ),
        (rule(&["secrets"], key("%%")), "secrets must be base64 encoded"),
        (rule(&["*"], key(&good)), "use '*.' to encrypt all the resources"),
        (rule(&["Secrets"], key(&good)), "capital letters"),
        (rule(&["secrets", "*."], key(&good)), "using overlapping resources"),
        (rule(&["secrets", "secrets"], key(&good)), "cannot be specified multiple times"),
        (rule(&["secrets.*"], key(&good)), "across groups is not supported"),
        (rule(&["events.events.k8s.io"], key(&good)), "Use 'events' instead"),
        (rule(&["secrets"], kms("endpoint", json!("http://x"))), "unsupported scheme \"http\""),
        (rule(&["secrets"], kms("endpoint", json!(""))), "endpoint is a mandatory field"),
        (rule(&["secrets"], kms("apiVersion", json!("v1"))), "Use KMSv2 instead"),
        (rule(&["secrets"], kms("name", json!("a:b"))), "must not contain ':'"),
        (rule(&["secrets"], kms("timeout", json!("-1s"))), "timeout should be a positive value"),
        (rule(&["secrets"], kms("cachesize", json!(1))), "cachesize is not supported in v2"),
        (
            configuration_of(json!([
                { "resources": ["*.*"], "providers": key(&good) },
                { "resources": ["secrets"], "providers": key(&good) },
            ])),
            "resource \"secrets\" is masked by earlier rule \"*.*\"",
        ),
    ] {
        let refused = configuration::parse(&config_file).err().unwrap_or_else(|| panic!("accepted: {config_file}"));
        assert!(refused.contains(error), "{refused}");
        assert!(!refused.contains(&good) && !refused.contains("c2hvcnQ="), "a secret was told");
    }
}

/// A KMS whose keys are bytes that it adds to the plain bytes.
struct FakePlugin {
    socket: PathBuf,
    /// The id of the current key, and whether the plugin is healthy.
    state: Arc<Mutex<(String, bool)>>,
    calls: Arc<Mutex<BTreeMap<String, usize>>>,
}

impl FakePlugin {
    fn start(folder: &Path) -> FakePlugin {
        let socket = folder.join("kms.sock");
        let listener = tokio::net::UnixListener::bind(&socket).unwrap();
        let state = Arc::new(Mutex::new(("1".to_owned(), true)));
        let calls: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let answering = Arc::clone(&state);
        let counted = Arc::clone(&calls);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let state = Arc::clone(&answering);
                let calls = Arc::clone(&counted);
                let service = hyper::service::service_fn(move |request: http::Request<hyper::body::Incoming>| {
                    let state = Arc::clone(&state);
                    let calls = Arc::clone(&calls);
                    async move {
                        let path = request.uri().path().to_owned();
                        *calls.lock().unwrap().entry(path.clone()).or_default() += 1;
                        let body = request.into_body().collect().await.unwrap().to_bytes();
                        let (key, healthy) = state.lock().unwrap().clone();
                        Ok::<_, Infallible>(response(healthy.then(|| answer(&path, &key, &body[5..]))))
                    }
                });
                let executor = hyper_util::rt::TokioExecutor::new();
                let connection = hyper::server::conn::http2::Builder::new(executor)
                    .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
                tokio::spawn(connection);
            }
        });
        FakePlugin { socket, state, calls }
    }

    fn set(&self, key: &str, healthy: bool) {
        *self.state.lock().unwrap() = (key.to_owned(), healthy);
    }

    fn called(&self, path: &str) -> usize {
        self.calls.lock().unwrap().get(path).copied().unwrap_or_default()
    }
}

fn answer(path: &str, key: &str, message: &[u8]) -> Vec<u8> {
    let add = |bytes: &[u8], key: &str| -> Vec<u8> {
        let by = key.as_bytes()[0];
        bytes.iter().map(|byte| byte ^ by).collect()
    };
    match path {
        STATUS => {
            let version = "v2".to_owned();
            let healthz = "ok".to_owned();
            let key_id = key.to_owned();
            StatusResponse { version, healthz, key_id }.encode_to_vec()
        }
        ENCRYPT => {
            let request = EncryptRequest::decode(message).unwrap();
            let annotations = BTreeMap::from([("kms.example.com".to_owned(), b"x".to_vec())]);
            let ciphertext = add(&request.plaintext, key);
            EncryptResponse { ciphertext, key_id: key.to_owned(), annotations }.encode_to_vec()
        }
        DECRYPT => {
            let request = DecryptRequest::decode(message).unwrap();
            assert_eq!(request.annotations.len(), 1, "what the plugin said comes back to it");
            DecryptResponse { plaintext: add(&request.ciphertext, &request.key_id) }.encode_to_vec()
        }
        other => panic!("{other}"),
    }
}

fn response(message: Option<Vec<u8>>) -> http::Response<http_body_util::combinators::BoxBody<Bytes, Infallible>> {
    let (code, frames) = match message {
        Some(message) => {
            let framed = [&[0][..], &(message.len() as u32).to_be_bytes(), &message].concat();
            ("0", vec![Ok(Frame::data(Bytes::from(framed)))])
        }
        None => ("14", Vec::new()),
    };
    let trailers = http::HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        http::HeaderValue::from_static(code),
    )]);
    let frames = frames.into_iter().chain([Ok(Frame::trailers(trailers))]);
    let body = http_body_util::StreamBody::new(futures::stream::iter(frames));
    http::Response::builder().header("content-type", "application/grpc").body(BodyExt::boxed(body)).unwrap()
}

#[tokio::test]
async fn a_kms_plugin_holds_the_key() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = FakePlugin::start(folder.path());
    let endpoint = format!("unix://{}", plugin.socket.display());
    let config = rule(&["secrets"], json!([{ "kms": { "apiVersion": "v2", "name": "test", "endpoint": endpoint } }]));
    let kind = secrets();
    let first = transformer(None, Some(&config));
    assert!(first.seal(&kind, PLACE, PLAIN.into()).err().unwrap().contains("has not given a key yet"));
    first.reach_plugins().await;
    assert_eq!(first.health(), Some(Ok(())));
    let sealed = first.seal(&kind, PLACE, PLAIN.into()).unwrap();
    let envelope = EncryptedObject::read(sealed.strip_prefix(b"k8s:enc:kms:v2:test:".as_slice()).unwrap()).unwrap();
    assert_eq!((envelope.key_id.as_str(), envelope.source_type, envelope.source.len()), ("1", SEED, 32));
    first.learn(&kind, &sealed).await;
    let opened = first.open(&kind, PLACE, &sealed).unwrap();
    assert!(opened.plain == PLAIN && !opened.stale);
    assert!(first.open(&kind, b"/registry/secrets/default/b", &sealed).is_err(), "it was moved");
    assert_eq!(plugin.called(DECRYPT), 0, "one's own seed is known");

    // Another server asks for the seed, once for all values.
    let second = transformer(None, Some(&config));
    assert!(second.open(&kind, PLACE, &sealed).is_err());
    let other = first.seal(&kind, PLACE, PLAIN.into()).unwrap();
    for value in [&sealed, &other] {
        second.learn(&kind, value).await;
        assert_eq!(second.open(&kind, PLACE, value).unwrap().plain, PLAIN);
    }
    assert_eq!(plugin.called(DECRYPT), 1);

    // Another key leads to a new seed, and makes existing values stale.
    plugin.set("2", true);
    first.reach_plugins().await;
    assert!(first.open(&kind, PLACE, &sealed).unwrap().stale);
    let rotated = first.seal(&kind, PLACE, PLAIN.into()).unwrap();
    assert!(!first.open(&kind, PLACE, &rotated).unwrap().stale);

    // Without the plugin, values with cached seeds are readable.
    plugin.set("2", false);
    let chains = first.chains.load_full();
    assert!(chains.plugins[0].refresh().await.is_err());
    assert!(first.health().unwrap().is_err());
    assert!(first.seal(&kind, PLACE, PLAIN.into()).is_ok());
    assert!(first.open(&kind, PLACE, &sealed).is_ok());
}

#[tokio::test]
async fn own_keys_rotate_by_an_overlap() {
    let kind = secrets();
    let old = EncryptionKey::first([1; 32]);
    let new = EncryptionKey { name: "corten-2".to_owned(), key: [2; 32] };
    let server = transformer(Some([1; 32]), None);
    let sealed = |server: &Transformer| server.seal(&kind, b"key", Bytes::from_static(b"{}")).unwrap();
    let is_stale = |server: &Transformer, value: &Bytes| server.open(&kind, b"key", value).map(|opened| opened.stale);
    let first = sealed(&server);
    // The new key is known for reading first, then it writes, then the old one is gone.
    server.replace_keys(&[old.clone(), new.clone()]).await.unwrap();
    assert!(sealed(&server).starts_with(b"k8s:enc:secretbox:v1:corten:"));
    server.replace_keys(&[new.clone(), old]).await.unwrap();
    let second = sealed(&server);
    assert!(second.starts_with(b"k8s:enc:secretbox:v1:corten-2:"));
    assert_eq!((is_stale(&server, &first), is_stale(&server, &second)), (Ok(true), Ok(false)));
    server.replace_keys(&[new]).await.unwrap();
    assert!(is_stale(&server, &first).is_err());
    assert_eq!(is_stale(&server, &second), Ok(false));
}
