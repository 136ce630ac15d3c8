//! A priority level: its seats, and its executing and waiting requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::{Duration, Instant};

use corten_meta::Value;
use tokio::sync::oneshot;

use super::allocation::Demand;
use super::queues::{Queues, Waiting};
use crate::metrics::WAIT_SECONDS;

/// The settings of a PriorityLevelConfiguration.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub exempt: bool,
    pub shares: u32,
    lendable_percent: u32,
    borrowing_percent: Option<u32>,
    /// Queues, hand size and queue length limit; none if the level rejects requests without a seat.
    queuing: Option<(usize, usize, usize)>,
    demand: Demand,
}

impl Settings {
    /// Makes the settings of a level that rejects requests without a seat.
    pub fn reject(seats: u32) -> Settings {
        let demand = Demand { nominal: seats, min: seats, max: seats, wanted: 0 };
        Settings { exempt: false, shares: 0, lendable_percent: 0, borrowing_percent: None, queuing: None, demand }
    }

    pub fn from_value(level: &Value) -> Settings {
        let exempt = level.pointer("/spec/type").and_then(Value::as_str) == Some("Exempt");
        let part = if exempt { "/spec/exempt" } else { "/spec/limited" };
        let number = |pointer: &str| {
            let value = level.pointer(&format!("{part}{pointer}")).and_then(Value::as_u64);
            value.map(|n| u32::try_from(n).unwrap_or(u32::MAX))
        };
        let queuing =
            |key: &str, default: u32| number(&format!("/limitResponse/queuing/{key}")).unwrap_or(default) as usize;
        let queues = level.pointer("/spec/limited/limitResponse/type").and_then(Value::as_str) == Some("Queue");
        Settings {
            exempt,
            shares: number("/nominalConcurrencyShares").unwrap_or(if exempt { 0 } else { 30 }),
            lendable_percent: number("/lendablePercent").unwrap_or(0).min(100),
            borrowing_percent: number("/borrowingLimitPercent"),
            queuing: queues.then(|| (queuing("queues", 64), queuing("handSize", 8), queuing("queueLengthLimit", 50))),
            demand: Demand::default(),
        }
    }

    /// Computes the seats of the level's nominal share.
    pub fn share_of(&mut self, total: u32, shares: u32) {
        let nominal = (u64::from(total) * u64::from(self.shares)).div_ceil(u64::from(shares.max(1)));
        let nominal = u32::try_from(nominal).unwrap_or(total);
        let percent = |percent: u32| u32::try_from(u64::from(nominal) * u64::from(percent) / 100).unwrap_or(u32::MAX);
        let max = self.borrowing_percent.map_or(total, |p| nominal.saturating_add(percent(p)));
        self.demand = Demand { nominal, min: nominal - percent(self.lendable_percent), max, wanted: 0 };
    }
}

/// A queue of a level, for dumps.
pub struct QueueDump {
    pub next_start: f64,
    pub seats_in_use: u32,
    pub executing: usize,
    pub waiting: Vec<RequestDump>,
}

/// A level, for dumps.
pub struct LevelDump {
    /// Whether requests never wait for seats.
    pub exempt: bool,
    /// The counts of each FlowSchema.
    pub counts: Vec<(String, Counts)>,
    /// The nominal, minimum, maximum and current seats.
    pub limits: [u32; 4],
    /// The queues; empty if the level rejects requests without a seat.
    pub queues: Vec<QueueDump>,
    /// The executing requests, with their queue and start.
    pub executing: Vec<(Option<usize>, RequestDump, jiff::Timestamp)>,
}

/// A request, for dumps.
#[derive(Clone, Default)]
pub struct RequestDump {
    pub schema: String,
    pub flow: String,
    pub arrived: jiff::Timestamp,
    pub seats: u32,
    /// User, verb and resource of the request: the columns of the details, one a line.
    pub details: String,
}

/// The numbers of requests by their outcome.
#[derive(Clone, Default)]
pub struct Counts {
    pub dispatched: u64,
    pub rejected: u64,
    pub timed_out: u64,
    pub cancelled: u64,
    /// The wait durations of requests with seats, and of those without.
    pub served: Waits,
    pub unserved: Waits,
}

/// A histogram of wait durations: a count for each bucket, and the sum.
#[derive(Clone, Default)]
pub struct Waits {
    pub buckets: [u64; WAIT_SECONDS.len() + 1],
    pub sum: f64,
}

impl Waits {
    fn observe(&mut self, arrived: jiff::Timestamp, now: jiff::Timestamp) {
        let waited = now.duration_since(arrived).as_secs_f64().max(0.0);
        self.buckets[WAIT_SECONDS.partition_point(|bound| *bound < waited)] += 1;
        self.sum += waited;
    }
}

