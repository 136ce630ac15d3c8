//! The settings of a simulation, with their defaults, validated once.

use std::time::Duration;

use crate::Error;

/// The most nodes of one simulation: the addresses of nodes are taken from 198.18.0.0/15.
const MOST_NODES: u32 = 100_000;
/// The most pods of a node: the addresses of a /24 without the first two and the last.
pub(crate) const MOST_PODS: u32 = 253;

/// The settings of a simulation.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The number of nodes.
    pub nodes: u32,
    /// The number of pods for each node, of Deployments that the simulation creates.
    pub pods_per_node: u32,
    /// The names of nodes and namespaces begin with it.
    pub prefix: String,
    /// The CPU capacity of a node, as a quantity.
    pub node_cpu: String,
    /// The memory capacity of a node, as a quantity.
    pub node_memory: String,
    /// The most pods of a node.
    pub max_pods: u32,
    /// Whether nodes have the taint `corten.dev/simulated:NoSchedule`, which keeps other pods away.
    pub taint: bool,
    /// Whether every request of a node is sent as its user, `system:node:NAME`.
    pub impersonate: bool,
    pub watch: Watch,
    pub pods: PodTimes,
    /// The interval between two renewals of a node's Lease.
    pub lease_period: Duration,
    /// The interval between two reports of a node's status.
    pub status_period: Duration,
    /// The number of pods that are created, and deleted, in a second.
    pub churn: f64,
    /// The lifetime of a pod of the churn.
    pub churn_lifetime: Duration,
    /// The loads beside the churn.
    pub loads: Vec<Load>,
    /// The replicas of each Deployment.
    pub deployment_size: u32,
    /// The time to measure after all pods run; without it until the shutdown.
    pub duration: Option<Duration>,
    /// The time that all pods have to run.
    pub patience: Duration,
    /// Whether nodes and workloads are left behind.
    pub keep: bool,
}

/// The times and failures of simulated pods.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PodTimes {
    /// The time from the first status of a pod until its containers run.
    pub start: Duration,
    /// The time until the containers of a pod that may complete have completed.
    pub run: Duration,
    /// The time until the containers of a deleted pod have stopped.
    pub stop: Duration,
    /// The part of all starts that fail, from 0 to 1.
    pub fail_rate: f64,
}

/// The watches of pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// One watch of the pods of all nodes.
    Shared,
    /// One watch a node, as kubelets have.
    Node,
}

/// A load beside heartbeats and churn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Load {
    /// A Deployment is restarted every five seconds.
    Rollouts,
    /// A Service for all pods of each namespace, with thousands of endpoints.
    Services,
    /// A client lists all pods every five seconds, at once and without a resourceVersion.
    Lists,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            nodes: 10,
            pods_per_node: 0,
            prefix: "simulated".to_owned(),
            node_cpu: "32".to_owned(),
            node_memory: "256Gi".to_owned(),
            max_pods: 110,
            taint: true,
            impersonate: false,
            watch: Watch::Shared,
            pods: PodTimes::default(),
            lease_period: Duration::from_secs(10),
            status_period: Duration::from_secs(300),
            churn: 0.0,
            churn_lifetime: Duration::from_secs(30),
            loads: Vec::new(),
            deployment_size: 100,
            duration: Some(Duration::from_secs(60)),
            patience: Duration::from_secs(1800),
            keep: false,
        }
    }
}

impl Default for PodTimes {
    fn default() -> PodTimes {
        PodTimes {
            start: Duration::from_secs(1),
            run: Duration::from_secs(30),
            stop: Duration::from_secs(1),
            fail_rate: 0.0,
        }
    }
}

