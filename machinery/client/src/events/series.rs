//! Events of `events.k8s.io/v1` as upstream's scheduler writes them: the first occurrence is written, the second makes
//! it a series, and further ones are only counted until the series ends or half an hour has passed.
//!
//! Events are the least urgent writes of a scheduler. Upstream sends 50 a second and drops those beyond a queue of
//! 1,000. This recorder sends 50 a second while the component is busy, and otherwise as many as the server takes, one
//! at a time. It drops none before 16,384 wait.

use super::{EventType, ObjectRef, PAUSE, TRIES, event_name};
use crate::backoff::jitter;
use crate::{Client, Dynamic, Error, Patch, Resource};
use corten_meta::{Value, time::rfc3339_micro};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

const QUEUE: usize = 16 * 1024;
/// The pause between two events of a busy component.
const BUSY_PACE: Duration = Duration::from_millis(20);
/// The time without an occurrence after which a series is over.
const OVER: Duration = Duration::from_secs(360);
/// The number of checks for ended series after which all others are written too.
const REFRESH: u32 = 5;
/// The number of events that are remembered, so that they become series.
const REMEMBERED: usize = 4096;

/// One occurrence of an event.
#[derive(Debug)]
pub struct Occurrence {
    pub regarding: ObjectRef,
    pub related: Option<ObjectRef>,
    pub kind: EventType,
    pub reason: &'static str,
    /// The action during which the event happened.
    pub action: &'static str,
    pub note: String,
}

/// Records events in the name of one controller. Recording never blocks and never fails.
pub struct SeriesRecorder {
    queue: mpsc::Sender<(Occurrence, Timestamp)>,
}

impl SeriesRecorder {
    /// Starts a recorder. `instance` names the process; `busy` is true while its events should yield. Needs a running
    /// tokio runtime.
    pub fn new(client: &Client, controller: &str, instance: String, busy: watch::Receiver<bool>) -> SeriesRecorder {
        let (queue, occurrences) = mpsc::channel(QUEUE);
        let events = client.dynamic(&Resource::new("events.k8s.io", "v1", "events", true));
        let writer = Writer { events, controller: controller.to_owned(), instance, busy, recent: Recent::default() };
        tokio::spawn(writer.run(occurrences));
        SeriesRecorder { queue }
    }

    /// Records an occurrence at the current time.
    pub fn record(&self, occurrence: Occurrence) {
        let occurrence = (occurrence, corten_meta::time::now());
        if let Err(mpsc::error::TrySendError::Full((lost, _))) = self.queue.try_send(occurrence) {
            tracing::warn!(reason = lost.reason, name = %lost.regarding.name, "too many queued events, dropped one");
        }
    }
}

struct Writer {
    events: Dynamic,
    controller: String,
    instance: String,
    busy: watch::Receiver<bool>,
    recent: Recent,
}

impl Writer {
    async fn run(mut self, mut occurrences: mpsc::Receiver<(Occurrence, Timestamp)>) {
        let mut looks = tokio::time::interval(OVER);
        let mut look = 0;
        loop {
            tokio::select! {
                occurrence = occurrences.recv() => match occurrence {
                    Some((occurrence, at)) => self.write(&occurrence, at, &occurrences).await,
                    None => return,
                },
                _ = looks.tick() => {
                    look += 1;
                    for (event, patch) in self.recent.due(corten_meta::time::now(), look % REFRESH == 0) {
                        self.send(&event, &Write::Patch(patch), &occurrences).await;
                    }
                }
            }
        }
    }

    async fn write(
        &mut self,
        occurrence: &Occurrence,
        at: Timestamp,
        recorders: &mpsc::Receiver<(Occurrence, Timestamp)>,
    ) {
        let Some((event, patch)) = self.recent.enter(occurrence, at) else { return };
        let write = match patch {
            Some(patch) => Write::Patch(patch),
            None => Write::Create(self.event(occurrence, &event, at)),
        };
        self.send(&event, &write, recorders).await;
    }

