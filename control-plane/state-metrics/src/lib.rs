//! Metrics of the state of objects, under the names of kube-state-metrics: what boards and alerts ask for.
//!
//! Nothing is kept until a client scrapes. A scrape lists each resource in the caches of the API server, and writes the
//! series of those objects that changed since the scrape before. What was written is kept while scrapes go on.
//!
//! The families are data, `schema/state.tbl`: `table` reads it, `path` and `value` evaluate it.

mod allowed;
mod malformed;
mod path;
mod table;
mod value;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corten_meta::Object;
use jiff::Timestamp;
use serde_json::Value;

use allowed::KeyFamily;
use path::Scope;
use table::{Family, Kind, Rule};
use value::{Measured, Surroundings};

pub use allowed::AllowList;
pub use malformed::Malformed;
pub use value::NextSchedule;

/// The time without a scrape after which nothing is kept.
const FORGOTTEN: Duration = Duration::from_secs(15 * 60);

/// The caches that are listed.
pub trait Lister {
    /// Returns the objects of a resource, in all namespaces.
    fn list(&self, group: &str, version: &str, plural: &str) -> Vec<Arc<Object>>;
}

/// The metrics of the state of objects.
#[derive(Debug)]
pub struct StateMetrics {
    next_schedule: NextSchedule,
    /// The labels and annotations that have families.
    labels: AllowList,
    annotations: AllowList,
    state: Mutex<Option<State>>,
}

/// The series that are kept between scrapes.
#[derive(Debug)]
struct State {
    kinds: Vec<Cached>,
    scraped: Instant,
}

/// A kind, and the series of its objects.
#[derive(Debug)]
struct Cached {
    kind: Kind,
    /// The families of labels and annotations.
    keys: Vec<KeyFamily>,
    /// In the order of the list.
    objects: Vec<Written>,
}

/// The series of one version of an object.
#[derive(Debug, Default)]
struct Written {
    uid: String,
    version: u64,
    text: String,
    /// The end of each family in the text.
    ends: Vec<u32>,
}

impl StateMetrics {
    pub fn new(next_schedule: NextSchedule) -> StateMetrics {
        let labels = AllowList::default();
        StateMetrics { next_schedule, labels, annotations: AllowList::default(), state: Mutex::new(None) }
    }

    /// Adds families of these labels and annotations.
    pub fn allowing(mut self, labels: AllowList, annotations: AllowList) -> StateMetrics {
        self.labels = labels;
        self.annotations = annotations;
        self
    }

    /// Returns the metrics as they are now, in the Prometheus text format.
    pub fn page(&self, lister: &dyn Lister) -> Result<String, Malformed> {
        let mut guard = self.state();
        let mut state = match guard.take() {
            Some(state) => state,
            None => State::new(&self.labels, &self.annotations)?,
        };
        state.scraped = Instant::now();
        let mut page = String::new();
        for cached in &mut state.kinds {
            let Kind { group, version, plural, .. } = &cached.kind;
            let objects = lister.list(group, version, plural);
            cached.refresh(&objects, self.next_schedule);
            cached.print(&mut page);
        }
        *guard = Some(state);
        Ok(page)
    }

    /// Frees what is kept, if no client scraped for a while.
    pub fn forget_if_unused(&self) {
        let mut state = self.state();
        if state.as_ref().is_some_and(|state| state.scraped.elapsed() > FORGOTTEN) {
            *state = None;
        }
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn new(labels: &AllowList, annotations: &AllowList) -> Result<State, Malformed> {
        let kinds = table::kinds()?.into_iter().map(|kind| {
            let keys = allowed::families(&kind.plural, labels, annotations);
            Cached { kind, keys, objects: Vec::new() }
        });
        Ok(State { kinds: kinds.collect(), scraped: Instant::now() })
    }
}

impl Cached {
    /// Writes the series of objects that changed, and forgets those of objects that are gone.
    fn refresh(&mut self, objects: &[Arc<Object>], next_schedule: NextSchedule) {
        let before = std::mem::take(&mut self.objects).into_iter();
        let mut before: HashMap<String, Written> = before.map(|written| (written.uid.clone(), written)).collect();
        let now = Timestamp::now();
        for object in objects {
            let written = match before.remove(&object.header.uid) {
                Some(written) if written.version == object.revision => written,
                _ => {
                    let surroundings = Surroundings { version: object.revision, now, next_schedule };
                    self.kind.write(object, &self.keys, surroundings)
                }
            };
            self.objects.push(written);
        }
    }

