//! How a machine becomes one of several servers, and what it keeps of that.
//!
//! The first server starts an etcd of one member (`--cluster-init`). Each other one gets the cluster's keys, sealed for the
//! holder of a server token ([`bundle`]), writes them, and goes on as a server with a member of its own. Everything that can
//! be refused is refused before the first file is written. After that the machine needs no token: an attempt that was
//! interrupted goes on with the same command or without one.

pub mod bundle;
pub mod member;
pub mod migration;
pub mod sealed;
mod sealing;
pub mod shared;
pub mod token;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use corten_client::{Client, HttpsConfig};
use corten_members::{Binary, Members, State};
use serde::{Deserialize, Serialize};

use crate::cli;
use crate::config::node_name;
use crate::directories::Directories;
use crate::join::discovery;
use crate::pki::rotation::certificates;
use crate::pki::{Authority, write_private};
use crate::preflight;
use crate::settings::Settings;
use bundle::Bundle;
use migration::Migration;
use token::ServerToken;

/// The server's part in a cluster of several servers.
#[derive(Clone, Debug)]
pub struct Membership {
    pub binary: Binary,
    /// Whether the administrator asked the machine to join.
    pub may_join: bool,
    /// The facts that the machine learned when it joined; none for the first server.
    pub joined: Option<Joined>,
    /// The embedded store that becomes this machine's member, the first.
    pub migration: Option<Migration>,
}

/// The facts that a machine learned when it joined.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Joined {
    pub settings: Settings,
    /// The client URLs of the etcd members at that time.
    pub endpoints: Vec<String>,
}

/// A server's flags, completed by what the machine has learned.
pub struct Entered {
    pub flags: cli::Server,
    pub membership: Option<Membership>,
}

/// Returns the directory of the etcd member.
pub fn directory(directories: &Directories) -> PathBuf {
    directories.data.join("etcd")
}

/// Joins the cluster where the flags say so and the machine has not; completes the flags.
pub async fn enter(mut flags: cli::Server) -> Result<Entered> {
    let directories = Directories::of(&flags.directories);
    let mut options = flags.membership.clone();
    options.cluster_init |= flags.servers.is_some_and(|servers| servers > 1);
    let state = State::read(&directory(&directories))?;
    let mut joined = Joined::read(&directories)?;
    let migration = Migration::of(&directories);
    let is_interrupted = migration.is_some() && state.as_ref().is_some_and(|state| state.is_migrating);
    let is_member = (state.is_some() && !is_interrupted) || joined.is_some();
    if !options.cluster_init && options.join.is_none() && !is_member {
        return Ok(Entered { flags, membership: None });
    }
    ensure!(
        migration.is_none() || (options.cluster_init && !is_member),
        "{} holds the objects of a cluster with one server; choose another --data-dir, or make that cluster one of \
         several by --cluster-init",
        directories.data.display()
    );
    if migration.is_none() {
        migration::complete(&directory(&directories))?;
    }
    let named = options.etcd_binary.clone().or_else(|| member::last_binary(&directories));
    let binary = Binary::find(named.as_deref(), std::env::var_os("PATH").as_deref()).await?;
    if let (Some(server), None) = (&options.join, &joined) {
        ensure!(
            state.is_none(),
            "this machine is the first server of a cluster; clean it by `corten down --purge` before it joins another"
        );
        joined = Some(join(server, &flags, &directories).await?);
    }
    if let Some(joined) = &joined {
        adopt(&mut flags, &joined.settings)?;
        let encryption = encryption_file(&directories);
        if flags.access.encryption_provider_config.is_none() && encryption.exists() {
            flags.access.encryption_provider_config = Some(encryption);
        }
    }
    let may_join = options.join.is_some();
    Ok(Entered { flags, membership: Some(Membership { binary, may_join, joined, migration }) })
}

