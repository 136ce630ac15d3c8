//! The plugin's side: our pod network for containerd, CRI-O and other runtimes with CNI.
//!
//! ```text
//! {"cniVersion": "1.1.0", "name": "pods", "plugins": [
//!   {"type": "corten-cni", "ranges": ["10.244.0.0/24"], "clusterRanges": ["10.244.0.0/16"],
//!    "capabilities": {"portMappings": true, "bandwidth": true, "ipRanges": true}}]}
//! ```
//!
//! Every call is a process of its own, and one at a time works on a state directory: a lock on it is held to the end.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::IpAddr;
use std::path::PathBuf;

use nix::fcntl::{Flock, FlockArg};
use serde_json::{Value, json};

use super::{VERSIONS, at_least};
use crate::allocation::{PortMapping, Protocol};
use crate::bandwidth::Limits;
use crate::cidr::Cidr;
use crate::error::Error;
use crate::links::mac_of;
use crate::pod_network::{Attachment, Config, PodNetwork, SetupRequest};

const INTERFACE: &str = "eth0";
const STATE: &str = "/var/lib/cni/corten";
/// Codes of the specification.
const INVALID_ENVIRONMENT: u32 = 4;
const UNDECODABLE: u32 = 6;
const INVALID_CONFIGURATION: u32 = 7;
const INCOMPATIBLE_VERSION: u32 = 1;
const UNKNOWN_CONTAINER: u32 = 3;
const NOT_AVAILABLE: u32 = 50;
const FAILED: u32 = 999;

/// The error of a call, by the specification.
#[derive(Debug)]
struct Failure {
    code: u32,
    message: String,
}

impl Failure {
    fn new(code: u32, message: impl Into<String>) -> Failure {
        Failure { code, message: message.into() }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::new(FAILED, error.to_string())
    }
}

/// Runs one call; returns its output and whether it succeeded. `variable` reads the environment.
pub async fn call(variable: impl Fn(&str) -> Option<String>, input: &[u8]) -> (String, bool) {
    let config: Result<Value, _> = serde_json::from_slice(input);
    let version = config.as_ref().ok().and_then(|config| config["cniVersion"].as_str());
    let version = version.unwrap_or(VERSIONS[0]).to_owned();
    let answered = match (variable("CNI_COMMAND").as_deref(), config) {
        (Some("VERSION"), _) => Ok(json!({"cniVersion": VERSIONS[6], "supportedVersions": VERSIONS})),
        (_, Err(error)) => Err(Failure::new(UNDECODABLE, error.to_string())),
        (command, Ok(config)) => Call { variable: &variable, config, version: &version }.run(command).await,
    };
    match answered {
        Ok(Value::Null) => (String::new(), true),
        Ok(result) => (result.to_string(), true),
        Err(Failure { code, message }) => {
            (json!({"cniVersion": version, "code": code, "msg": message}).to_string(), false)
        }
    }
}

struct Call<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    config: Value,
    version: &'a str,
}

