//! The flags of `corten simulate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use corten_simulate::{Config, Load, PodTimes, Watch};

use crate::flag_values::duration;

#[derive(Debug, Clone, Args)]
pub struct Simulate {
    /// The number of simulated nodes.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub nodes: u32,
    /// The number of pods for each node, of Deployments that are created.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub pods_per_node: u32,
    /// The kubeconfig file of the cluster, Corten or any other Kubernetes. Without it a control plane of its own is
    /// started in a temporary directory, and removed.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// The number of pods that are created, and deleted, in a second.
    #[arg(long, default_value_t = 0.0, value_name = "PODS_PER_SECOND")]
    pub churn: f64,
    /// The loads beside heartbeats and churn, separated by commas.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "LOADS")]
    pub load: Vec<SimulatedLoad>,
    /// The time to measure after all pods run; 0s measures until the command is interrupted.
    #[arg(long, default_value = "60s", value_name = "DURATION", value_parser = duration)]
    pub duration: Duration,
    /// The seconds until the containers of a pod run.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    pub start_seconds: f64,
    /// The seconds until a pod that may complete, such as a Job's, has completed.
    #[arg(long, default_value_t = 30.0, value_name = "SECONDS", value_parser = seconds)]
    pub run_seconds: f64,
    /// The seconds until the containers of a deleted pod have stopped; at most its grace period.
    #[arg(long, default_value_t = 1.0, value_name = "SECONDS", value_parser = seconds)]
    pub stop_seconds: f64,
    /// The part of all starts of pods that fail, from 0 to 1.
    #[arg(long, default_value_t = 0.0, value_name = "RATE")]
    pub fail_rate: f64,
    /// The watches of pods.
    #[arg(long, value_enum, default_value_t = SimulatedWatch::Shared)]
    pub watch: SimulatedWatch,
    /// Send the requests of each node as its user, system:node:NAME, through the Node authorizer.
    #[arg(long)]
    pub impersonate: bool,
    /// Leave out the taint corten.dev/simulated:NoSchedule, so that any pod may be scheduled to simulated nodes.
    #[arg(long)]
    pub no_taint: bool,
    /// The CPU capacity of a node.
    #[arg(long, default_value = "32", value_name = "QUANTITY")]
    pub node_cpu: String,
    /// The memory capacity of a node.
    #[arg(long, default_value = "256Gi", value_name = "QUANTITY")]
    pub node_memory: String,
    /// The most pods of a node.
    #[arg(long, default_value_t = 110, value_name = "N")]
    pub max_pods: u32,
    /// The replicas of each Deployment.
    #[arg(long, default_value_t = 100, value_name = "N")]
    pub deployment_size: u32,
    /// The names of nodes and namespaces begin with it; simulations of one cluster differ in it.
    #[arg(long, default_value = "simulated", value_name = "NAME")]
    pub prefix: String,
    /// The number of connections that the nodes share.
    #[arg(long, default_value_t = 4, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub connections: u16,
    /// The ID of a server process whose CPU time and memory to measure; may be repeated, for etcd.
    #[arg(long, value_name = "PID")]
    pub server_pid: Vec<u32>,
    /// The directory of the server's store, whose size to measure.
    #[arg(long, value_name = "DIR")]
    pub store_dir: Option<PathBuf>,
    /// The new file of the report in JSON.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// Leave nodes and workloads behind.
    #[arg(long)]
    pub keep: bool,
}

/// A load beside heartbeats and churn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimulatedLoad {
    /// A Deployment is restarted every five seconds.
    Rollouts,
    /// A Service for all pods of each namespace, with up to 2000 endpoints.
    Services,
    /// A client lists all pods every five seconds, at once and without a resourceVersion.
    Lists,
}

/// The watches of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SimulatedWatch {
    /// One watch of the pods of all nodes.
    Shared,
    /// One watch a node, as kubelets have.
    Node,
}

/// Reads a number of seconds.
fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds".to_owned())?;
    match (0.0..=86_400.0).contains(&seconds) {
        true => Ok(seconds),
        false => Err("between 0 and 86400 seconds".to_owned()),
    }
}

impl Simulate {
    /// Returns the settings of the simulation.
    pub fn config(&self) -> Config {
        let load = |load: &SimulatedLoad| match load {
            SimulatedLoad::Rollouts => Load::Rollouts,
            SimulatedLoad::Services => Load::Services,
            SimulatedLoad::Lists => Load::Lists,
        };
        Config {
            nodes: self.nodes,
            pods_per_node: self.pods_per_node,
            prefix: self.prefix.clone(),
            node_cpu: self.node_cpu.clone(),
            node_memory: self.node_memory.clone(),
            max_pods: self.max_pods,
            taint: !self.no_taint,
            impersonate: self.impersonate,
            watch: match self.watch {
                SimulatedWatch::Shared => Watch::Shared,
                SimulatedWatch::Node => Watch::Node,
            },
            pods: PodTimes {
                start: Duration::from_secs_f64(self.start_seconds),
                run: Duration::from_secs_f64(self.run_seconds),
                stop: Duration::from_secs_f64(self.stop_seconds),
                fail_rate: self.fail_rate,
            },
            churn: self.churn,
            loads: self.load.iter().map(load).collect(),
            deployment_size: self.deployment_size,
            duration: Some(self.duration).filter(|duration| !duration.is_zero()),
            keep: self.keep,
            ..Config::default()
        }
    }
}
