//! EncryptionConfiguration of apiserver.config.k8s.io/v1: the encrypted resources and their providers. Pure.
//!
//! It refuses what upstream refuses, in upstream's words; a message never contains a secret.

use std::path::PathBuf;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use corten_meta::quote::quote;
use corten_meta::{FieldError, Path, Value};

use super::ciphers::Algorithm;

/// Resources and the chain of their providers.
#[derive(Debug)]
pub struct Rule {
    /// Group and resource; either may be `*`.
    pub resources: Vec<(String, String)>,
    pub providers: Vec<ProviderConfig>,
}

#[derive(Debug)]
pub enum ProviderConfig {
    Identity,
    /// Names and keys.
    Keys(Algorithm, Vec<(String, Vec<u8>)>),
    Kms(KmsConfig),
}

/// A KMS plugin.
#[derive(Debug)]
pub struct KmsConfig {
    pub name: String,
    pub socket: PathBuf,
    pub timeout: Duration,
}

const PROVIDERS: [&str; 5] = ["kms", "aesgcm", "aescbc", "secretbox", "identity"];

/// Reads a configuration, in YAML or JSON.
pub fn parse(yaml: &str) -> Result<Vec<Rule>, String> {
    let config = corten_meta::decode_yaml(yaml.as_bytes()).map_err(|e| e.to_string())?;
    let known = ["apiserver.config.k8s.io/v1", "v1"];
    if !known.iter().any(|version| config["apiVersion"] == *version) || config["kind"] != "EncryptionConfiguration" {
        return Err("it is no EncryptionConfiguration of apiserver.config.k8s.io/v1".to_owned());
    }
    let root = Path::root("resources");
    let entries = config["resources"].as_array().cloned().unwrap_or_default();
    let mut reader = Reader::default();
    if entries.is_empty() {
        reader.errors.push(FieldError::required(&root, "at least one resources is required"));
    }
    let rules: Vec<Rule> = entries.iter().enumerate().map(|(at, entry)| reader.rule(entry, &root.index(at))).collect();
    reader.errors.extend(masked(&rules, &root));
    match corten_meta::field::aggregate(&reader.errors) {
        Some(message) => Err(message),
        None => Ok(rules),
    }
}

/// Collects the errors of a configuration.
#[derive(Default)]
struct Reader {
    errors: Vec<FieldError>,
    plugins: Vec<String>,
}

