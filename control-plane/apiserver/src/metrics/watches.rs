//! The number and sizes of watch events.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{EVENT_SIZES, Histogram};

/// The metrics of the watches of one resource.
#[derive(Default)]
pub struct WatchSeries {
    pub events: AtomicU64,
    pub sizes: Histogram<{ EVENT_SIZES.len() }>,
}

impl WatchSeries {
    /// Counts events that are sent together, by their sizes.
    pub fn observe(&self, sizes: impl Iterator<Item = usize>) {
        let mut run: Option<(usize, u64, usize)> = None;
        // Neighbours of the same bucket are added at once: every watcher adds to the same counters.
        for size in sizes {
            run = match run {
                Some((first, count, sum)) if bucket(first) == bucket(size) => Some((first, count + 1, sum + size)),
                before => {
                    self.add(before);
                    Some((size, 1, size))
                }
            };
        }
        self.add(run);
    }

    fn add(&self, run: Option<(usize, u64, usize)>) {
        if let Some((size, count, sum)) = run {
            self.events.fetch_add(count, Ordering::Relaxed);
            self.sizes.add(size as f64, count, sum as f64, EVENT_SIZES);
        }
    }
}

fn bucket(size: usize) -> usize {
    EVENT_SIZES.partition_point(|bound| *bound < size as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{Exposition, WATCH_EVENT_SIZES};

    #[test]
    fn events_that_are_sent_together_count_one_by_one() {
        let series = WatchSeries::default();
        series.observe([100, 200, 5000, 300, 1 << 20].into_iter());
        series.observe(std::iter::empty());
        assert_eq!(series.events.load(Ordering::Relaxed), 5);
        assert_eq!(series.sizes.count(), 5);
        let mut out = Exposition::default();
        series.sizes.render(&mut out, &WATCH_EVENT_SIZES, &[]);
        let text = out.finish();
        assert!(text.starts_with("apiserver_watch_events_sizes_bucket{le=\"1024\"} 3\n"), "{text}");
        assert!(text.contains("apiserver_watch_events_sizes_bucket{le=\"131072\"} 4\n"), "{text}");
    }
}
