//! The fields of `KubeletConfiguration`: those that can be set, and those with only one supported value.

#![allow(clippy::unit_arg, reason = "a setter is an assignment that may fail: one line a field")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::Taint;
use corten_meta::Value;
use serde_json::json;

use super::Field;
use super::duration::{format_duration, parse_duration};

type Set = std::result::Result<(), String>;

/// A type of the configuration's fields, as the document has it.
pub(super) trait Setting: Sized {
    fn read(value: &Value) -> Result<Self, String>;
    fn write(&self) -> Value;
}

impl Setting for String {
    fn read(value: &Value) -> Result<String, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is not a text"))
    }

    fn write(&self) -> Value {
        self.clone().into()
    }
}

impl Setting for bool {
    fn read(value: &Value) -> Result<bool, String> {
        value.as_bool().ok_or_else(|| format!("{value} is neither true nor false"))
    }

    fn write(&self) -> Value {
        (*self).into()
    }
}

macro_rules! numbers {
    ($($number:ty)*) => {
        $(impl Setting for $number {
            fn read(value: &Value) -> Result<$number, String> {
                let wrong = || format!("{value} is not a whole number");
                value.as_i64().and_then(|number| <$number>::try_from(number).ok()).ok_or_else(wrong)
            }

            fn write(&self) -> Value {
                (*self).into()
            }
        })*
    };
}

numbers!(u8 u16 u32 u64 usize i32 i64);

impl Setting for Duration {
    fn read(value: &Value) -> Result<Duration, String> {
        parse_duration(&String::read(value)?)
    }

    fn write(&self) -> Value {
        format_duration(*self).into()
    }
}

impl Setting for Vec<String> {
    fn read(value: &Value) -> Result<Vec<String>, String> {
        value.as_array().ok_or_else(|| format!("{value} is not a list"))?.iter().map(String::read).collect()
    }

    fn write(&self) -> Value {
        json!(self)
    }
}

impl Setting for BTreeMap<String, String> {
    fn read(value: &Value) -> Result<BTreeMap<String, String>, String> {
        let object = value.as_object().ok_or_else(|| format!("{value} is not a map"))?;
        object.iter().map(|(name, value)| Ok((name.clone(), String::read(value)?))).collect()
    }

    fn write(&self) -> Value {
        json!(self)
    }
}

/// An empty path is none.
impl Setting for Option<PathBuf> {
    fn read(value: &Value) -> Result<Option<PathBuf>, String> {
        Ok(Some(String::read(value)?).filter(|path| !path.is_empty()).map(PathBuf::from))
    }

    fn write(&self) -> Value {
        json!(self)
    }
}

/// A field of the document that is one of the configuration.
macro_rules! field {
    ($name:literal, $($field:ident).+) => {
        Field {
            name: $name,
            get: |config| crate::configuration::fields::Setting::write(&config.$($field).+),
            set: |config, value| {
                config.$($field).+ = crate::configuration::fields::Setting::read(value)?;
                Ok(())
            },
        }
    };
}

/// A field of the document with two words, for a bool of the configuration.
macro_rules! choice {
    ($name:literal, $($field:ident).+, $off:literal, $on:literal) => {
        Field {
            name: $name,
            get: |config| if config.$($field).+ { $on } else { $off }.into(),
            set: |config, value| {
                config.$($field).+ = match <String as crate::configuration::fields::Setting>::read(value)?.as_str() {
                    $off => false,
                    $on => true,
                    other => return Err(format!(concat!("{:?} is neither ", $off, " nor ", $on), other)),
                };
                Ok(())
            },
        }
    };
}

pub(super) use {choice, field};

/// Sets a duration; zero keeps the default.
fn set_duration(value: &Value, target: &mut Duration) -> Set {
    let read = Duration::read(value)?;
    Ok(*target = if read.is_zero() { *target } else { read })
}

