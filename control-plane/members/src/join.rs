//! How a machine becomes a member, step by step as [`crate::decide`] says.

use std::path::Path;
use std::time::Duration;

use tokio::time::Instant;

use crate::client::{List, Member, Status};
use crate::decide::{self, Own, Step};
use crate::state::{self, State};
use crate::{Config, Error, Members, Start};

/// The longest time that another machine's join is waited for: longer than a stale learner lives.
const JOIN_PATIENCE: Duration = Duration::from_secs(5 * 60);
/// The longest time that a learner may take to catch up.
const CATCH_UP_PATIENCE: Duration = Duration::from_secs(30 * 60);
/// The longest time that the others are asked about a member that has its data and could go on without them.
const RESTART_PATIENCE: Duration = Duration::from_secs(5);
/// The log entries that a member may lag behind and still count as caught up: some moments of writes.
const MOST_LAG: u64 = 100;
/// The pause between two looks at the members.
const PAUSE: Duration = Duration::from_millis(500);

/// Checks that a machine of this name may join these members, without a change of anything.
pub async fn inspect(directory: &Path, name: &str, members: &Members) -> Result<List, Error> {
    let list = members.list().await?;
    let state = State::read(directory)?.unwrap_or_default();
    if let Some(other) = list.members.iter().find(|member| member.name == name && member.id != state.member) {
        refuse_living(members, other.id, &list).await?;
    }
    if state.cluster != 0 && state.cluster != list.cluster {
        return Err(Error::OtherCluster { endpoint: members.endpoints().join(", ") });
    }
    if let Some(alarm) = members.alarms().await?.into_iter().next() {
        let member = list.members.iter().find(|member| member.id == alarm.member);
        let member = member.map(Member::title).unwrap_or_default().to_owned();
        return Err(Error::InAlarm { alarm: alarm.name, member });
    }
    for member in list.members.iter().filter(|member| member.has_started()) {
        // A member that is down is no reason to keep another from joining.
        if let Ok(status) = members.at(member.client_urls.clone()).status().await
            && !status.is_recent()
        {
            return Err(Error::OldMember { member: member.name.clone(), version: status.version });
        }
    }
    Ok(list)
}

/// Makes the machine the first member of a new cluster, or goes on as the member that it is.
pub async fn first(config: &Config, others: &Members) -> Result<Start, Error> {
    state::make_directory(&config.directory)?;
    match State::read(&config.directory)? {
        Some(state) if !state.initial_cluster.is_empty() || has_others(config, &state) => {
            enter(config, others, false).await
        }
        Some(_) => Ok(Start::New),
        None => {
            State { endpoints: vec![config.client_url()], ..State::default() }.write(&config.directory)?;
            Ok(Start::New)
        }
    }
}

/// Reports whether a machine knows other members.
fn has_others(config: &Config, state: &State) -> bool {
    let own = config.client_url();
    state.member != 0 && state.endpoints.iter().any(|endpoint| *endpoint != own)
}