impl Config {
    /// Reports the first setting that no simulation can have, in a sentence.
    pub fn validate(&self) -> Result<(), Error> {
        let refuse = |problem: String| Err(Error::Config(problem));
        if !(1..=MOST_NODES).contains(&self.nodes) {
            return refuse(format!("--nodes {}: a simulation has 1 to {MOST_NODES} nodes", self.nodes));
        }
        if !(1..=MOST_PODS).contains(&self.max_pods) {
            return refuse(format!("--max-pods {}: a node has 1 to {MOST_PODS} pods", self.max_pods));
        }
        if self.pods_per_node > self.max_pods {
            let most = self.max_pods;
            return refuse(format!("--pods-per-node {}: a node takes {most} pods (--max-pods)", self.pods_per_node));
        }
        if !(0.0..=1.0).contains(&self.pods.fail_rate) {
            return refuse(format!("--fail-rate {}: a rate is between 0 and 1", self.pods.fail_rate));
        }
        if !self.churn.is_finite() || !(0.0..=10_000.0).contains(&self.churn) {
            return refuse(format!("--churn {}: between 0 and 10000 pods a second", self.churn));
        }
        let steady = self.churn * (self.churn_lifetime + self.pods.start).as_secs_f64();
        let free = f64::from(self.nodes) * f64::from(self.max_pods - self.pods_per_node);
        if steady > free {
            let churn = self.churn;
            return refuse(format!(
                "--churn {churn}: {steady:.0} pods live at once, and the nodes have room for {free}"
            ));
        }
        if self.deployment_size == 0 {
            return refuse("--deployment-size 0: a Deployment has at least one replica".to_owned());
        }
        if self.lease_period.is_zero() || self.status_period.is_zero() {
            return refuse("the intervals of heartbeats are longer than zero".to_owned());
        }
        if !self.loads.is_empty() && self.pods_per_node == 0 {
            return refuse("--load needs pods: --pods-per-node is 0".to_owned());
        }
        self.validate_names()
    }

    fn validate_names(&self) -> Result<(), Error> {
        let is_label = |name: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            name.len() <= 40 && name.starts_with(|c: char| c.is_ascii_lowercase()) && name.chars().all(inner)
        };
        if !is_label(&self.prefix) || self.prefix.ends_with('-') {
            let prefix = &self.prefix;
            return Err(Error::Config(format!(
                "--prefix {prefix:?}: at most 40 lower-case characters, digits and dashes, as in simulated"
            )));
        }
        for (flag, quantity) in [("--node-cpu", &self.node_cpu), ("--node-memory", &self.node_memory)] {
            if corten_meta::Quantity::parse(quantity).is_err() {
                return Err(Error::Config(format!("{flag} {quantity:?} is not a quantity, such as 32 or 256Gi")));
            }
        }
        Ok(())
    }

    /// Returns the number of pods of all Deployments.
    pub(crate) fn pods_of_deployments(&self) -> u64 {
        u64::from(self.nodes) * u64::from(self.pods_per_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings that contradict each other are refused, each with a sentence that names the flag.
    #[test]
    fn impossible_settings_are_refused() {
        type Change = fn(&mut Config);
        let with = |change: Change| {
            let mut config = Config::default();
            change(&mut config);
            config.validate().map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| {}), Ok(()));
        assert_eq!(with(|config| config.pods_per_node = 110), Ok(()));
        let refused: [(Change, &str); 9] = [
            (|config| config.nodes = 0, "--nodes 0: a simulation has 1 to 100000 nodes"),
            (|config| config.max_pods = 254, "--max-pods 254: a node has 1 to 253 pods"),
            (|config| config.pods_per_node = 111, "--pods-per-node 111: a node takes 110 pods (--max-pods)"),
            (|config| config.pods.fail_rate = 1.5, "--fail-rate 1.5: a rate is between 0 and 1"),
            (|config| config.churn = f64::NAN, "--churn NaN: between 0 and 10000 pods a second"),
            (|config| config.churn = 100.0, "--churn 100: 3100 pods live at once, and the nodes have room for 1100"),
            (|config| config.loads = vec![Load::Lists], "--load needs pods: --pods-per-node is 0"),
            (
                |config| config.prefix = "A".into(),
                "--prefix \"A\": at most 40 lower-case characters, digits and dashes, as in simulated",
            ),
            (|config| config.node_cpu = "many".into(), "--node-cpu \"many\" is not a quantity, such as 32 or 256Gi"),
        ];
        for (change, sentence) in refused {
            assert_eq!(with(change), Err(sentence.to_owned()));
        }
    }
}
