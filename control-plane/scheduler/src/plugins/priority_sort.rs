//! PrioritySort: the pod with the higher priority first, of equals the one that waits longer.

use crate::framework::Plugin;
use crate::queue_entry::Entry;

pub struct PrioritySort;

impl Plugin for PrioritySort {
    fn rank(&self, entry: &Entry) -> (i64, i128) {
        (-i64::from(entry.pod.priority), entry.queued_at.as_nanosecond())
    }
}