impl Call<'_> {
    async fn run(&self, command: Option<&str>) -> Result<Value, Failure> {
        if !VERSIONS.contains(&self.version) {
            return Err(Failure::new(INCOMPATIBLE_VERSION, format!("version {} is not known", self.version)));
        }
        let config = self.network()?;
        let _lock = lock(&config)?;
        match command {
            Some("ADD") => self.add(config).await,
            Some("DEL") => self.delete(config).await,
            Some("CHECK") => self.check(config).await,
            Some("STATUS") => self.status(&config),
            Some("GC") => self.gc(config).await,
            other => Err(Failure::new(INVALID_ENVIRONMENT, format!("CNI_COMMAND is {other:?}"))),
        }
    }

    fn required(&self, name: &str) -> Result<String, Failure> {
        let value = (self.variable)(name).filter(|value| !value.is_empty());
        value.ok_or_else(|| Failure::new(INVALID_ENVIRONMENT, format!("{name} is missing")))
    }

    /// Returns the pod network of the configuration.
    fn network(&self) -> Result<Config, Failure> {
        let wrong = |error: Error| Failure::new(INVALID_CONFIGURATION, error.to_string());
        let of_pods = self.ranges().map_err(wrong)?;
        if of_pods.is_empty() {
            return Err(Failure::new(INVALID_CONFIGURATION, "ranges are missing"));
        }
        let of_cluster = parse_all(self.config["clusterRanges"].as_array()).map_err(wrong)?;
        let string = |field: &str, default: &str| self.config[field].as_str().unwrap_or(default).to_owned();
        let state = PathBuf::from(string("dataDir", STATE));
        let mut config = Config::new(&of_pods, &of_cluster, state);
        config.bridge = string("bridge", "corten0");
        config.table = "corten-cni".to_owned();
        config.mtu = self.config["mtu"].as_u64().and_then(|mtu| u32::try_from(mtu).ok());
        Ok(config)
    }

    /// Returns the ranges of this node's pods: those of the runtime, else those of the file.
    fn ranges(&self) -> Result<Vec<Cidr>, Error> {
        let ranges = self.config.pointer("/runtimeConfig/ipRanges").and_then(Value::as_array);
        match ranges {
            Some(sets) => sets.iter().filter_map(|set| set[0]["subnet"].as_str()).map(str::parse).collect(),
            None => parse_all(self.config["ranges"].as_array()),
        }
    }

    async fn add(&self, config: Config) -> Result<Value, Failure> {
        let interface = self.required("CNI_IFNAME")?;
        if interface != INTERFACE {
            let message = format!("CNI_IFNAME is {interface:?}; pods have one link, {INTERFACE}");
            return Err(Failure::new(INVALID_ENVIRONMENT, message));
        }
        let arguments = (self.variable)("CNI_ARGS").unwrap_or_default();
        let argument = |name: &str| {
            let found = arguments.split(';').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
            found.unwrap_or_default().to_owned()
        };
        let netns = self.required("CNI_NETNS")?;
        let request = SetupRequest {
            sandbox_id: self.required("CNI_CONTAINERID")?,
            netns_path: netns.clone().into(),
            pod_namespace: argument("K8S_POD_NAMESPACE"),
            pod_name: argument("K8S_POD_NAME"),
            pod_uid: argument("K8S_POD_UID"),
            pod_labels: BTreeMap::new(),
            static_pod: false,
            port_mappings: self.port_mappings()?,
            limits: self.limits(),
        };
        let bridge = config.bridge.clone();
        let attachment = PodNetwork::start(config).await?.setup(request).await?;
        Ok(self.result(&attachment, &bridge, &netns))
    }

    async fn delete(&self, config: Config) -> Result<Value, Failure> {
        let sandbox = self.required("CNI_CONTAINERID")?;
        PodNetwork::start(config).await?.teardown(&sandbox).await?;
        Ok(Value::Null)
    }

    async fn check(&self, config: Config) -> Result<Value, Failure> {
        let sandbox = self.required("CNI_CONTAINERID")?;
        let network = PodNetwork::start(config).await?;
        if !network.is_attached(&sandbox).await? {
            return Err(Failure::new(UNKNOWN_CONTAINER, format!("{sandbox} is not attached")));
        }
        let expected: BTreeSet<IpAddr> = super::addresses(&self.config["prevResult"]).into_iter().collect();
        let held: BTreeSet<IpAddr> = network.addresses(&sandbox).into_iter().collect();
        match expected == held {
            true => Ok(Value::Null),
            false => Err(Failure::new(FAILED, format!("{sandbox} has {held:?}, not {expected:?}"))),
        }
    }

    fn status(&self, config: &Config) -> Result<Value, Failure> {
        let ready = config.gateways().map_err(Failure::from);
        ready.map(|_| Value::Null).map_err(|failure| Failure::new(NOT_AVAILABLE, failure.message))
    }

    async fn gc(&self, config: Config) -> Result<Value, Failure> {
        let valid = self.config["cni.dev/valid-attachments"].as_array();
        let valid = valid.ok_or_else(|| Failure::new(INVALID_CONFIGURATION, "cni.dev/valid-attachments is missing"))?;
        let live = valid.iter().filter_map(|one| Some(one["containerID"].as_str()?.to_owned())).collect();
        PodNetwork::start(config).await?.gc(&live).await?;
        Ok(Value::Null)
    }

    fn port_mappings(&self) -> Result<Vec<PortMapping>, Failure> {
        let wrong = |port: &Value| Failure::new(INVALID_CONFIGURATION, format!("port mapping {port}"));
        let read = |port: &Value| {
            let number = |field: &str| port[field].as_u64().and_then(|number| u16::try_from(number).ok());
            let protocol = match port["protocol"].as_str().unwrap_or("tcp").to_lowercase().as_str() {
                "tcp" => Protocol::Tcp,
                "udp" => Protocol::Udp,
                "sctp" => Protocol::Sctp,
                _ => return None,
            };
            let host_ip = match port["hostIP"].as_str().unwrap_or_default() {
                "" | "0.0.0.0" | "::" => None,
                address => Some(address.parse().ok()?),
            };
            let host_port = number("hostPort")?;
            let container_port = number("containerPort")?;
            Some(PortMapping { protocol, host_ip, host_port, container_port })
        };
        let ports = self.config.pointer("/runtimeConfig/portMappings").and_then(Value::as_array).into_iter().flatten();
        ports.map(|port| read(port).ok_or_else(|| wrong(port))).collect()
    }

    fn limits(&self) -> Limits {
        let rate = |name: &str| {
            let rate = self.config.pointer("/runtimeConfig/bandwidth").and_then(|bandwidth| bandwidth[name].as_u64());
            rate.filter(|rate| *rate > 0)
        };
        Limits { ingress: rate("ingressRate"), egress: rate("egressRate") }
    }

    /// Returns the result in the format of the caller's version.
    fn result(&self, attachment: &Attachment, bridge: &str, netns: &str) -> Value {
        let mac = attachment.ips.first().map(|first| mac_of(*first)).unwrap_or_default();
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        let ips = attachment.ips.iter().zip(&attachment.gateways).map(|(ip, gateway)| {
            let length = if ip.is_ipv4() { 32 } else { 128 };
            let mut ip_config = json!({"address": format!("{ip}/{length}"), "gateway": gateway, "interface": 2});
            if !at_least(self.version, "1.0.0") {
                ip_config["version"] = json!(if ip.is_ipv4() { "4" } else { "6" });
            }
            ip_config
        });
        let routes = attachment
            .gateways
            .iter()
            .map(|gateway| json!({"dst": if gateway.is_ipv4() { "0.0.0.0/0" } else { "::/0" }, "gw": gateway}));
        json!({
            "cniVersion": self.version,
            "interfaces": [
                {"name": bridge},
                {"name": attachment.host_interface},
                {"name": INTERFACE, "mac": mac, "sandbox": netns, "mtu": attachment.mtu},
            ],
            "ips": ips.collect::<Vec<_>>(),
            "routes": routes.collect::<Vec<_>>(),
            "dns": {},
        })
    }
}

/// Reads the input of a call without running it; returns how many gateways and ports it has.
pub(crate) fn read(config: Value) -> Option<usize> {
    let call = Call { variable: &|_| None, config, version: VERSIONS[0] };
    let gateways = call.network().ok()?.gateways().ok()?;
    let _ = call.limits();
    Some(gateways.len() + call.port_mappings().ok()?.len())
}

fn parse_all(values: Option<&Vec<Value>>) -> Result<Vec<Cidr>, Error> {
    values.into_iter().flatten().filter_map(Value::as_str).map(str::parse).collect()
}

/// Waits until no other call works on the state.
fn lock(config: &Config) -> Result<Flock<File>, Failure> {
    let open = || {
        std::fs::create_dir_all(&config.state_dir)?;
        File::options().create(true).append(true).open(config.state_dir.join("lock"))
    };
    let file = open().map_err(|error| Failure::new(FAILED, error.to_string()))?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, error)| Failure::new(FAILED, error.to_string()))
}
