//! The scheduler: filter, score, reserve, bind. It finds a node for every pod that has none.
//!
//! One task owns all state ([`scheduler`]): rows of nodes and pods, the queue, assumed pods. The scheduling cycle is a
//! plain function on them ([`cycle`]); only bindings, events and conditions are written, outside the task
//! ([`outcome`]).

mod config;
mod cycle;
pub mod evaluate;
mod explain;
mod extender;
mod filtering;
mod framework;
mod metrics;
mod outcome;
mod plugins;
mod preemption;
mod profile;
mod queue;
mod queue_entry;
mod random;
mod refused;
mod resources;
mod rows;
mod scheduler;
mod task;

#[cfg(test)]
mod tests;

use corten_client::{Client, LeaderConfig, LeaderElector, Outcome};
use futures::future::BoxFuture;
use tokio_util::sync::CancellationToken;

pub use config::{Config, Election};
pub use explain::{Explanation, NodeReport, explain};
pub use metrics::{FAMILIES as METRICS, Metrics};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the lease was lost to another process")]
    LostLease,
    #[error("the configuration cannot be used: {0}")]
    Config(String),
    #[error("there is no pod {0}")]
    NoPod(String),
    #[error("the cluster's state cannot be read: {0}")]
    Unreadable(#[from] corten_client::Error),
}

/// Schedules until shutdown, as the leader if so configured. The client acts as system:kube-scheduler.
///
/// The future is boxed so that the scheduler is compiled in this package, for speed, and not where it is awaited.
pub fn run(config: Config, client: Client, shutdown: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(lead(config, client, shutdown))
}

/// Schedules while this process holds the Lease, if there is an election.
async fn lead(config: Config, client: Client, shutdown: CancellationToken) -> Result<(), Error> {
    let Some(election) = &config.leader_election else {
        task::run(&config, client, shutdown).await;
        return Ok(());
    };
    let mut lease = LeaderConfig::new(&election.namespace, &election.name, &config.identity);
    lease.lease_duration = election.lease_duration;
    lease.renew_deadline = election.renew_deadline;
    lease.retry_period = election.retry_period;
    let elector = LeaderElector::new(client.clone(), lease);
    match elector.run(shutdown, |leading| task::run(&config, client, leading)).await {
        Outcome::Lost => Err(Error::LostLease),
        Outcome::Stopped | Outcome::Finished => Ok(()),
    }
}
