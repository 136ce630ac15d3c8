//! The faults of a run, by its seed.

use std::time::Duration;

use testkit::random::Random;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The server is killed, and its etcd ends with it; started again to heal.
    KillServer,
    /// The server is stopped by SIGSTOP.
    PauseServer,
    /// etcd is killed; the server starts it again.
    KillMember,
    /// etcd is stopped by SIGSTOP.
    PauseMember,
    /// The machine loses every packet.
    CutOff,
    /// Every write of etcd's log takes half a second more to reach the disk.
    SlowDisk,
}

const FAULTS: [Fault; 6] =
    [Fault::CutOff, Fault::KillServer, Fault::PauseMember, Fault::KillMember, Fault::PauseServer, Fault::SlowDisk];
/// One fault in so many hits two servers.
const DOUBLE: usize = 6;

/// A fault with its targets, the indices of servers, and the time until it is healed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub fault: Fault,
    pub targets: Vec<usize>,
    pub hold: Duration,
}

/// Returns the faults of a run, each kind as often as another.
pub fn steps(seed: u64, servers: usize) -> impl Iterator<Item = Step> {
    let mut random = Random::new(seed);
    let mut kinds: Vec<Fault> = Vec::new();
    std::iter::from_fn(move || {
        if kinds.is_empty() {
            kinds.extend(FAULTS);
        }
        let fault = kinds.swap_remove(random.index(kinds.len()));
        let first = random.index(servers);
        let mut targets = vec![first];
        if random.index(DOUBLE) == 0 {
            targets.push((first + 1 + random.index(servers - 1)) % servers);
        }
        let hold = Duration::from_millis(2000 + random.number() % 6000);
        Some(Step { fault, targets, hold })
    })
}

/// A change of the servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// A machine that is no server joins.
    Join(usize),
    /// A server leaves with its Node.
    Leave(usize),
}

/// Returns the next change among `active` servers: at least three stay, and at least one machine is left.
pub fn next_change(random: &mut Random, active: &[usize], machines: usize) -> Change {
    let idle: Vec<usize> = (0..machines).filter(|machine| !active.contains(machine)).collect();
    let may_leave = active.len() > 3;
    let joins = !idle.is_empty() && (!may_leave || random.index(2) == 0);
    match joins {
        true => Change::Join(idle[random.index(idle.len())]),
        false => Change::Leave(active[random.index(active.len())]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_and_each_kind_comes() {
        let first: Vec<Step> = steps(7, 3).take(50).collect();
        assert_eq!(first, steps(7, 3).take(50).collect::<Vec<_>>());
        assert_ne!(first, steps(8, 3).take(50).collect::<Vec<_>>());
        for round in first.chunks_exact(FAULTS.len()) {
            let mut kinds: Vec<Fault> = round.iter().map(|step| step.fault).collect();
            kinds.sort_unstable();
            kinds.dedup();
            assert_eq!(kinds.len(), FAULTS.len());
        }
        assert!(first.iter().any(|step| step.targets.len() == 2));
        assert!(first.iter().all(|step| step.targets.len() == 1 || step.targets[0] != step.targets[1]));
    }

    #[test]
    fn changes_keep_three_servers_and_use_every_machine() {
        let mut random = Random::new(3);
        let mut active = vec![0, 1, 2];
        let mut most = 0;
        for _ in 0..200 {
            match next_change(&mut random, &active, 7) {
                Change::Join(machine) => {
                    assert!(!active.contains(&machine) && machine < 7);
                    active.push(machine);
                }
                Change::Leave(machine) => active.retain(|other| *other != machine),
            }
            assert!(active.len() >= 3);
            most = most.max(active.len());
        }
        assert_eq!(most, 7);
    }
}