/// Parses reserved quantities and validates them.
fn reserved(value: &Value) -> Result<BTreeMap<String, String>, String> {
    let map = <BTreeMap<String, String>>::read(value)?;
    for (name, quantity) in &map {
        if !["cpu", "memory", "ephemeral-storage", "pid"].contains(&name.as_str()) {
            return Err(format!("cannot reserve {name:?} resource"));
        }
        corten_meta::Quantity::parse(quantity).map_err(|error| format!("{name}: {error}"))?;
    }
    Ok(map)
}

/// The fields that can be set.
pub(super) const FIELDS: &[Field] = &[
    field!("staticPodPath", static_pod_path),
    field!("tlsCertFile", tls_files.certificate),
    field!("tlsPrivateKeyFile", tls_files.key),
    Field {
        name: "address",
        get: |config| config.listen.ip().to_string().into(),
        set: |config, value| {
            let address: IpAddr = String::read(value)?.parse().map_err(|_| format!("{value} is not an address"))?;
            config.listen = SocketAddr::new(address, config.listen.port());
            Ok(())
        },
    },
    Field {
        name: "port",
        get: |config| config.listen.port().into(),
        set: |config, value| Ok(config.listen.set_port(Setting::read(value)?)),
    },
    Field {
        name: "healthzBindAddress",
        get: |config| config.healthz.ip().to_string().into(),
        set: |config, value| {
            let address: IpAddr = String::read(value)?.parse().map_err(|_| format!("{value} is not an address"))?;
            config.healthz = SocketAddr::new(address, config.healthz.port());
            Ok(())
        },
    },
    Field {
        name: "healthzPort",
        get: |config| config.healthz.port().into(),
        set: |config, value| Ok(config.healthz.set_port(Setting::read(value)?)),
    },
    field!("clusterDomain", cluster_domain),
    field!("clusterDNS", cluster_dns),
    Field {
        name: "resolvConf",
        get: |config| json!(config.resolv_conf.as_deref().unwrap_or(std::path::Path::new(""))),
        set: |config, value| Ok(config.resolv_conf = Setting::read(value)?),
    },
    field!("nodeStatusReportFrequency", status_report_interval),
    Field {
        name: "nodeLeaseDurationSeconds",
        get: |config| config.lease_duration.as_secs().into(),
        set: |config, value| {
            config.lease_duration = Duration::from_secs(u64::read(value)?);
            config.lease_renew_interval = config.lease_duration / 4;
            Ok(())
        },
    },
    field!("imageMinimumGCAge", image_collection.minimum_age),
    Field {
        name: "imageMaximumGCAge",
        get: |config| config.image_collection.maximum_age.unwrap_or_default().write(),
        set: |config, value| {
            Ok(config.image_collection.maximum_age = Some(Duration::read(value)?).filter(|age| !age.is_zero()))
        },
    },
    field!("imageGCHighThresholdPercent", image_collection.high_threshold_percent),
    field!("imageGCLowThresholdPercent", image_collection.low_threshold_percent),
    field!("cgroupRoot", cgroup_root),
    field!("maxPods", max_pods),
    Field {
        name: "podPidsLimit",
        get: |config| config.pod_pids_limit.unwrap_or(-1).into(),
        set: |config, value| Ok(config.pod_pids_limit = Some(i64::read(value)?).filter(|limit| *limit > 0)),
    },
    Field {
        name: "nodeStatusMaxImages",
        get: |config| config.max_images.map_or(json!(-1), |most| json!(most)),
        set: |config, value| Ok(config.max_images = usize::try_from(i64::read(value)?).ok()),
    },
    Field {
        name: "maxParallelImagePulls",
        get: |config| config.max_parallel_pulls.map_or(Value::Null, |most| json!(most)),
        set: |config, value| match usize::read(value)? {
            0 => Err("must be at least 1".into()),
            most => Ok(config.max_parallel_pulls = Some(most)),
        },
    },
    Field {
        name: "serializeImagePulls",
        get: |config| (config.max_parallel_pulls == Some(1)).into(),
        set: |config, value| {
            if bool::read(value)? {
                config.max_parallel_pulls = Some(1);
            }
            Ok(())
        },
    },
    field!("evictionHard", eviction.hard),
    field!("evictionSoft", eviction.soft),
    Field {
        name: "evictionSoftGracePeriod",
        get: |config| {
            let periods = config.eviction.soft_grace_period.iter();
            json!(periods.map(|(signal, grace)| (signal, format_duration(*grace))).collect::<BTreeMap<_, _>>())
        },
        set: |config, value| {
            let periods = <BTreeMap<String, String>>::read(value)?
                .into_iter()
                .map(|(signal, grace)| Ok((signal, parse_duration(&grace)?)));
            config.eviction.soft_grace_period = periods.collect::<Result<_, String>>()?;
            Ok(())
        },
    },
    field!("evictionMinimumReclaim", eviction.minimum_reclaim),
    field!("evictionPressureTransitionPeriod", eviction.pressure_transition_period),
    field!("evictionMaxPodGracePeriod", eviction.max_pod_grace_period),
    Field {
        name: "containerLogMaxSize",
        get: |config| {
            corten_meta::Quantity::from_bytes(i64::try_from(config.log_max_bytes).unwrap_or(i64::MAX))
                .to_string()
                .into()
        },
        set: |config, value| {
            let size = corten_meta::Quantity::parse(&String::read(value)?).map_err(|error| error.to_string())?;
            config.log_max_bytes = u64::try_from(size.as_i64()).map_err(|_| format!("{value} is not a size"))?;
            Ok(())
        },
    },
    field!("containerLogMaxFiles", log_max_files),
    field!("containerLogMonitorInterval", log_monitor_interval),
    Field {
        name: "systemReserved",
        get: |config| json!(config.system_reserved),
        set: |config, value| Ok(config.system_reserved = reserved(value)?),
    },
    Field {
        name: "kubeReserved",
        get: |config| json!(config.kube_reserved),
        set: |config, value| Ok(config.kube_reserved = reserved(value)?),
    },
    Field {
        name: "enforceNodeAllocatable",
        get: |config| if config.enforce_allocatable { json!(["pods"]) } else { json!(["none"]) },
        set: |config, value| match <Vec<String>>::read(value)?.iter().map(String::as_str).collect::<Vec<_>>().as_slice()
        {
            ["pods"] => Ok(config.enforce_allocatable = true),
            [] | ["none"] => Ok(config.enforce_allocatable = false),
            _ => Err(format!("{value} is not supported by this kubelet, which knows \"pods\" and \"none\"")),
        },
    },
    field!("allowedUnsafeSysctls", allowed_unsafe_sysctls),
    Field {
        name: "providerID",
        get: |config| config.provider_id.clone().into(),
        set: |config, value| Ok(config.provider_id = Some(String::read(value)?).filter(|id| !id.is_empty())),
    },
    field!("enableSystemLogHandler", system_log_handler),
    field!("enableSystemLogQuery", system_log_query),
    field!("seccompDefault", seccomp_default),
    Field {
        name: "registerWithTaints",
        get: |config| {
            let taint = |taint: &Taint| json!({"key": taint.key, "value": taint.value, "effect": taint.effect});
            config.taints.iter().map(taint).collect()
        },
        set: |config, value| {
            let list = value.as_array().ok_or_else(|| format!("{value} is not a list"))?;
            config.taints = list.iter().map(taint).collect::<Result<_, String>>()?;
            Ok(())
        },
    },
    Field {
        name: "tracing",
        get: |config| {
            let tracing = config.tracing.as_ref();
            let rate = |one: &corten_spans::Configuration| one.sampling_rate_per_million;
            tracing.map_or(Value::Null, |one| json!({"endpoint": one.endpoint, "samplingRatePerMillion": rate(one)}))
        },
        set: |config, value| {
            nested(value, "", &mut |name, _| ["endpoint", "samplingRatePerMillion"].contains(&name).then_some(Ok(())))?;
            Ok(config.tracing = Some(corten_spans::Configuration::read(value)?))
        },
    },
    field!("registerNode", register_node),
    field!("containerRuntimeEndpoint", cri_socket),
    Field {
        name: "authentication",
        get: |config| {
            let access = &config.access;
            json!({
                "x509": match &config.tls_files.client_ca {
                    Some(path) => json!({"clientCAFile": path}),
                    None => json!({}),
                },
                "webhook": {"enabled": access.webhook, "cacheTTL": format_duration(access.token_ttl)},
                "anonymous": {"enabled": access.anonymous},
            })
        },
        set: |config, value| {
            let access = &mut config.access;
            let files = &mut config.tls_files;
            nested(value, "", &mut |name, value| match name {
                "x509.clientCAFile" => Some(<Option<PathBuf>>::read(value).map(|path| files.client_ca = path)),
                "webhook.enabled" => Some(bool::read(value).map(|on| access.webhook = on)),
                "webhook.cacheTTL" => Some(set_duration(value, &mut access.token_ttl)),
                "anonymous.enabled" => Some(bool::read(value).map(|on| access.anonymous = on)),
                _ => None,
            })
        },
    },
    Field {
        name: "authorization",
        get: |config| {
            let access = &config.access;
            json!({
                "mode": if access.always_allow { "AlwaysAllow" } else { "Webhook" },
                "webhook": {
                    "cacheAuthorizedTTL": format_duration(access.allowed_ttl),
                    "cacheUnauthorizedTTL": format_duration(access.denied_ttl),
                },
            })
        },
        set: |config, value| {
            let access = &mut config.access;
            nested(value, "", &mut |name, value| match name {
                "mode" => Some(match value.as_str() {
                    Some("AlwaysAllow") => Ok(access.always_allow = true),
                    Some("Webhook") => Ok(access.always_allow = false),
                    _ => Err(format!("{value} is neither \"Webhook\" nor \"AlwaysAllow\"")),
                }),
                "webhook.cacheAuthorizedTTL" => Some(set_duration(value, &mut access.allowed_ttl)),
                "webhook.cacheUnauthorizedTTL" => Some(set_duration(value, &mut access.denied_ttl)),
                _ => None,
            })
        },
    },
];

