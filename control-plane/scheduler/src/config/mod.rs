//! The scheduler's configuration: `KubeSchedulerConfiguration` of `kubescheduler.config.k8s.io/v1`, read strictly.
//!
//! Every field is implemented, or rejected by name; none is ignored. The file itself is parsed elsewhere: this module
//! begins with the decoded document.

mod document;
mod plugins;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use corten_meta::Value;

use crate::Error;
use crate::framework::Point;
use crate::metrics::Metrics;
use crate::plugins::args::Args;

/// The configuration of a scheduler process.
#[derive(Clone, Debug)]
pub struct Config {
    pub profiles: Vec<ProfileSpec>,
    pub extenders: Vec<ExtenderSpec>,
    pub initial_backoff: Duration,
    pub max_backoff: Duration,
    /// The identity of this process in the leader election: its host, `_`, and a unique suffix.
    pub identity: String,
    /// The leader election. None where only one process runs.
    pub leader_election: Option<Election>,
    /// The seed for the choice among nodes with equal scores.
    pub seed: u64,
    /// The kubeconfig that the document names.
    pub kubeconfig: Option<String>,
    /// The metrics of the process.
    pub metrics: Arc<Metrics>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            profiles: vec![ProfileSpec::default()],
            extenders: Vec::new(),
            initial_backoff: Duration::from_secs(1),
            max_backoff: Duration::from_secs(10),
            identity: String::new(),
            leader_election: None,
            seed: 0x2545_f491_4f6c_dd1d,
            kubeconfig: None,
            metrics: Arc::default(),
        }
    }
}

impl Config {
    /// Reads a decoded `KubeSchedulerConfiguration`.
    pub fn from_document(document: Value) -> Result<Config, Error> {
        document::read(document).map_err(Error::Config)
    }
}

/// The lease of the leader election, and its durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Election {
    pub namespace: String,
    pub name: String,
    pub lease_duration: Duration,
    pub renew_deadline: Duration,
    pub retry_period: Duration,
}

impl Default for Election {
    fn default() -> Election {
        Election {
            namespace: "kube-system".to_owned(),
            name: "kube-scheduler".to_owned(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

/// A plugin at an extension point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enabled {
    pub name: String,
    pub weight: i64,
}

/// A profile with all defaults applied: the plugins at each extension point.
#[derive(Clone, Debug)]
pub struct ProfileSpec {
    pub scheduler_name: String,
    /// Zero means a percentage that depends on the size of the cluster.
    pub percentage_of_nodes_to_score: usize,
    pub points: BTreeMap<Point, Vec<Enabled>>,
    pub args: Args,
}

impl Default for ProfileSpec {
    fn default() -> ProfileSpec {
        ProfileSpec {
            scheduler_name: "default-scheduler".to_owned(),
            percentage_of_nodes_to_score: 0,
            points: plugins::by_default(),
            args: Args::default(),
        }
    }
}

/// The configuration of an extender.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExtenderSpec {
    pub url_prefix: String,
    pub filter_verb: String,
    pub preempt_verb: String,
    pub prioritize_verb: String,
    pub bind_verb: String,
    pub weight: i64,
    pub tls: Option<ExtenderTls>,
    pub timeout: Duration,
    /// Whether the extender caches nodes, and needs only their names.
    pub node_cache_capable: bool,
    /// The resources that the extender manages: it is called for pods that request one of these; without any, for all
    /// pods.
    pub managed_resources: Vec<ManagedResource>,
    /// Whether pods are scheduled without the extender when it does not answer.
    pub ignorable: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtenderTls {
    pub insecure: bool,
    pub server_name: Option<String>,
    pub ca: Option<Vec<u8>>,
    pub certificate: Option<Vec<u8>>,
    pub key: Option<Vec<u8>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManagedResource {
    pub name: String,
    /// Whether the scheduler itself ignores the resource.
    pub ignored_by_scheduler: bool,
}
