//! The snapshot of the store: of a running server, through etcd's API, or of a stopped one's directory.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use corten_members::State;
use corten_store::snapshot::{self, Limits, Member};
use corten_store::{Config, Embedded, etcd};

use crate::directories::Directories;
use crate::membership;
use crate::store_cli::EtcdTls;
use crate::store_options::StoreOptions;

/// The resource that a restore can do without.
const EVENTS: &str = "/events";

/// The place of a cluster's objects.
#[derive(Clone, Debug)]
pub enum Source {
    /// A running store that speaks etcd's API.
    Running(etcd::Config),
    /// The directory of the embedded store of a stopped server.
    Stopped(PathBuf),
}

impl Source {
    /// Returns the store of a running server.
    pub fn of_server(directories: &Directories, options: &StoreOptions) -> Result<Source> {
        let elsewhere = options.etcd_servers_overrides.iter().map(|one| one.resource.as_str());
        let elsewhere: Vec<&str> = elsewhere.filter(|resource| *resource != EVENTS).collect();
        anyhow::ensure!(
            elsewhere.is_empty(),
            "a backup holds one store, and --etcd-servers-overrides keeps {} in another",
            elsewhere.join(", ")
        );
        let etcd = membership::directory(directories);
        if let Some(state) = State::read(&etcd)? {
            let pki = etcd.join("pki");
            let tls = EtcdTls {
                etcd_cafile: Some(pki.join("ca.crt")),
                etcd_certfile: Some(pki.join("client.crt")),
                etcd_keyfile: Some(pki.join("client.key")),
            };
            return Ok(Source::Running(tls.client(&state.endpoints)?));
        }
        if let Some(config) = options.etcd()? {
            return Ok(Source::Running(config));
        }
        let socket = format!("unix://{}", directories.etcd_socket().display());
        Ok(Source::Running(EtcdTls::default().client(&[socket])?))
    }

    /// Returns the store of a stopped server.
    pub fn of_stopped(directories: &Directories) -> Result<Source> {
        let store = directories.data.join("store");
        let is_member = State::read(&membership::directory(directories))?.is_some();
        anyhow::ensure!(
            !is_member,
            "this server is one of several and is stopped; back up one that runs, or start this one first"
        );
        anyhow::ensure!(store.join("FORMAT").exists(), "there is no cluster in {}", directories.data.display());
        Ok(Source::Stopped(store))
    }

    /// Writes a snapshot into an empty file, and returns the file.
    pub async fn snapshot(&self, mut file: File) -> Result<File> {
        match self {
            Source::Running(config) => {
                etcd::download(config, Limits::default().file_bytes, &mut file).await?;
                Ok(file)
            }
            Source::Stopped(store) => {
                let store = store.clone();
                tokio::task::spawn_blocking(move || save(&store, file)).await?
            }
        }
    }
}

fn save(store: &Path, file: File) -> Result<File> {
    let contents = Embedded::open(Config::new(store)).context("the store cannot be opened")?.contents();
    // A restore gives members their own names.
    let name = "corten".to_owned();
    let member = Member { id: 1, name, peer_urls: Vec::new(), client_urls: Vec::new(), applied: contents.revision };
    snapshot::save(&contents, &member, &file).context("the snapshot cannot be written")?;
    Ok(file)
}
