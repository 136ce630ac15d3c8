//! A provider whose key never leaves a KMS: a plugin encrypts the seed of the values' keys.
//!
//! The seed is generated here and encrypted by the plugin once; it is used as long as the plugin reports the same key
//! id, and replaced when the key id changes. Without the plugin, writes work for three minutes, and reads of values
//! with cached seeds work forever.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use prost::Message;

use super::Opened;
use super::configuration::KmsConfig;
use super::envelope::{EncryptedObject, SEED, Source};
use super::plugin::{
    DECRYPT, DecryptRequest, DecryptResponse, ENCRYPT, EncryptRequest, EncryptResponse, Plugin, STATUS, StatusRequest,
    StatusResponse,
};

/// The prefix of all values of KMS version 2; the provider's name follows.
pub const PREFIX: &[u8] = b"k8s:enc:kms:v2:";
/// The time for which a seed may encrypt after the plugin last confirmed its key.
const SEED_LIFETIME: Duration = Duration::from_secs(180);
/// The intervals of asking a plugin for its key: if it is healthy, and if not.
const ASK_AGAIN: Duration = Duration::from_secs(60);
const ASK_AGAIN_SOON: Duration = Duration::from_secs(10);
/// The maximum number of cached seeds: one for every start of a server since the data was last rewritten.
const MAX_SOURCES: usize = 10_000;

/// A KMS provider.
pub struct Kms {
    name: String,
    prefix: Vec<u8>,
    plugin: Plugin,
    current: ArcSwapOption<Current>,
    known: RwLock<HashMap<Vec<u8>, Arc<Source>>>,
    health: Mutex<Result<(), String>>,
}

/// The seed of new values.
struct Current {
    source: Arc<Source>,
    /// The fields that are stored with a value, without the value.
    envelope: EncryptedObject,
    confirmed: Instant,
}

impl Kms {
    pub fn new(config: &KmsConfig) -> Result<Kms, String> {
        let prefix = [PREFIX, config.name.as_bytes(), b":"].concat();
        let health = Mutex::new(Err("the plugin was not asked yet".to_owned()));
        let plugin = Plugin::new(&config.socket, config.timeout)?;
        let current = ArcSwapOption::empty();
        let known = RwLock::default();
        Ok(Kms { name: config.name.clone(), prefix, plugin, current, known, health })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn health(&self) -> Result<(), String> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn seal(&self, authenticated_data: &[u8], plain: &[u8]) -> Result<Vec<u8>, String> {
        let current = self.current.load_full();
        let current = current.ok_or_else(|| format!("KMS provider {} has not given a key yet", self.name))?;
        if current.confirmed.elapsed() > SEED_LIFETIME {
            return Err(format!("KMS provider {}: the key that values are sealed with has expired", self.name));
        }
        let object =
            EncryptedObject { data: current.source.seal(authenticated_data, plain)?, ..current.envelope.clone() };
        Ok([self.prefix.clone(), object.encode_to_vec()].concat())
    }

    /// Opens a value; `None` if it belongs to another provider.
    pub fn open(&self, authenticated_data: &[u8], value: &Bytes) -> Option<Result<Opened, String>> {
        let rest = value.strip_prefix(self.prefix.as_slice())?;
        Some(EncryptedObject::read(rest).and_then(|object| {
            let known = self.known(&object.source_key());
            let source = known.ok_or_else(|| format!("failed to decrypt DEK, error: KMS provider {}", self.name))?;
            let plain = source.open(authenticated_data, &object.data)?;
            let current = self.current.load();
            let fresh = current.as_ref().is_some_and(|c| c.envelope.key_id == object.key_id);
            Ok(Opened { plain: plain.into(), stale: !fresh || object.source_type != SEED })
        }))
    }

    fn known(&self, key: &[u8]) -> Option<Arc<Source>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    fn remember(&self, key: Vec<u8>, source: Arc<Source>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_SOURCES {
            known.clear();
        }
        known.insert(key, source);
    }

    /// Lets the plugin decrypt the source of a value, if it is not cached yet.
    pub async fn learn(&self, value: &[u8]) {
        let Some(rest) = value.strip_prefix(self.prefix.as_slice()) else { return };
        let Ok(object) = EncryptedObject::read(rest) else { return };
        let key = object.source_key();
        if self.known(&key).is_some() {
            return;
        }
        let request = DecryptRequest {
            ciphertext: object.source,
            uid: uuid::Uuid::new_v4().to_string(),
            key_id: object.key_id,
            annotations: object.annotations,
        };
        let opened: Result<DecryptResponse, String> = self.plugin.call(DECRYPT, request).await;
        match opened.and_then(|answer| Source::new(object.source_type, &answer.plaintext)) {
            Ok(source) => self.remember(key, Arc::new(source)),
            Err(e) => tracing::error!(provider = self.name, error = e, "a KMS plugin did not decrypt a key"),
        }
    }

    /// Asks the plugin for its key until the future is dropped.
    pub async fn keep(&self) {
        loop {
            let again = if self.refresh().await.is_ok() { ASK_AGAIN } else { ASK_AGAIN_SOON };
            tokio::time::sleep(again).await;
        }
    }

    /// Asks the plugin for its current key id, and lets it encrypt a new seed if that changed.
    pub async fn refresh(&self) -> Result<(), String> {
        let refreshed = self.ask().await;
        if let Err(e) = &refreshed {
            tracing::warn!(provider = self.name, error = e, "a KMS plugin is not healthy");
        }
        *self.health.lock().unwrap_or_else(PoisonError::into_inner) = refreshed.clone();
        refreshed
    }

    async fn ask(&self) -> Result<(), String> {
        let confirmed = Instant::now();
        let status: StatusResponse = self.plugin.call(STATUS, StatusRequest {}).await?;
        if status.healthz != "ok" {
            return Err(format!("got unexpected healthz status: {}", status.healthz));
        }
        if !["v2", "v2beta1"].contains(&status.version.as_str()) {
            return Err(format!("expected KMSv2 API version v2, got {}", status.version));
        }
        if let Some(current) = self.current.load_full().filter(|c| c.envelope.key_id == status.key_id) {
            let source = Arc::clone(&current.source);
            let envelope = current.envelope.clone();
            self.current.store(Some(Arc::new(Current { source, envelope, confirmed })));
            return Ok(());
        }
        let (source, seed) = Source::generate()?;
        let uid = uuid::Uuid::new_v4().to_string();
        let sealed: EncryptResponse =
            self.plugin.call(ENCRYPT, EncryptRequest { plaintext: seed.to_vec(), uid }).await?;
        let EncryptResponse { ciphertext, key_id, annotations } = sealed;
        let envelope = EncryptedObject { data: Vec::new(), key_id, source: ciphertext, annotations, source_type: SEED };
        envelope.check()?;
        if envelope.key_id != status.key_id {
            return Err("the plugin sealed with another key than the one that it names".to_owned());
        }
        let source = Arc::new(source);
        self.remember(envelope.source_key(), Arc::clone(&source));
        self.current.store(Some(Arc::new(Current { source, envelope, confirmed })));
        Ok(())
    }
}