/// A waiting request, with the channel that grants its seats.
struct WaitingRequest {
    granted: oneshot::Sender<usize>,
    request: RequestDump,
}

/// An executing request, with its queue and start.
struct Executing {
    request: RequestDump,
    queue: Option<usize>,
    started: jiff::Timestamp,
}

struct State {
    settings: Settings,
    /// The current seats: the nominal ones, less the lent, plus the borrowed.
    limit: u32,
    executing: u32,
    /// The peak demand for seats since the last allocation.
    peak: u32,
    queues: Queues<WaitingRequest>,
    next_id: u64,
    running: HashMap<u64, Executing>,
    /// The counts of each FlowSchema.
    counts: Vec<(String, Counts)>,
}

impl State {
    fn record_demand(&mut self) {
        self.peak = self.peak.max(self.executing + self.queues.waiting_seats());
    }

    fn free(&self) -> u32 {
        self.limit.saturating_sub(self.executing)
    }

    /// Grants free seats to waiting requests.
    fn dispatch(&mut self) {
        loop {
            // A request that needs more seats than the level has must not wait forever.
            let free = if self.executing == 0 { u32::MAX } else { self.free() };
            let Some((queue, waiting)) = self.queues.pop(free) else { return };
            let WaitingRequest { granted, request } = waiting.ticket;
            if granted.send(queue).is_ok() {
                self.executing += waiting.seats;
                self.begin(waiting.id, request, Some(queue));
            } else {
                self.queues.done(queue, waiting.seats, 0.0);
            }
        }
    }

    fn counts(&mut self, schema: &str) -> &mut Counts {
        // The name of a schema is copied at its first request, and not at every request.
        let at = self.counts.iter().position(|(name, _)| name == schema).unwrap_or_else(|| {
            self.counts.push((schema.to_owned(), Counts::default()));
            self.counts.len() - 1
        });
        &mut self.counts[at].1
    }

    fn begin(&mut self, id: u64, request: RequestDump, queue: Option<usize>) {
        let started = jiff::Timestamp::now();
        let waits = !self.settings.exempt;
        let counts = self.counts(&request.schema);
        counts.dispatched += 1;
        if waits {
            counts.served.observe(request.arrived, started);
        }
        self.running.insert(id, Executing { request, queue, started });
    }
}

/// A priority level.
pub struct Level {
    uid: RwLock<String>,
    state: Mutex<State>,
}

