//! Learners that never came up. etcd has one learner at a time, so one that a crashed attempt left would keep every other
//! machine from joining.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::client::Member;
use crate::{Error, Members};

/// The time that a learner may be unreachable before it is removed.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// The longest time for a connection to a learner.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// The learners that cannot be reached, and since when.
#[derive(Debug, Default)]
pub struct Unreachable {
    since: BTreeMap<u64, Instant>,
}

/// A learner, and whether its machine answers.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    pub id: u64,
    pub is_reachable: bool,
}

impl Unreachable {
    /// Takes the learners of this moment, and returns those to remove.
    pub fn stale(&mut self, seen: &[Seen], now: Instant) -> Vec<u64> {
        let missing: Vec<u64> = seen.iter().filter(|one| !one.is_reachable).map(|one| one.id).collect();
        self.since.retain(|id, _| missing.contains(id));
        for id in missing {
            self.since.entry(id).or_insert(now);
        }
        let is_stale = |since: &Instant| now.duration_since(*since) >= PATIENCE;
        self.since.iter().filter(|(_, since)| is_stale(since)).map(|(id, _)| *id).collect()
    }
}

/// Looks at the learners once and removes those that cannot be reached for too long. Only the leader's machine does so,
/// by the client of its own member.
pub async fn reconcile(own: &Members, unreachable: &mut Unreachable) -> Result<(), Error> {
    let status = own.status().await?;
    if status.leader != status.id {
        *unreachable = Unreachable::default();
        return Ok(());
    }
    let list = own.list().await?;
    let mut seen = Vec::new();
    for learner in list.members.iter().filter(|member| member.is_learner) {
        seen.push(Seen { id: learner.id, is_reachable: is_reachable(learner).await });
    }
    for id in unreachable.stale(&seen, Instant::now()) {
        let title = list.members.iter().find(|member| member.id == id).map(Member::title).unwrap_or_default();
        tracing::warn!(member = title, "a learner that cannot be reached is removed");
        own.remove(id).await?;
    }
    Ok(())
}

/// Reports whether a learner's machine takes connections of other members. It does from the start, also while it copies
/// the leader's data.
async fn is_reachable(learner: &Member) -> bool {
    for url in &learner.peer_urls {
        let Some(address) = url.strip_prefix("https://") else { continue };
        let connected = tokio::time::timeout(CONNECT_TIMEOUT, TcpStream::connect(address)).await;
        if matches!(connected, Ok(Ok(_))) {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_learner_is_removed_when_it_was_unreachable_all_the_time() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let seen = |id: u64, is_reachable: bool| Seen { id, is_reachable };
        let mut unreachable = Unreachable::default();
        let none: [u64; 0] = [];
        assert_eq!(unreachable.stale(&[seen(1, false), seen(2, true)], at(0)), none);
        assert_eq!(unreachable.stale(&[seen(1, false), seen(2, false)], at(60)), none);
        assert_eq!(unreachable.stale(&[seen(1, false), seen(2, true)], at(119)), none);
        assert_eq!(unreachable.stale(&[seen(1, false), seen(2, false)], at(120)), [1_u64]);
        assert_eq!(unreachable.stale(&[seen(2, false)], at(180)), none, "the clock of the second began anew");
        assert_eq!(unreachable.stale(&[seen(2, false)], at(240)), [2_u64]);
        assert_eq!(unreachable.stale(&[], at(300)), none);
        assert_eq!(unreachable.stale(&[seen(2, false)], at(400)), none, "an id that is gone is forgotten");
    }
}
