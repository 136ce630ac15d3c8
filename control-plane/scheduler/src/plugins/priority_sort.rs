//! PrioritySort: the more important pod first, of equals the one that waits longer.

use std::cmp::Ordering;

use crate::framework::Plugin;
use crate::queue::Entry;

pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn name(&self) -> &'static str {
        "PrioritySort"
    }

    fn order(&self, a: &Entry, b: &Entry) -> Option<Ordering> {
        Some(b.pod.priority.cmp(&a.pod.priority).then_with(|| a.queued_at.cmp(&b.queued_at)))
    }
}
