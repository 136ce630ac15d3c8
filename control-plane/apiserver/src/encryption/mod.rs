//! Encryption at rest, at the boundary to the store, by an EncryptionConfiguration.
//!
//! For each resource there is a chain of providers: the first seals what is written, all open what is read. What is
//! stored is what upstream would store, prefix included, so that data and keys can move between the two. The plain form
//! lives only in the caches.
//!
//! Opening is synchronous, because the feed of the caches is. Only a key that a KMS plugin has to decrypt first needs
//! waiting: [`Transformer::learn`] does that, before a value is opened.
//!
//! Must never: hand out bytes that no provider could authenticate or read, or say a key in a message.

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
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::error::Error;
use crate::metrics::{ENCRYPTION_CONFIGURATION, Metrics};
use ciphers::Keys;
use configuration::{ProviderConfig, Rule};
use kms::Kms;

/// Marks what is not plain; no object begins like it.
const ENCRYPTED: &[u8] = b"k8s:enc:";
/// The name of the key that a cluster makes for itself.
const OWN_KEY: &str = "corten";
/// How long a start waits for a KMS plugin.
const PLUGIN_PATIENCE: Duration = Duration::from_secs(30);

/// One way to seal and to open.
enum Provider {
    Identity,
    Keys(Keys),
    Kms(Arc<Kms>),
}

/// A value that was opened.
pub struct Opened {
    pub plain: Bytes,
    /// Whether it would be sealed otherwise today.
    pub stale: bool,
}

impl Provider {
    fn seal(&self, place: &[u8], plain: Bytes) -> Result<Bytes, String> {
        match self {
            Provider::Identity => Ok(plain),
            Provider::Keys(keys) => keys.seal(place, &plain).map(Into::into),
            Provider::Kms(kms) => kms.seal(place, &plain).map(Into::into),
        }
    }

    /// `None` if the value is not this provider's.
    fn open(&self, place: &[u8], value: &Bytes) -> Option<Result<Opened, String>> {
        match self {
            Provider::Identity if value.starts_with(ENCRYPTED) => None,
            Provider::Identity => Some(Ok(Opened { plain: value.clone(), stale: false })),
            Provider::Keys(keys) => keys.open(place, value),
            Provider::Kms(kms) => kms.open(place, value),
        }
    }
}

/// The chains of a configuration.
struct Chains {
    /// By group and resource, either of which may be `*`.
    rules: Vec<(String, String, Vec<Arc<Provider>>)>,
    /// What is not configured is stored as it is.
    plain: Vec<Arc<Provider>>,
    /// The cluster's own key still opens the Secrets that it sealed before there was a configuration.
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

    /// The cluster's own way: Secrets, by a key that it made.
    fn own(own: &[Arc<Provider>]) -> Chains {
        let plain = vec![Arc::new(Provider::Identity)];
        let secrets = own.iter().chain(&plain).cloned().collect();
        let rules = vec![(String::new(), "secrets".to_owned(), secrets)];
        Chains { rules, plain, own: Vec::new(), plugins: Vec::new() }
    }

    /// The providers of a kind: by its name, else by its group, else by the rule for everything.
    fn of(&self, kind: &Kind) -> impl Iterator<Item = &Arc<Provider>> {
        let find = |group: &str, resource: &str| {
            self.rules.iter().find(|(g, r, _)| g == group && r == resource).map(|(_, _, chain)| chain)
        };
        let chain = find(&kind.group, &kind.plural).or_else(|| find(&kind.group, "*")).or_else(|| find("*", "*"));
        let is_secret = kind.group.is_empty() && kind.plural == "secrets";
        chain.unwrap_or(&self.plain).iter().chain(self.own.iter().filter(move |_| is_secret))
    }

    fn open(&self, kind: &Kind, place: &[u8], value: &Bytes) -> Result<Opened, String> {
        let mut failed = None;
        for (at, provider) in self.of(kind).enumerate() {
            match provider.open(place, value) {
                Some(Ok(opened)) => return Ok(Opened { stale: opened.stale || at > 0, ..opened }),
                Some(Err(why)) => failed = failed.or(Some(why)),
                None => {}
            }
        }
        Err(failed.unwrap_or_else(|| "no matching prefix found".to_owned()))
    }
}

