//! The families of one component, and their series.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::Exposition;
use super::exposition::number;

/// The kind of a family.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    Counter,
    Gauge,
    /// A histogram with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

/// The declaration of a family.
#[derive(Debug)]
pub struct Family {
    pub name: &'static str,
    pub kind: Kind,
    pub labels: &'static [&'static str],
    pub help: &'static str,
}

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
    fn new(kind: Kind) -> Series {
        let (bounds, buckets) = match kind {
            Kind::Histogram(bounds) => (bounds, bounds.len() + 1),
            Kind::Counter | Kind::Gauge => (&[][..], 0),
        };
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

    fn render(&self, out: &mut Exposition, family: &Family, labels: &[(&str, &str)]) {
        if self.buckets.is_empty() {
            return out.sample(family.name, labels, self.get());
        }
        let mut total = 0;
        let bounds = self.bounds.iter().map(|bound| number(*bound)).chain(["+Inf".to_owned()]);
        for (count, bound) in self.buckets.iter().zip(bounds) {
            total += count.load(Ordering::Relaxed);
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            out.sample(&format!("{}_bucket", family.name), &labels, total as f64);
        }
        out.sample(&format!("{}_sum", family.name), labels, self.get());
        out.sample(&format!("{}_count", family.name), labels, total as f64);
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
        members.entry(labels).or_insert_with(|| Arc::new(Series::new(family.kind))).clone()
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

    /// Renders all families in the text format, sorted by name.
    pub fn render(&self) -> String {
        let mut out = Exposition::default();
        let families = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (family, members) in families.values() {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram(_) => "histogram",
            };
            out.family(family.name, kind, family.help);
            for (values, series) in members {
                let labels: Vec<(&str, &str)> =
                    family.labels.iter().copied().zip(values.iter().map(String::as_str)).collect();
                series.render(&mut out, family, &labels);
            }
        }
        out.finish()
    }
}

/// Returns bounds that grow by a factor.
pub const fn exponential<const N: usize>(start: f64, factor: f64) -> [f64; N] {
    let mut bounds = [start; N];
    let mut at = 1;
    while at < N {
        bounds[at] = bounds[at - 1] * factor;
        at += 1;
    }
    bounds
}

#[cfg(test)]
mod tests {
    use super::*;

    static BOUNDS: [f64; 3] = exponential(0.000_01, 10.0);
    static SECONDS: Family =
        Family { name: "a_seconds", kind: Kind::Histogram(&BOUNDS), labels: &["result"], help: "How long." };
    static COUNT: Family = Family { name: "b_total", kind: Kind::Counter, labels: &[], help: "How often." };

    static INFO: Family = Family { name: "c_info", kind: Kind::Gauge, labels: &["hash", "of"], help: "Which." };

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