fn taint(value: &Value) -> Result<Taint, String> {
    // An unquoted `true` is a boolean in YAML: it is refused rather than dropped.
    let field = |name: &str| value.get(name).filter(|value| !value.is_null()).map(String::read).transpose();
    let (Some(key), Some(effect)) = (field("key")?, field("effect")?) else {
        return Err(format!("{value} is not a taint: it needs a key and an effect"));
    };
    Ok(Taint { key, effect, value: field("value")?, time_added: None })
}

/// Walks the leaves of an object; `take` returns `None` for an unknown path.
fn nested(value: &Value, path: &str, take: &mut dyn FnMut(&str, &Value) -> Option<Set>) -> Set {
    let object = value.as_object().ok_or_else(|| format!("{value} is not an object"))?;
    for (name, value) in object {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if value.is_object() {
            nested(value, &path, take)?;
            continue;
        }
        take(&path, value).ok_or_else(|| format!("unknown field {path:?}"))??;
    }
    Ok(())
}

/// The numbers for which zero is unset: fields that are no pointers upstream.
const PLAIN_NUMBERS: [&str; 8] = [
    "eventBurst",
    "kubeAPIBurst",
    "maxOpenFiles",
    "maxPods",
    "nodeLeaseDurationSeconds",
    "port",
    "registryBurst",
    "evictionMaxPodGracePeriod",
];

