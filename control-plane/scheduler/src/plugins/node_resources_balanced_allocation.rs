//! NodeResourcesBalancedAllocation: prefers the node whose resources would be used most evenly.

use super::node_resources::{ResourceSpec, Use, cpu_and_memory, uses};
use crate::framework::{MAX_SCORE, Plugin, PreScore, State};
use crate::rows::{NodeRow, PodRow, Snapshot};

pub struct NodeResourcesBalancedAllocation {
    pub resources: Vec<ResourceSpec>,
}

impl Default for NodeResourcesBalancedAllocation {
    fn default() -> NodeResourcesBalancedAllocation {
        NodeResourcesBalancedAllocation { resources: cpu_and_memory() }
    }
}

impl Plugin for NodeResourcesBalancedAllocation {
    /// A pod without requests does not change the balance.
    fn pre_score(&self, pod: &PodRow, _: &mut Snapshot, _: &[usize]) -> PreScore {
        match self.resources.iter().all(|resource| pod.demand.requests.get(&resource.name) == 0) {
            true => PreScore::Skip,
            false => PreScore::Ready(Box::new(())),
        }
    }

    fn scores_locally(&self) -> bool {
        true
    }

    /// Returns half the maximum, moved up or down by the change of the balance.
    fn score(&self, _: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> i64 {
        let uses = || uses(&self.resources, &pod.demand.requests, node, false).map(|(_, used)| used);
        let with = evenness(uses(), |used| used.with);
        let without = evenness(uses(), |used| used.without);
        MAX_SCORE / 2 + (MAX_SCORE / 2 + with - without) / 2
    }
}

/// Returns one minus the standard deviation of the utilizations.
fn evenness(uses: impl Iterator<Item = Use> + Clone, requested: impl Fn(&Use) -> i64) -> i64 {
    let share = |used: Use| (requested(&used) as f64 / used.allocatable as f64).min(1.0);
    let shares = uses.map(share);
    let (mut count, mut sum, mut first_two) = (0usize, 0.0, [0.0; 2]);
    for share in shares.clone() {
        if count < 2 {
            first_two[count] = share;
        }
        count += 1;
        sum += share;
    }
    let deviation = match count {
        0 | 1 => 0.0,
        2 => ((first_two[0] - first_two[1]) / 2.0).abs(),
        _ => {
            let mean = sum / count as f64;
            let squares: f64 = shares.map(|share| (share - mean) * (share - mean)).sum();
            (squares / count as f64).sqrt()
        }
    };
    ((1.0 - deviation) * MAX_SCORE as f64) as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn evenness_is_one_minus_the_deviation() {
        let of = |shares: &[i64]| {
            let uses = shares.iter().map(|with| Use { without: 0, with: *with, allocatable: 100 });
            evenness(uses, |used| used.with)
        };
        assert_eq!([of(&[]), of(&[80]), of(&[60, 20]), of(&[200, 100]), of(&[0, 50, 100])], [100, 100, 80, 100, 59]);
    }
}
