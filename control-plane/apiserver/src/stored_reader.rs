//! Reads stored values as the server does, without a server: for checks of a store before a server starts on it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use corten_api::{Kind, Storage};
use corten_meta::{Object, Value};
use tokio::sync::watch;

use crate::config::{Config, StorageMediaType};
use crate::encryption::Transformer;
use crate::error::Error;
use crate::storage_format::StorageFormat;

/// A reader of stored values.
pub struct StoredReader {
    transformer: Transformer,
    format: StorageFormat,
    /// The built-in kinds in their storage version, by the prefix that they declare.
    hubs: HashMap<String, Arc<Kind>>,
}

impl StoredReader {
    /// Makes a reader with the keys of an EncryptionConfiguration, if there is one.
    pub fn new(encryption_configuration: Option<String>) -> Result<StoredReader, Error> {
        let encryption_configuration = encryption_configuration.map(|text| watch::channel(text).1);
        let transformer = Transformer::new(&Config { encryption_configuration, ..Config::default() })?;
        let kinds = corten_api::kinds();
        let hubs = kinds.iter().filter_map(|kind| match &kind.storage {
            Storage::Stored { prefix, hub: None } => Some((prefix.clone(), Arc::clone(kind))),
            _ => None,
        });
        let format = StorageFormat::new(StorageMediaType::Protobuf, true, kinds);
        Ok(StoredReader { transformer, format, hubs: hubs.collect() })
    }

    /// Waits until the KMS plugins of the configuration answer.
    pub async fn reach_plugins(&self) {
        self.transformer.reach_plugins().await;
    }

    /// Returns the built-in kind of a key, which begins with `/registry/`.
    pub fn built_in(&self, key: &str) -> Option<&Arc<Kind>> {
        // Prefixes have one or two segments.
        let ends = key.match_indices('/').map(|(at, _)| at).skip(2).take(2).collect::<Vec<_>>();
        ends.iter().rev().find_map(|end| self.hubs.get(&key[..*end]))
    }

    /// Decrypts a value of a kind, which may be plain.
    pub async fn open(&self, kind: &Kind, key: &[u8], value: &Bytes) -> Result<Bytes, String> {
        self.transformer.learn(kind, value).await;
        self.transformer.open(kind, key, value).map(|opened| opened.plain)
    }

    /// Decodes a plain value of a kind, in its storage version and with its defaults.
    pub fn decode(&self, kind: &Kind, plain: Bytes) -> Result<Object, String> {
        self.format.decode(kind, plain, 0)
    }

    /// Encodes an object as upstream stores it.
    pub(crate) fn encode(&self, kind: &Kind, object: &Value) -> Bytes {
        self.format.encode(kind, corten_meta::encode_object(object))
    }
}
