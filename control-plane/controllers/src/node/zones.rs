//! The eviction rate of nodes: lower if most of a large zone is unhealthy, and zero if most of a small zone is.
//!
//! Many silent nodes at once mean a broken network more often than many broken nodes. The time of the last eviction is
//! read from the taints themselves, so that a new leader continues at the same rate.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::runtime::NodeFacts;

const REGION: [&str; 2] = ["topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region"];
const ZONE: [&str; 2] = ["topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"];
/// The time between two evictions; the slow one applies to a large zone of which most nodes are unhealthy.
const PACE: Duration = Duration::from_secs(10);
const SLOW_PACE: Duration = Duration::from_secs(100);
/// The largest zone in which eviction stops when most nodes are unhealthy.
const LARGE: usize = 50;
/// The percentage of unhealthy nodes from which a zone counts as disrupted.
const UNHEALTHY_PERCENT: usize = 55;

/// The state of a node in its zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub ready: bool,
    /// The time it was tainted for eviction, if it is.
    pub evicted: Option<Timestamp>,
}

impl Member {
    pub fn of(node: &NodeFacts, evicting: &[&str]) -> Member {
        let ours =
            node.taints.iter().filter(|taint| taint.effect == "NoExecute" && evicting.contains(&taint.key.as_str()));
        let evicted = ours.filter_map(|taint| taint.time_added.as_ref()).map(|time| time.0).max();
        Member { ready: node.ready, evicted }
    }
}

/// Returns the zone of a node; all nodes without labels are in one.
pub fn zone_of(labels: Option<&BTreeMap<String, String>>) -> (String, String) {
    let label = |names: [&str; 2]| names.iter().find_map(|name| labels?.get(*name)).cloned().unwrap_or_default();
    (label(REGION), label(ZONE))
}

/// Returns the time until one more node of the zone may be tainted for eviction; none if eviction stops.
pub fn next_eviction(zone: &[Member], now: Timestamp) -> Option<Duration> {
    let silent = zone.iter().filter(|member| !member.ready).count();
    let all = silent == zone.len();
    let disrupted = !all && silent > 2 && silent * 100 >= zone.len() * UNHEALTHY_PERCENT;
    let pace = match disrupted {
        false => PACE,
        true if zone.len() > LARGE => SLOW_PACE,
        true => return None,
    };
    let last = zone.iter().filter_map(|member| member.evicted).max();
    let passed = last.map_or(pace, |last| now.duration_since(last).try_into().unwrap_or(Duration::ZERO));
    Some(pace.saturating_sub(passed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::model::NOW;

    #[test]
    fn the_pace_depends_on_how_much_of_the_zone_is_silent() {
        let zone = |ready: usize, silent: usize, last: Option<i64>| {
            let ago = |seconds| NOW.checked_sub(jiff::SignedDuration::from_secs(seconds)).unwrap();
            let mut zone = vec![Member { ready: true, evicted: None }; ready];
            zone.extend(vec![Member { ready: false, evicted: None }; silent]);
            zone.push(Member { ready: false, evicted: last.map(ago) });
            zone
        };
        let seconds = |count| Some(Duration::from_secs(count));
        for (members, expected) in [
            (zone(9, 0, None), seconds(0)),
            (zone(9, 1, Some(4)), seconds(6)),
            (zone(9, 1, Some(11)), seconds(0)),
            (zone(1, 1, None), seconds(0)),
            (zone(4, 5, None), None),
            (zone(40, 59, Some(30)), seconds(70)),
            (zone(0, 9, None), seconds(0)),
        ] {
            assert_eq!(next_eviction(&members, *NOW), expected, "{} members", members.len());
        }
    }
}
