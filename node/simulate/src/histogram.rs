//! Durations as counts in buckets: of any number of requests in eight kilobytes, exact to three percent.

use std::time::Duration;

/// The buckets of one power of two.
const STEPS: u64 = 32;
/// The longest duration that has a bucket of its own: 2^36 microseconds, nineteen hours.
const LONGEST: u64 = 1 << 36;

/// The durations of many events.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    longest: u64,
}

impl Histogram {
    pub fn add(&mut self, duration: Duration) {
        let micros = u64::try_from(duration.as_micros()).unwrap_or(LONGEST).min(LONGEST);
        let bucket = bucket(micros);
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.longest = self.longest.max(micros);
    }

    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the time in milliseconds that this part of the events did not exceed; `part` is between 0 and 1.
    pub fn percentile(&self, part: f64) -> f64 {
        let rank = ((self.count as f64 * part).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return upper_bound(bucket).min(self.longest) as f64 / 1000.0;
            }
        }
        0.0
    }
}

/// Returns the bucket of a duration in microseconds: one each up to 64, then 32 for each power of two.
fn bucket(micros: u64) -> usize {
    let doublings = u64::from(micros.max(1).ilog2()).saturating_sub(5);
    (doublings * STEPS + (micros >> doublings)) as usize
}

/// Returns the longest duration of a bucket.
fn upper_bound(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    let doublings = (bucket / STEPS).saturating_sub(1);
    ((bucket - doublings * STEPS + 1) << doublings) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_exact_to_three_percent() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.percentile(0.5), 0.0);
        for milliseconds in (1..=1000).rev() {
            histogram.add(Duration::from_millis(milliseconds));
        }
        for (part, expected) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let found = histogram.percentile(part);
            assert!((expected..=expected * 1.04).contains(&found), "{part}: {found}");
        }
        assert_eq!(histogram.count(), 1000);
    }

    #[test]
    fn every_duration_is_within_its_bucket() {
        let near = (0..36).flat_map(|power| [(1u64 << power) - 1, 1 << power, (1 << power) + 1]);
        for micros in near {
            let bucket = bucket(micros);
            assert!(micros <= upper_bound(bucket), "{micros}");
            assert!(bucket == 0 || micros > upper_bound(bucket - 1), "{micros}");
        }
    }
}
