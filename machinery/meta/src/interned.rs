//! Sets of labels that many objects share, kept once.
//!
//! The pods of a workload have the same labels, and the watch cache and every informer of the process hold each pod. A
//! separate map for each would take more memory than the bytes of a small object. Sets that are equal when they are
//! decoded share one map. The next sweep removes a map that no object holds any more.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The labels of an object.
pub type Labels = Arc<BTreeMap<String, String>>;

/// The smallest size at which the table is swept. It is swept when it has doubled since the last sweep.
const SWEEP: usize = 1024;

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(|| Mutex::new(Table { sets: HashSet::new(), sweep_at: SWEEP }));

struct Table {
    sets: HashSet<Labels>,
    sweep_at: usize,
}

/// Returns the shared map of these labels.
pub fn labels(labels: BTreeMap<String, String>) -> Labels {
    if labels.is_empty() {
        // An empty map allocates nothing but its counters.
        return Labels::default();
    }
    // The table is consistent even if another thread panicked while it held the lock.
    TABLE.lock().unwrap_or_else(PoisonError::into_inner).share(labels)
}

impl Table {
    fn share(&mut self, labels: BTreeMap<String, String>) -> Labels {
        if let Some(known) = self.sets.get(&labels) {
            return Arc::clone(known);
        }
        if self.sets.len() >= self.sweep_at {
            self.sets.retain(|set| Arc::strong_count(set) > 1);
            self.sweep_at = SWEEP.max(2 * self.sets.len());
        }
        let labels = Arc::new(labels);
        self.sets.insert(Arc::clone(&labels));
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: usize) -> BTreeMap<String, String> {
        BTreeMap::from([("app".to_owned(), value.to_string())])
    }

    #[test]
    fn equal_sets_share_a_map_and_others_do_not() {
        let one = labels(set(1));
        let same = labels(set(1));
        let other = labels(set(2));
        assert!(Arc::ptr_eq(&one, &same));
        assert_ne!(one, other);
        assert!(labels(BTreeMap::new()).is_empty());
    }

    #[test]
    fn maps_without_holders_are_swept_and_others_stay() {
        let mut table = Table { sets: HashSet::new(), sweep_at: SWEEP };
        let held: Vec<Labels> = (0..10).map(|number| table.share(set(number))).collect();
        for number in 0..10 * SWEEP {
            table.share(set(number));
        }
        assert!(table.sets.len() <= SWEEP, "{} sets are kept", table.sets.len());
        for (number, labels) in held.iter().enumerate() {
            assert!(Arc::ptr_eq(labels, &table.share(set(number))));
        }
    }
}