/// Seals on the way to the store and opens on the way back.
pub struct Transformer {
    chains: ArcSwap<Chains>,
    own: Vec<Arc<Provider>>,
}

impl Transformer {
    /// By the configuration, and by the cluster's own key if there is one.
    pub fn new(config: &Config) -> Result<Transformer, Error> {
        let own = match &config.encryption_key {
            None => Vec::new(),
            // The first builds sealed with the same key by AES-GCM, and named no key: what they sealed is still read.
            Some(key) => {
                let keys = vec![(OWN_KEY.to_owned(), key.to_vec())];
                let own = Keys::new(ciphers::Algorithm::Secretbox, keys).map_err(Error::Key)?;
                let former = Keys::unnamed(ciphers::Algorithm::AesGcm, key).map_err(Error::Key)?;
                [own, former].map(|keys| Arc::new(Provider::Keys(keys))).into()
            }
        };
        let transformer = Transformer { chains: ArcSwap::from_pointee(Chains::own(&own)), own };
        if let Some(configuration) = &config.encryption_configuration {
            let chains = transformer.read(&configuration.borrow()).map_err(Error::Config)?;
            transformer.chains.store(Arc::new(chains));
        }
        Ok(transformer)
    }

    fn read(&self, text: &str) -> Result<Chains, String> {
        let chains = configuration::parse(text).and_then(|rules| Chains::new(rules, &self.own));
        chains.map_err(|e| format!("EncryptionConfiguration: {e}"))
    }

    /// From now on by this configuration; by the one before, if this one is wrong or its plugins do not answer.
    async fn configure(&self, text: &str) -> Result<(), String> {
        let chains = self.read(text)?;
        for kms in &chains.plugins {
            kms.refresh().await?;
        }
        self.chains.store(Arc::new(chains));
        Ok(())
    }

    /// The value as it is stored.
    pub fn seal(&self, kind: &Kind, place: &[u8], plain: Bytes) -> Result<Bytes, String> {
        match self.chains.load().of(kind).next() {
            Some(provider) => provider.seal(place, plain),
            None => Ok(plain),
        }
    }

    /// The value as it is read.
    pub fn open(&self, kind: &Kind, place: &[u8], value: &Bytes) -> Result<Opened, String> {
        self.chains.load().open(kind, place, value)
    }

    /// Whether values of a kind may be stored otherwise than they are.
    pub fn seals(&self, kind: &Kind) -> bool {
        let chains = self.chains.load();
        chains.of(kind).any(|provider| !matches!(provider.as_ref(), Provider::Identity))
    }

    /// Makes sure that the key of a value is known, if a KMS plugin keeps it.
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

    /// Why a KMS plugin cannot be used; `None` if there is none.
    pub fn health(&self) -> Option<Result<(), String>> {
        let chains = self.chains.load();
        if chains.plugins.is_empty() {
            return None;
        }
        Some(chains.plugins.iter().try_for_each(|kms| kms.health()))
    }

    /// Asks every plugin for its key, for as long as a start may wait for it.
    pub async fn reach_plugins(&self) {
        let chains = self.chains.load_full();
        for kms in &chains.plugins {
            let reached = async {
                while kms.refresh().await.is_err() {
                    tokio::time::sleep(Duration::from_millis(250)).await;
                }
            };
            if tokio::time::timeout(PLUGIN_PATIENCE, reached).await.is_err() {
                tracing::warn!(provider = kms.name(), "a KMS plugin is not ready");
            }
        }
    }
}

/// Follows the configuration and the plugins until shutdown.
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
            changed = changed => if changed.is_err() { configuration = None },
        }
        let Some(text) = configuration.as_mut().map(|c| c.borrow_and_update().clone()) else { continue };
        let configured = transformer.configure(&text).await;
        metrics.reloaded(&ENCRYPTION_CONFIGURATION, &text, configured.is_ok());
        match configured {
            Ok(()) => tracing::info!("the encryption configuration was read again"),
            Err(e) => tracing::error!(error = e, "the new encryption configuration is not used"),
        }
    }
}
