//! The flags of the API server for the place and the form of stored objects. Their names are upstream's.
//!
//! Without them the store is embedded, in the data directory.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use corten_store::etcd;

/// The form of built-in kinds in the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MediaType {
    #[value(name = "application/vnd.kubernetes.protobuf")]
    Protobuf,
    #[value(name = "application/json")]
    Json,
}

/// The etcd of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdOverride {
    /// The resource, as `group/resource`; the core group is empty.
    pub resource: String,
    pub servers: Vec<String>,
}

impl EtcdOverride {
    /// Parses `group/resource#server;server`.
    fn parse(text: &str) -> Result<EtcdOverride, String> {
        let invalid = || "must be of format: group/resource#servers, where servers are URLs, semicolon separated";
        let (resource, servers) = text.split_once('#').ok_or_else(invalid)?;
        let servers: Vec<String> = servers.split(';').map(str::to_owned).collect();
        let is_whole = servers.iter().all(|server| !server.is_empty() && !server.contains('#'));
        if resource.matches('/').count() != 1 || !is_whole {
            return Err(invalid().to_owned());
        }
        Ok(EtcdOverride { resource: resource.to_owned(), servers })
    }
}

impl std::fmt::Display for EtcdOverride {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}#{}", self.resource, self.servers.join(";"))
    }
}

#[derive(Debug, Clone, Args)]
pub struct StoreOptions {
    /// The client URLs of etcd's members, separated by commas. Without them, objects are stored in the data directory.
    #[arg(long, value_name = "URLS", value_delimiter = ',')]
    pub etcd_servers: Vec<String>,
    /// The etcd of single resources, separated by commas: group/resource#servers, with servers separated by semicolons,
    /// such as /events#http://10.0.0.4:2379;http://10.0.0.5:2379.
    #[arg(
        long,
        value_name = "OVERRIDES",
        value_delimiter = ',',
        value_parser = EtcdOverride::parse,
        requires = "etcd_servers"
    )]
    pub etcd_servers_overrides: Vec<EtcdOverride>,
    /// The CA bundle of etcd's members.
    #[arg(long, value_name = "FILE", requires = "etcd_servers")]
    pub etcd_cafile: Option<PathBuf>,
    /// The client certificate for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_keyfile")]
    pub etcd_certfile: Option<PathBuf>,
    /// The private key of the client certificate for etcd.
    #[arg(long, value_name = "FILE", requires = "etcd_certfile")]
    pub etcd_keyfile: Option<PathBuf>,
    /// The prefix of all keys in etcd.
    #[arg(long, value_name = "PREFIX", default_value = "/registry", requires = "etcd_servers")]
    pub etcd_prefix: String,
    /// The interval of compactions of etcd; 0 leaves them to others.
    #[arg(long, value_name = "DURATION", default_value = "5m", value_parser = crate::flag_values::duration)]
    pub etcd_compaction_interval: Duration,
    /// The form of built-in kinds in the store. Defaults to protobuf in etcd, and to JSON in the data directory.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub storage_media_type: Option<MediaType>,
    #[command(flatten)]
    pub listen: EtcdListen,
    /// The time for which the server still serves after it announced its shutdown, so that load balancers notice. Defaults to
    /// 5s for one of several servers, and to 0s for one that is alone.
    #[arg(long, value_name = "DURATION", value_parser = crate::flag_values::duration)]
    pub shutdown_delay_duration: Option<Duration>,
    /// The time over which watches end at shutdown, one after another, after the delay; 0 ends them together.
    #[arg(long, value_name = "DURATION", default_value = "0s", value_parser = crate::flag_values::duration)]
    pub shutdown_watch_termination_grace_period: Duration,
}

