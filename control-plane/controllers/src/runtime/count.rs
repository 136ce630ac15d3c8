//! The metrics that a reconcile counts, as data: a plan names them, and the runtime counts them when the plan is
//! applied.
//!
//! A label value comes from the code, or names a namespace, zone, CIDR, autoscaler, StatefulSet or the manager of a
//! Job, as upstream's do, or a PersistentVolume with a copy. No other string that a user writes into an object may become a label value.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use corten_client::Metrics;
use corten_meta::Key;
use corten_meta::metrics::{Family, Kind};

/// A label with the result of the plan: the first value if it was applied, the second if not.
pub const RESULT: Label = Label::Result("success", "error");

#[derive(Clone, Debug, PartialEq)]
pub enum Label {
    Is(String),
    Result(&'static str, &'static str),
}

impl From<&str> for Label {
    fn from(text: &str) -> Label {
        Label::Is(text.to_owned())
    }
}

/// The reconciles that are counted: those whose plan was applied, those whose plan failed, or all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Done,
    Failed,
    Always,
}

#[derive(Clone, Debug, PartialEq)]
enum Increment {
    By(f64),
    /// The duration of the reconcile, its writes included.
    Took,
    /// One part of a gauge that shows the mean of all parts.
    Mean(f64),
    /// One, when the key has this count for the first time.
    Begin,
    /// One, when the key no longer has this count.
    End,
}

/// One metric to count: added to a counter, observed by a histogram, or this key's share of a gauge.
#[derive(Clone, Debug)]
pub struct Count {
    family: &'static Family,
    labels: Vec<Label>,
    increment: Increment,
    when: When,
}

/// Families are compared by their names.
impl PartialEq for Count {
    fn eq(&self, other: &Count) -> bool {
        (self.family.name, &self.labels, &self.increment, self.when)
            == (other.family.name, &other.labels, &other.increment, other.when)
    }
}

impl Count {
    /// Counts if the plan is applied; always if a label shows the result.
    pub fn new(family: &'static Family, labels: impl IntoIterator<Item = Label>, value: f64) -> Count {
        let labels: Vec<Label> = labels.into_iter().collect();
        let tells = labels.iter().any(|label| matches!(label, Label::Result(..)));
        Count { family, labels, increment: Increment::By(value), when: if tells { When::Always } else { When::Done } }
    }

    /// Counts the duration of the reconcile, whatever its result.
    pub fn took(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { increment: Increment::Took, when: When::Always, ..Count::new(family, labels, 0.0) }
    }

    /// Counts one reconcile, whatever its result.
    pub fn attempt(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { when: When::Always, ..Count::new(family, labels, 1.0) }
    }

    /// Counts one reconcile whose plan failed.
    pub fn failure(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { when: When::Failed, ..Count::new(family, labels, 1.0) }
    }

    /// Adds this key's part to a gauge that is the mean of all parts.
    pub fn mean(family: &'static Family, labels: impl IntoIterator<Item = Label>, value: f64) -> Count {
        Count { increment: Increment::Mean(value), ..Count::new(family, labels, 0.0) }
    }

    /// Counts once for a key, however often it is reconciled.
    pub fn begin(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { increment: Increment::Begin, ..Count::new(family, labels, 0.0) }
    }

    /// Counts once, at the first reconcile of a key whose plan no longer has this count.
    pub fn end(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { increment: Increment::End, ..Count::new(family, labels, 0.0) }
    }

    /// Returns the label values; none if this result is not counted.
    fn label_values(&self, success: bool) -> Option<Vec<&str>> {
        let counts = match self.when {
            When::Always => true,
            When::Done => success,
            When::Failed => !success,
        };
        counts.then(|| self.labels.iter().map(|label| text_of(label, success)).collect())
    }
}

fn text_of(label: &Label, success: bool) -> &str {
    match label {
        Label::Is(text) => text,
        Label::Result(done, _) if success => done,
        Label::Result(_, failed) => failed,
    }
}

/// The share of a key in a series until its next reconcile.
#[derive(Clone, Debug)]
struct Share {
    family: &'static Family,
    labels: Vec<String>,
    increment: Increment,
}

/// Families are compared by their names.
impl PartialEq for Share {
    fn eq(&self, other: &Share) -> bool {
        (self.family.name, &self.labels, &self.increment) == (other.family.name, &other.labels, &other.increment)
    }
}

/// The shares of all keys, and the sum and the number of parts of each mean.
#[derive(Default)]
struct Shares {
    of: HashMap<Key, Vec<Share>>,
    means: HashMap<(&'static str, Vec<String>), (f64, f64)>,
}

/// Counts the metrics of one controller.
#[derive(Default)]
pub struct Counter {
    metrics: Metrics,
    shares: Mutex<Shares>,
}

impl Counter {
    pub fn new(metrics: Metrics) -> Counter {
        Counter { metrics, shares: Mutex::default() }
    }