impl Reader {
    fn rule(&mut self, entry: &Value, path: &Path) -> Rule {
        let resources_path = path.child("resources");
        let providers_path = path.child("providers");
        let names: Vec<&str> = entry["resources"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        if names.is_empty() {
            let why = format!("at least one {resources_path} is required");
            self.errors.push(FieldError::required(&resources_path, why));
        }
        let resources: Vec<(String, String)> = names.iter().map(|name| group_resource(name)).collect();
        self.errors.extend(overlaps(&names, &resources, &resources_path));
        for (at, name) in names.iter().enumerate() {
            if let Some(why) = name_error(name) {
                self.errors.push(FieldError::invalid(&resources_path.index(at), *name, why));
            }
        }
        let providers = entry["providers"].as_array().cloned().unwrap_or_default();
        if providers.is_empty() {
            let why = format!("at least one {providers_path} is required");
            self.errors.push(FieldError::required(&providers_path, why));
        }
        let each = providers.iter().enumerate();
        let providers = each.filter_map(|(at, provider)| self.provider(provider, &providers_path.index(at))).collect();
        Rule { resources, providers }
    }

    fn provider(&mut self, provider: &Value, path: &Path) -> Option<ProviderConfig> {
        let names: Vec<&str> =
            PROVIDERS.into_iter().filter(|name| provider.get(name).is_some_and(|p| !p.is_null())).collect();
        let [name] = names.as_slice() else {
            let why = match names.len() {
                0 => {
                    "provider does not contain any of the expected providers: KMS, AESGCM, AESCBC, Secretbox, Identity"
                }
                _ => "more than one provider specified in a single element, should split into different list elements",
            };
            self.errors.push(FieldError::invalid(path, "REDACTED", why));
            return None;
        };
        let config = &provider[*name];
        let path = path.child(name);
        match *name {
            "identity" => Some(ProviderConfig::Identity),
            "kms" => self.plugin(config, &path).map(ProviderConfig::Kms),
            "aesgcm" => Some(ProviderConfig::Keys(Algorithm::AesGcm, self.keys(config, &path, Algorithm::AesGcm))),
            "aescbc" => Some(ProviderConfig::Keys(Algorithm::AesCbc, self.keys(config, &path, Algorithm::AesCbc))),
            _ => Some(ProviderConfig::Keys(Algorithm::Secretbox, self.keys(config, &path, Algorithm::Secretbox))),
        }
    }

    fn keys(&mut self, config: &Value, path: &Path, algorithm: Algorithm) -> Vec<(String, Vec<u8>)> {
        let path = path.child("keys");
        let keys = config["keys"].as_array().cloned().unwrap_or_default();
        if keys.is_empty() {
            self.errors.push(FieldError::required(&path, "at least one keys is required"));
        }
        let each = keys.iter().enumerate();
        each.filter_map(|(at, key)| self.key(key, &path.index(at), algorithm)).collect()
    }

    fn key(&mut self, key: &Value, path: &Path, algorithm: Algorithm) -> Option<(String, Vec<u8>)> {
        let name = string(key, "name");
        if name.is_empty() {
            self.errors.push(FieldError::required(&path.child("name"), "name is a mandatory field for a key"));
        }
        let secret = string(key, "secret");
        let path = path.child("secret");
        if secret.is_empty() {
            self.errors.push(FieldError::required(&path, "secret is a mandatory field for a key"));
            return None;
        }
        let Ok(secret) = BASE64.decode(&secret) else {
            self.errors.push(FieldError::invalid(&path, "REDACTED", "secrets must be base64 encoded"));
            return None;
        };
        let sizes = algorithm.key_sizes();
        if !sizes.contains(&secret.len()) {
            let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
            let why = format!(
                "secret is not of the expected length, got {}, expected one of [{}]",
                secret.len(),
                sizes.join(" ")
            );
            self.errors.push(FieldError::invalid(&path, "REDACTED", why));
            return None;
        }
        Some((name, secret))
    }

    fn plugin(&mut self, config: &Value, path: &Path) -> Option<KmsConfig> {
        let before = self.errors.len();
        let name = string(config, "name");
        let at = path.child("name");
        if name.is_empty() {
            self.errors.push(FieldError::required(&at, "name is a mandatory field for a provider"));
        }
        if name.contains(':') {
            let why = format!("invalid KMS provider name {name}, must not contain ':'");
            self.errors.push(FieldError::invalid(&at, name.as_str(), why));
        }
        if self.plugins.contains(&name) {
            let why = format!("duplicate KMS provider name {name}, names must be unique");
            self.errors.push(FieldError::invalid(&at, name.as_str(), why));
        }
        self.plugins.push(name.clone());
        let version = config["apiVersion"].as_str().filter(|v| !v.is_empty()).unwrap_or("v1");
        if version != "v2" {
            let why = match version {
                "v1" => "KMSv1 is deprecated and is not supported. Use KMSv2 instead",
                _ => "unsupported apiVersion apiVersion for KMS provider, only v1 and v2 are supported",
            };
            self.errors.push(FieldError::invalid(&path.child("apiVersion"), version, why));
        }
        if version == "v2" && !config["cachesize"].is_null() {
            let at = path.child("cachesize");
            let size = config["cachesize"].clone();
            self.errors.push(FieldError::invalid(&at, size, "cachesize is not supported in v2"));
        }
        let timeout = match config["timeout"].as_str() {
            None => Some(3_000_000_000),
            Some(timeout) => corten_cel::library::time::parse_duration(timeout),
        };
        let timeout = timeout.and_then(|nanos| u64::try_from(nanos).ok()).filter(|nanos| *nanos > 0);
        if timeout.is_none() {
            let at = path.child("timeout");
            let timeout = config["timeout"].clone();
            self.errors.push(FieldError::invalid(&at, timeout, "timeout should be a positive value"));
        }
        let socket = self.socket(&string(config, "endpoint"), &path.child("endpoint"));
        if self.errors.len() > before {
            return None;
        }
        Some(KmsConfig { name, socket: socket?, timeout: Duration::from_nanos(timeout?) })
    }

    /// Returns the path of a unix socket: `unix:///run/kms.sock`.
    fn socket(&mut self, endpoint: &str, path: &Path) -> Option<PathBuf> {
        let (scheme, rest) = endpoint.split_once(':').unwrap_or(("", endpoint));
        let socket = rest.strip_prefix("//").unwrap_or(rest);
        let wrong = if endpoint.is_empty() {
            "endpoint is a mandatory field for a kms".to_owned()
        } else if scheme != "unix" {
            format!("unsupported scheme {} for KMS provider, only unix is supported", quote(scheme))
        } else if !socket.starts_with('/') || socket.starts_with("/@") {
            "invalid endpoint for kms provider, error: it must be the absolute path of a socket".to_owned()
        } else {
            return Some(socket.into());
        };
        self.errors.push(FieldError::invalid(path, endpoint, wrong));
        None
    }
}

fn string(value: &Value, key: &str) -> String {
    value[key].as_str().unwrap_or_default().to_owned()
}

/// Splits `deployments.apps` into resource and group; `*.` is all of the core group.
fn group_resource(name: &str) -> (String, String) {
    let (resource, group) = name.split_once('.').unwrap_or((name, ""));
    (group.to_owned(), resource.to_owned())
}

fn name_error(name: &str) -> Option<&'static str> {
    let (group, resource) = group_resource(name);
    if name.chars().any(char::is_uppercase) {
        return Some("resource name should not contain capital letters");
    }
    match (name, group.as_str(), resource.as_str()) {
        ("*", _, _) => {
            Some("use '*.' to encrypt all the resources from core API group or *.* to encrypt all resources")
        }
        ("apiserveripinfo" | "serviceipallocations" | "servicenodeportallocations", _, _) => {
            Some("resources which do not have REST API/s cannot be encrypted")
        }
        (_, "events.k8s.io", _) => Some(
            "'*.events.k8s.io' objects are stored using the 'events' API group in etcd. Use 'events' instead in the config file",
        ),
        (_, "extensions", _) => Some("'extensions' group has been removed and cannot be used for encryption"),
        (_, "*", resource) if resource != "*" => Some("encrypting the same resource across groups is not supported"),
        _ => None,
    }
}

