//! A histogram that many threads add to: one atomic counter for each bucket, made cumulative only when it is read.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{Exposition, Family};

/// The counts of values up to each of `N` bounds, which the caller keeps.
pub struct Histogram<const N: usize, const PARTS: u64 = 1_000_000> {
    buckets: [AtomicU64; N],
    beyond: AtomicU64,
    /// The sum as an integer, in units of 1/`PARTS`: atomics can add these.
    sum: AtomicU64,
}

impl<const N: usize, const PARTS: u64> Default for Histogram<N, PARTS> {
    fn default() -> Self {
        Histogram { buckets: [const { AtomicU64::new(0) }; N], beyond: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }
}

impl<const N: usize, const PARTS: u64> Histogram<N, PARTS> {
    /// Adds one value.
    pub fn observe(&self, value: f64, bounds: &[f64]) {
        self.add(value, 1, value, bounds);
    }

    /// Adds `count` values of the bucket of `value` whose sum is `sum`.
    pub fn add(&self, value: f64, count: u64, sum: f64, bounds: &[f64]) {
        let bucket = bounds.iter().position(|bound| value <= *bound).and_then(|at| self.buckets.get(at));
        bucket.unwrap_or(&self.beyond).fetch_add(count, Ordering::Relaxed);
        self.sum.fetch_add((sum * PARTS as f64) as u64, Ordering::Relaxed);
    }

    pub fn count(&self) -> u64 {
        let within: u64 = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed)).sum();
        within + self.beyond.load(Ordering::Relaxed)
    }

    /// Writes one series of a histogram family, whose bounds are those that values were counted with.
    pub fn render(&self, out: &mut Exposition, family: &Family, labels: &[&str]) {
        let counts = self.buckets.iter().chain([&self.beyond]).map(|count| count.load(Ordering::Relaxed));
        out.histogram(family, labels, counts, self.sum.load(Ordering::Relaxed) as f64 / PARTS as f64);
    }
}

#[cfg(test)]
mod tests {
    use crate::metrics::Kind;

    use super::*;

    #[test]
    fn buckets_are_cumulative_and_include_their_bound() {
        const BOUNDS: &[f64] = &[1.0, 2.0];
        static FAMILY: Family = Family { name: "h", kind: Kind::Histogram(BOUNDS), labels: &["a"], help: "Help." };
        let histogram: Histogram<2> = Histogram::default();
        for value in [0.5, 1.0, 1.5, 9.0] {
            histogram.observe(value, BOUNDS);
        }
        let mut out = Exposition::default();
        histogram.render(&mut out, &FAMILY, &["b"]);
        let expected = "h_bucket{a=\"b\",le=\"1\"} 2\nh_bucket{a=\"b\",le=\"2\"} 3\nh_bucket{a=\"b\",le=\"+Inf\"} 4\n\
                        h_sum{a=\"b\"} 12\nh_count{a=\"b\"} 4\n";
        assert_eq!(out.finish(), expected);
    }
}