/// Reports whether upstream uses its default in place of the value: Go's zero values, of which kubeadm's documents have
/// many.
pub(super) fn is_unset(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) if text.is_empty() => !["resolvConf", "clusterDomain"].contains(&name),
        Value::String(text) => text.ends_with('s') && parse_duration(text).is_ok_and(|duration| duration.is_zero()),
        Value::Number(number) => PLAIN_NUMBERS.contains(&name) && number.as_i64() == Some(0),
        Value::Bool(on) => !on && ["rotateCertificates", "serverTLSBootstrap"].contains(&name),
        // In these fields, upstream reads only the fields inside.
        Value::Object(fields) if ["logging", "memorySwap", "crashLoopBackOff"].contains(&name) => {
            fields.values().all(is_zero)
        }
        _ => false,
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty() || text == "0" || parse_duration(text).is_ok_and(|it| it.is_zero()),
        Value::Object(fields) => fields.values().all(is_zero),
        Value::Array(items) => items.is_empty(),
        Value::Bool(true) => false,
    }
}

/// Settings with one supported value: upstream's default, unless a comment explains another.
pub(super) const FIXED: &[(&str, &str)] = &[
    ("enableServer", "true"),
    ("syncFrequency", r#""1m0s""#),
    ("fileCheckFrequency", r#""20s""#),
    ("httpCheckFrequency", r#""20s""#),
    ("readOnlyPort", "0"),
    // A node that joins requests its certificates, and renews them before they expire.
    ("rotateCertificates", "true"),
    ("serverTLSBootstrap", "true"),
    ("logging", r#"{"format":"text"}"#),
    ("registryPullQPS", "5"),
    ("registryBurst", "10"),
    ("imagePullCredentialsVerificationPolicy", r#""NeverVerify""#),
    ("eventRecordQPS", "50"),
    ("eventBurst", "100"),
    ("enableDebuggingHandlers", "true"),
    ("enableContentionProfiling", "false"),
    ("oomScoreAdj", "-999"),
    ("streamingConnectionIdleTimeout", r#""4h0m0s""#),
    ("nodeStatusUpdateFrequency", r#""10s""#),
    ("volumeStatsAggPeriod", r#""1m0s""#),
    ("cgroupsPerQOS", "true"),
    ("cpuManagerReconcilePeriod", r#""10s""#),
    ("runtimeRequestTimeout", r#""2m0s""#),
    ("hairpinMode", r#""promiscuous-bridge""#),
    ("runOnce", "false"),
    ("cpuCFSQuota", "true"),
    ("cpuCFSQuotaPeriod", r#""100ms""#),
    ("maxOpenFiles", "1000000"),
    // The kubelet sends JSON.
    ("contentType", r#""application/json""#),
    ("kubeAPIQPS", "50"),
    ("kubeAPIBurst", "100"),
    ("mergeDefaultEvictionSettings", "false"),
    ("podsPerCore", "0"),
    ("enableControllerAttachDetach", "true"),
    ("protectKernelDefaults", "false"),
    ("makeIPTablesUtilChains", "true"),
    ("iptablesMasqueradeBit", "14"),
    ("iptablesDropBit", "15"),
    ("featureGates", "{}"),
    // A machine with swap is accepted.
    ("failSwapOn", "false"),
    ("memorySwap", "{}"),
    ("containerLogMaxWorkers", "1"),
    ("configMapAndSecretChangeDetectionStrategy", r#""Watch""#),
    ("volumePluginDir", r#""/usr/libexec/kubernetes/kubelet-plugins/volume/exec/""#),
    ("kernelMemcgNotification", "false"),
    ("enableProfilingHandler", "false"),
    ("enableDebugFlagsHandler", "false"),
    ("memoryThrottlingFactor", "0.9"),
    ("memoryReservationPolicy", r#""None""#),
    ("crashLoopBackOff", r#"{"maxContainerRestartPeriod":"5m0s"}"#),
    ("localStorageCapacityIsolation", "true"),
    // cgroup v1 is supported as well as v2.
    ("failCgroupV1", "false"),
];
