//! Pod sandboxes: the namespaces that the containers of a pod share.
//!
//! There is no pause image: bind mounts in the run directory pin the network, IPC and UTS namespaces, which need no
//! process. Only a pod that shares its pid namespace gets a pause process, because a pid namespace lives as long as its
//! first process.

pub(crate) mod files;
pub(crate) mod namespaces;
pub(crate) mod pause;
pub(crate) mod user_namespace;

use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use corten_cri::v1;
use prost::Message;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::network::{PodNetworkRequest, PortMapping};
use crate::paths::{Paths, write_atomically};

/// The state of a sandbox beyond its configuration. Written whenever it changes.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SandboxRecord {
    pub created_at: i64,
    pub runtime_handler: String,
    pub ready: bool,
    pub ips: Vec<IpAddr>,
    /// Whether the pod network may hold resources of this sandbox: set before it is connected, cleared after it is
    /// disconnected.
    pub connected: bool,
    pub pause_pid: Option<i32>,
}

/// A pod sandbox.
#[derive(Debug)]
pub(crate) struct Sandbox {
    pub id: String,
    pub config: v1::PodSandboxConfig,
    record: Mutex<SandboxRecord>,
    /// The lock that serializes changes of the sandbox.
    pub changing: tokio::sync::Mutex<()>,
}

impl Sandbox {
    pub fn new(id: String, config: v1::PodSandboxConfig, record: SandboxRecord) -> Self {
        Self { id, config, record: Mutex::new(record), changing: tokio::sync::Mutex::default() }
    }

    /// Reads a sandbox from its folder.
    pub fn load(paths: &Paths, id: &str) -> Result<Self, Error> {
        let folder = paths.sandbox(id);
        let config = read(&folder.join("config.pb"))?;
        let config = v1::PodSandboxConfig::decode(config.as_slice())
            .map_err(|error| Error::Invalid(format!("configuration of sandbox {id}: {error}")))?;
        let record = serde_json::from_slice(&read(&folder.join("record.json"))?)
            .map_err(|error| Error::Invalid(format!("record of sandbox {id}: {error}")))?;
        Ok(Self::new(id.to_string(), config, record))
    }

    /// Writes the sandbox for the first time.
    pub fn save(&self, paths: &Paths) -> Result<(), Error> {
        let folder = paths.sandbox(&self.id);
        std::fs::create_dir_all(&folder).map_err(Error::file("create", &folder))?;
        write_atomically(&folder.join("config.pb"), &self.config.encode_to_vec())?;
        self.save_record(paths)
    }

    pub fn record(&self) -> SandboxRecord {
        self.record.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes the record and writes it.
    pub fn update(&self, paths: &Paths, change: impl FnOnce(&mut SandboxRecord)) -> Result<(), Error> {
        change(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner));
        self.save_record(paths)
    }

    fn save_record(&self, paths: &Paths) -> Result<(), Error> {
        let bytes = serde_json::to_vec(&self.record())
            .map_err(|error| Error::Invalid(format!("record of sandbox {}: {error}", self.id)))?;
        write_atomically(&paths.sandbox(&self.id).join("record.json"), &bytes)
    }

    pub fn namespace_options(&self) -> v1::NamespaceOption {
        crate::spec::build::sandbox_options(&self.config)
    }

    pub fn uses_node_network(&self) -> bool {
        self.namespace_options().network() == v1::NamespaceMode::Node
    }

    pub fn cgroup_parent(&self) -> String {
        self.config.linux.as_ref().map(|linux| linux.cgroup_parent.clone()).unwrap_or_default()
    }

    /// Returns the host name of the pod; the node's if the pod has none.
    pub fn hostname(&self) -> String {
        if !self.config.hostname.is_empty() {
            return self.config.hostname.clone();
        }
        nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    }

    pub fn network_request(&self, paths: &Paths) -> PodNetworkRequest {
        let metadata = self.config.metadata.clone().unwrap_or_default();
        let port = |port: i32| u16::try_from(port).unwrap_or(0);
        PodNetworkRequest {
            sandbox_id: self.id.clone(),
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            netns_path: paths.run_sandbox(&self.id).join("net"),
            hostname: self.hostname(),
            port_mappings: self
                .config
                .port_mappings
                .iter()
                .filter(|mapping| mapping.host_port > 0)
                .map(|mapping| PortMapping {
                    protocol: mapping.protocol().as_str_name().to_string(),
                    container_port: port(mapping.container_port),
                    host_port: port(mapping.host_port),
                    host_ip: mapping.host_ip.clone(),
                })
                .collect(),
            annotations: self.config.annotations.clone().into_iter().collect(),
            labels: self.config.labels.clone().into_iter().collect(),
        }
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(Error::file("read", path))
}
