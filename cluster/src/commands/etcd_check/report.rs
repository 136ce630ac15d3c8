//! The report of a check: kinds and forms with their number of keys, then the failures by prefix.

use std::collections::BTreeMap;
use std::fmt;

use super::clusters::Clusters;
use super::decode::{Checked, Decoded, Form};

pub struct Report {
    prefix: String,
    pub revision: u64,
    /// The most failures that are shown.
    show: usize,
    decoded: BTreeMap<Decoded, u64>,
    /// The number of failures by the prefix of their keys.
    failed: BTreeMap<String, u64>,
    shown: Vec<String>,
    /// The signs of the clusters that wrote the objects.
    pub clusters: Clusters,
}

impl Report {
    pub fn new(prefix: &str, revision: u64, show: usize) -> Report {
        let decoded = BTreeMap::new();
        let failed = BTreeMap::new();
        let clusters = Clusters::default();
        Report { prefix: prefix.to_owned(), revision, show, decoded, failed, shown: Vec::new(), clusters }
    }

    pub fn add(&mut self, key: &[u8], checked: Result<Checked, String>) {
        match checked {
            Ok(Checked { decoded, object }) => {
                *self.decoded.entry(decoded).or_default() += 1;
                object.iter().for_each(|object| self.clusters.note(object));
            }
            Err(reason) => {
                let key = String::from_utf8_lossy(key);
                *self.failed.entry(resource_of(&self.prefix, &key)).or_default() += 1;
                if self.shown.len() < self.show {
                    self.shown.push(format!("{key}: {reason}"));
                }
            }
        }
    }

    pub fn keys(&self) -> u64 {
        self.decoded.values().sum::<u64>() + self.failures()
    }

    pub fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}

/// Returns the part of a key that names its resource: with the group if there is one.
fn resource_of(prefix: &str, key: &str) -> String {
    let Some(rest) = key.strip_prefix(prefix) else { return key.to_owned() };
    let mut parts = rest.split('/');
    let first = parts.next().unwrap_or_default();
    match parts.next().filter(|_| first.contains('.')) {
        Some(resource) => format!("{prefix}{first}/{resource}"),
        None => format!("{prefix}{first}"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{:<40}{:<36}{:<26}KEYS", "APIVERSION", "KIND", "FORM")?;
        for (decoded, count) in &self.decoded {
            let form = match &decoded.form {
                Form::Protobuf => "protobuf".to_owned(),
                Form::Json => "json".to_owned(),
                Form::Sealed => format!("encrypted: {}", decoded.provider),
                Form::Internal => "internal".to_owned(),
                Form::NotServed => "not served".to_owned(),
                Form::Foreign => format!("outside of {}", self.prefix),
            };
            let is_decrypted = decoded.form != Form::Sealed && !decoded.provider.is_empty();
            let form = if is_decrypted { format!("{form} in {}", decoded.provider) } else { form };
            let shown = |name: &str| if name.is_empty() { "-".to_owned() } else { name.to_owned() };
            let api_version = shown(&decoded.api_version);
            writeln!(formatter, "{api_version:<40}{:<36}{form:<26}{count}", shown(&decoded.kind))?;
        }
        for (prefix, count) in &self.failed {
            writeln!(formatter, "{count} of {prefix} cannot be decoded")?;
        }
        for failure in &self.shown {
            writeln!(formatter, "  {failure}")?;
        }
        writeln!(formatter, "{} keys at revision {}", self.keys(), self.revision)
    }
}
