//! SchedulingGates: a pod with gates is not even tried.

use std::borrow::Cow;

use crate::framework::{Plugin, Verdict};
use crate::rows::PodRow;

pub struct SchedulingGates;

impl Plugin for SchedulingGates {
    fn name(&self) -> &'static str {
        "SchedulingGates"
    }

    fn pre_enqueue(&self, pod: &PodRow) -> Verdict {
        match pod.gates.is_empty() {
            true => Verdict::Fits,
            false => Verdict::Unresolvable(vec![Cow::Owned(format!(
                "waiting for scheduling gates: [{}]",
                pod.gates.join(" ")
            ))]),
        }
    }
}