    fn event(&self, occurrence: &Occurrence, event_key: &EventKey, at: Timestamp) -> Value {
        let mut event = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"namespace": event_key.namespace, "name": event_key.name},
            "eventTime": rfc3339_micro(at), "type": occurrence.kind.as_str(),
            "reportingController": self.controller, "reportingInstance": self.instance,
            "action": occurrence.action, "reason": occurrence.reason, "note": occurrence.note,
            "regarding": reference(&occurrence.regarding),
        });
        if let Some(related) = &occurrence.related {
            event["related"] = reference(related);
        }
        event
    }

    /// Sends a write. Every answer of the server is final, also a refusal; without an answer it is retried as long as a
    /// recorder exists.
    async fn send(&mut self, event_key: &EventKey, write: &Write, recorders: &mpsc::Receiver<(Occurrence, Timestamp)>) {
        // Without a sender the component is not busy.
        let _ = tokio::time::timeout(BUSY_PACE, self.busy.wait_for(|busy| !busy)).await;
        for attempt in 0..TRIES {
            let sent = match write {
                Write::Create(event) => self.events.post(&event_key.namespace, event).await,
                Write::Patch(patch) => self.events.send_patch(&event_key.namespace, &event_key.name, patch).await,
            };
            match sent {
                Ok(()) => return,
                Err(Error::Api(status)) => {
                    tracing::debug!(%status, event = %event_key.name, "the server rejected an event");
                    return self.recent.forget(event_key);
                }
                Err(error) if attempt + 1 == TRIES || recorders.is_closed() => {
                    tracing::warn!(%error, event = %event_key.name, "cannot write an event");
                    return;
                }
                Err(_) => tokio::time::sleep(PAUSE.mul_f64(1.0 + 0.25 * jitter())).await,
            }
        }
    }
}

enum Write {
    Create(Value),
    Patch(Patch),
}

fn reference(about: &ObjectRef) -> Value {
    let fields = [
        ("apiVersion", &about.api_version),
        ("kind", &about.kind),
        ("namespace", &about.namespace),
        ("name", &about.name),
        ("uid", &about.uid),
        ("resourceVersion", &about.resource_version),
        ("fieldPath", &about.field_path),
    ];
    let set = fields.into_iter().filter(|(_, value)| !value.is_empty());
    set.map(|(field, value)| (field.to_owned(), Value::from(value.as_str()))).collect()
}

/// The namespace and name of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
struct EventKey {
    namespace: String,
    name: String,
}

/// The recent events. Pure: time comes in as an argument.
#[derive(Default)]
struct Recent {
    entries: HashMap<String, Entry>,
}

struct Entry {
    event_key: EventKey,
    last: Timestamp,
    count: i32,
}

impl Entry {
    fn patch(&self) -> Patch {
        Patch::Strategic(json!({"series": {"count": self.count, "lastObservedTime": rfc3339_micro(self.last)}}))
    }
}

impl Recent {
    /// Records an occurrence. Returns the event to write, and its patch if it exists already; `None` if it is only
    /// counted.
    fn enter(&mut self, occurrence: &Occurrence, at: Timestamp) -> Option<(EventKey, Option<Patch>)> {
        let key = key(occurrence);
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.count = entry.count.saturating_add(1);
            entry.last = at;
            return (entry.count == 2).then(|| (entry.event_key.clone(), Some(entry.patch())));
        }
        self.make_room();
        let about = &occurrence.regarding;
        let namespace = if about.namespace.is_empty() { "default" } else { &about.namespace };
        let event_key = EventKey { namespace: namespace.to_owned(), name: event_name(&about.name, at) };
        self.entries.insert(key, Entry { event_key: event_key.clone(), last: at, count: 1 });
        Some((event_key, None))
    }

    /// Returns the series that are over, for the last time; and all others too if `refresh` is set.
    fn due(&mut self, now: Timestamp, refresh: bool) -> Vec<(EventKey, Patch)> {
        let over = |entry: &Entry| now.duration_since(entry.last) > SignedDuration::from_secs(OVER.as_secs() as i64);
        let due = self.entries.values().filter(|entry| entry.count > 1 && (refresh || over(entry)));
        let due = due.map(|entry| (entry.event_key.clone(), entry.patch())).collect();
        self.entries.retain(|_, entry| !over(entry));
        due
    }

    fn forget(&mut self, event_key: &EventKey) {
        self.entries.retain(|_, entry| entry.event_key != *event_key);
    }

    /// Forgets a quarter at a time, oldest first.
    fn make_room(&mut self) {
        if self.entries.len() < REMEMBERED {
            return;
        }
        let mut ages: Vec<Timestamp> = self.entries.values().map(|entry| entry.last).collect();
        let (_, limit, _) = ages.select_nth_unstable(REMEMBERED / 4);
        let limit = *limit;
        self.entries.retain(|_, entry| entry.last > limit);
    }
}

