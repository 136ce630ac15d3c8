//! The Secrets of this package: accounts, orders and certificates.
//!
//! Invariant: every Secret that is changed has the label of this package.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use corten_client::{Client, DeleteOptions, Error, Patch, Resource as Kind};
use corten_gateway::resolve::NAMESPACE;
use corten_meta::{Key, Value};
use ring::digest;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The label of Secrets that this package made; its value is the part that it plays.
pub const LABEL: &str = "edge.corten.dev/acme";
/// The annotation of a certificate that only lets its listener begin.
pub const TEMPORARY: &str = "edge.corten.dev/temporary";
/// The entry of a Secret's data with a state as JSON.
const STATE: &str = "state";

/// The part that a Secret plays, as its label has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Account,
    Order,
    Challenges,
    Certificate,
}

impl Part {
    fn as_str(self) -> &'static str {
        match self {
            Part::Account => "account",
            Part::Order => "order",
            Part::Challenges => "challenges",
            Part::Certificate => "certificate",
        }
    }
}

/// An account at an authority.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Account {
    /// The directory of the authority: an account of another one is of no use.
    pub directory: String,
    /// The key in PEM.
    pub key: String,
    /// The URL of the account; empty before it is registered.
    pub url: String,
}

/// An order, and its failures before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OrderState {
    /// The namespace and name of the Secret that the certificate goes into.
    pub secret: String,
    pub issuer: String,
    pub names: Vec<String>,
    /// The URL of the order; empty if none is under way.
    pub order: String,
    /// The certificate's key in PEM.
    pub key: String,
    pub failures: u32,
    /// The time before which no other order is made, in RFC 3339.
    pub retry_at: String,
    /// The last failure.
    pub message: String,
}

pub fn secrets() -> Kind {
    Kind::new("", "v1", "secrets", true)
}

/// Returns the key of an issuer's account.
pub fn account_key(issuer: &str) -> Key {
    Key::new(NAMESPACE, format!("acme-account-{issuer}"))
}

/// Returns the key of the order of a certificate.
pub fn order_key(certificate: &Key) -> Key {
    let digest = digest::digest(&digest::SHA256, certificate.to_string().as_bytes());
    let digits: String = digest.as_ref().iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    Key::new(NAMESPACE, format!("acme-order-{digits}"))
}

/// Returns an entry of a Secret's data.
pub fn entry(secret: &Value, name: &str) -> Option<Vec<u8>> {
    BASE64_STANDARD.decode(secret["data"][name].as_str()?).ok()
}

/// Reads the state of a Secret.
pub fn state<T: serde::de::DeserializeOwned>(secret: &Value) -> Option<T> {
    serde_json::from_slice(&entry(secret, STATE)?).ok()
}

/// Returns a Secret with a state.
pub fn of_state<T: Serialize>(key: &Key, part: Part, state: &T) -> Value {
    of_entry(key, part, STATE, state)
}

/// Returns a Secret with one entry as JSON.
pub fn of_entry<T: Serialize>(key: &Key, part: Part, name: &str, state: &T) -> Value {
    let text = serde_json::to_string(state).unwrap_or_default();
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"namespace": key.namespace, "name": key.name, "labels": {LABEL: part.as_str()}},
        "type": "Opaque",
        "data": {name: BASE64_STANDARD.encode(text)},
    })
}

/// Returns the Secret of a certificate.
pub fn of_certificate(key: &Key, chain: &str, private_key: &str, is_temporary: bool) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {
            "namespace": key.namespace,
            "name": key.name,
            "labels": {LABEL: Part::Certificate.as_str()},
            "annotations": {TEMPORARY: is_temporary.to_string()},
        },
        "type": "kubernetes.io/tls",
        "data": {"tls.crt": BASE64_STANDARD.encode(chain), "tls.key": BASE64_STANDARD.encode(private_key)},
    })
}

/// Returns a Secret, if it exists.
pub async fn read(client: &Client, key: &Key) -> Result<Option<Value>, Error> {
    match client.dynamic(&secrets()).get(&key.namespace, &key.name).await {
        Ok(secret) => Ok(Some(secret)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Creates a Secret, or changes the one that this package made before. Reports whether it did: one of another owner
/// stays as it is.
pub async fn put(client: &Client, wanted: &Value) -> Result<bool, Error> {
    let namespace = wanted["metadata"]["namespace"].as_str().unwrap_or_default();
    let name = wanted["metadata"]["name"].as_str().unwrap_or_default();
    let api = client.dynamic(&secrets());
    match api.post(namespace, wanted).await {
        Err(error) if error.is_already_exists() => {}
        created => return created.map(|()| true),
    }
    let current = api.get(namespace, name).await?;
    if current["metadata"]["labels"][LABEL].is_null() {
        return Ok(false);
    }
    let mut patch = wanted.clone();
    patch["metadata"]["resourceVersion"] = current["metadata"]["resourceVersion"].clone();
    api.send_patch(namespace, name, &Patch::Merge(patch)).await?;
    Ok(true)
}

/// Deletes a Secret of this package's own namespace.
pub async fn delete(client: &Client, key: &Key) -> Result<(), Error> {
    match client.dynamic(&secrets()).delete(&key.namespace, &key.name, &DeleteOptions::default()).await {
        Err(error) if !error.is_not_found() => Err(error),
        _ => Ok(()),
    }
}