/// Gets the cluster's keys by the token, checks all there is to check, and writes them.
async fn join(server: &str, flags: &cli::Server, directories: &Directories) -> Result<Joined> {
    let options = &flags.membership;
    let token = ServerToken::parse(options.token.as_deref().context("--token is needed to join")?)?;
    let trust = cli::Join {
        server: None,
        token: None,
        discovery_token_ca_cert_hash: options.discovery_token_ca_cert_hash.clone(),
        discovery_token_unsafe_skip_ca_verification: options.discovery_token_unsafe_skip_ca_verification,
    };
    let cluster = discovery::discover(server, &token.bootstrap(), &trust).await?;
    let client = Client::https(HttpsConfig {
        server: cluster.server.clone(),
        ca: Some(cluster.authority.as_str().into()),
        token: Some(token.bootstrap()),
        ..HttpsConfig::default()
    })?;
    let bundle = sealed::fetch(&client, &token).await?;
    refuse_rotated(&bundle, &cluster.authority, server)?;
    bundle.refuse_other(&directories.pki())?;
    adopt(&mut flags.clone(), &bundle.settings)?;
    let cross = bundle.files.get("etcd-ca-cross.crt").map(String::as_str).unwrap_or_default();
    let authority = Authority::parse(bundle.file("etcd-ca.crt")?, bundle.file("etcd-ca.key")?, cross)?;
    let endpoints = endpoints(&cluster.server, &bundle.endpoints);
    let members = Members::new(endpoints.clone(), &member::credentials(&authority)?)?;
    let name = node_name(flags.node_name.as_deref())?;
    corten_members::join::inspect(&directory(directories), &name, &members).await?;

    preflight::data_directory(directories)?;
    bundle.write_files(&directories.pki())?;
    if let Some(configuration) = &bundle.encryption_configuration {
        write_private(&encryption_file(directories), configuration.as_bytes())?;
    }
    let joined = Joined { settings: bundle.settings, endpoints };
    // The last file: without it the next attempt begins anew.
    joined.write(directories)?;
    tracing::info!(server = cluster.server, "the cluster's keys are here");
    Ok(joined)
}

/// Refuses keys that the cluster no longer trusts. Those from before a rotation that is under way are good: the server
/// gets the new ones from the others.
fn refuse_rotated(bundle: &Bundle, published: &str, server: &str) -> Result<()> {
    let own = certificates(bundle.file("ca.crt")?);
    let trusted = certificates(published);
    ensure!(
        own.first().is_some_and(|own| trusted.contains(own)),
        "the sealed keys are not those of {server}: the token is of another cluster, or of a time before its authorities \
         were rotated; `corten token create --server` makes another one"
    );
    Ok(())
}

/// Returns the etcd members to ask: the one beside the API server that answered first, if it is known by address.
fn endpoints(server: &str, known: &[String]) -> Vec<String> {
    let host = server.parse::<http::Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
    let address = host.filter(|host| host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok());
    let port = corten_members::Config::CLIENT_PORT;
    let mut all: Vec<String> = address.map(|host| format!("https://{host}:{port}")).into_iter().collect();
    all.extend(known.iter().filter(|url| !all.contains(url)).cloned().collect::<Vec<_>>());
    all
}

/// Gives the flags the cluster's settings; refuses flags that say otherwise.
pub fn adopt(flags: &mut cli::Server, settings: &Settings) -> Result<()> {
    agree("--cluster-cidr", &mut flags.cluster_cidr, cli::DEFAULT_CLUSTER_CIDR, &settings.cluster_cidr)?;
    agree("--service-cidr", &mut flags.service_cidr, cli::DEFAULT_SERVICE_CIDR, &settings.service_cidr)?;
    agree("--cluster-domain", &mut flags.cluster_domain, cli::DEFAULT_CLUSTER_DOMAIN, &settings.cluster_domain)?;
    match flags.network_backend {
        Some(given) if given != settings.network_backend => {
            bail!("--network-backend {}: the cluster has {}", given.name(), settings.network_backend.name())
        }
        _ => flags.network_backend = Some(settings.network_backend),
    }
    if flags.load_balancer_pool.is_empty() {
        flags.load_balancer_pool = settings.load_balancer_pool.clone();
    }
    if flags.dns_stub_domain.is_empty() {
        flags.dns_stub_domain = settings.dns_stub_domains.clone();
    }
    flags.network.network_policy_host_egress |= settings.network_policy_host_egress;
    if flags.membership.control_plane_endpoint.is_none() && !settings.control_plane_endpoint.is_empty() {
        flags.membership.control_plane_endpoint = Some(settings.control_plane_endpoint.clone());
    }
    Ok(())
}