    /// Counts the metrics of one reconcile of a key.
    pub fn count(&self, key: &Key, counts: &[Count], success: bool, took: Duration) {
        let registry = self.metrics.registry();
        let mut held = Vec::new();
        for count in counts {
            let Some(labels) = count.label_values(success) else { continue };
            let increment = match (&count.increment, count.family.kind) {
                (Increment::Took, _) => took.as_secs_f64(),
                (Increment::By(value), Kind::Counter | Kind::Histogram(_)) => *value,
                (increment, _) => {
                    let labels = labels.into_iter().map(str::to_owned).collect();
                    held.push(Share { family: count.family, labels, increment: increment.clone() });
                    continue;
                }
            };
            match count.family.kind {
                Kind::Histogram(_) => registry.series(count.family, &labels).observe(increment),
                _ => registry.series(count.family, &labels).add(increment),
            }
        }
        // A failed reconcile knows nothing new.
        if success {
            self.share(key, held);
        }
    }

    /// Adds one to a series, outside of a reconcile.
    pub fn one(&self, family: &'static Family, labels: &[&str]) {
        self.metrics.registry().series(family, labels).add(1.0);
    }

    /// Replaces the shares of a key. A deleted object has none.
    fn share(&self, key: &Key, held: Vec<Share>) {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shares.of.remove(key).unwrap_or_default();
        if before == held {
            if !held.is_empty() {
                shares.of.insert(key.clone(), held);
            }
            return;
        }
        held.iter().filter(|share| !before.contains(share)).for_each(|share| self.add(&mut shares, share, true));
        before.iter().filter(|share| !held.contains(share)).for_each(|share| self.add(&mut shares, share, false));
        if !held.is_empty() {
            shares.of.insert(key.clone(), held);
        }
    }

    /// Adds a share to its series, or removes it.
    fn add(&self, shares: &mut Shares, share: &Share, comes: bool) {
        let labels: Vec<&str> = share.labels.iter().map(String::as_str).collect();
        let series = self.metrics.registry().series(share.family, &labels);
        let sign = if comes { 1.0 } else { -1.0 };
        match share.increment {
            Increment::By(value) => series.add(sign * value),
            Increment::Mean(value) => {
                let (sum, parts) = shares.means.entry((share.family.name, share.labels.clone())).or_default();
                (*sum, *parts) = (*sum + sign * value, *parts + sign);
                series.set(if *parts > 0.0 { *sum / *parts } else { 0.0 });
            }
            Increment::Begin if comes => series.add(1.0),
            Increment::End if !comes => series.add(1.0),
            Increment::Begin | Increment::End | Increment::Took => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static WRITES: Family = Family { name: "writes_total", kind: Kind::Counter, labels: &["result"], help: "h" };
    static MADE: Family = Family { name: "made_total", kind: Kind::Counter, labels: &[], help: "h" };
    static SIZE: Family = Family { name: "size", kind: Kind::Gauge, labels: &["zone"], help: "h" };

    #[test]
    fn a_gauge_is_the_sum_of_shares_and_a_failure_counts_only_as_one() {
        let metrics = Metrics::default();
        let counter = Counter::new(metrics.clone());
        let (a, b) = (Key::new("", "a"), Key::new("", "b"));
        let look = |key: &Key, zone: &str, success: bool| {
            let counts =
                [Count::new(&WRITES, [RESULT], 1.0), Count::new(&MADE, [], 2.0), Count::new(&SIZE, [zone.into()], 1.0)];
            counter.count(key, &counts, success, Duration::ZERO);
        };
        look(&a, "x", true);
        look(&b, "x", true);
        look(&a, "y", false);
        let text = metrics.render();
        for line in [
            "writes_total{result=\"success\"} 2",
            "writes_total{result=\"error\"} 1",
            "made_total 4",
            "size{zone=\"x\"} 2",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} is not in:\n{text}");
        }
        counter.count(&b, &[], true, Duration::ZERO);
        assert!(metrics.render().contains("size{zone=\"x\"} 1"));
    }

    #[test]
    fn a_mean_follows_its_parts_and_beginnings_and_ends_count_once() {
        static HEALTH: Family = Family { name: "health", kind: Kind::Gauge, labels: &[], help: "h" };
        static CAME: Family = Family { name: "came_total", kind: Kind::Counter, labels: &[], help: "h" };
        static WENT: Family = Family { name: "went_total", kind: Kind::Counter, labels: &[], help: "h" };
        let metrics = Metrics::default();
        let counter = Counter::new(metrics.clone());
        let look = |name: &str, health: Option<f64>| {
            let part = |value| [Count::mean(&HEALTH, [], value), Count::begin(&CAME, []), Count::end(&WENT, [])];
            let counts: Vec<Count> = health.into_iter().flat_map(part).collect();
            counter.count(&Key::new("", name), &counts, true, Duration::ZERO);
        };
        let shows = |lines: [&str; 3]| {
            let text = metrics.render();
            lines.iter().for_each(|line| assert!(text.lines().any(|one| one == *line), "{line} is not in:\n{text}"));
        };
        for (name, health) in [("a", 100.0), ("b", 100.0), ("b", 0.0), ("b", 0.0)] {
            look(name, Some(health));
        }
        shows(["health 50", "came_total 2", "went_total 0"]);
        look("b", None);
        shows(["health 100", "came_total 2", "went_total 1"]);
    }
}
