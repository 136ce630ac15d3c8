//! Encryption at rest, at the boundary to the store, by an EncryptionConfiguration.
//!
//! Each resource has a chain of providers: the first seals values that are written, all open values that are read. The
//! storage format is upstream's, prefix included, so that data and keys can move between the two. Only the caches hold
//! plain values.
//!
//! Opening is synchronous, because the feed of the caches is. Only a key that a KMS plugin has to decrypt first needs
//! waiting: [`Transformer::learn`] does that, before a value is opened.
//!
//! Must never: return bytes that no provider could authenticate or read, or put a key into a message.

mod ciphers;
pub(crate) mod configuration;
pub(crate) mod envelope;
mod kms;
mod plugin;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use corten_api::Kind;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::config::{Config, EncryptionKey};
use crate::error::Error;
use crate::metrics::{ENCRYPTION_CONFIGURATION, Metrics};
use ciphers::Keys;
use configuration::{ProviderConfig, Rule};
use kms::Kms;

/// The prefix of encrypted values; no plain object begins with it.
const ENCRYPTED: &[u8] = b"k8s:enc:";
/// The time for which a start waits for a KMS plugin.
const PLUGIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A provider, which seals and opens values.
enum Provider {
    Identity,
    Keys(Keys),
    Kms(Arc<Kms>),
}

/// A value that was opened.
pub struct Opened {
    pub plain: Bytes,
    /// Whether the current configuration would seal it differently.
    pub stale: bool,
}

impl Provider {
    fn seal(&self, authenticated_data: &[u8], plain: Bytes) -> Result<Bytes, String> {
        match self {
            Provider::Identity => Ok(plain),
            Provider::Keys(keys) => keys.seal(authenticated_data, &plain).map(Into::into),
            Provider::Kms(kms) => kms.seal(authenticated_data, &plain).map(Into::into),
        }
    }

    /// Opens a value; `None` if it belongs to another provider.
    fn open(&self, authenticated_data: &[u8], value: &Bytes) -> Option<Result<Opened, String>> {
        match self {
            Provider::Identity if value.starts_with(ENCRYPTED) => None,
            Provider::Identity => Some(Ok(Opened { plain: value.clone(), stale: false })),
            Provider::Keys(keys) => keys.open(authenticated_data, value),
            Provider::Kms(kms) => kms.open(authenticated_data, value),
        }
    }
}

/// The provider chains of a configuration.
struct Chains {
    /// Group and resource, either of which may be `*`, and their providers.
    rules: Vec<(String, String, Vec<Arc<Provider>>)>,
    /// The providers of resources that are not configured, which are stored plain.
    plain: Vec<Arc<Provider>>,
    /// The cluster's own key, which still opens Secrets that it sealed before there was a configuration.
    own: Vec<Arc<Provider>>,
    plugins: Vec<Arc<Kms>>,
}

impl Chains {
    fn new(rules: Vec<Rule>, own: &[Arc<Provider>]) -> Result<Chains, String> {
        let mut chains = Chains {
            rules: Vec::new(),
            plain: vec![Arc::new(Provider::Identity)],
            own: own.to_vec(),
            plugins: Vec::new(),
        };
        for rule in rules {
            let providers =
                rule.providers.into_iter().map(|config| chains.provider(config)).collect::<Result<Vec<_>, _>>()?;
            for (group, resource) in rule.resources {
                let is_same = |(g, r, _): &&mut (String, String, Vec<Arc<Provider>>)| *g == group && *r == resource;
                match chains.rules.iter_mut().find(is_same) {
                    Some((_, _, chain)) => chain.extend(providers.iter().cloned()),
                    None => chains.rules.push((group, resource, providers.clone())),
                }
            }
        }
        Ok(chains)
    }

    fn provider(&mut self, config: ProviderConfig) -> Result<Arc<Provider>, String> {
        Ok(Arc::new(match config {
            ProviderConfig::Identity => Provider::Identity,
            ProviderConfig::Keys(algorithm, keys) => Provider::Keys(Keys::new(algorithm, keys)?),
            ProviderConfig::Kms(config) => {
                let kms = Arc::new(Kms::new(&config)?);
                self.plugins.push(Arc::clone(&kms));
                Provider::Kms(kms)
            }
        }))
    }