    /// Prints each family with the series of all objects.
    fn print(&self, page: &mut String) {
        let families =
            self.kind.families.iter().map(|Family { name, kind, help, .. }| (name, kind.as_str(), help.as_str()));
        let keys = self.keys.iter().map(|family| (&family.name, "gauge", family.help));
        for (index, (name, kind, help)) in families.chain(keys).enumerate() {
            // Writing into a string cannot fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for written in &self.objects {
                page.push_str(written.family(index));
            }
        }
    }
}

impl Written {
    fn family(&self, index: usize) -> &str {
        let end = |index: usize| self.ends.get(index).map_or(0, |end| *end as usize);
        let start = index.checked_sub(1).map_or(0, end);
        self.text.get(start..end(index)).unwrap_or_default()
    }
}

impl Kind {
    /// Writes the series of an object, family by family.
    fn write(&self, object: &Object, keys: &[KeyFamily], surroundings: Surroundings) -> Written {
        let Ok(value) = serde_json::from_slice::<Value>(&object.bytes) else {
            return Written { uid: object.header.uid.clone(), version: object.revision, ..Written::default() };
        };
        let scope = Scope { object: &value, item: None, outer: None };
        let mut common = String::new();
        for label in &self.labels {
            push_label(&mut common, &label.name, &label.value(scope));
        }
        let mut text = String::new();
        let mut ends = Vec::with_capacity(self.families.len());
        for family in &self.families {
            for rule in &family.rules {
                let mut series = Series { name: &family.name, common: &common, text: &mut text };
                rule.write_items(&rule.each, scope, surroundings, &mut series);
            }
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        for family in keys {
            let map =
                if family.field == "labels" { corten_meta::labels(&value) } else { corten_meta::annotations(&value) };
            let mut labels = String::new();
            family.labels(&map).iter().for_each(|(name, value)| push_label(&mut labels, name, value));
            Series { name: &family.name, common: &common, text: &mut text }.write(&labels, 1.0);
            ends.push(u32::try_from(text.len()).unwrap_or(u32::MAX));
        }
        Written { uid: object.header.uid.clone(), version: object.revision, text, ends }
    }
}

impl Rule {
    /// Writes the series of a scope: for each item of the first list, then of the next.
    fn write_items(&self, each: &[path::Path], scope: Scope<'_>, surroundings: Surroundings, series: &mut Series<'_>) {
        let Some((first, rest)) = each.split_first() else {
            return self.write(scope, surroundings, series);
        };
        let items = first.items(scope);
        if items.is_empty() && self.at_least_one {
            self.write(scope, surroundings, series);
        }
        for item in &items {
            let inner = Scope { object: scope.object, item: Some(item), outer: scope.item };
            self.write_items(rest, inner, surroundings, series);
        }
    }

    fn write(&self, scope: Scope<'_>, surroundings: Surroundings, series: &mut Series<'_>) {
        if self.condition.as_ref().is_some_and(|condition| !condition.holds(scope)) {
            return;
        }
        for Measured { resource, value } in self.value.values(scope, surroundings) {
            let mut labels = String::new();
            for label in &self.labels {
                push_label(&mut labels, &label.name, &label.value(scope));
            }
            if let Some(resource) = &resource {
                push_label(&mut labels, "resource", &resource.name);
                push_label(&mut labels, "unit", resource.unit);
            }
            let Some(choice) = &self.choice else {
                series.write(&labels, value);
                continue;
            };
            let chosen = path::string(choice.path.first(scope));
            for possible in &choice.values {
                let mut labels = labels.clone();
                push_label(&mut labels, &choice.label, possible);
                series.write(&labels, if chosen.eq_ignore_ascii_case(possible) { value } else { 0.0 });
            }
        }
    }
}

/// Writes series of one family.
struct Series<'a> {
    name: &'a str,
    /// The labels of all series of the object.
    common: &'a str,
    text: &'a mut String,
}

impl Series<'_> {
    fn write(&mut self, labels: &str, value: f64) {
        let Series { name, common, text } = self;
        let separator = if common.is_empty() || labels.is_empty() { "" } else { "," };
        let _ = writeln!(text, "{name}{{{common}{separator}{labels}}} {value}");
    }
}

/// Appends a label, with its value escaped.
fn push_label(labels: &mut String, name: &str, value: &str) {
    if !labels.is_empty() {
        labels.push(',');
    }
    let _ = write!(labels, "{name}=\"");
    for character in value.chars() {
        match character {
            '\\' => labels.push_str("\\\\"),
            '"' => labels.push_str("\\\""),
            '\n' => labels.push_str("\\n"),
            other => labels.push(other),
        }
    }
    labels.push('"');
}
