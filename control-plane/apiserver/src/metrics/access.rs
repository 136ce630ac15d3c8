//! The metrics of authentication, authorization and admission, under upstream's names. Frequent ones have atomic
//! counters of their own; rare ones are found by name.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use corten_meta::metrics::Family;

use super::families::*;
use super::{Exposition, Histogram, Metrics};

/// The metrics of a configuration that may change while the server runs.
pub struct Configuration {
    reloads: &'static Family,
    reloaded_at: &'static Family,
    info: &'static Family,
}

pub static AUTHENTICATION_CONFIGURATION: Configuration = Configuration {
    reloads: &AUTHENTICATION_RELOADS,
    reloaded_at: &AUTHENTICATION_RELOADED_AT,
    info: &AUTHENTICATION_INFO,
};
pub static AUTHORIZATION_CONFIGURATION: Configuration = Configuration {
    reloads: &AUTHORIZATION_RELOADS,
    reloaded_at: &AUTHORIZATION_RELOADED_AT,
    info: &AUTHORIZATION_INFO,
};
pub static ENCRYPTION_CONFIGURATION: Configuration =
    Configuration { reloads: &ENCRYPTION_RELOADS, reloaded_at: &ENCRYPTION_RELOADED_AT, info: &ENCRYPTION_INFO };

/// Returns the hash of a string, for a label; an empty string stays empty.
pub fn hash(text: &str) -> String {
    if text.is_empty() {
        return String::new();
    }
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
}

/// The number and durations of authentications or authorizations, by result.
#[derive(Default)]
pub struct Attempts {
    results: [Histogram<{ ACCESS_SECONDS.len() }>; 3],
}

impl Attempts {
    /// Counts one; `result` is an index of the results that it is rendered with.
    pub fn count(&self, result: usize, took: Duration) {
        if let Some(histogram) = self.results.get(result) {
            histogram.observe(took.as_secs_f64(), ACCESS_SECONDS);
        }
    }

    pub fn render(&self, out: &mut Exposition, attempts: &Family, seconds: &Family, results: &[&str]) {
        out.family(attempts);
        for (result, histogram) in results.iter().zip(&self.results) {
            out.sample(attempts, &[result], histogram.count() as f64);
        }
        out.family(seconds);
        for (result, histogram) in results.iter().zip(&self.results).filter(|(_, h)| h.count() > 0) {
            histogram.render(out, seconds, &[result]);
        }
    }
}

/// The decisions of the built-in authorizers: by authorizer, allowed and denied.
#[derive(Default)]
pub struct Decisions([[AtomicU64; 2]; AUTHORIZERS.len()]);

/// The types of the authorizers that call no webhook.
pub const AUTHORIZERS: [&str; 4] = ["AlwaysAllow", "AlwaysDeny", "Node", "RBAC"];

impl Decisions {
    /// Counts a decision; its index is that of `allowed` or `denied`.
    pub fn count(&self, authorizer: usize, decision: usize) {
        if let Some(counter) = self.0.get(authorizer).and_then(|counters| counters.get(decision)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Metrics {
    /// Adds one to a rare series.
    pub fn add(&self, family: &'static Family, labels: &[&str]) {
        self.rare.series(family, labels).add(1.0);
    }

    /// Sets a gauge to one.
    pub fn note(&self, family: &'static Family, labels: &[&str]) {
        self.rare.series(family, labels).set(1.0);
    }

    pub fn took(&self, family: &'static Family, labels: &[&str], took: Duration) {
        self.rare.series(family, labels).observe(took.as_secs_f64());
    }

    /// Records the configuration in use.
    pub fn configured(&self, of: &'static Configuration, text: &str) {
        self.rare.only(of.info, 1, &[&self.id_hash, &hash(text)]);
    }

    /// Counts the reload of a configuration; a successful one is in use then.
    pub fn reloaded(&self, of: &'static Configuration, text: &str, success: bool) {
        let labels = [self.id_hash.as_str(), if success { "success" } else { "failure" }];
        self.add(of.reloads, &labels);
        self.rare.series(of.reloaded_at, &labels).set(jiff::Timestamp::now().as_second() as f64);
        if success {
            self.configured(of, text);
        }
    }

    /// Counts a fetch of an issuer's keys; `None` is a failed one.
    pub fn fetched_keys(&self, issuer: &str, keys: Option<&str>) {
        let issuer = hash(issuer);
        let result = if keys.is_some() { "success" } else { "failure" };
        let at = self.rare.series(&JWKS_FETCHED_AT, &[&self.id_hash, &issuer, result]);
        at.set(jiff::Timestamp::now().as_second() as f64);
        if let Some(keys) = keys {
            // Each issuer has one set of keys.
            self.rare.only(&JWKS_INFO, 1, &[&self.id_hash, &hash(keys), &issuer]);
        }
    }

    /// Counts the verification of an issuer's token, and its duration.
    pub fn verified_token(&self, issuer: &str, success: bool, took: Duration) {
        let result = if success { "success" } else { "failure" };
        self.took(&JWT_SECONDS, &[&hash(issuer), result], took);
    }

    /// Renders the rare series, and the frequent ones that share a family with them.
    pub fn render_rare(&self) -> String {
        for (authorizer, counters) in AUTHORIZERS.iter().zip(&self.decisions.0) {
            for (word, counter) in ["allowed", "denied"].iter().zip(counters) {
                let count = counter.load(Ordering::Relaxed);
                if count > 0 {
                    let labels = [*word, &authorizer.to_lowercase(), *authorizer];
                    self.rare.series(&AUTHORIZATION_DECISIONS, &labels).set(count as f64);
                }
            }
        }
        self.rare.render()
    }
}