    /// Makes the cluster's own chains: Secrets, with the key that the cluster generated.
    fn own(own: &[Arc<Provider>]) -> Chains {
        let plain = vec![Arc::new(Provider::Identity)];
        let secrets = own.iter().chain(&plain).cloned().collect();
        let rules = vec![(String::new(), "secrets".to_owned(), secrets)];
        Chains { rules, plain, own: Vec::new(), plugins: Vec::new() }
    }

    /// Returns the providers of a kind: by its name, else by its group, else by the rule for all resources.
    fn of(&self, kind: &Kind) -> impl Iterator<Item = &Arc<Provider>> {
        let find = |group: &str, resource: &str| {
            self.rules.iter().find(|(g, r, _)| g == group && r == resource).map(|(_, _, chain)| chain)
        };
        let chain = find(&kind.group, &kind.plural).or_else(|| find(&kind.group, "*")).or_else(|| find("*", "*"));
        let is_secret = kind.group.is_empty() && kind.plural == "secrets";
        chain.unwrap_or(&self.plain).iter().chain(self.own.iter().filter(move |_| is_secret))
    }

    fn open(&self, kind: &Kind, authenticated_data: &[u8], value: &Bytes) -> Result<Opened, String> {
        let mut failed = None;
        for (at, provider) in self.of(kind).enumerate() {
            match provider.open(authenticated_data, value) {
                Some(Ok(opened)) => return Ok(Opened { stale: opened.stale || at > 0, ..opened }),
                Some(Err(why)) => failed = failed.or(Some(why)),
                None => {}
            }
        }
        Err(failed.unwrap_or_else(|| "no matching prefix found".to_owned()))
    }
}

/// Seals values on the way to the store and opens them on the way back.
pub struct Transformer {
    chains: ArcSwap<Chains>,
    /// The cluster's own keys.
    own: ArcSwap<Vec<Arc<Provider>>>,
    configuration: Option<watch::Receiver<String>>,
    /// The own keys were replaced, and the chains with them.
    replaced: Notify,
}

impl Transformer {
    /// Makes the transformer of the configuration, and of the cluster's own key if there is one.
    pub fn new(config: &Config) -> Result<Transformer, Error> {
        let own = own_providers(&config.encryption_keys)?;
        let transformer = Transformer {
            chains: ArcSwap::from_pointee(Chains::own(&own)),
            own: ArcSwap::from_pointee(own),
            configuration: config.encryption_configuration.clone(),
            replaced: Notify::new(),
        };
        if let Some(configuration) = &config.encryption_configuration {
            let chains = transformer.read(&configuration.borrow()).map_err(Error::Config)?;
            transformer.chains.store(Arc::new(chains));
        }
        Ok(transformer)
    }

    fn read(&self, config_file: &str) -> Result<Chains, String> {
        let chains = configuration::parse(config_file).and_then(|rules| Chains::new(rules, &self.own.load()));
        chains.map_err(|e| format!("EncryptionConfiguration: {e}"))
    }

    /// Applies a configuration; keeps the current one if it is invalid or its plugins do not answer.
    async fn configure(&self, config_file: &str) -> Result<(), String> {
        let chains = self.read(config_file)?;
        for kms in &chains.plugins {
            kms.refresh().await?;
        }
        self.chains.store(Arc::new(chains));
        Ok(())
    }

    /// Replaces the cluster's own keys.
    pub async fn replace_keys(&self, keys: &[EncryptionKey]) -> Result<(), Error> {
        let own = own_providers(keys)?;
        let configuration = self.configuration.as_ref().map(|text| text.borrow().clone());
        self.own.store(Arc::new(own.clone()));
        match configuration {
            None => self.chains.store(Arc::new(Chains::own(&own))),
            Some(text) => self.configure(&text).await.map_err(Error::Config)?,
        }
        self.replaced.notify_one();
        Ok(())
    }

