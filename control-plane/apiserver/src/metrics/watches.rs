//! The number and sizes of watch events.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Histogram;

/// The bounds of the sizes of events, in bytes.
pub const SIZES: &[f64] = &[1024.0, 2048.0, 4096.0, 8192.0, 16384.0, 32768.0, 65536.0, 131072.0];

/// The metrics of the watches of one resource.
#[derive(Default)]
pub struct WatchSeries {
    pub events: AtomicU64,
    pub sizes: Histogram<{ SIZES.len() }>,
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
            self.sizes.add(size as f64, count, sum as f64, SIZES);
        }
    }
}

fn bucket(size: usize) -> usize {
    SIZES.partition_point(|bound| *bound < size as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Exposition;

    #[test]
    fn events_that_are_sent_together_count_one_by_one() {
        let series = WatchSeries::default();
        series.observe([100, 200, 5000, 300, 1 << 20].into_iter());
        series.observe(std::iter::empty());
        assert_eq!(series.events.load(Ordering::Relaxed), 5);
        assert_eq!(series.sizes.count(), 5);
        let mut out = Exposition::default();
        series.sizes.render(&mut out, "s", &[], SIZES);
        let text = out.finish();
        assert!(text.starts_with("s_bucket{le=\"1024\"} 3\n"), "{text}");
        assert!(text.contains("s_bucket{le=\"131072\"} 4\n"), "{text}");
    }
}
