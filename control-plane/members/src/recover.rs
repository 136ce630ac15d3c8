//! A cluster of one member, made of the data of a survivor, after the majority of the members was lost.
//!
//! etcd does it itself (`--force-new-cluster`): it starts with its data, removes all other members and goes on alone. The
//! others can come back afterwards as new members; their data is set aside. Before that, all entries of the survivor's log
//! become committed ([`wal`]).
//!
//! Must never: run while the others still have a quorum, for then there would be two clusters.

use std::time::Duration;

use tokio::time::Instant;

use crate::join::{endpoints, initial_cluster};
use crate::state::{State, has_data};
use crate::wal;
use crate::{Binary, Config, Credentials, Error, Members, Start, Supervisor};

/// The longest time that etcd may take to start with its data.
const PATIENCE: Duration = Duration::from_secs(10 * 60);
/// The longest time that the others are asked whether they have a quorum.
const OTHERS_PATIENCE: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(200);
const STOP_PATIENCE: Duration = Duration::from_secs(30);

/// Makes the member of this machine the only one of its cluster. It must not run, and does not run afterwards.
pub async fn recover(config: &Config, binary: &Binary, credentials: &Credentials) -> Result<State, Error> {
    let state = State::read(&config.directory)?;
    let Some(state) = state.filter(|_| has_data(&config.directory)) else {
        return Err(Error::NoData { path: config.directory.clone() });
    };
    refuse_quorum(config, &state, credentials).await?;
    let supervisor = Supervisor::new(config.clone(), binary.clone()).await?;
    let entries = wal::commit_all(&config.directory)?;
    tracing::info!(entries, "the last entries of the log are committed");
    let mut process = supervisor.start(&Start::Forced).await?;
    let own = Members::new(vec![config.client_url()], credentials)?;
    let alone = tokio::select! {
        alone = alone(config, &own, state) => alone,
        ended = process.ended() => {
            let status = ended.map_err(Error::Process)?;
            Err(Error::Ended { status: status.to_string(), log: supervisor.log_path() })
        }
    };
    process.stop(STOP_PATIENCE).await.map_err(Error::Process)?;
    let state = alone?;
    state.write(&config.directory)?;
    Ok(state)
}

/// Refuses if other members answer with a quorum.
async fn refuse_quorum(config: &Config, state: &State, credentials: &Credentials) -> Result<(), Error> {
    let own = config.client_url();
    let others: Vec<String> = state.endpoints.iter().filter(|endpoint| **endpoint != own).cloned().collect();
    if others.is_empty() {
        return Ok(());
    }
    // The list of members is a read that needs a quorum.
    let asked = tokio::time::timeout(OTHERS_PATIENCE, Members::new(others, credentials)?.list()).await;
    match asked {
        Ok(Ok(list)) => {
            let names: Vec<String> = list.members.iter().map(|member| member.title().to_owned()).collect();
            Err(Error::HasQuorum { members: names.join(", ") })
        }
        _ => Ok(()),
    }
}

/// Waits until the member leads a cluster of its own; returns its state.
async fn alone(config: &Config, own: &Members, state: State) -> Result<State, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(status) = own.status().await
            && status.leader == status.id
            && let Ok(list) = own.list().await
            && list.members.len() == 1
        {
            return Ok(State {
                member: status.id,
                cluster: list.cluster,
                endpoints: endpoints(config, &list.members),
                initial_cluster: initial_cluster(config, status.id, &list.members),
                ..state
            });
        }
        if Instant::now() >= deadline {
            return Err(Error::NotCaughtUp { seconds: PATIENCE.as_secs() });
        }
        tokio::time::sleep(PAUSE).await;
    }
}