    /// Returns the value in its storage format.
    pub fn seal(&self, kind: &Kind, authenticated_data: &[u8], plain: Bytes) -> Result<Bytes, String> {
        match self.chains.load().of(kind).next() {
            Some(provider) => provider.seal(authenticated_data, plain),
            None => Ok(plain),
        }
    }

    /// Returns the plain value.
    pub fn open(&self, kind: &Kind, authenticated_data: &[u8], value: &Bytes) -> Result<Opened, String> {
        self.chains.load().open(kind, authenticated_data, value)
    }

    /// Reports whether values of a kind may be encrypted.
    pub fn seals(&self, kind: &Kind) -> bool {
        let chains = self.chains.load();
        chains.of(kind).any(|provider| !matches!(provider.as_ref(), Provider::Identity))
    }

    /// Ensures that the key of a value is cached, if a KMS plugin holds it.
    pub async fn learn(&self, kind: &Kind, value: &[u8]) {
        if !value.starts_with(kms::PREFIX) {
            return;
        }
        let chains = self.chains.load_full();
        for provider in chains.of(kind) {
            if let Provider::Kms(kms) = provider.as_ref() {
                kms.learn(value).await;
            }
        }
    }

    /// Returns the error of a KMS plugin that is not healthy; `None` if there is no plugin.
    pub fn health(&self) -> Option<Result<(), String>> {
        let chains = self.chains.load();
        if chains.plugins.is_empty() {
            return None;
        }
        Some(chains.plugins.iter().try_for_each(|kms| kms.health()))
    }

    /// Asks every plugin for its key, within the time that a start may wait for it.
    pub async fn reach_plugins(&self) {
        let chains = self.chains.load_full();
        for kms in &chains.plugins {
            let reached = async {
                while kms.refresh().await.is_err() {
                    tokio::time::sleep(Duration::from_millis(250)).await;
                }
            };
            if tokio::time::timeout(PLUGIN_TIMEOUT, reached).await.is_err() {
                tracing::warn!(provider = kms.name(), "a KMS plugin is not ready");
            }
        }
    }
}

/// Returns the providers of the cluster's own keys.
fn own_providers(keys: &[EncryptionKey]) -> Result<Vec<Arc<Provider>>, Error> {
    if keys.is_empty() {
        return Ok(Vec::new());
    }
    let named = keys.iter().map(|key| (key.name.clone(), key.key.to_vec())).collect();
    let mut providers = vec![Keys::new(ciphers::Algorithm::Secretbox, named).map_err(Error::Key)?];
    // The first builds sealed with the first key by AES-GCM, without a key name: their values are still readable.
    for key in keys.iter().filter(|key| key.name == EncryptionKey::FIRST) {
        providers.push(Keys::unnamed(ciphers::Algorithm::AesGcm, &key.key).map_err(Error::Key)?);
    }
    Ok(providers.into_iter().map(|keys| Arc::new(Provider::Keys(keys))).collect())
}

/// Applies changes of the configuration and asks the plugins until shutdown.
pub async fn run(
    transformer: &Transformer,
    metrics: &Metrics,
    mut configuration: Option<watch::Receiver<String>>,
    shutdown: &CancellationToken,
) {
    loop {
        let chains = transformer.chains.load_full();
        let plugins = futures::future::join_all(chains.plugins.iter().map(|kms| kms.keep()));
        let changed = async {
            match &mut configuration {
                Some(configuration) => configuration.changed().await,
                None => std::future::pending().await,
            }
        };
        let has_plugins = !chains.plugins.is_empty();
        tokio::select! {
            () = shutdown.cancelled() => return,
            _ = plugins, if has_plugins => {}
            () = transformer.replaced.notified() => continue,
            changed = changed => if changed.is_err() { configuration = None },
        }
        let Some(config_file) = configuration.as_mut().map(|c| c.borrow_and_update().clone()) else { continue };
        let configured = transformer.configure(&config_file).await;
        metrics.reloaded(&ENCRYPTION_CONFIGURATION, &config_file, configured.is_ok());
        match configured {
            Ok(()) => tracing::info!("the encryption configuration was read again"),
            Err(e) => tracing::error!(error = e, "the new encryption configuration is not used"),
        }
    }
}
