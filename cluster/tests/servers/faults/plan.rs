//! The faults of a run, by its seed.

use std::time::Duration;

/// A generator of numbers that look random and follow from their seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }
}

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
        let fault = kinds.swap_remove(random.below(kinds.len()));
        let first = random.below(servers);
        let mut targets = vec![first];
        if random.below(DOUBLE) == 0 {
            targets.push((first + 1 + random.below(servers - 1)) % servers);
        }
        let hold = Duration::from_millis(2000 + random.next() % 6000);
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
    let joins = !idle.is_empty() && (!may_leave || random.below(2) == 0);
    match joins {
        true => Change::Join(idle[random.below(idle.len())]),
        false => Change::Leave(active[random.below(active.len())]),
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
