//! ImageLocality: prefers nodes that already have the pod's images, by their size and how widespread they are.

use std::collections::HashMap;

use crate::framework::{MAX_SCORE, Plugin, PreScore, State, state};
use crate::rows::{NodeRow, PodRow, Snapshot};

const MEBIBYTE: i64 = 1024 * 1024;
const MIN_THRESHOLD: i64 = 23 * MEBIBYTE;
const MAX_THRESHOLD_EACH: i64 = 1000 * MEBIBYTE;

pub struct ImageLocality;

impl Plugin for ImageLocality {
    /// Computes the image sizes for each node: an image that all nodes have counts fully, one that few have hardly.
    fn pre_score(&self, pod: &PodRow, snapshot: &mut Snapshot, feasible: &[usize]) -> PreScore {
        let total = snapshot.len().max(1) as f64;
        let mut weights: HashMap<usize, i64> = HashMap::new();
        for nodes in pod.demand.images.iter().filter_map(|image| snapshot.image(image)) {
            let spread = nodes.len() as f64 / total;
            for slot in feasible {
                if let Some(size) = nodes.get(slot) {
                    *weights.entry(*slot).or_default() += (*size as f64 * spread) as i64;
                }
            }
        }
        if weights.is_empty() { PreScore::Same(0) } else { PreScore::Ready(Box::new(weights)) }
    }

    fn score(&self, weights: &State, pod: &PodRow, node: &NodeRow, _: &Snapshot) -> i64 {
        let weights = state::<HashMap<usize, i64>>(weights);
        let sum = weights.and_then(|weights| weights.get(&node.slot)).copied().unwrap_or(0);
        let most = MAX_THRESHOLD_EACH * pod.demand.containers.max(1) as i64;
        MAX_SCORE * (sum.clamp(MIN_THRESHOLD, most) - MIN_THRESHOLD) / (most - MIN_THRESHOLD)
    }
}
