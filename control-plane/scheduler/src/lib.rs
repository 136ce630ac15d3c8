//! The scheduler: filter, score, reserve, bind. Finds a node for every pod that has none.
//!
//! One task owns all state: rows of nodes and pods, the queue, what is assumed. Deciding about a pod is a plain
//! function on them ([`cycle`]); only binding, events and conditions go out, beside the task ([`outcome`]).

mod cycle;
mod framework;
mod outcome;
mod plugins;
mod preemption;
mod queue;
mod resources;
mod rows;
mod task;

use corten_client::{Client, LeaderConfig, LeaderElector, Outcome};
use tokio_util::sync::CancellationToken;

/// The lease that scheduler processes stand for.
const LEASE: &str = "kube-scheduler";

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the lease {LEASE} was lost to another process")]
    LostLease,
}

#[derive(Clone, Debug)]
pub struct Config {
    /// The pods to care for: those with this `spec.schedulerName`.
    pub scheduler_name: String,
    /// Who this process is among the candidates for leadership.
    pub identity: String,
    /// Stand for election before doing anything. Off where there is only one process.
    pub leader_elect: bool,
    /// Where the choice among equally good nodes begins.
    pub seed: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            scheduler_name: "default-scheduler".to_owned(),
            identity: String::new(),
            leader_elect: false,
            seed: 0x2545_f491_4f6c_dd1d,
        }
    }
}

/// Schedules until shutdown, as the leader if so configured. The client acts as system:kube-scheduler.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    if !config.leader_elect {
        task::run(&config, client, shutdown).await;
        return Ok(());
    }
    let elector = LeaderElector::new(client.clone(), LeaderConfig::new("kube-system", LEASE, &config.identity));
    match elector.run(shutdown, |leading| task::run(&config, client, leading)).await {
        Outcome::Lost => Err(Error::LostLease),
        Outcome::Stopped | Outcome::Finished => Ok(()),
    }
}
