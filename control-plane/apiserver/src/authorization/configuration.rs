//! AuthorizationConfiguration of apiserver.config.k8s.io: the authorizers and their order. It refuses what upstream
//! refuses, in upstream's words.

use std::sync::Mutex;
use std::time::Duration;

use corten_cel::conditions::{Condition, compile};
use corten_meta::{FieldError, Path, Value};

use super::webhook::{ENV, Times, Webhook};
use super::{Authorizer, Decision};
use crate::config::Authorization;
use crate::outbound::Caller;

const TYPES: [&str; 5] = ["AlwaysAllow", "AlwaysDeny", "Node", "RBAC", "Webhook"];

/// Reads a configuration, in YAML or JSON.
pub fn parse(yaml: &str, settings: &Authorization) -> Result<Vec<Authorizer>, String> {
    let config = corten_meta::decode_yaml(yaml.as_bytes()).map_err(|e| e.to_string())?;
    let version = config["apiVersion"].as_str().unwrap_or_default();
    let known = ["v1", "v1beta1", "v1alpha1"].map(|v| format!("apiserver.config.k8s.io/{v}"));
    if !known.iter().any(|k| k == version) || config["kind"] != "AuthorizationConfiguration" {
        return Err("it is no AuthorizationConfiguration of apiserver.config.k8s.io".to_owned());
    }
    let root = Path::root("authorizers");
    let entries = config["authorizers"].as_array().cloned().unwrap_or_default();
    let mut reader = Reader { settings, errors: Vec::new() };
    if entries.is_empty() {
        reader.errors.push(FieldError::required(&root, "at least one authorization mode must be defined"));
    }
    let mut authorizers = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        let path = root.index(at);
        reader.check_names(entry, &entries[..at], &path);
        authorizers.extend(reader.authorizer(entry, &path));
    }
    match corten_meta::field::aggregate(&reader.errors) {
        Some(message) => Err(message),
        None => Ok(authorizers),
    }
}

/// Collects the errors of a configuration.
struct Reader<'a> {
    settings: &'a Authorization,
    errors: Vec<FieldError>,
}

