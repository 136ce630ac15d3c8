//! Encryption at rest: on disk and through every change of keys.

use std::path::Path;

use crate::server::{TestServer, config};
use base64::Engine;
use corten_apiserver::{Config, Server};
use serde_json::{Value, json};
use testkit::eventually::eventually;
use tokio::sync::watch;

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
/// The string that must not be on disk, also not in base64.
const WORD: &str = "correct horse battery staple";

fn encoded(word: &str) -> String {
    base64::engine::general_purpose::STANDARD.encode(word)
}

fn secret(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "data": { "word": encoded(WORD) } })
}

/// Returns whether any file below a folder has these bytes.
fn holds(folder: &Path, bytes: &[u8]) -> bool {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.into_iter().any(|path| {
        if path.is_dir() {
            holds(&path, bytes)
        } else {
            std::fs::read(&path).unwrap_or_default().windows(bytes.len()).any(|w| w == bytes)
        }
    })
}

/// Returns whether a checkpoint of the store has these bytes.
fn checkpoint_holds(folder: &Path, bytes: &[u8]) -> bool {
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut checkpoints = files.filter(|path| path.extension().is_some_and(|extension| extension == "checkpoint"));
    // A checkpoint that is being replaced may be missing.
    checkpoints.any(|path| std::fs::read(path).unwrap_or_default().windows(bytes.len()).any(|w| w == bytes))
}

/// Returns a configuration that encrypts some resources with secretbox keys.
fn configuration(resources: &[&str], keys: &[(&str, u8)]) -> String {
    let secret = |byte: u8| base64::engine::general_purpose::STANDARD.encode([byte; 32]);
    let keys: Vec<Value> = keys.iter().map(|(name, byte)| json!({ "name": name, "secret": secret(*byte) })).collect();
    json!({ "apiVersion": "apiserver.config.k8s.io/v1", "kind": "EncryptionConfiguration", "resources": [
        { "resources": resources, "providers": [{ "secretbox": { "keys": keys } }, { "identity": {} }] } ] })
    .to_string()
}

#[tokio::test]
async fn secrets_are_never_on_disk_in_the_clear() {
    let s = TestServer::with_store(config(), |store| {
        store.checkpoint_bytes = 64 * 1024;
        store.segment_bytes = 1 << 20;
    })
    .await;
    s.post(SECRETS, secret("a")).await.expect(201);
    let seen =
        json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "k": "to be seen" } });
    s.post(CONFIG_MAPS, seen).await.expect(201);
    for at in 0.. {
        assert!(at < 1000, "the store writes no checkpoint");
        let filler = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": format!("f{at}") },
                             "data": { "k": "x".repeat(4096) } });
        s.post(CONFIG_MAPS, filler).await.expect(201);
        if checkpoint_holds(s.directory(), b"k8s:enc:secretbox:v1:corten:") {
            break;
        }
    }
    s.patch(&format!("{SECRETS}/a"), "merge", json!({ "stringData": { "other": WORD } })).await.expect(200);
    let s = s.restart().await;
    assert_eq!(s.get(&format!("{SECRETS}/a")).await.expect(200)["data"]["other"], encoded(WORD));
    assert!(holds(s.directory(), b"to be seen"), "the search finds what is there");
    assert!(holds(s.directory(), b"k8s:enc:secretbox:v1:corten:"));
    assert!(!holds(s.directory(), WORD.as_bytes()));
    assert!(!holds(s.directory(), encoded(WORD).as_bytes()));
}

#[tokio::test]
async fn a_changed_configuration_takes_effect_and_rewriting_uses_it() {
    let (sender, receiver) = watch::channel(configuration(&["secrets"], &[("one", 1)]));
    let with = |receiver: watch::Receiver<String>| Config { encryption_configuration: Some(receiver), ..config() };
    let s = TestServer::with_store(with(receiver), |store| store.segment_bytes = 1 << 20).await;
    let path = format!("{SECRETS}/a");
    let made = s.post(SECRETS, secret("a")).await.expect(201);
    assert!(holds(s.directory(), b"k8s:enc:secretbox:v1:one:"));
    // Nothing changed, so nothing is written.
    let same = s.put(&path, made.clone()).await.expect(200);
    assert_eq!(same["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);

    sender.send(configuration(&["secrets", "configmaps"], &[("two", 2), ("one", 1)])).unwrap();
    let written = eventually("it is rewritten", async || {
        let written = s.put(&path, made.clone()).await.expect(200);
        let is_rewritten = written["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"];
        if is_rewritten { Ok(written) } else { Err(written.to_string()) }
    })
    .await;
    assert!(holds(s.directory(), b"k8s:enc:secretbox:v1:two:"));
    let again = s.put(&path, written.clone()).await.expect(200);
    assert_eq!(again["metadata"]["resourceVersion"], written["metadata"]["resourceVersion"]);

    // An invalid one changes nothing.
    sender.send("nonsense".to_owned()).unwrap();
    let seen = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" }, "data": { "k": WORD } });
    s.post(CONFIG_MAPS, seen).await.expect(201);
    assert!(!holds(s.directory(), WORD.as_bytes()));
    assert_eq!(s.get(&path).await.expect(200)["data"]["word"], encoded(WORD));

    // With the new key alone all rewritten Secrets are read.
    sender.send(configuration(&["secrets", "configmaps"], &[("two", 2)])).unwrap();
    let s = s.restart_with(with(sender.subscribe())).await;
    assert_eq!(s.get(&path).await.expect(200)["data"]["word"], encoded(WORD));
}

#[tokio::test]
async fn the_wrong_key_is_an_error_and_no_object_counts_as_absent() {
    let s = TestServer::start().await;
    s.post(SECRETS, secret("a")).await.expect(201);
    let (store, _directory) = s.stop().await;
    let wrong = Config { encryption_keys: vec![corten_apiserver::EncryptionKey::first([4; 32])], ..config() };
    let refused = Server::new(wrong, store).await.err().expect("it must not start").to_string();
    assert!(
        refused.contains("unable to transform key \"/registry/secrets/default/a\"") && refused.contains("this key"),
        "{refused}"
    );
}