/// Returns the key that makes two events the same; the note is no part of it.
fn key(occurrence: &Occurrence) -> String {
    let Occurrence { regarding, related, kind, reason, action, .. } = occurrence;
    let mut key = [kind.as_str(), reason, action].join("\0");
    for about in [Some(regarding), related.as_ref()].into_iter().flatten() {
        for part in [&about.kind, &about.namespace, &about.name, &about.uid, &about.resource_version, &about.field_path]
        {
            key.push('\0');
            key.push_str(part);
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeServer;
    use jiff::ToSpan;

    fn occurrence(pod: usize, note: &str) -> Occurrence {
        let regarding = ObjectRef {
            kind: "Pod".into(),
            namespace: "prod".into(),
            name: format!("web-{pod}"),
            ..ObjectRef::default()
        };
        let reason = "FailedScheduling";
        let action = "Scheduling";
        Occurrence { regarding, related: None, kind: EventType::Warning, reason, action, note: note.to_owned() }
    }

    fn recorder(server: &FakeServer, busy: bool) -> (SeriesRecorder, watch::Sender<bool>) {
        let (busy, is_busy) = watch::channel(busy);
        (SeriesRecorder::new(&server.client(), "default-scheduler", "default-scheduler-a".to_owned(), is_busy), busy)
    }

    fn written(server: &FakeServer) -> Vec<Value> {
        server.objects("events").iter().map(|object| object.value()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn events_of_a_busy_component_are_paced_and_none_is_lost() {
        let server = FakeServer::default();
        let (recorder, busy) = recorder(&server, true);
        (0..2000).for_each(|pod| recorder.record(occurrence(pod, "no room")));
        tokio::time::sleep(Duration::from_millis(1010)).await;
        assert_eq!(written(&server).len(), 50);
        busy.send_replace(false);
        tokio::time::sleep(Duration::from_millis(1)).await;
        assert_eq!(written(&server).len(), 2000);
    }

    #[tokio::test(start_paused = true)]
    async fn the_second_makes_a_series_and_further_ones_are_counted() {
        let server = FakeServer::default();
        let (recorder, _busy) = recorder(&server, false);
        for note in ["no room", "still none", "again none"] {
            recorder.record(occurrence(0, note));
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        let events = written(&server);
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((&events[0]["note"], &events[0]["series"]["count"]), (&json!("no room"), &json!(2)));
        assert_eq!(events[0]["reportingInstance"], "default-scheduler-a");
        let writes = server.state().requests.len();
        assert_eq!(writes, 2, "the third is not worth a write");
    }

    #[test]
    fn a_series_is_written_when_it_is_over() {
        let at = |seconds: i64| Timestamp::new(1_700_000_000, 0).unwrap() + seconds.seconds();
        let mut recent = Recent::default();
        let (event_key, created) = recent.enter(&occurrence(0, ""), at(0)).unwrap();
        assert!(created.is_none() && event_key.name.starts_with("web-0."));
        assert!(recent.enter(&occurrence(1, ""), at(0)).is_some());
        assert!(matches!(recent.enter(&occurrence(0, ""), at(100)), Some((_, Some(_)))));
        assert!(recent.enter(&occurrence(0, ""), at(200)).is_none());
        assert!(recent.due(at(400), false).is_empty());
        assert_eq!(recent.entries.len(), 1, "what happened once is forgotten");
        assert_eq!(recent.due(at(410), true).len(), 1, "a refresh");
        let ended = recent.due(at(600), false);
        assert_eq!(ended[0].1.body()["series"]["count"], 3);
        assert!(recent.due(at(610), true).is_empty());
        (0..3 * REMEMBERED).for_each(|pod| drop(recent.enter(&occurrence(pod, ""), at(1000 + pod as i64))));
        assert!(recent.entries.len() <= REMEMBERED);
    }
}