impl Reader<'_> {
    fn check_names(&mut self, entry: &Value, earlier: &[Value], path: &Path) {
        let kind = string(entry, "type");
        let name = string(entry, "name");
        if kind != "Webhook" && !kind.is_empty() && earlier.iter().any(|other| string(other, "type") == kind) {
            self.errors.push(FieldError::duplicate(&path.child("type"), kind));
        }
        let at = path.child("name");
        if name.is_empty() {
            self.errors.push(FieldError::required(&at, ""));
        } else if earlier.iter().any(|other| string(other, "name") == name) {
            self.errors.push(FieldError::duplicate(&at, name));
        } else if let wrong = corten_meta::names::dns1123_subdomain(name)
            && !wrong.is_empty()
        {
            let why = format!("authorizer name is invalid: {}", wrong.join(", "));
            self.errors.push(FieldError::invalid(&at, name, why));
        }
    }

    fn authorizer(&mut self, entry: &Value, path: &Path) -> Option<Authorizer> {
        let kind = string(entry, "type");
        let has_webhook = entry["webhook"].is_object();
        if kind != "Webhook" && has_webhook {
            let why = "may only be specified when type=Webhook";
            self.errors.push(FieldError::invalid(&path.child("webhook"), "non-null", why));
        }
        match kind {
            "AlwaysAllow" => Some(Authorizer::AlwaysAllow),
            "AlwaysDeny" => Some(Authorizer::AlwaysDeny),
            "Node" => Some(Authorizer::Node),
            "RBAC" => Some(Authorizer::Rbac),
            "Webhook" if has_webhook => {
                let webhook = self.webhook(string(entry, "name"), &entry["webhook"], path)?;
                Some(Authorizer::Webhook(Box::new(webhook)))
            }
            "Webhook" => {
                self.errors.push(FieldError::required(&path.child("webhook"), "required when type=Webhook"));
                None
            }
            "" => {
                self.errors.push(FieldError::required(&path.child("type"), ""));
                None
            }
            other => {
                self.errors.push(FieldError::not_supported(&path.child("type"), other, &TYPES));
                None
            }
        }
    }

    fn webhook(&mut self, name: &str, config: &Value, path: &Path) -> Option<Webhook> {
        let before = self.errors.len();
        let times = self.times(config, path);
        let version = self.one_of(config, path, "subjectAccessReviewVersion", &["v1", "v1beta1"]);
        let failure = self.one_of(config, path, "failurePolicy", &["NoOpinion", "Deny"]);
        let conditions = config["matchConditions"].as_array().cloned().unwrap_or_default();
        if conditions.is_empty() {
            let value = string(config, "matchConditionSubjectAccessReviewVersion");
            if !value.is_empty() && value != "v1" {
                let at = path.child("matchConditionSubjectAccessReviewVersion");
                self.errors.push(FieldError::not_supported(&at, value, &["v1"]));
            }
        } else {
            self.one_of(config, path, "matchConditionSubjectAccessReviewVersion", &["v1"]);
        }
        let conditions = self.conditions(&conditions, path);
        let caller = self.connection(&config["connectionInfo"], &path.child("connectionInfo"));
        if self.errors.len() > before {
            return None;
        }
        let version = if version == "v1" { "v1" } else { "v1beta1" };
        let on_error = if failure == "Deny" { Decision::Deny } else { Decision::NoOpinion };
        let name = name.to_owned();
        let cached = Mutex::default();
        Some(Webhook { name, caller: caller?, times, version, on_error, conditions, cached })
    }

    fn times(&mut self, config: &Value, path: &Path) -> Times {
        let mut read = |field: &str, default: Option<u64>, most: Option<u64>| -> Duration {
            let at = path.child(field);
            let nanos = config[field].as_str().map(corten_cel::library::time::parse_duration);
            let limit = most.map(|most| i64::try_from(most * 1_000_000_000).unwrap_or(i64::MAX)).unwrap_or(i64::MAX);
            match (nanos, default) {
                (Some(Some(nanos)), _) if nanos > 0 && nanos <= limit => Duration::from_nanos(nanos.unsigned_abs()),
                (None | Some(Some(0)), Some(default)) => Duration::from_secs(default),
                (None | Some(Some(0)), None) => {
                    self.errors.push(FieldError::required(&at, ""));
                    Duration::ZERO
                }
                _ => {
                    let why = most.map_or("must be > 0s".to_owned(), |most| format!("must be > 0s and <= {most}s"));
                    self.errors.push(FieldError::invalid(&at, config[field].clone(), why));
                    Duration::ZERO
                }
            }
        };
        let authorized = read("authorizedTTL", Some(300), None);
        let unauthorized = read("unauthorizedTTL", Some(30), None);
        let timeout = read("timeout", None, Some(30));
        let cached = |flag: &str, lasts: Duration| if config[flag] == false { Duration::ZERO } else { lasts };
        Times {
            authorized: cached("cacheAuthorizedRequests", authorized),
            unauthorized: cached("cacheUnauthorizedRequests", unauthorized),
            timeout,
        }
    }

    fn one_of(&mut self, config: &Value, path: &Path, field: &str, known: &[&str]) -> String {
        let value = string(config, field);
        if value.is_empty() {
            self.errors.push(FieldError::required(&path.child(field), ""));
        } else if !known.contains(&value) {
            self.errors.push(FieldError::not_supported(&path.child(field), value, known));
        }
        value.to_owned()
    }

    fn conditions(&mut self, conditions: &[Value], path: &Path) -> Vec<Condition> {
        let path = path.child("matchConditions");
        if conditions.len() > 64 {
            self.errors.push(FieldError::too_many(&path, conditions.len(), 64));
            return Vec::new();
        }
        let mut compiled = Vec::new();
        for (at, condition) in conditions.iter().enumerate() {
            let expression = string(condition, "expression");
            let at_path = path.index(at).child("expression");
            if expression.trim().is_empty() {
                self.errors.push(FieldError::required(&at_path, ""));
            } else if conditions[..at].iter().any(|other| string(other, "expression") == expression) {
                self.errors.push(FieldError::duplicate(&at_path, expression));
            }
            let condition = compile(&ENV, expression);
            if let Err(e) = &condition {
                self.errors.push(FieldError::invalid(&at_path, expression, e.clone()));
            }
            compiled.push(condition);
        }
        compiled
    }

    fn connection(&mut self, info: &Value, path: &Path) -> Option<Caller> {
        let file = string(info, "kubeConfigFile");
        let at = path.child("kubeConfigFile");
        match string(info, "type") {
            "KubeConfigFile" if file.is_empty() => self.errors.push(FieldError::required(&at, "")),
            "KubeConfigFile" if !file.starts_with('/') => {
                self.errors.push(FieldError::invalid(&at, file, "must be an absolute path"));
            }
            "KubeConfigFile" => {
                let server = (self.settings.kubeconfig.0)(file.as_ref());
                match server.and_then(|server| Caller::new(&server).map_err(|e| e.to_string())) {
                    Ok(caller) => return Some(caller),
                    Err(e) => {
                        self.errors.push(FieldError::invalid(&at, file, format!("error loading file: {e}")));
                    }
                }
            }
            "InClusterConfig" => {
                let why = "this server runs in no pod: use KubeConfigFile";
                self.errors.push(FieldError::invalid(&path.child("type"), "InClusterConfig", why));
            }
            "" => self.errors.push(FieldError::required(&path.child("type"), "")),
            other => {
                let known = ["InClusterConfig", "KubeConfigFile"];
                self.errors.push(FieldError::not_supported(&path.child("type"), other, &known));
            }
        }
        None
    }
}

fn string<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}
