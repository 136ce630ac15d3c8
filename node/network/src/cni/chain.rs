//! The runtime's side: the plugins of a list, run for one pod.
//!
//! Invariant: an attachment is recorded on disk before it is reported, together with the configuration that made it. So
//! a pod is torn down by the configuration that it was set up with, and attachments that a crash left behind are found
//! and torn down.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tracing::{info, warn};

use super::exec::{Call, Plugins};
use super::list::List;
use super::{addresses, at_least};
use crate::bandwidth::Limits;
use crate::error::CniError;
use crate::error::Error;
use crate::pod_network::{Attachment, SetupRequest};

const INTERFACE: &str = "eth0";

/// The directories of plugins and their configuration.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of network configurations. Default `/etc/cni/net.d`.
    pub configurations: PathBuf,
    /// The directories of plugins. Default `/opt/cni/bin` and `/usr/lib/cni`.
    pub plugins: Vec<PathBuf>,
    /// The directory of results.
    pub state_dir: PathBuf,
}

impl Config {
    pub fn new(state_dir: impl Into<PathBuf>) -> Config {
        Config {
            configurations: "/etc/cni/net.d".into(),
            plugins: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            state_dir: state_dir.into(),
        }
    }
}

/// The network of the administrator's plugins.
pub struct Chain {
    config: Config,
    plugins: Plugins,
}

impl Chain {
    pub fn new(config: Config) -> Result<Chain, Error> {
        fs::create_dir_all(&config.state_dir).map_err(Error::file("create", &config.state_dir))?;
        Ok(Chain { plugins: Plugins { directories: config.plugins.clone() }, config })
    }

    /// Returns the reason why no pod can be connected now: no configuration, or the STATUS of a plugin.
    pub async fn not_ready(&self) -> Option<String> {
        let check = async {
            let list = List::first_of(&self.config.configurations)?;
            if at_least(&list.version, "1.1.0") {
                for plugin in &list.plugins {
                    let config = list.of_plugin(plugin, None, &Value::Null);
                    self.plugins.run("STATUS", &config, &Call::default()).await?;
                }
            }
            Ok::<(), CniError>(())
        };
        check.await.err().map(|error| error.to_string())
    }

    /// Runs ADD, plugin by plugin. A failure undoes the earlier steps.
    pub async fn setup(&self, request: SetupRequest) -> Result<Attachment, Error> {
        let list = List::first_of(&self.config.configurations)?;
        let call = call(&request);
        let capabilities = capabilities(&request);
        let mut attached = Attached { list, call, capabilities, result: Value::Null };
        self.remember(&attached)?;
        for plugin in &attached.list.plugins {
            let previous = Some(&attached.result).filter(|result| !result.is_null());
            let config = attached.list.of_plugin(plugin, previous, &attached.capabilities);
            match self.plugins.run("ADD", &config, &attached.call).await {
                Ok(result) => attached.result = result,
                Err(error) => {
                    if let Err(left) = self.teardown(&request.sandbox_id).await {
                        warn!(sandbox = request.sandbox_id, "cannot undo a failed ADD: {left}");
                    }
                    return Err(error.into());
                }
            }
        }
        self.remember(&attached)?;
        let gateways = attached.result["ips"].as_array().into_iter().flatten();
        Ok(Attachment {
            ips: addresses(&attached.result),
            gateways: gateways.filter_map(|ip| ip["gateway"].as_str()?.parse().ok()).collect(),
            interface: INTERFACE.to_owned(),
            host_interface: String::new(),
            mtu: 0,
        })
    }

    /// Runs DEL, in reverse order. Repeating it is no error.
    pub async fn teardown(&self, sandbox_id: &str) -> Result<(), Error> {
        let Some(attached) = self.recall(sandbox_id) else { return Ok(()) };
        let previous = Some(&attached.result).filter(|result| !result.is_null());
        for plugin in attached.list.plugins.iter().rev() {
            let config = attached.list.of_plugin(plugin, previous, &attached.capabilities);
            self.plugins.run("DEL", &config, &attached.call).await?;
        }
        let path = self.file(sandbox_id);
        fs::remove_file(&path).map_err(Error::file("remove", path))
    }

    /// Runs CHECK: whether the attachment still exists.
    pub async fn check(&self, sandbox_id: &str) -> Result<(), Error> {
        let Some(attached) = self.recall(sandbox_id) else { return Ok(()) };
        if attached.list.disable_check || !at_least(&attached.list.version, "0.4.0") {
            return Ok(());
        }
        for plugin in &attached.list.plugins {
            let config = attached.list.of_plugin(plugin, Some(&attached.result), &attached.capabilities);
            self.plugins.run("CHECK", &config, &attached.call).await?;
        }
        Ok(())
    }

