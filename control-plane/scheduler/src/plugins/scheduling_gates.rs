//! SchedulingGates: a pod with gates does not enter the active queue.

use crate::framework::{Plugin, Verdict};
use crate::rows::PodRow;

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn pre_enqueue(&self, pod: &PodRow) -> Verdict {
        match pod.demand.gates.is_empty() {
            true => Verdict::Fits,
            false => {
                let gates = pod.demand.gates.join(" ");
                Verdict::unresolvable_because(format!("waiting for scheduling gates: [{gates}]"))
            }
        }
    }
}
