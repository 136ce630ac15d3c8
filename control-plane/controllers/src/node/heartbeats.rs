//! The time of a node's last heartbeat, by our clock and not by the node's.
//!
//! A heartbeat carries the time of the node that wrote it. A clock that is slow must not make a live node look
//! unresponsive, and a fast one must not hide that it stopped. So the clock skew is estimated.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use jiff::{SignedDuration, Timestamp};

#[derive(Clone, Copy)]
struct Heard {
    /// The time in the node's heartbeat.
    reported: Timestamp,
    /// The time of our last observation.
    looked: Timestamp,
    /// The difference between our clock and the node's.
    skew: SignedDuration,
}

/// The heartbeats of all nodes. A new leader starts empty and assumes correct clocks.
#[derive(Default)]
pub struct Heartbeats(Mutex<HashMap<String, Heard>>);

impl Heartbeats {
    /// Returns when the heartbeat with this time was written, by our clock.
    pub fn heard(&self, node: &str, reported: Timestamp, now: Timestamp) -> Timestamp {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = all.get(node).copied();
        let mut skew = before.map_or(SignedDuration::ZERO, |before| before.skew);
        let estimate = reported + skew;
        // A new heartbeat was written after our last observation: an estimate before that, or after now, means clock
        // skew.
        let impossible = before.is_some_and(|before| before.reported != reported && estimate < before.looked);
        if impossible || estimate > now {
            skew = now.duration_since(reported);
        }
        all.insert(node.to_owned(), Heard { reported, looked: now, skew });
        reported + skew
    }

    pub fn forget(&self, node: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::NOW;

    /// Simulates a node with a wrong clock that renews every ten seconds and is observed every `every` seconds, until
    /// it stops after ten minutes. Returns the longest silence assumed before that, and when 50 s of silence are
    /// noticed after it.
    fn believed(off: i64, every: i64) -> (i64, i64) {
        let at = |seconds: i64| *NOW + SignedDuration::from_secs(seconds);
        let heartbeats = Heartbeats::default();
        let mut longest = 0;
        for second in (0..2000).step_by(usize::try_from(every).unwrap()) {
            let reported = at(second.min(600) / 10 * 10 + off);
            let silence = at(second).duration_since(heartbeats.heard("n", reported, at(second))).as_secs();
            if second < 600 {
                longest = longest.max(silence);
            } else if silence > 50 {
                return (longest, second - 600);
            }
        }
        panic!("its silence was never noticed");
    }

    #[test]
    fn a_wrong_clock_neither_kills_a_node_nor_keeps_a_dead_one() {
        for (off, every) in [(0, 5), (0, 45), (120, 5), (120, 45), (3600, 45), (-30, 45), (-7200, 5), (-7200, 45)] {
            let (longest, noticed) = believed(off, every);
            // The first observation cannot know the skew; a manager that starts gives every node its grace period
            // anyway.
            let first = if off < 0 { -off } else { 0 };
            assert!(longest <= first + 10, "{off} s off, looked at every {every} s: {longest} s");
            assert!(noticed <= 50 + 2 * every, "{off} s off, looked at every {every} s: after {noticed} s");
        }
    }
}
