//! Key sets by URL: policies name a URL, and the leader keeps the keys that it fetched there in a ConfigMap.
//!
//! Data nodes read the ConfigMap like every other that a policy names, so they need no way out of the cluster.

use corten_meta::{Key, Value};
use sha2::{Digest as _, Sha256};

use super::certificates::{self, AuthorityReasons, Problem};
use super::policy::Source;
use super::{NAMESPACE, References};
use crate::objects::Reference;
use crate::policy_spec::JwksSpec;
use crate::status::Condition;

/// The entry of the ConfigMap with the keys.
pub const ENTRY: &str = "jwks.json";
/// The annotation with the URL of the keys.
pub const URI_ANNOTATION: &str = "edge.corten.dev/uri";
/// The annotation with the reason why the last fetch failed; empty after one that succeeded.
pub const PROBLEM_ANNOTATION: &str = "edge.corten.dev/problem";
/// The value of the label of ConfigMaps with keys.
pub const LABEL: &str = "keys";
/// The most bytes of a JSON Web Key Set.
pub const MAX_KEYS: usize = 64 * 1024;
/// The condition of a policy whose keys have a URL.
const CONDITION: &str = "KeysCurrent";

/// The place that keys are fetched from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySource {
    pub uri: String,
    /// The certificates of the authorities that the server is verified by, in PEM; None: those of the system.
    pub authorities: Option<String>,
}

/// The keys of a URL, as the leader fetched them last.
#[derive(Debug)]
pub struct KeySet {
    pub name: String,
    /// None before the first fetch that succeeded.
    pub keys: Option<String>,
    pub condition: Condition,
}

/// Returns the ConfigMap of a URL. Policies share it only if they verify the server in the same way.
fn place(uri: &str, authorities: Option<&Key>) -> Key {
    let mut digest = Sha256::new();
    digest.update(uri);
    if let Some(key) = authorities {
        digest.update(format!("\n{key}"));
    }
    let name: String = digest.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    Key::new(NAMESPACE, format!("jwks-{name}"))
}

/// Reports whether bytes are a JSON Web Key Set with a key.
pub fn is_key_set(bytes: &[u8]) -> bool {
    let set: Option<Value> = serde_json::from_slice(bytes).ok().filter(|_| bytes.len() <= MAX_KEYS);
    set.is_some_and(|set| set["keys"].as_array().is_some_and(|keys| !keys.is_empty()))
}

/// Reads the keys of a URL.
pub fn read(source: Source<'_>, uri: &str, spec: &JwksSpec, references: &mut References) -> Result<KeySet, Problem> {
    let authority = spec.ca_certificate_ref.as_ref().map(|reference| Reference {
        kind: "ConfigMap".to_owned(),
        name: reference.name.clone(),
        ..Reference::default()
    });
    let authority_key = authority.as_ref().map(|reference| certificates::key_of(source.from, reference));
    let key = place(uri, authority_key.as_ref());
    // The keys stay while the policy does, also if the certificates are missing for a while.
    references.config_maps.insert(key.clone());
    let reasons = AuthorityReasons { kind: "InvalidKind", invalid: "InvalidCACertificateRef" };
    let pem = authority
        .map(|reference| certificates::authorities(source.objects, source.from, &reference, &reasons, references))
        .transpose()?;
    let authorities = pem.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    references.key_sets.insert(key.clone(), KeySource { uri: uri.to_owned(), authorities });

    let stored = source.objects.config_maps.get(&key);
    let keys = stored.and_then(|map| map.data.get(ENTRY)).cloned();
    let problem = stored.and_then(|map| map.metadata.annotations.get(PROBLEM_ANNOTATION)).map(String::as_str);
    let condition = match problem {
        None => Condition::is_false(CONDITION, "NotFetched", format!("{uri} was not fetched yet")),
        Some("") => Condition::is_true(CONDITION, "Fetched", "the keys are those of the URL"),
        Some(problem) => Condition::is_false(CONDITION, "FetchFailed", format!("{uri} cannot be fetched: {problem}")),
    };
    Ok(KeySet { name: key.name, keys, condition })
}