impl Level {
    pub fn new(uid: &str, settings: Settings) -> Level {
        let (queues, hand, length) = settings.queuing.unwrap_or((1, 1, 0));
        let state = State {
            limit: settings.demand.nominal.max(1),
            settings,
            executing: 0,
            peak: 0,
            queues: Queues::new(queues, hand, length),
            next_id: 0,
            running: HashMap::new(),
            counts: Vec::new(),
        };
        Level { uid: RwLock::new(uid.to_owned()), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    pub fn uid(&self) -> String {
        self.uid.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    /// Applies new settings; waiting and executing requests stay.
    pub fn change(&self, uid: &str, settings: Settings) {
        *self.uid.write().unwrap_or_else(std::sync::PoisonError::into_inner) = uid.to_owned();
        let mut state = self.state();
        if state.settings == settings {
            return;
        }
        let (queues, hand, length) = settings.queuing.unwrap_or((1, 1, 0));
        state.queues.resize(queues, hand, length);
        state.limit = settings.demand.nominal.max(1);
        state.settings = settings;
        state.dispatch();
    }

    pub fn is_exempt(&self) -> bool {
        self.state().settings.exempt
    }

    /// Returns the maximum seats of one request, so that none occupies the level alone.
    pub fn max_request_seats(&self) -> u32 {
        (self.state().settings.demand.nominal * 15 / 100).max(1)
    }

    /// Returns the occupied seats and the number of waiting requests.
    #[cfg(test)]
    fn current(&self) -> (u32, usize) {
        let state = self.state();
        (state.executing, state.queues.waiting())
    }

    /// Returns the demand, and resets its peak.
    pub fn take_demand(&self) -> Demand {
        let mut state = self.state();
        let wanted = state.peak;
        state.peak = state.executing + state.queues.waiting_seats();
        Demand { wanted, ..state.settings.demand }
    }

    pub fn set_limit(&self, seats: u32) {
        let mut state = self.state();
        state.limit = seats.max(1);
        state.dispatch();
    }

    /// Lets a request execute at once, as an exempt level does.
    pub fn pass(self: &Arc<Self>, request: RequestDump) -> Seat {
        let mut state = self.state();
        let seats = request.seats;
        state.next_id += 1;
        let id = state.next_id;
        state.executing += seats;
        state.begin(id, request, None);
        Seat { level: Arc::clone(self), id, seats, queue: None, started: Instant::now() }
    }

    /// Waits for seats until `max_wait`; returns `None` if the queue is full, or no seat became free. A caller that is
    /// dropped leaves its queue.
    pub async fn enter(self: &Arc<Self>, flow: u64, request: RequestDump, max_wait: Duration) -> Option<Seat> {
        let mut wait = {
            let mut state = self.state();
            let seats = request.seats;
            state.next_id += 1;
            let id = state.next_id;
            if state.queues.waiting() == 0 && (seats <= state.free() || state.executing == 0) {
                state.executing += seats;
                state.record_demand();
                state.begin(id, request, None);
                return Some(Seat { level: Arc::clone(self), id, seats, queue: None, started: Instant::now() });
            }
            let (granted, receiver) = oneshot::channel();
            let schema = request.schema.clone();
            let arrived = request.arrived;
            let waiting = Waiting { id, seats, ticket: WaitingRequest { granted, request } };
            if state.settings.queuing.is_none() || state.queues.push(flow, waiting).is_err() {
                let counts = state.counts(&schema);
                counts.rejected += 1;
                counts.unserved.observe(arrived, jiff::Timestamp::now());
                return None;
            }
            state.record_demand();
            state.dispatch();
            Wait { level: Arc::clone(self), id, seats, schema, arrived, receiver: Some(receiver) }
        };
        let granted = tokio::time::timeout(max_wait, wait.granted()).await;
        if granted.is_err() {
            wait.leave_queue(true);
        }
        granted.ok().flatten()
    }

    fn finish(&self, id: u64, seats: u32, queue: Option<usize>, seconds: f64) {
        let mut state = self.state();
        state.executing = state.executing.saturating_sub(seats);
        state.running.remove(&id);
        if let Some(queue) = queue {
            state.queues.done(queue, seats, seconds);
        }
        state.dispatch();
    }

    /// Returns a copy of the level's state for dumps.
    pub fn dump(&self) -> LevelDump {
        let state = self.state();
        let of_queue = |queue: usize| state.running.values().filter(|one| one.queue == Some(queue)).count();
        let queues = state.queues.each().enumerate().map(|(index, (next_start, seats_in_use, waiting))| QueueDump {
            next_start,
            seats_in_use,
            executing: of_queue(index),
            waiting: waiting.map(|one| one.ticket.request.clone()).collect(),
        });
        let executing = state.running.values().map(|one| (one.queue, one.request.clone(), one.started));
        let queues = if state.settings.queuing.is_some() { queues.collect() } else { Vec::new() };
        let Demand { nominal, min, max, .. } = state.settings.demand;
        let limits = [nominal, min, max, state.limit];
        let exempt = state.settings.exempt;
        LevelDump { exempt, counts: state.counts.clone(), limits, queues, executing: executing.collect() }
    }
}

/// A waiting request. When dropped, it leaves its queue, or returns the seats that it got in between.
struct Wait {
    level: Arc<Level>,
    id: u64,
    seats: u32,
    schema: String,
    arrived: jiff::Timestamp,
    receiver: Option<oneshot::Receiver<usize>>,
}

impl Wait {
    async fn granted(&mut self) -> Option<Seat> {
        let queue = self.receiver.as_mut()?.await.ok()?;
        self.receiver = None;
        let level = Arc::clone(&self.level);
        Some(Seat { level, id: self.id, seats: self.seats, queue: Some(queue), started: Instant::now() })
    }

    /// Leaves the queue, or returns seats that were granted too late.
    fn leave_queue(&mut self, timed_out: bool) {
        let Some(mut receiver) = self.receiver.take() else { return };
        let waited = {
            let mut state = self.level.state();
            let waited = state.queues.remove(self.id);
            let counts = state.counts(&self.schema);
            let count = if timed_out { &mut counts.timed_out } else { &mut counts.cancelled };
            *count += u64::from(waited);
            if waited {
                counts.unserved.observe(self.arrived, jiff::Timestamp::now());
            }
            waited
        };
        if let (false, Ok(queue)) = (waited, receiver.try_recv()) {
            self.level.finish(self.id, self.seats, Some(queue), 0.0);
        }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.leave_queue(false);
    }
}

/// Seats of a level; dropping them grants them to the next request.
pub struct Seat {
    level: Arc<Level>,
    id: u64,
    seats: u32,
    queue: Option<usize>,
    started: Instant,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.level.finish(self.id, self.seats, self.queue, self.started.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MAX_WAIT: Duration = Duration::from_secs(60);

    fn request(seats: u32) -> RequestDump {
        RequestDump { seats, ..RequestDump::default() }
    }

    fn level(seats: u32, queue: bool) -> Arc<Level> {
        let response = if queue {
            json!({ "type": "Queue", "queuing": { "queues": 8, "handSize": 2, "queueLengthLimit": 4 } })
        } else {
            json!({ "type": "Reject" })
        };
        let mut settings = Settings::from_value(&json!({ "spec": { "type": "Limited", "limited": {
            "nominalConcurrencyShares": 10, "lendablePercent": 50, "limitResponse": response } } }));
        settings.share_of(seats, 10);
        Arc::new(Level::new("u", settings))
    }

    #[tokio::test]
    async fn a_request_without_a_seat_waits_for_one() {
        let level = level(1, true);
        let seat = level.enter(1, request(1), MAX_WAIT).await.unwrap();
        let other = Arc::clone(&level);
        let waiting = tokio::spawn(async move { other.enter(2, request(1), MAX_WAIT).await.is_some() });
        while level.current() != (1, 1) {
            tokio::task::yield_now().await;
        }
        drop(seat);
        assert!(waiting.await.unwrap());
        assert_eq!(level.current(), (0, 0));
    }

    #[tokio::test]
    async fn a_dropped_request_leaves_its_queue() {
        let level = level(1, true);
        let seat = level.enter(1, request(1), MAX_WAIT).await.unwrap();
        let gave_up = tokio::time::timeout(Duration::from_millis(5), level.enter(2, request(1), MAX_WAIT)).await;
        assert!(gave_up.is_err());
        assert_eq!(level.current(), (1, 0));
        drop(seat);
        assert_eq!(level.current(), (0, 0));
    }

    #[tokio::test]
    async fn a_level_without_queues_refuses() {
        let level = level(1, false);
        let _seat = level.enter(1, request(1), MAX_WAIT).await.unwrap();
        assert!(level.enter(2, request(1), MAX_WAIT).await.is_none());
    }

    #[tokio::test]
    async fn a_request_for_too_many_seats_does_not_wait_forever() {
        let level = level(2, true);
        let seat = level.enter(1, request(1), MAX_WAIT).await.unwrap();
        let other = Arc::clone(&level);
        let wide = tokio::spawn(async move { other.enter(2, request(5), MAX_WAIT).await.is_some() });
        while level.current().1 == 0 {
            tokio::task::yield_now().await;
        }
        drop(seat);
        assert!(wide.await.unwrap());
    }

    #[test]
    fn settings_are_decoded() {
        let level = level(100, true);
        let demand = level.take_demand();
        assert_eq!((demand.nominal, demand.min, demand.max), (100, 50, 100));
        let exempt = Settings::from_value(&json!({ "spec": { "type": "Exempt", "exempt": {} } }));
        assert!(exempt.exempt && exempt.shares == 0);
    }

    #[test]
    fn an_exempt_request_is_counted_and_never_waits() {
        let settings = Settings::from_value(&json!({ "spec": { "type": "Exempt", "exempt": {} } }));
        let level = Arc::new(Level::new("u", settings));
        let seats = [level.pass(request(1)), level.pass(request(1))];
        assert_eq!(level.current(), (2, 0));
        drop(seats);
        let dump = level.dump();
        assert!(dump.exempt && dump.executing.is_empty());
        assert_eq!(dump.counts[0].1.dispatched, 2);
        assert_eq!(dump.counts[0].1.served.buckets.iter().sum::<u64>(), 0);
    }

    #[tokio::test]
    async fn the_outcomes_of_requests_are_counted_and_dumped() {
        let level = level(1, true);
        let seat = level.enter(1, request(1), MAX_WAIT).await.unwrap();
        assert!(level.enter(2, request(1), Duration::from_millis(1)).await.is_none());
        let dropped = tokio::time::timeout(Duration::from_millis(1), level.enter(2, request(1), MAX_WAIT)).await;
        assert!(dropped.is_err());
        let dump = level.dump();
        assert_eq!((dump.executing.len(), dump.queues.len()), (1, 8));
        drop(seat);
        let LevelDump { counts, executing, .. } = level.dump();
        let counts = &counts[0].1;
        assert_eq!((counts.dispatched, counts.timed_out, counts.cancelled, executing.len()), (1, 1, 1, 0));
    }
}