/// Returns the errors of resources that occur twice in one list.
fn overlaps(names: &[&str], resources: &[(String, String)], path: &Path) -> Vec<FieldError> {
    let pairs = || {
        let each = resources.iter().enumerate();
        each.flat_map(|(at, one)| resources[at + 1..].iter().map(move |other| (one, other)))
    };
    let everything = |(group, resource): &(String, String)| group == "*" && resource == "*";
    let overlap = |(one, other): (&(String, String), &(String, String))| {
        one != other && (everything(one) || everything(other) || (one.0 == other.0 && (one.1 == "*" || other.1 == "*")))
    };
    let mut errors = Vec::new();
    if pairs().any(|(one, other)| one == other) {
        let why = "the same resource cannot be specified multiple times";
        errors.push(FieldError::invalid(path, serde_json::json!(names), why));
    }
    if pairs().any(overlap) {
        let why = "using overlapping resources such as 'secrets' and '*.' in the same resource list is not allowed as they will be masked";
        errors.push(FieldError::invalid(path, serde_json::json!(names), why));
    }
    errors
}

/// Returns the errors of resources that an earlier, wider rule masks.
fn masked(rules: &[Rule], root: &Path) -> Vec<FieldError> {
    let shown = |(group, resource): &(String, String)| match (group.as_str(), resource.as_str()) {
        ("", "*") => "*.".to_owned(),
        ("", resource) => resource.to_owned(),
        (group, resource) => format!("{resource}.{group}"),
    };
    let mut errors = Vec::new();
    for (at, rule) in rules.iter().enumerate() {
        for (index, own) in rule.resources.iter().enumerate() {
            let mut earlier = rules[..at].iter().flat_map(|earlier| &earlier.resources);
            let masks = |(group, resource): &&(String, String)| resource == "*" && (group == "*" || *group == own.0);
            if let Some(by) = earlier.find(masks) {
                let why = format!("resource {} is masked by earlier rule {}", quote(&shown(own)), quote(&shown(by)));
                let path = root.index(at).child("resources").index(index);
                errors.push(FieldError::invalid(&path, shown(own), why));
            }
        }
    }
    errors
}