fn agree(name: &str, flag: &mut String, default: &str, cluster: &str) -> Result<()> {
    ensure!(flag == default || flag == cluster, "{name} {flag}: the cluster has {cluster}");
    *flag = cluster.to_owned();
    Ok(())
}

fn encryption_file(directories: &Directories) -> PathBuf {
    directory(directories).join("encryption.yaml")
}

impl Joined {
    fn file(directories: &Directories) -> PathBuf {
        directory(directories).join("joined.json")
    }

    fn read(directories: &Directories) -> Result<Option<Joined>> {
        let path = Joined::file(directories);
        match std::fs::read(&path) {
            Ok(bytes) => {
                let joined = serde_json::from_slice(&bytes);
                Ok(Some(joined.with_context(|| format!("{} is damaged", path.display()))?))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
        }
    }

    fn write(&self, directories: &Directories) -> Result<()> {
        write_private(&Joined::file(directories), &serde_json::to_vec_pretty(self)?)
    }
}

/// Reads the EncryptionConfiguration that a server gives to those that join.
pub fn encryption_configuration(directories: &Directories, flag: Option<&Path>) -> Result<Option<String>> {
    let kept = encryption_file(directories);
    let path = flag.or_else(|| kept.exists().then_some(kept.as_path()));
    path.map(crate::files::read).transpose()
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    fn server(words: &[&str]) -> cli::Server {
        match cli::Cli::parse_from([&["corten", "server"], words].concat()).command {
            cli::Command::Server(server) => server,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_server_that_joins_takes_the_settings_of_the_cluster() {
        let settings = Settings {
            cluster_cidr: "10.7.0.0/16".to_owned(),
            network_backend: cli::NetworkBackend::HostGw,
            dns_stub_domains: vec!["a.example=10.0.0.53".to_owned()],
            ..Settings::default()
        };
        let mut flags = server(&[]);
        adopt(&mut flags, &settings).unwrap();
        assert_eq!(flags.cluster_cidr, "10.7.0.0/16");
        assert_eq!(flags.network_backend, Some(cli::NetworkBackend::HostGw));
        assert_eq!(flags.dns_stub_domain, ["a.example=10.0.0.53"]);
        adopt(&mut flags, &settings).unwrap();
        for (words, sentence) in [
            (["--cluster-cidr", "10.8.0.0/16"], "--cluster-cidr 10.8.0.0/16: the cluster has 10.7.0.0/16"),
            (["--network-backend", "vxlan"], "--network-backend vxlan: the cluster has host-gw"),
        ] {
            assert_eq!(adopt(&mut server(&words), &settings).unwrap_err().to_string(), sentence);
        }
    }

    #[test]
    fn the_member_beside_the_server_that_answered_is_asked_first() {
        let known = vec!["https://10.0.0.1:2379".to_owned(), "https://10.0.0.2:2379".to_owned()];
        assert_eq!(
            endpoints("https://10.0.0.2:6443", &known),
            ["https://10.0.0.2:2379", "https://10.0.0.1:2379"].map(str::to_owned)
        );
        assert_eq!(endpoints("https://lb.example:6443", &known), known);
    }

    #[tokio::test]
    async fn a_machine_without_flags_and_without_a_past_is_alone() {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().to_str().unwrap();
        let entered = enter(server(&["--data-dir", data])).await.unwrap();
        assert!(entered.membership.is_none());
        std::fs::create_dir(folder.path().join("store")).unwrap();
        let joins = ["--data-dir", data, "--join", "https://10.0.0.1:6443", "--token", "t"];
        let refused = enter(server(&joins)).await.err().unwrap().to_string();
        assert!(refused.contains("a cluster with one server"), "{refused}");
        // A migration that was interrupted leaves a server that is alone.
        let etcd = folder.path().join("etcd");
        State { is_migrating: true, ..State::default() }.write(&etcd).unwrap();
        assert!(enter(server(&["--data-dir", data])).await.unwrap().membership.is_none());
        // A member beside a store is never taken for one.
        State { member: 1, ..State::default() }.write(&etcd).unwrap();
        for flags in [&["--data-dir", data][..], &["--data-dir", data, "--cluster-init"]] {
            let refused = enter(server(flags)).await.err().unwrap().to_string();
            assert!(refused.contains("a cluster with one server"), "{refused}");
        }
    }
}