/// The API of etcd that the embedded store serves over TLS, beside its unix socket.
#[derive(Debug, Clone, Default, Args)]
pub struct EtcdListen {
    /// The address and port at which the embedded store serves etcd's API to clients with a certificate; without it, the
    /// socket etcd.sock in the run directory serves it to root alone.
    #[arg(
        long,
        value_name = "ADDRESS",
        conflicts_with = "etcd_servers",
        requires_all = ["etcd_listen_certfile", "etcd_listen_keyfile", "etcd_listen_client_cafile"]
    )]
    pub etcd_listen_address: Option<SocketAddr>,
    /// The certificate of etcd's API.
    #[arg(long, value_name = "FILE", requires = "etcd_listen_address")]
    pub etcd_listen_certfile: Option<PathBuf>,
    /// The private key of the certificate of etcd's API.
    #[arg(long, value_name = "FILE", requires = "etcd_listen_address")]
    pub etcd_listen_keyfile: Option<PathBuf>,
    /// The CA of the clients of etcd's API. Each of them can read and change everything, so no other clients may have
    /// certificates of it.
    #[arg(long, value_name = "FILE", requires = "etcd_listen_address")]
    pub etcd_listen_client_cafile: Option<PathBuf>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        StoreOptions {
            etcd_servers: Vec::new(),
            etcd_servers_overrides: Vec::new(),
            etcd_cafile: None,
            etcd_certfile: None,
            etcd_keyfile: None,
            etcd_prefix: "/registry".to_owned(),
            etcd_compaction_interval: Duration::from_secs(300),
            storage_media_type: None,
            listen: EtcdListen::default(),
            shutdown_delay_duration: None,
            shutdown_watch_termination_grace_period: Duration::ZERO,
        }
    }
}

impl StoreOptions {
    /// Returns the form of built-in kinds.
    pub fn media_type(&self) -> corten_apiserver::StorageMediaType {
        use corten_apiserver::StorageMediaType as Stored;
        let is_json = match self.storage_media_type {
            Some(given) => given == MediaType::Json,
            None => self.etcd_servers.is_empty(),
        };
        if is_json { Stored::Json } else { Stored::Protobuf }
    }

    /// Returns the settings of etcd; `None` if the store is embedded.
    pub fn etcd(&self) -> Result<Option<etcd::Config>> {
        if self.etcd_servers.is_empty() { Ok(None) } else { self.etcd_at(&self.etcd_servers).map(Some) }
    }

    /// Returns the settings of an etcd at these URLs.
    fn etcd_at(&self, servers: &[String]) -> Result<etcd::Config> {
        let tls = etcd_tls(&self.etcd_cafile, &self.etcd_certfile, &self.etcd_keyfile)?;
        let health_key = format!("/{}/health", self.etcd_prefix.trim_matches('/')).into_bytes();
        let compaction_interval = self.etcd_compaction_interval;
        Ok(etcd::Config { tls, compaction_interval, health_key, ..etcd::Config::new(servers.to_vec()) })
    }

    /// Returns the settings of each further etcd, with its resources. Overrides with the same servers share one.
    pub fn overrides(&self) -> Result<Vec<(etcd::Config, Vec<String>)>> {
        let mut by_servers: BTreeMap<Vec<&String>, Vec<&EtcdOverride>> = BTreeMap::new();
        for one in &self.etcd_servers_overrides {
            let mut servers: Vec<&String> = one.servers.iter().collect();
            servers.sort_unstable();
            by_servers.entry(servers).or_default().push(one);
        }
        let config = |same: Vec<&EtcdOverride>| {
            let resources = same.iter().map(|one| one.resource.clone()).collect();
            let servers = same.first().map_or(&[][..], |first| &first.servers);
            Ok((self.etcd_at(servers)?, resources))
        };
        by_servers.into_values().map(config).collect()
    }

    /// Returns the flags as another process's command line takes them.
    pub fn arguments(&self) -> Vec<OsString> {
        let mut list: Vec<OsString> = Vec::new();
        if !self.etcd_servers.is_empty() {
            list.extend(["--etcd-servers".into(), self.etcd_servers.join(",").into()]);
            list.extend(["--etcd-prefix".into(), self.etcd_prefix.clone().into()]);
            for one in &self.etcd_servers_overrides {
                list.extend(["--etcd-servers-overrides".into(), one.to_string().into()]);
            }
        }
        for (name, path) in [
            ("--etcd-cafile", &self.etcd_cafile),
            ("--etcd-certfile", &self.etcd_certfile),
            ("--etcd-keyfile", &self.etcd_keyfile),
            ("--etcd-listen-certfile", &self.listen.etcd_listen_certfile),
            ("--etcd-listen-keyfile", &self.listen.etcd_listen_keyfile),
            ("--etcd-listen-client-cafile", &self.listen.etcd_listen_client_cafile),
        ] {
            if let Some(path) = path {
                // The other process has another working directory.
                let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                list.extend([name.into(), path.into()]);
            }
        }
        if let Some(address) = self.listen.etcd_listen_address {
            list.extend(["--etcd-listen-address".into(), address.to_string().into()]);
        }
        if let Some(media_type) = self.storage_media_type.and_then(|given| given.to_possible_value()) {
            list.extend(["--storage-media-type".into(), media_type.get_name().into()]);
        }
        for (name, duration) in [
            ("--etcd-compaction-interval", self.etcd_compaction_interval),
            ("--shutdown-watch-termination-grace-period", self.shutdown_watch_termination_grace_period),
        ] {
            list.extend([name.into(), format!("{}ms", duration.as_millis()).into()]);
        }
        if let Some(delay) = self.shutdown_delay_duration {
            list.extend(["--shutdown-delay-duration".into(), format!("{}ms", delay.as_millis()).into()]);
        }
        list
    }
}

