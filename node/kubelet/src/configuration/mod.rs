//! `KubeletConfiguration`, version `kubelet.config.k8s.io/v1beta1`: upstream's configuration document, read into
//! [`Config`] and written for `/configz`.
//!
//! It is read strictly: an unknown field is an error, and so is a known one whose value needs a feature that this
//! kubelet does not have. No setting is ever accepted and ignored. Pure: the binary reads the file.

mod duration;
mod fields;
mod managers;

use corten_meta::Value;
use serde_json::{Map, json};

pub use duration::{format_duration, parse_duration};

use crate::config::Config;
use crate::error::{Error, Result};
use fields::{FIELDS, FIXED};

const KIND: &str = "KubeletConfiguration";
const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";

/// One field of the document.
struct Field {
    name: &'static str,
    get: fn(&Config) -> Value,
    set: fn(&mut Config, &Value) -> std::result::Result<(), String>,
}

/// Returns the fields that can be set.
fn every() -> impl Iterator<Item = &'static Field> {
    FIELDS.iter().chain(managers::FIELDS)
}

/// Sets the fields of the document; absent fields keep their values.
pub fn apply(config: &mut Config, document: &Value) -> Result<()> {
    let fields = document.as_object().ok_or_else(|| refuse("it is not an object".to_owned()))?;
    for (name, expected) in [("kind", KIND), ("apiVersion", API_VERSION)] {
        if fields.get(name).and_then(Value::as_str) != Some(expected) {
            return Err(refuse(format!("{name} must be {expected:?}")));
        }
    }
    for (name, value) in fields.iter().filter(|(name, _)| !["kind", "apiVersion"].contains(&name.as_str())) {
        if fields::is_unset(name, value) && is_known(name) {
            continue;
        }
        set(config, name, value).map_err(refuse)?;
    }
    reserve_cpus(config);
    check(config).map_err(refuse)
}

/// Sets the reserved CPU from `reservedSystemCPUs`, which replaces the reserved quantities.
fn reserve_cpus(config: &mut Config) {
    let named = config.reserved_cpus.as_deref().and_then(crate::cpus::set::parse);
    if let Some(named) = named {
        config.system_reserved.insert("cpu".to_owned(), named.len().to_string());
        config.kube_reserved.remove("cpu");
    }
}

fn refuse(why: String) -> Error {
    Error::Configuration(format!("{KIND}: {why}"))
}

fn set(config: &mut Config, name: &str, value: &Value) -> std::result::Result<(), String> {
    if let Some(field) = every().find(|field| field.name == name) {
        return (field.set)(config, value).map_err(|why| format!("{name}: {why}"));
    }
    let Some((_, only)) = FIXED.iter().find(|(known, _)| *known == name) else {
        return Err(format!("unknown field {name:?}"));
    };
    let only: Value = serde_json::from_str(only).unwrap_or(Value::Null);
    if is_same(value, &only) {
        return Ok(());
    }
    Err(format!("{name}: {value} is not supported by this kubelet, which knows only {only}"))
}

fn is_known(name: &str) -> bool {
    every().any(|field| field.name == name) || FIXED.iter().any(|(known, _)| *known == name)
}

/// Reports whether the values are equal, or two notations of the same duration.
fn is_same(a: &Value, b: &Value) -> bool {
    let duration = |value: &Value| value.as_str().and_then(|text| parse_duration(text).ok());
    a == b || duration(a).is_some_and(|a| duration(b) == Some(a))
}

/// Checks that the fields are consistent.
fn check(config: &Config) -> std::result::Result<(), String> {
    config.eviction.thresholds()?;
    let images = &config.image_collection;
    if images.low_threshold_percent > images.high_threshold_percent || images.high_threshold_percent > 100 {
        return Err(format!(
            "imageGCLowThresholdPercent ({}) must be less than imageGCHighThresholdPercent ({}), and neither above 100",
            images.low_threshold_percent, images.high_threshold_percent
        ));
    }
    if config.tls_files.certificate.is_some() != config.tls_files.key.is_some() {
        return Err("tlsCertFile and tlsPrivateKeyFile must be set together".into());
    }
    if !config.static_cpu_policy && config.cpu_options != crate::cpus::Options::default() {
        return Err("cpuManagerPolicyOptions: the none policy has no options".into());
    }
    let shutdown = &config.shutdown;
    if shutdown.critical_grace_period > shutdown.grace_period {
        return Err("shutdownGracePeriodCriticalPods must not be greater than shutdownGracePeriod".into());
    }
    if !shutdown.by_priority.is_empty() && !shutdown.grace_period.is_zero() {
        return Err("shutdownGracePeriod cannot be set together with shutdownGracePeriodByPodPriority".into());
    }
    if config.log_max_files < 2 {
        return Err("containerLogMaxFiles must be greater than 1".into());
    }
    Ok(())
}

