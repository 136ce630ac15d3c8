//! Scores by the utilization of nodes: least allocated, most allocated, by a shape, or most balanced.

use serde::Deserialize;

use crate::framework::MAX_SCORE;
use crate::resources::Resources;
use crate::rows::NodeRow;

/// A resource and its weight in the score.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ResourceSpec {
    pub name: String,
    #[serde(default = "one")]
    pub weight: i64,
}

fn one() -> i64 {
    1
}

pub fn cpu_and_memory() -> Vec<ResourceSpec> {
    ["cpu", "memory"].map(|name| ResourceSpec { name: name.to_owned(), weight: 1 }).into()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Strategy {
    LeastAllocated,
    MostAllocated,
    /// Points of utilization and score, both to 100, with linear interpolation between them.
    RequestedToCapacityRatio(Vec<(i64, i64)>),
}

impl Strategy {
    /// Returns the score of a node on which `requested` of `allocatable` would be used.
    fn of_resource(&self, requested: i64, allocatable: i64) -> i64 {
        // Wide arithmetic is several times slower, and rarely needed.
        let wide = |value: i64| (i128::from(value) * i128::from(MAX_SCORE) / i128::from(allocatable)) as i64;
        let product = |value: i64| value.checked_mul(MAX_SCORE).map_or_else(|| wide(value), |all| all / allocatable);
        match self {
            Strategy::LeastAllocated if requested > allocatable => 0,
            Strategy::LeastAllocated => product(allocatable - requested),
            Strategy::MostAllocated => product(requested.min(allocatable)),
            Strategy::RequestedToCapacityRatio(shape) if requested > allocatable => on_shape(shape, MAX_SCORE),
            Strategy::RequestedToCapacityRatio(shape) => on_shape(shape, product(requested)),
        }
    }

    /// Returns the weighted mean over the resources that the node has.
    pub fn score(&self, uses: impl Iterator<Item = (i64, Use)>) -> i64 {
        let (mut sum, mut weights) = (0, 0);
        for (weight, used) in uses {
            let score = self.of_resource(used.with, used.allocatable);
            let skips_zero = matches!(self, Strategy::RequestedToCapacityRatio(_)) && score == 0;
            if !skips_zero {
                sum += score * weight;
                weights += weight;
            }
        }
        match (self, weights) {
            (_, 0) => 0,
            (Strategy::RequestedToCapacityRatio(_), _) => (sum as f64 / weights as f64).round() as i64,
            _ => sum / weights,
        }
    }
}

/// Interpolates between the two points around a utilization.
fn on_shape(shape: &[(i64, i64)], utilization: i64) -> i64 {
    let Some(after) = shape.iter().position(|(at, _)| utilization <= *at) else {
        return shape.last().map_or(0, |(_, score)| *score);
    };
    let (right, high) = shape[after];
    let Some((left, low)) = after.checked_sub(1).map(|before| shape[before]) else { return high };
    low + (high - low) * (utilization - left) / (right - left)
}

/// The use of a resource on a node, without and with the pod.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    pub without: i64,
    pub with: i64,
    pub allocatable: i64,
}

/// Reports whether a resource is not a common one: it counts only for pods that request it.
pub fn is_scalar(name: &str) -> bool {
    !matches!(name, "cpu" | "memory" | "ephemeral-storage" | "pods")
}

/// Returns the use of each resource that counts. `scoring` applies to CPU and memory only.
pub fn uses<'a>(
    resources: &'a [ResourceSpec],
    pod: &'a Resources,
    node: &'a NodeRow,
    scoring: bool,
) -> impl Iterator<Item = (i64, Use)> + Clone + 'a {
    resources.iter().filter_map(move |resource| {
        let name = resource.name.as_str();
        let request = pod.get(name);
        let allocatable = node.allocatable.get(name);
        if allocatable == 0 || (request == 0 && is_scalar(name)) {
            return None;
        }
        let used = match name {
            "cpu" | "memory" if scoring => node.scoring.get(name),
            _ => node.requested.get(name),
        };
        Some((resource.weight, Use { without: used, with: used + request, allocatable }))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn use_of(with: i64, allocatable: i64) -> Use {
        Use { without: 0, with, allocatable }
    }

    #[test]
    fn strategies_score_as_upstreams() {
        let ratio = Strategy::RequestedToCapacityRatio(vec![(0, 0), (100, 100)]);
        let peak = Strategy::RequestedToCapacityRatio(vec![(0, 0), (50, 100), (100, 0)]);
        for (strategy, uses, expected) in [
            (&Strategy::LeastAllocated, vec![(1, use_of(1000, 4000)), (1, use_of(1, 2))], 62),
            (&Strategy::LeastAllocated, vec![(1, use_of(5000, 4000))], 0),
            (&Strategy::LeastAllocated, vec![], 0),
            (&Strategy::MostAllocated, vec![(1, use_of(1000, 4000)), (3, use_of(1, 2))], 43),
            (&Strategy::MostAllocated, vec![(1, use_of(5000, 4000))], 100),
            (&ratio, vec![(1, use_of(1000, 4000)), (1, use_of(0, 2))], 25),
            (&peak, vec![(1, use_of(3000, 4000))], 50),
            (&peak, vec![(1, use_of(5000, 4000))], 0),
        ] {
            assert_eq!(strategy.score(uses.clone().into_iter()), expected, "{strategy:?} {uses:?}");
        }
    }
}
