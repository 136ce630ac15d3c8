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
}

const FAULTS: [Fault; 5] =
    [Fault::CutOff, Fault::KillServer, Fault::PauseMember, Fault::KillMember, Fault::PauseServer];
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_the_same_faults_and_each_kind_comes() {
        let first: Vec<Step> = steps(7, 3).take(50).collect();
        assert_eq!(first, steps(7, 3).take(50).collect::<Vec<_>>());
        assert_ne!(first, steps(8, 3).take(50).collect::<Vec<_>>());
        for round in first.chunks(FAULTS.len()) {
            let mut kinds: Vec<Fault> = round.iter().map(|step| step.fault).collect();
            kinds.sort_unstable();
            kinds.dedup();
            assert_eq!(kinds.len(), FAULTS.len());
        }
        assert!(first.iter().any(|step| step.targets.len() == 2));
        assert!(first.iter().all(|step| step.targets.len() == 1 || step.targets[0] != step.targets[1]));
    }
}
