//! Sets of labels that many objects have in common, kept once.
//!
//! The pods of a workload all bear the same labels, and each of them is held by the watch cache and by every informer
//! of the process. A map of its own for each would take more memory than a small object's text. Two sets that are
//! equal when they are read share one map; a map that no object holds any more goes with the next sweep.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

/// The labels of an object.
pub type Labels = Arc<BTreeMap<String, String>>;

/// The table is swept when it has grown to twice what the last sweep left, and not below this size.
const SWEEP: usize = 1024;

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(|| Mutex::new(Table { sets: HashSet::new(), sweep_at: SWEEP }));

struct Table {
    sets: HashSet<Labels>,
    sweep_at: usize,
}

/// The one map of these labels.
pub fn labels(labels: BTreeMap<String, String>) -> Labels {
    if labels.is_empty() {
        // Takes no memory but its counters.
        return Labels::default();
    }
    // Whoever panicked while holding it left a whole table.
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
        let (one, same, other) = (labels(set(1)), labels(set(1)), labels(set(2)));
        assert!(Arc::ptr_eq(&one, &same));
        assert_ne!(one, other);
        assert!(labels(BTreeMap::new()).is_empty());
    }

    #[test]
    fn what_nobody_holds_is_swept_and_what_is_held_stays() {
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