/// Returns the complete document, every field with its value.
pub fn document(config: &Config) -> Value {
    let mut fields = Map::new();
    fields.insert("kind".into(), json!(KIND));
    fields.insert("apiVersion".into(), json!(API_VERSION));
    for (name, value) in FIXED {
        fields.insert((*name).to_owned(), serde_json::from_str(value).unwrap_or(Value::Null));
    }
    for field in every() {
        fields.insert(field.name.to_owned(), (field.get)(config));
    }
    fields.retain(|_, value| !value.is_null());
    Value::Object(fields)
}

/// A field in the manual.
pub struct Described {
    pub name: String,
    /// The default; null if the field is unset by default.
    pub default: Value,
    /// Whether another value than the default is supported.
    pub can_change: bool,
}

/// Returns every field of the document, by name.
pub fn describe() -> Vec<Described> {
    let config = Config::default();
    let changing =
        every().map(|field| Described { name: field.name.to_owned(), default: (field.get)(&config), can_change: true });
    let fixed = FIXED.iter().map(|(name, value)| Described {
        name: (*name).to_owned(),
        default: serde_json::from_str(value).unwrap_or(Value::Null),
        can_change: false,
    });
    let mut all: Vec<Described> = changing.chain(fixed).collect();
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn read(mut fields: Value) -> std::result::Result<Config, String> {
        let mut config = Config::default();
        fields["kind"] = json!(KIND);
        fields["apiVersion"] = json!(API_VERSION);
        apply(&mut config, &fields).map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn fields_are_taken() {
        let config = read(json!({
            "maxPods": 20, "staticPodPath": "/etc/manifests", "clusterDNS": ["10.0.0.10"], "syncFrequency": "60s",
            "evictionHard": {"memory.available": "5%"}, "evictionSoft": {"nodefs.available": "20%"},
            "evictionSoftGracePeriod": {"nodefs.available": "1m30s"}, "containerLogMaxSize": "1Mi",
            "systemReserved": {"cpu": "100m"}, "shutdownGracePeriod": "0s",
            "imageGCHighThresholdPercent": 90, "podPidsLimit": 100, "authentication": {"anonymous": {"enabled": false}},
        }))
        .unwrap();
        assert_eq!((config.max_pods, config.log_max_bytes, config.pod_pids_limit), (20, 1 << 20, Some(100)));
        assert_eq!(config.static_pod_path.as_deref(), Some(std::path::Path::new("/etc/manifests")));
        assert_eq!(config.eviction.soft_grace_period["nodefs.available"], Duration::from_secs(90));
        assert_eq!(config.eviction.hard.len(), 1, "the given thresholds stand in place of the default ones");
    }

    /// The document of `kubeadm init`: most fields have zero values.
    const KUBEADM: &str = r#"{
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"cacheTTL": "0s", "enabled": true},
            "x509": {"clientCAFile": "/etc/kubernetes/pki/ca.crt"}},
        "authorization": {"mode": "Webhook", "webhook": {"cacheAuthorizedTTL": "0s", "cacheUnauthorizedTTL": "0s"}},
        "cgroupDriver": "systemd", "clusterDNS": ["10.96.0.10"], "clusterDomain": "cluster.local",
        "containerRuntimeEndpoint": "", "cpuManagerReconcilePeriod": "0s", "crashLoopBackOff": {},
        "evictionPressureTransitionPeriod": "0s", "fileCheckFrequency": "0s", "healthzBindAddress": "127.0.0.1",
        "healthzPort": 10248, "httpCheckFrequency": "0s", "imageMaximumGCAge": "0s", "imageMinimumGCAge": "0s",
        "logging": {"flushFrequency": 0, "options": {"json": {"infoBufferSize": "0"}, "text": {"infoBufferSize": "0"}},
            "verbosity": 0},
        "memorySwap": {}, "nodeStatusReportFrequency": "0s", "nodeStatusUpdateFrequency": "0s",
        "resolvConf": "/run/systemd/resolve/resolv.conf", "rotateCertificates": true, "runtimeRequestTimeout": "0s", "shutdownGracePeriod": "0s",
        "shutdownGracePeriodCriticalPods": "0s", "staticPodPath": "/etc/kubernetes/manifests",
        "streamingConnectionIdleTimeout": "0s", "syncFrequency": "0s", "volumeStatsAggPeriod": "0s"
    }"#;

    #[test]
    fn zero_values_are_the_defaults() {
        let config = read(serde_json::from_str(KUBEADM).unwrap()).unwrap();
        let default = Config::default();
        assert_eq!(config.access.token_ttl, default.access.token_ttl);
        assert_eq!(config.eviction.pressure_transition_period, default.eviction.pressure_transition_period);
        assert_eq!(config.image_collection.minimum_age, default.image_collection.minimum_age);
        assert_eq!(config.cri_socket, default.cri_socket);
        assert_eq!(config.resolv_conf.as_deref(), Some(std::path::Path::new("/run/systemd/resolve/resolv.conf")));
        assert_eq!(read(json!({"resolvConf": ""})).unwrap().resolv_conf, None, "pods get no names from the node");
        assert_eq!(config.tls_files.client_ca.as_deref(), Some(std::path::Path::new("/etc/kubernetes/pki/ca.crt")));
        let error = read(json!({"syncFrequencies": "0s"})).unwrap_err();
        assert!(error.contains("unknown field"), "{error}");
    }

    #[test]
    fn unknown_and_unsupported_settings_are_refused() {
        for (fields, expected) in [
            (json!({"maxPod": 1}), "KubeletConfiguration: unknown field \"maxPod\""),
            (
                json!({"topologyManagerPolicy": "nearest"}),
                "KubeletConfiguration: topologyManagerPolicy: \"nearest\" is none of none, best-effort, restricted, single-numa-node",
            ),
            (
                json!({"cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"align-by-socket": "true"}}),
                "KubeletConfiguration: cpuManagerPolicyOptions: CPU Manager Policy Alpha-level Options not enabled, but option \"align-by-socket\" provided",
            ),
            (
                json!({"cpuManagerPolicyOptions": {"full-pcpus-only": "true"}}),
                "KubeletConfiguration: cpuManagerPolicyOptions: the none policy has no options",
            ),
            (
                json!({"topologyManagerPolicyOptions": {"max-allowable-numa-nodes": "4"}}),
                "KubeletConfiguration: topologyManagerPolicyOptions: the minimum value of \"max-allowable-numa-nodes\" should not be less than 8",
            ),
            (json!({"maxPods": "many"}), "KubeletConfiguration: maxPods: \"many\" is not a whole number"),
            (
                json!({"registerWithTaints": [{"key": "a", "value": true, "effect": "NoSchedule"}]}),
                "KubeletConfiguration: registerWithTaints: true is not a text",
            ),
            (
                json!({"authentication": {"x509": {"clientCAFiles": ""}}}),
                "KubeletConfiguration: authentication: unknown field \"x509.clientCAFiles\"",
            ),
        ] {
            assert_eq!(read(fields).unwrap_err(), expected);
        }
        let mut config = Config::default();
        let error = apply(&mut config, &json!({"kind": "Pod"})).unwrap_err().to_string();
        assert!(error.contains("kind must be"), "{error}");
    }

    #[test]
    fn the_document_reads_back_as_itself() {
        let options = json!({
            "cpuManagerPolicy": "static", "cpuManagerPolicyOptions": {"strict-cpu-reservation": "true"}, "maxPods": 7,
            "topologyManagerPolicyOptions": {"prefer-closest-numa-nodes": "1", "max-allowable-numa-nodes": "16"},
        });
        let config = read(options).unwrap();
        let written = document(&config);
        let mut again = Config::default();
        apply(&mut again, &written).unwrap();
        assert_eq!(document(&again), written);
        assert_eq!(written["evictionPressureTransitionPeriod"], "5m0s");
        assert_eq!(written["evictionHard"]["memory.available"], "100Mi");
    }
}
