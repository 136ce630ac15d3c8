//! The families of one component, and their series.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::{Exposition, Family};

/// One series of a family.
#[derive(Debug)]
pub struct Series {
    bounds: &'static [f64],
    /// The count of each bucket and of the values beyond; a counter or gauge has none.
    buckets: Box<[AtomicU64]>,
    /// The value, or the sum of a histogram, as the bits of a float.
    value: AtomicU64,
}

impl Series {
    fn new(family: &Family) -> Series {
        let bounds = family.bounds();
        let buckets = if bounds.is_empty() { 0 } else { bounds.len() + 1 };
        Series { bounds, buckets: (0..buckets).map(|_| AtomicU64::new(0)).collect(), value: AtomicU64::new(0) }
    }

    pub fn add(&self, value: f64) {
        let sum = |bits| Some((f64::from_bits(bits) + value).to_bits());
        // The closure never declines.
        let _ = self.value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum);
    }

    pub fn set(&self, value: f64) {
        self.value.store(value.to_bits(), Ordering::Relaxed);
    }

    pub fn get(&self) -> f64 {
        f64::from_bits(self.value.load(Ordering::Relaxed))
    }

    /// Adds one value to a histogram.
    pub fn observe(&self, value: f64) {
        let bucket = self.bounds.iter().position(|bound| value <= *bound).unwrap_or(self.bounds.len());
        if let Some(count) = self.buckets.get(bucket) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.add(value);
    }

    fn render(&self, out: &mut Exposition, family: &Family, values: &[&str]) {
        if self.buckets.is_empty() {
            return out.sample(family, values, self.get());
        }
        out.histogram(family, values, self.buckets.iter().map(|count| count.load(Ordering::Relaxed)), self.get());
    }
}

type Members = BTreeMap<Vec<String>, Arc<Series>>;

/// The families of one component.
#[derive(Debug, Default)]
pub struct Registry(Mutex<BTreeMap<&'static str, (&'static Family, Members)>>);

impl Registry {
    /// Returns the series of a family with these label values, in their order, and creates it if it is new.
    pub fn series(&self, family: &'static Family, labels: &[&str]) -> Arc<Series> {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, members) = families.entry(family.name).or_insert_with(|| (family, Members::new()));
        let labels: Vec<String> = labels.iter().map(|label| (*label).to_owned()).collect();
        members.entry(labels).or_insert_with(|| Arc::new(Series::new(family))).clone()
    }

    /// Sets the series with these labels to one, and removes those that differ from it only in the label at `index`:
    /// there is one at a time.
    pub fn only(&self, family: &'static Family, index: usize, labels: &[&str]) {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, members)) = families.get_mut(family.name) {
            let is_other = |at: usize, value: &str| labels.get(at).is_some_and(|label| *label != value);
            members.retain(|values, _| values.iter().enumerate().any(|(at, value)| at != index && is_other(at, value)));
        }
        drop(families);
        self.series(family, labels).set(1.0);
    }

    /// Removes the series of a family that `keep` refuses, by their label values.
    pub fn retain(&self, family: &'static Family, keep: impl Fn(&[String]) -> bool) {
        let mut families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, members)) = families.get_mut(family.name) {
            members.retain(|labels, _| keep(labels));
        }
    }

    /// Renders all families in the text format, sorted by name.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        let families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (family, members) in families.values() {
            out.family(family);
            for (values, series) in members {
                let values: Vec<&str> = values.iter().map(String::as_str).collect();
                series.render(&mut out, family, &values);
            }
        }
        out.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::exponential;
    use super::*;

    static BOUNDS: [f64; 3] = exponential(0.000_01, 10.0);

    crate::families! {
        SECONDS = Histogram(&BOUNDS) "a_seconds" ["result"], "How long.";
        COUNT = Counter "b_total" [], "How often.";
        INFO = Gauge "c_info" ["hash", "of"], "Which.";
    }

    #[test]
    fn a_list_has_every_family() {
        assert_eq!(FAMILIES.iter().map(|family| family.name).collect::<Vec<_>>(), ["a_seconds", "b_total", "c_info"]);
    }

    #[test]
    fn only_removes_the_series_that_it_replaces() {
        let registry = Registry::default();
        for (hash, of) in [("1", "a"), ("2", "b"), ("3", "a")] {
            registry.only(&INFO, 0, &[hash, of]);
        }
        let text = registry.render();
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(samples, ["c_info{hash=\"2\",of=\"b\"} 1", "c_info{hash=\"3\",of=\"a\"} 1"]);
    }

    #[test]
    fn series_are_kept_by_label_and_buckets_are_cumulative() {
        let registry = Registry::default();
        registry.series(&COUNT, &[]).add(2.0);
        registry.series(&COUNT, &[]).add(1.0);
        let series = registry.series(&SECONDS, &["ok"]);
        [0.000_01, 0.0005, 0.5].into_iter().for_each(|value| series.observe(value));
        let expected = "# HELP a_seconds How long.\n# TYPE a_seconds histogram\n\
            a_seconds_bucket{result=\"ok\",le=\"1e-05\"} 1\na_seconds_bucket{result=\"ok\",le=\"0.0001\"} 1\n\
            a_seconds_bucket{result=\"ok\",le=\"0.001\"} 2\na_seconds_bucket{result=\"ok\",le=\"+Inf\"} 3\n\
            a_seconds_sum{result=\"ok\"} 0.50051\na_seconds_count{result=\"ok\"} 3\n\
            # HELP b_total How often.\n# TYPE b_total counter\nb_total 3\n";
        assert_eq!(registry.render(), expected);
    }
}
