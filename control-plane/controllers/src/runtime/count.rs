//! What a decision adds to the metrics, as data: a plan says it, and the runtime counts it when the plan is done.
//!
//! Labels come from the code, or name namespaces, zones and autoscalers, as upstream's do: nothing else that a user writes
//! into an object may become one.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use corten_client::Metrics;
use corten_meta::Key;
use corten_meta::metrics::{Family, Kind};

/// A label that says how the plan went: in one word if it was carried out, in the other if not.
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

/// Which looks are counted: those whose plan was carried out, those whose plan was not, or all.
#[derive(Clone, Copy, Debug, PartialEq)]
enum When {
    Done,
    Failed,
    Always,
}

#[derive(Clone, Debug, PartialEq)]
enum Amount {
    Of(f64),
    /// How long the look took, its writes included.
    Took,
}

/// One thing to count: added to a counter, observed by a histogram, or this key's share of a gauge.
#[derive(Clone, Debug)]
pub struct Count {
    family: &'static Family,
    labels: Vec<Label>,
    amount: Amount,
    when: When,
}

/// Families are told apart by their names.
impl PartialEq for Count {
    fn eq(&self, other: &Count) -> bool {
        (self.family.name, &self.labels, &self.amount, self.when)
            == (other.family.name, &other.labels, &other.amount, other.when)
    }
}

impl Count {
    /// Counted when the plan is carried out; in any case if a label says how that went.
    pub fn new(family: &'static Family, labels: impl IntoIterator<Item = Label>, amount: f64) -> Count {
        let labels: Vec<Label> = labels.into_iter().collect();
        let tells = labels.iter().any(|label| matches!(label, Label::Result(..)));
        Count { family, labels, amount: Amount::Of(amount), when: if tells { When::Always } else { When::Done } }
    }

    /// How long the look took, however it went.
    pub fn took(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { amount: Amount::Took, when: When::Always, ..Count::new(family, labels, 0.0) }
    }

    /// One look, however it went.
    pub fn attempt(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { when: When::Always, ..Count::new(family, labels, 1.0) }
    }

    /// One look whose plan could not be carried out.
    pub fn failure(family: &'static Family, labels: impl IntoIterator<Item = Label>) -> Count {
        Count { when: When::Failed, ..Count::new(family, labels, 1.0) }
    }

    /// The labels, or none where this does not count.
    fn told(&self, success: bool) -> Option<Vec<&str>> {
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

/// What keys have in gauges: a gauge is the sum of their shares.
type Shares = HashMap<Key, Vec<(&'static Family, Vec<String>, f64)>>;

/// The counting of one controller.
#[derive(Default)]
pub struct Counter {
    metrics: Metrics,
    shares: Mutex<Shares>,
}

impl Counter {
    pub fn new(metrics: Metrics) -> Counter {
        Counter { metrics, shares: Mutex::default() }
    }

    /// Counts what one look at a key came to.
    pub fn count(&self, key: &Key, counts: &[Count], success: bool, took: Duration) {
        let registry = self.metrics.registry();
        let mut held = Vec::new();
        for count in counts {
            let Some(labels) = count.told(success) else { continue };
            let amount = match count.amount {
                Amount::Of(amount) => amount,
                Amount::Took => took.as_secs_f64(),
            };
            match count.family.kind {
                Kind::Counter => registry.series(count.family, &labels).add(amount),
                Kind::Histogram(_) => registry.series(count.family, &labels).observe(amount),
                Kind::Gauge => held.push((count.family, labels.into_iter().map(str::to_owned).collect(), amount)),
            }
        }
        // A look that failed knows nothing new.
        if success {
            self.share(key, held);
        }
    }

    /// Replaces the shares of a key; those of one that is gone are none.
    fn share(&self, key: &Key, held: Vec<(&'static Family, Vec<String>, f64)>) {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if held.is_empty() && !shares.contains_key(key) {
            return;
        }
        let add = |(family, labels, amount): &(&'static Family, Vec<String>, f64), sign: f64| {
            let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
            self.metrics.registry().series(family, &labels).add(sign * amount);
        };
        held.iter().for_each(|share| add(share, 1.0));
        let before = if held.is_empty() { shares.remove(key) } else { shares.insert(key.clone(), held) };
        before.iter().flatten().for_each(|share| add(share, -1.0));
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
}
