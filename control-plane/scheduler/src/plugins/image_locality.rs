//! ImageLocality: prefers nodes that already have the pod's images, by their size and how widespread they are.

use crate::framework::{MAX_SCORE, Plugin, PreScore, State};
use crate::rows::{NodeRow, PodRow, Snapshot};

const MEBIBYTE: i64 = 1024 * 1024;
const MIN_THRESHOLD: i64 = 23 * MEBIBYTE;
const MAX_THRESHOLD_EACH: i64 = 1000 * MEBIBYTE;

pub struct ImageLocality;

impl Plugin for ImageLocality {
    fn name(&self) -> &'static str {
        "ImageLocality"
    }

    /// For each image how much of the cluster has it: what everybody has attracts fully, what one node has hardly.
    fn pre_score(&self, pod: &PodRow, snapshot: &Snapshot, _: &[&NodeRow]) -> PreScore {
        let spreads: Vec<f64> = pod.images.iter().map(|image| snapshot.image_spread(image)).collect();
        match spreads.iter().all(|spread| *spread == 0.0) {
            true => PreScore::Skip,
            false => PreScore::Ready(Box::new(spreads)),
        }
    }

    fn score(&self, state: &State, pod: &PodRow, node: &NodeRow) -> i64 {
        let Some(spreads) = state.downcast_ref::<Vec<f64>>() else { return 0 };
        let size = |image: &String| node.images.get(image).copied().unwrap_or(0) as f64;
        let sum: f64 = pod.images.iter().zip(spreads).map(|(image, spread)| size(image) * spread).sum();
        let most = MAX_THRESHOLD_EACH * pod.images.len() as i64;
        let sum = (sum as i64).clamp(MIN_THRESHOLD, most.max(MIN_THRESHOLD));
        MAX_SCORE * (sum - MIN_THRESHOLD) / (most - MIN_THRESHOLD).max(1)
    }
}
