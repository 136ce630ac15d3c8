//! The fields of the configuration document.

use std::time::Duration;

use base64::Engine as _;
use corten_meta::Value;
use serde::Deserialize;

use super::plugins::{Plugins, resolve};
use super::{Config, Election, ExtenderSpec, ExtenderTls, ManagedResource, ProfileSpec};
use crate::plugins::args::{API_VERSION, Args, decode};
use crate::plugins::registered;

const KIND: &str = "KubeSchedulerConfiguration";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Document {
    api_version: String,
    kind: String,
    parallelism: Option<i64>,
    leader_election: Option<LeaderElection>,
    client_connection: Option<ClientConnection>,
    enable_profiling: Option<bool>,
    enable_contention_profiling: Option<bool>,
    percentage_of_nodes_to_score: Option<usize>,
    pod_initial_backoff_seconds: Option<u64>,
    pod_max_backoff_seconds: Option<u64>,
    #[serde(default)]
    profiles: Vec<Profile>,
    #[serde(default)]
    extenders: Vec<Extender>,
    delay_cache_until_active: Option<bool>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct LeaderElection {
    leader_elect: Option<bool>,
    lease_duration: Option<String>,
    renew_deadline: Option<String>,
    retry_period: Option<String>,
    resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct ClientConnection {
    #[serde(default)]
    kubeconfig: String,
    #[serde(default)]
    accept_content_types: String,
    #[serde(default)]
    content_type: String,
    #[serde(default)]
    qps: f64,
    #[serde(default)]
    burst: i64,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Profile {
    scheduler_name: Option<String>,
    percentage_of_nodes_to_score: Option<usize>,
    #[serde(default)]
    plugins: Plugins,
    #[serde(default)]
    plugin_config: Vec<PluginConfig>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PluginConfig {
    name: String,
    #[serde(default)]
    args: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Extender {
    url_prefix: String,
    #[serde(default)]
    filter_verb: String,
    #[serde(default)]
    preempt_verb: String,
    #[serde(default)]
    prioritize_verb: String,
    #[serde(default)]
    bind_verb: String,
    #[serde(default)]
    weight: i64,
    #[serde(default, rename = "enableHTTPS")]
    enable_https: bool,
    tls_config: Option<TlsConfig>,
    http_timeout: Option<String>,
    #[serde(default)]
    node_cache_capable: bool,
    #[serde(default)]
    managed_resources: Vec<Managed>,
    #[serde(default)]
    ignorable: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Managed {
    name: String,
    #[serde(default)]
    ignored_by_scheduler: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct TlsConfig {
    #[serde(default)]
    insecure: bool,
    #[serde(default)]
    server_name: String,
    cert_file: Option<String>,
    key_file: Option<String>,
    ca_file: Option<String>,
    cert_data: Option<String>,
    key_data: Option<String>,
    ca_data: Option<String>,
}

/// Reads the document; an error names the invalid field.
pub fn read(document: Value) -> Result<Config, String> {
    let document: Document = decode(document)?;
    if document.api_version != API_VERSION || document.kind != KIND {
        let (version, kind) = (&document.api_version, &document.kind);
        return Err(format!("expected {API_VERSION} {KIND}, got {version} {kind}"));
    }
    refuse_what_is_not_there(&document)?;
    let percentage = document.percentage_of_nodes_to_score.unwrap_or(0);
    let extenders = document.extenders.iter().map(extender).collect::<Result<Vec<_>, _>>()?;
    let profiles = profiles(&document.profiles, percentage, &extenders)?;
    if extenders.iter().filter(|extender| !extender.bind_verb.is_empty()).count() > 1 {
        return Err("extenders: only one can bind".to_owned());
    }
    let initial_backoff = Duration::from_secs(document.pod_initial_backoff_seconds.unwrap_or(1).max(1));
    let max_backoff = Duration::from_secs(document.pod_max_backoff_seconds.unwrap_or(10));
    if max_backoff < initial_backoff {
        return Err("podMaxBackoffSeconds: must not be less than podInitialBackoffSeconds".to_owned());
    }
    let election = document.leader_election.as_ref().map(election).transpose()?.unwrap_or(Some(Election::default()));
    let kubeconfig = document.client_connection.map(|connection| connection.kubeconfig);
    Ok(Config {
        profiles,
        extenders,
        initial_backoff,
        max_backoff,
        leader_election: election,
        kubeconfig: kubeconfig.filter(|path| !path.is_empty()),
        ..Config::default()
    })
}

fn refuse_what_is_not_there(document: &Document) -> Result<(), String> {
    // The field is the most threads that may search; this scheduler uses one.
    if document.parallelism.is_some_and(|threads| threads <= 0) {
        return Err("parallelism: must be greater than 0".to_owned());
    }
    if document.enable_profiling == Some(true) || document.enable_contention_profiling == Some(true) {
        return Err("enableProfiling: there is no profiling endpoint".to_owned());
    }
    if document.delay_cache_until_active == Some(true) {
        return Err("delayCacheUntilActive: caches always wait for leadership; leave it out".to_owned());
    }
    if let Some(connection) = &document.client_connection {
        let limited = connection.qps != 0.0 || connection.burst != 0;
        if limited || !connection.content_type.is_empty() || !connection.accept_content_types.is_empty() {
            return Err("clientConnection: only kubeconfig can be set; requests are not limited here".to_owned());
        }
    }
    Ok(())
}

fn election(given: &LeaderElection) -> Result<Option<Election>, String> {
    if given.resource_lock.as_deref().is_some_and(|lock| lock != "leases") {
        return Err("leaderElection.resourceLock: must be leases".to_owned());
    }
    if given.leader_elect == Some(false) {
        return Ok(None);
    }
    let default = Election::default();
    let time = |text: &Option<String>, otherwise: Duration| text.as_deref().map_or(Ok(otherwise), duration);
    let election = Election {
        namespace: given.resource_namespace.clone().unwrap_or(default.namespace),
        name: given.resource_name.clone().unwrap_or(default.name),
        lease_duration: time(&given.lease_duration, default.lease_duration)?,
        renew_deadline: time(&given.renew_deadline, default.renew_deadline)?,
        retry_period: time(&given.retry_period, default.retry_period)?,
    };
    if election.lease_duration <= election.renew_deadline || election.renew_deadline <= election.retry_period {
        return Err("leaderElection: leaseDuration must exceed renewDeadline, and that retryPeriod".to_owned());
    }
    Ok(Some(election))
}

fn profiles(given: &[Profile], percentage: usize, extenders: &[ExtenderSpec]) -> Result<Vec<ProfileSpec>, String> {
    let alone = [Profile {
        scheduler_name: None,
        percentage_of_nodes_to_score: None,
        plugins: Plugins::default(),
        plugin_config: Vec::new(),
    }];
    let given = if given.is_empty() { &alone } else { given };
    let mut profiles: Vec<ProfileSpec> = Vec::new();
    for profile in given {
        let name = profile.scheduler_name.clone().unwrap_or_else(|| "default-scheduler".to_owned());
        if name.is_empty() {
            return Err("profiles: schedulerName must not be empty".to_owned());
        }
        if profiles.iter().any(|other| other.scheduler_name == name) {
            return Err(format!("profiles: schedulerName {name:?} is there twice"));
        }
        let percentage = profile.percentage_of_nodes_to_score.unwrap_or(percentage);
        if percentage > 100 {
            return Err("percentageOfNodesToScore: must be from 0 to 100".to_owned());
        }
        let args = args(profile, extenders)?;
        profiles.push(ProfileSpec {
            scheduler_name: name,
            percentage_of_nodes_to_score: percentage,
            points: resolve(&profile.plugins)?,
            args,
        });
    }
    Ok(profiles)
}

fn args(profile: &Profile, extenders: &[ExtenderSpec]) -> Result<Args, String> {
    let mut args = Args::default();
    for (number, config) in profile.plugin_config.iter().enumerate() {
        let name = &config.name;
        if registered(name).is_none() {
            return Err(format!("pluginConfig: {name:?} does not exist"));
        }
        if profile.plugin_config[..number].iter().any(|other| other.name == *name) {
            return Err(format!("pluginConfig: {name:?} is there twice"));
        }
        let given = if config.args.is_null() { Value::Object(Default::default()) } else { config.args.clone() };
        args.set(name, given).map_err(|error| format!("pluginConfig: {name}: {error}"))?;
    }
    let managed = extenders.iter().flat_map(|extender| &extender.managed_resources);
    args.ignore_resources(managed.filter(|resource| resource.ignored_by_scheduler).map(|r| r.name.clone()));
    Ok(args)
}

fn extender(given: &Extender) -> Result<ExtenderSpec, String> {
    if !given.prioritize_verb.is_empty() && given.weight <= 0 {
        return Err("extenders: weight must be positive for one that prioritizes".to_owned());
    }
    let https = given.url_prefix.starts_with("https://");
    if !https && !given.url_prefix.starts_with("http://") {
        return Err(format!("extenders: urlPrefix {:?} must be a http or https URL", given.url_prefix));
    }
    if given.enable_https && !https {
        return Err("extenders: enableHTTPS needs a https urlPrefix".to_owned());
    }
    let mut tls = given.tls_config.as_ref().map(tls).transpose()?;
    // As upstream does: with HTTPS and no certificate authority, any certificate is accepted.
    if given.enable_https && tls.as_ref().is_none_or(|tls| tls.ca.is_none()) {
        tls.get_or_insert_default().insecure = true;
    }
    Ok(ExtenderSpec {
        url_prefix: given.url_prefix.trim_end_matches('/').to_owned(),
        filter_verb: given.filter_verb.clone(),
        preempt_verb: given.preempt_verb.clone(),
        prioritize_verb: given.prioritize_verb.clone(),
        bind_verb: given.bind_verb.clone(),
        weight: given.weight,
        tls,
        timeout: given.http_timeout.as_deref().map_or(Ok(Duration::from_secs(5)), duration)?,
        node_cache_capable: given.node_cache_capable,
        managed_resources: given
            .managed_resources
            .iter()
            .map(|one| ManagedResource { name: one.name.clone(), ignored_by_scheduler: one.ignored_by_scheduler })
            .collect(),
        ignorable: given.ignorable,
    })
}

fn tls(given: &TlsConfig) -> Result<ExtenderTls, String> {
    if given.cert_file.is_some() || given.key_file.is_some() || given.ca_file.is_some() {
        return Err("extenders: tlsConfig takes certData, keyData and caData, not files".to_owned());
    }
    let decoded = |data: &Option<String>| {
        let engine = base64::engine::general_purpose::STANDARD;
        data.as_ref().map(|text| engine.decode(text).map_err(|e| format!("extenders: tlsConfig: {e}"))).transpose()
    };
    Ok(ExtenderTls {
        insecure: given.insecure,
        server_name: Some(given.server_name.clone()).filter(|name| !name.is_empty()),
        ca: decoded(&given.ca_data)?,
        certificate: decoded(&given.cert_data)?,
        key: decoded(&given.key_data)?,
    })
}

/// Parses a duration such as `1m30s`.
fn duration(text: &str) -> Result<Duration, String> {
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let unit_end = rest[number..].find(|c: char| c.is_ascii_digit()).map_or(rest.len(), |at| number + at);
        let seconds = match &rest[number..unit_end] {
            "h" => 3600.0,
            "m" => 60.0,
            "s" => 1.0,
            "ms" => 0.001,
            _ => return Err(format!("{text:?} is no duration")),
        };
        let count: f64 = rest[..number].parse().map_err(|_| format!("{text:?} is no duration"))?;
        let part = Duration::try_from_secs_f64(count * seconds).ok();
        let sum = part.and_then(|part| total.checked_add(part));
        total = sum.ok_or_else(|| format!("{text:?} is too long a duration"))?;
        rest = &rest[unit_end..];
    }
    Ok(total)
}