    /// Tears down the attachments of dead sandboxes, then runs GC of the plugins.
    pub async fn gc(&self, live: &BTreeSet<String>) -> Result<usize, Error> {
        let mut collected = 0;
        for sandbox in self.known()?.into_iter().filter(|sandbox| !live.contains(sandbox)) {
            info!(sandbox, "collecting the network of a dead sandbox");
            self.teardown(&sandbox).await?;
            collected += 1;
        }
        let Ok(list) = List::first_of(&self.config.configurations) else { return Ok(collected) };
        if list.disable_gc || !at_least(&list.version, "1.1.0") {
            return Ok(collected);
        }
        let valid: Vec<Value> =
            live.iter().map(|sandbox| json!({"containerID": sandbox, "ifname": INTERFACE})).collect();
        for plugin in &list.plugins {
            let mut config = list.of_plugin(plugin, None, &Value::Null);
            config["cni.dev/valid-attachments"] = json!(valid);
            self.plugins.run("GC", &config, &Call::default()).await?;
        }
        Ok(collected)
    }

    fn file(&self, sandbox_id: &str) -> PathBuf {
        self.config.state_dir.join(format!("{sandbox_id}.json"))
    }

    fn known(&self) -> Result<Vec<String>, Error> {
        let directory = &self.config.state_dir;
        let entries = fs::read_dir(directory).map_err(Error::file("read", directory))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| Some(name.strip_suffix(".json")?.to_owned())).collect())
    }

    fn remember(&self, attached: &Attached) -> Result<(), Error> {
        let path = self.file(&attached.call.container_id);
        let text = attached.to_value().to_string();
        corten_durable::write(&path, text.as_bytes(), 0o600).map_err(Error::file("write", path))
    }

    fn recall(&self, sandbox_id: &str) -> Option<Attached> {
        Attached::from_value(&serde_json::from_slice(&fs::read(self.file(sandbox_id)).ok()?).ok()?)
    }
}

/// An attached pod, with all data to check it and to tear it down.
pub(crate) struct Attached {
    list: List,
    call: Call,
    capabilities: Value,
    result: Value,
}

impl Attached {
    pub(crate) fn to_value(&self) -> Value {
        let List { name, version, disable_check, disable_gc, plugins } = &self.list;
        json!({
            "config": {"name": name, "cniVersion": version, "disableCheck": disable_check, "disableGC": disable_gc,
                       "plugins": plugins},
            "containerId": self.call.container_id,
            "netns": self.call.netns,
            "ifName": self.call.interface,
            "cniArgs": self.call.arguments,
            "capabilityArgs": self.capabilities,
            "result": self.result,
        })
    }

    pub(crate) fn from_value(value: &Value) -> Option<Attached> {
        let string = |field: &str| value[field].as_str().unwrap_or_default().to_owned();
        let call = Call {
            container_id: string("containerId"),
            netns: string("netns").into(),
            interface: string("ifName"),
            arguments: string("cniArgs"),
        };
        let capabilities = value["capabilityArgs"].clone();
        let result = value["result"].clone();
        Some(Attached { list: List::of(&value["config"]).ok()?, call, capabilities, result })
    }
}

fn call(request: &SetupRequest) -> Call {
    let arguments = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", &request.pod_namespace),
        ("K8S_POD_NAME", &request.pod_name),
        ("K8S_POD_INFRA_CONTAINER_ID", &request.sandbox_id),
        ("K8S_POD_UID", &request.pod_uid),
    ];
    Call {
        container_id: request.sandbox_id.clone(),
        netns: request.netns_path.clone(),
        interface: INTERFACE.to_owned(),
        arguments: arguments.map(|(name, value)| format!("{name}={value}")).join(";"),
    }
}

/// Returns the capability arguments, by the names of the conventions.
fn capabilities(request: &SetupRequest) -> Value {
    let ports: Vec<Value> = request
        .port_mappings
        .iter()
        .map(|port| {
            let host_ip = port.host_ip.map(|ip| ip.to_string()).unwrap_or_default();
            json!({"hostPort": port.host_port, "containerPort": port.container_port, "hostIP": host_ip,
                   "protocol": serde_json::to_value(port.protocol).unwrap_or_default().as_str().unwrap_or("TCP").to_lowercase()})
        })
        .collect();
    let Limits { ingress, egress } = request.limits;
    let bandwidth = (ingress.is_some() || egress.is_some()).then(|| {
        let side = |name: &str, rate: Option<u64>| {
            rate.map(|rate| json!({format!("{name}Rate"): rate, format!("{name}Burst"): u32::MAX >> 1}))
        };
        let mut both = serde_json::Map::new();
        for value in [side("ingress", ingress), side("egress", egress)].into_iter().flatten() {
            both.extend(value.as_object().cloned().unwrap_or_default());
        }
        Value::Object(both)
    });
    json!({"portMappings": if ports.is_empty() { Value::Null } else { json!(ports) }, "bandwidth": bandwidth})
}