/// Reads the files of a client's TLS; without a CA the members are reached without TLS.
pub fn etcd_tls(
    ca: &Option<PathBuf>,
    certificate: &Option<PathBuf>,
    key: &Option<PathBuf>,
) -> Result<Option<etcd::Tls>> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()));
    let optional = |path: &Option<PathBuf>| path.as_deref().map_or_else(|| Ok(String::new()), read);
    let Some(ca) = ca else { return Ok(None) };
    Ok(Some(etcd::Tls { ca: read(ca)?, certificate: optional(certificate)?, key: optional(key)? }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn parse(words: &[&str]) -> Result<StoreOptions, clap::Error> {
        let words = ["corten", "server"].iter().chain(words);
        match crate::cli::Cli::try_parse_from(words)?.command {
            crate::cli::Command::Server(flags) => Ok(flags.store),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_store_is_embedded_unless_etcd_is_named() {
        let options = parse(&[]).unwrap();
        assert!(options.etcd().unwrap().is_none());
        assert_eq!(options.media_type(), corten_apiserver::StorageMediaType::Json);
        let options = parse(&["--etcd-servers", "http://a:1,http://b:2", "--etcd-prefix", "/k8s"]).unwrap();
        let config = options.etcd().unwrap().unwrap();
        assert_eq!(config.endpoints, ["http://a:1", "http://b:2"]);
        assert_eq!(config.health_key, b"/k8s/health");
        assert_eq!(options.media_type(), corten_apiserver::StorageMediaType::Protobuf);
        assert!(parse(&["--etcd-certfile", "x"]).is_err(), "a certificate needs its key");
    }

    #[test]
    fn resources_with_the_same_servers_share_an_etcd() {
        let overrides = "/events#http://b:1;http://c:1,apps/deployments#http://d:1,batch/jobs#http://c:1;http://b:1";
        let options = parse(&["--etcd-servers", "http://a:1", "--etcd-servers-overrides", overrides]).unwrap();
        let all = options.overrides().unwrap();
        let shape: Vec<_> =
            all.iter().map(|(config, resources)| (config.endpoints.join(" "), resources.join(" "))).collect();
        let expected = [("http://b:1 http://c:1", "/events batch/jobs"), ("http://d:1", "apps/deployments")];
        assert_eq!(shape, expected.map(|(servers, resources)| (servers.to_owned(), resources.to_owned())));
        for invalid in ["/events", "events#http://b", "/events#", "/events#http://b;", "a/b/c#http://b", "/e#a#b"] {
            let parsed = parse(&["--etcd-servers", "http://a:1", "--etcd-servers-overrides", invalid]);
            let error = parsed.err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains("group/resource#servers"), "{invalid}: {error}");
        }
        assert!(parse(&["--etcd-servers-overrides", "/events#http://b:1"]).is_err(), "the rest needs etcd too");
    }

    #[test]
    fn another_process_gets_the_same_flags() {
        let words = ["--etcd-servers", "http://a:1", "--storage-media-type", "application/json"];
        let words =
            [&words[..], &["--etcd-servers-overrides", "/events#http://b:1;http://c:1,/pods#http://d:1"]].concat();
        let options = parse(&[&words[..], &["--shutdown-delay-duration", "5s"]].concat()).unwrap();
        let again: Vec<String> = options.arguments().into_iter().map(|word| word.into_string().unwrap()).collect();
        let again = parse(&again.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{options:?}"));
    }
}
