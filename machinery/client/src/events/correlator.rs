//! Aggregates and filters events before they are written, by the rules of client-go: a repeated event is counted; many
//! events that differ only in their message become one; and a source may not flood the events of an object.
//!
//! Pure: time comes in as an argument.

use corten_api::k8s_openapi::api::core::v1::Event;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use jiff::{SignedDuration, Timestamp};
use std::collections::{HashMap, HashSet};

/// The number of entries that each table remembers.
const REMEMBERED: usize = 4096;
/// The number of different messages from which similar events are combined.
const SIMILAR: usize = 10;
/// The time after the last similar event for which they are combined.
const SIMILAR_INTERVAL: SignedDuration = SignedDuration::from_secs(600);
/// The number of events about an object that a source may send at once.
const BURST: f64 = 25.0;
/// The rate at which a source may send more: one every five minutes.
const REFILL_PER_SECOND: f64 = 1.0 / 300.0;

/// The decision about an event.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Drop it: the source has exceeded its rate for this object.
    Drop,
    /// Write a new event.
    Create(Box<Event>),
    /// It happened before: patch count, time and message of the event of this name.
    Count(Box<Event>),
}

#[derive(Default)]
pub struct Correlator {
    similar: Memory<Similar>,
    seen: Memory<Seen>,
    budgets: Memory<Budget>,
}

struct Similar {
    messages: HashSet<String>,
    last: Timestamp,
}

#[derive(Clone)]
struct Seen {
    count: i32,
    first: Option<Time>,
    name: Option<String>,
}

struct Budget {
    tokens: f64,
    at: Timestamp,
}

impl Correlator {
    pub fn correlate(&mut self, event: Event, now: Timestamp) -> Verdict {
        let (event, key) = self.combine(event, now);
        let event = self.count(event, &key);
        if !self.within_budget(&event, now) {
            return Verdict::Drop;
        }
        let again = event.count.unwrap_or(1) > 1;
        if again { Verdict::Count(Box::new(event)) } else { Verdict::Create(Box::new(event)) }
    }

    /// Forgets an event that the server refused: its next occurrence is a new one.
    pub fn forget(&mut self, event: &Event) {
        self.seen.remove(&event_key(event));
    }

    /// Combines events that differ only in their message. Returns the event and the key that identifies it.
    fn combine(&mut self, mut event: Event, now: Timestamp) -> (Event, String) {
        let key = similar_key(&event);
        let similar =
            self.similar.get_or_insert(&key, || Similar { messages: HashSet::new(), last: Timestamp::UNIX_EPOCH });
        if now.duration_since(similar.last) > SIMILAR_INTERVAL {
            similar.messages.clear();
        }
        similar.last = now;
        let message = event.message.clone().unwrap_or_default();
        // The set need not grow beyond the number that decides.
        if similar.messages.len() < SIMILAR {
            similar.messages.insert(message.clone());
        }
        if similar.messages.len() < SIMILAR {
            let key = event_key(&event);
            return (event, key);
        }
        let object = event.involved_object.name.as_deref().unwrap_or_default();
        event.metadata.name = Some(super::event_name(object, now));
        event.message = Some(format!("(combined from similar events): {message}"));
        event.first_timestamp = Some(Time(now));
        event.last_timestamp = Some(Time(now));
        (event, key)
    }

    /// Counts an event that was seen before: name and first time are those of its first occurrence.
    fn count(&mut self, mut event: Event, key: &str) -> Event {
        if let Some(seen) = self.seen.get(key) {
            event.metadata.name.clone_from(&seen.name);
            event.first_timestamp.clone_from(&seen.first);
            event.count = Some(seen.count.saturating_add(1));
        }
        let seen = Seen {
            count: event.count.unwrap_or(1),
            first: event.first_timestamp.clone(),
            name: event.metadata.name.clone(),
        };
        self.seen.insert(key, seen);
        event
    }

    /// Takes a token from the source's bucket for this object.
    fn within_budget(&mut self, event: &Event, now: Timestamp) -> bool {
        let budget = self.budgets.get_or_insert(&spam_key(event), || Budget { tokens: BURST, at: now });
        let elapsed = now.duration_since(budget.at).as_secs_f64().max(0.0);
        budget.tokens = (budget.tokens + elapsed * REFILL_PER_SECOND).min(BURST);
        budget.at = now;
        if budget.tokens < 1.0 {
            return false;
        }
        budget.tokens -= 1.0;
        true
    }
}

fn spam_key(event: &Event) -> String {
    let source = event.source.clone().unwrap_or_default();
    let object = &event.involved_object;
    let parts = [
        &source.component,
        &source.host,
        &object.kind,
        &object.namespace,
        &object.name,
        &object.uid,
        &object.api_version,
        &event.type_,
    ];
    parts.map(|part| part.as_deref().unwrap_or_default()).join("\0")
}

fn similar_key(event: &Event) -> String {
    let parts = [&event.reason, &event.reporting_component, &event.reporting_instance];
    spam_key(event) + "\0" + &parts.map(|part| part.as_deref().unwrap_or_default()).join("\0")
}

fn event_key(event: &Event) -> String {
    let parts = [&event.involved_object.field_path, &event.reason, &event.message];
    spam_key(event) + "\0" + &parts.map(|part| part.as_deref().unwrap_or_default()).join("\0")
}

/// A map that forgets the least recently used entries when it is full.
struct Memory<V> {
    entries: HashMap<String, (u64, V)>,
    clock: u64,
}

impl<V> Default for Memory<V> {
    fn default() -> Memory<V> {
        Memory { entries: HashMap::new(), clock: 0 }
    }
}

impl<V> Memory<V> {
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    fn get(&mut self, key: &str) -> Option<&V> {
        let now = self.tick();
        self.entries.get_mut(key).map(|(used, value)| {
            *used = now;
            &*value
        })
    }

    fn insert(&mut self, key: &str, value: V) {
        let now = self.tick();
        if !self.entries.contains_key(key) {
            self.make_room();
        }
        self.entries.insert(key.to_owned(), (now, value));
    }

    fn get_or_insert(&mut self, key: &str, value: impl FnOnce() -> V) -> &mut V {
        let now = self.tick();
        if !self.entries.contains_key(key) {
            self.make_room();
        }
        let (used, value) = self.entries.entry(key.to_owned()).or_insert_with(|| (now, value()));
        *used = now;
        value
    }

    fn remove(&mut self, key: &str) {
        self.entries.remove(key);
    }

    /// Forgets a quarter at a time, so that a full map stays cheap.
    fn make_room(&mut self) {
        if self.entries.len() < REMEMBERED {
            return;
        }
        let mut ages: Vec<u64> = self.entries.values().map(|(used, _)| *used).collect();
        let (_, middle, _) = ages.select_nth_unstable(REMEMBERED / 4);
        let limit = *middle;
        self.entries.retain(|_, (used, _)| *used > limit);
    }
}