/// Makes the machine a member of the others' cluster, as far as can be before its etcd starts; returns how it starts.
pub async fn enter(config: &Config, others: &Members, may_join: bool) -> Result<Start, Error> {
    state::make_directory(&config.directory)?;
    let deadline = Instant::now() + JOIN_PATIENCE;
    loop {
        let state = State::read(&config.directory)?.unwrap_or_default();
        let own = Own {
            name: config.name.clone(),
            peer_url: config.peer_url(),
            member: Some(state.member).filter(|id| *id != 0),
            has_data: state::has_data(&config.directory),
            may_join,
        };
        let list = match listed(others, &own).await {
            Ok(list) => list,
            Err(error) => match without_list(&own, &error, Instant::now() < deadline) {
                Unlisted::Start => return Ok(Start::Existing { initial_cluster: state.initial_cluster }),
                Unlisted::Wait => {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
                Unlisted::Fail => return Err(error),
            },
        };
        if state.cluster != 0 && state.cluster != list.cluster {
            return Err(Error::OtherCluster { endpoint: others.endpoints().join(", ") });
        }
        let step = decide::next(&own, &list.members);
        if let Step::Start(id) = step {
            return start(config, id, &list);
        }
        match act(config, others, &own, &list, &step).await {
            Err(error) if error.is_transient() && Instant::now() < deadline => {
                tracing::debug!("the step {step:?} is tried again: {error}");
                tokio::time::sleep(PAUSE).await;
            }
            Err(Error::AnotherJoins { .. }) if Instant::now() < deadline => tokio::time::sleep(PAUSE).await,
            acted => acted?,
        }
    }
}

/// The next step of a machine while the members cannot be listed.
#[derive(Debug, PartialEq, Eq)]
enum Unlisted {
    /// Start with its data, which says all that it needs: the others may be waiting for it to have a quorum again.
    Start,
    /// Ask again, as after an election.
    Wait,
    Fail,
}

fn without_list(own: &Own, error: &Error, is_time_left: bool) -> Unlisted {
    let is_passing = error.is_transient() || matches!(error, Error::Unreachable { .. });
    match own.has_data && own.member.is_some() {
        true if is_passing => Unlisted::Start,
        false if error.is_transient() && is_time_left => Unlisted::Wait,
        _ => Unlisted::Fail,
    }
}

/// Does one step before the start.
async fn act(config: &Config, others: &Members, own: &Own, list: &List, step: &Step) -> Result<(), Error> {
    match step {
        Step::Start(_) => Ok(()),
        Step::Update(id) => others.update(*id, &own.peer_url).await,
        Step::SetAside => {
            let aside = state::set_aside(&config.directory)?;
            tracing::warn!(path = %aside.display(), "the data of a member that was removed is set aside");
            Ok(())
        }
        Step::Removed => Err(Error::Removed),
        Step::Remove(id) => {
            refuse_living(others, *id, list).await?;
            tracing::warn!(member = own.name, "the earlier member of this name is removed");
            others.remove(*id).await
        }
        Step::Add => {
            let (added, _) = others.add_learner(&own.peer_url).await?;
            tracing::info!(member = own.name, id = added.id, "this machine is a learner");
            Ok(())
        }
        Step::Wait(peer) => Err(Error::AnotherJoins { peer: peer.clone() }),
    }
}

/// Refuses to take the place of a machine that is alive.
async fn refuse_living(others: &Members, id: u64, list: &List) -> Result<(), Error> {
    let Some(member) = list.members.iter().find(|member| member.id == id) else { return Ok(()) };
    match others.at(member.client_urls.clone()).status().await {
        Ok(_) => Err(Error::NameTaken { name: member.name.clone(), url: member.client_urls.join(", ") }),
        Err(_) => Ok(()),
    }
}

/// Lists the members; for a member that could go on without the others, within a short time.
async fn listed(others: &Members, own: &Own) -> Result<List, Error> {
    if !own.has_data {
        return others.list().await;
    }
    match tokio::time::timeout(RESTART_PATIENCE, others.list()).await {
        Ok(list) => list,
        Err(_) => Err(Error::Unreachable {
            endpoints: others.endpoints().join(", "),
            reason: "they take too long to answer".to_owned(),
        }),
    }
}

/// Records the membership and returns how the member starts.
fn start(config: &Config, id: u64, list: &List) -> Result<Start, Error> {
    let initial_cluster = initial_cluster(config, id, &list.members);
    let state = State {
        member: id,
        cluster: list.cluster,
        endpoints: endpoints(config, &list.members),
        initial_cluster: initial_cluster.clone(),
        is_migrating: false,
    };
    state.write(&config.directory)?;
    Ok(Start::Existing { initial_cluster })
}

/// Returns all members by name and peer URL. etcd compares the URLs; one that never started gets a name of its id.
pub(crate) fn initial_cluster(config: &Config, own: u64, members: &[Member]) -> String {
    let mut pairs = Vec::new();
    for member in members {
        let name = match member.has_started() {
            _ if member.id == own => config.name.clone(),
            true => member.name.clone(),
            false => format!("member-{:x}", member.id),
        };
        pairs.extend(member.peer_urls.iter().map(|url| format!("{name}={url}")));
    }
    pairs.join(",")
}

/// Returns the client URLs of all voters, the own first. A learner answers no reads.
pub(crate) fn endpoints(config: &Config, members: &[Member]) -> Vec<String> {
    let mut all = vec![config.client_url()];
    for url in members.iter().filter(|member| !member.is_learner).flat_map(|member| &member.client_urls) {
        if !all.contains(url) {
            all.push(url.clone());
        }
    }
    all
}

/// Waits until the started member is a voter that answers, and records all members.
pub async fn settle(config: &Config, members: &Members) -> Result<State, Error> {
    let deadline = Instant::now() + CATCH_UP_PATIENCE;
    loop {
        match settled(config, members).await {
            Ok(Some(state)) => return Ok(state),
            Ok(None) => {}
            Err(Error::Removed) => return Err(Error::Removed),
            Err(error) => tracing::debug!("the member is not ready: {error}"),
        }
        if Instant::now() >= deadline {
            return Err(Error::NotCaughtUp { seconds: CATCH_UP_PATIENCE.as_secs() });
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Does what the member still lacks; returns its state when it lacks nothing.
async fn settled(config: &Config, members: &Members) -> Result<Option<State>, Error> {
    let state = State::read(&config.directory)?.unwrap_or_default();
    let own_member = members.at(vec![config.client_url()]);
    let status = own_member.status().await?;
    if status.is_learner {
        let known = state.endpoints.iter().filter(|endpoint| **endpoint != config.client_url());
        let others = members.at(known.cloned().collect());
        let list = others.list().await?;
        return match list.members.iter().find(|member| member.id == status.id) {
            None => Err(Error::Removed),
            Some(_) => {
                if others.promote(status.id).await? {
                    tracing::info!(member = config.name, "this machine is a voter");
                }
                Ok(None)
            }
        };
    }
    let list = own_member.list().await?;
    if lag(&list, &status, members).await > MOST_LAG {
        return Ok(None);
    }
    let own = list.members.iter().find(|member| member.id == status.id);
    if own.is_some_and(|own| !own.peer_urls.contains(&config.peer_url())) {
        own_member.update(status.id, &config.peer_url()).await?;
    }
    let state =
        State { member: status.id, cluster: list.cluster, endpoints: endpoints(config, &list.members), ..state };
    state.write(&config.directory)?;
    Ok(Some(state))
}

/// Returns the number of log entries that the own member has not applied yet, as the members that answer know.
async fn lag(list: &List, own: &Status, members: &Members) -> u64 {
    let others = list.members.iter().filter(|member| member.id != own.id && member.has_started());
    let mut newest = own.raft_index;
    for member in others {
        let asked = tokio::time::timeout(RESTART_PATIENCE, members.at(member.client_urls.clone()).status()).await;
        if let Ok(Ok(status)) = asked {
            newest = newest.max(status.raft_index);
        }
    }
    newest.saturating_sub(own.applied_index)
}

/// Records the members as they are now, so that a restart finds them; returns their client URLs.
pub async fn refresh(config: &Config, members: &Members) -> Result<Vec<String>, Error> {
    let list = members.list().await?;
    let endpoints = endpoints(config, &list.members);
    if let Some(state) = State::read(&config.directory)?
        && state.cluster == list.cluster
        && state.endpoints != endpoints
    {
        State { endpoints: endpoints.clone(), ..state }.write(&config.directory)?;
    }
    Ok(endpoints)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_with_data_starts_without_the_others_and_a_new_one_waits_for_them() {
        let own = |has_data: bool| Own {
            name: "one".to_owned(),
            peer_url: "https://10.0.0.1:2380".to_owned(),
            member: has_data.then_some(1),
            has_data,
            may_join: false,
        };
        let refused = |is_transient: bool| Error::Refused {
            action: "list the members",
            reason: "leader changed".to_owned(),
            is_transient,
        };
        let unreachable = Error::Unreachable { endpoints: String::new(), reason: String::new() };
        for (has_data, error, is_time_left, expected) in [
            (true, &unreachable, true, Unlisted::Start),
            (true, &refused(true), true, Unlisted::Start),
            (true, &refused(false), true, Unlisted::Fail),
            (false, &refused(true), true, Unlisted::Wait),
            (false, &refused(true), false, Unlisted::Fail),
            (false, &unreachable, true, Unlisted::Fail),
        ] {
            assert_eq!(without_list(&own(has_data), error, is_time_left), expected, "{has_data} {error}");
        }
    }
}
