//! What the scheduler counts about itself, under upstream's names.
//!
//! Durations are measured, never decided by: a decision does not depend on anything here.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use corten_meta::metrics::{Family, Kind, Registry, Series, exponential};
use jiff::Timestamp;

use crate::framework::{Point, Verdict};
use crate::queue_entry::Entry;

static MILLISECONDS: [f64; 15] = exponential(0.001, 2.0);
static TENTHS: [f64; 12] = exponential(0.0001, 2.0);
static HUNDREDTHS: [f64; 20] = exponential(0.000_01, 1.5);
static SLI: [f64; 20] = exponential(0.01, 2.0);
static VICTIMS: [f64; 7] = exponential(1.0, 2.0);
static ATTEMPTS: [f64; 5] = exponential(1.0, 2.0);

macro_rules! family {
    ($variable:ident, $name:literal, $kind:expr, $labels:expr, $help:literal) => {
        static $variable: Family = Family { name: $name, kind: $kind, labels: &$labels, help: $help };
    };
}

family!(
    SCHEDULE_ATTEMPTS,
    "scheduler_schedule_attempts_total",
    Kind::Counter,
    ["profile", "result"],
    "Attempts to place pods, by how they ended."
);
family!(
    ATTEMPT_DURATION,
    "scheduler_scheduling_attempt_duration_seconds",
    Kind::Histogram(&MILLISECONDS),
    ["profile", "result"],
    "How long attempts took, deciding and binding together."
);
family!(
    ALGORITHM_DURATION,
    "scheduler_scheduling_algorithm_duration_seconds",
    Kind::Histogram(&MILLISECONDS),
    [],
    "How long decisions took."
);
family!(
    PREEMPTION_VICTIMS,
    "scheduler_preemption_victims",
    Kind::Histogram(&VICTIMS),
    [],
    "Pods that had to go for another, each time some had to."
);
family!(
    PREEMPTION_ATTEMPTS,
    "scheduler_preemption_attempts_total",
    Kind::Counter,
    [],
    "Times that room was looked for."
);
family!(PENDING_PODS, "scheduler_pending_pods", Kind::Gauge, ["queue"], "Pods that wait, by queue.");
family!(GOROUTINES, "scheduler_goroutines", Kind::Gauge, ["operation"], "Tasks that are under way, by what they do.");
family!(
    SLI_DURATION,
    "scheduler_pod_scheduling_sli_duration_seconds",
    Kind::Histogram(&SLI),
    ["attempts"],
    "How long pods took from the first attempt to being bound, by attempts."
);
family!(
    POD_ATTEMPTS,
    "scheduler_pod_scheduling_attempts",
    Kind::Histogram(&ATTEMPTS),
    [],
    "How many attempts pods took to be bound."
);
family!(
    AFTER_FLUSH,
    "scheduler_pod_scheduled_after_flush_total",
    Kind::Counter,
    [],
    "Pods that were bound after they had waited so long that they were tried without a reason."
);
family!(
    POINT_DURATION,
    "scheduler_framework_extension_point_duration_seconds",
    Kind::Histogram(&TENTHS),
    ["extension_point", "profile", "status"],
    "How long all plugins of a point took together."
);
family!(
    PLUGIN_DURATION,
    "scheduler_plugin_execution_duration_seconds",
    Kind::Histogram(&HUNDREDTHS),
    ["extension_point", "plugin", "status"],
    "How long a plugin took at a point, in some of the attempts."
);
family!(
    EVALUATIONS,
    "scheduler_plugin_evaluation_total",
    Kind::Counter,
    ["extension_point", "plugin", "profile"],
    "How often a plugin was asked, by point."
);
family!(
    INCOMING_PODS,
    "scheduler_queue_incoming_pods_total",
    Kind::Counter,
    ["event", "queue"],
    "Pods that came into a queue, by queue and by what brought them there."
);
family!(CACHE_SIZE, "scheduler_cache_size", Kind::Gauge, ["type"], "Nodes, pods and assumed pods that are known.");
family!(
    UNSCHEDULABLE_PODS,
    "scheduler_unschedulable_pods",
    Kind::Gauge,
    ["plugin", "profile"],
    "Rejected pods that wait, by each plugin that rejected them."
);

/// Every how many attempts the plugins are timed one by one.
const SAMPLED: u64 = 64;

/// How an attempt ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Scheduled,
    Unschedulable,
    Error,
}

const RESULTS: [&str; 3] = ["scheduled", "unschedulable", "error"];
const QUEUES: [&str; 4] = ["active", "backoff", "unschedulable", "gated"];
const SIZES: [&str; 3] = ["nodes", "pods", "assumed_pods"];

/// The series of a scheduler process, and whether it has caught up with the cluster.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    pending: [Arc<Series>; 4],
    sizes: [Arc<Series>; 3],
    binding: Arc<Series>,
    algorithm: Arc<Series>,
    attempts: Arc<Series>,
    preemptions: Arc<Series>,
    victims: Arc<Series>,
    arrivals: Arc<Series>,
    catching_up: AtomicBool,
}

impl Default for Metrics {
    fn default() -> Metrics {
        let registry = Registry::default();
        let one = |family| registry.series(family, &[]);
        one(&AFTER_FLUSH);
        Metrics {
            pending: QUEUES.map(|queue| registry.series(&PENDING_PODS, &[queue])),
            sizes: SIZES.map(|size| registry.series(&CACHE_SIZE, &[size])),
            binding: registry.series(&GOROUTINES, &["binding"]),
            algorithm: one(&ALGORITHM_DURATION),
            attempts: one(&POD_ATTEMPTS),
            preemptions: one(&PREEMPTION_ATTEMPTS),
            victims: one(&PREEMPTION_VICTIMS),
            arrivals: registry.series(&INCOMING_PODS, &[ADDED, "active"]),
            catching_up: AtomicBool::new(false),
            registry,
        }
    }
}

/// What brings a new pod into a queue.
pub const ADDED: &str = "UnschedulablePodAdd";

impl Metrics {
    /// Everything in the Prometheus text format.
    pub fn render(&self) -> String {
        self.registry.render()
    }

    /// Whether the process acts but does not know the whole cluster yet.
    pub fn is_catching_up(&self) -> bool {
        self.catching_up.load(Ordering::Relaxed)
    }

    pub fn catch_up(&self, begins: bool) {
        self.catching_up.store(begins, Ordering::Relaxed);
    }

    /// Lengths of the queues, in their order; nodes, pods and assumed pods; and bindings under way.
    pub fn note_sizes(&self, queues: [usize; 4], known: [usize; 3], binding: usize) {
        let pairs =
            self.pending.iter().zip(queues).chain(self.sizes.iter().zip(known)).chain([(&self.binding, binding)]);
        pairs.for_each(|(series, size)| series.set(size as f64));
    }

    /// A pod comes into a queue.
    pub fn incoming(&self, queue: &'static str, event: &'static str) {
        match (queue, event) {
            ("active", ADDED) => self.arrivals.add(1.0),
            _ => self.registry.series(&INCOMING_PODS, &[event, queue]).add(1.0),
        }
    }

    /// A pod begins or ceases to wait because of these plugins.
    pub fn rejected(&self, profile: &str, plugins: &[&'static str], begins: bool) {
        for plugin in plugins {
            self.registry.series(&UNSCHEDULABLE_PODS, &[plugin, profile]).add(if begins { 1.0 } else { -1.0 });
        }
    }

    /// So many pods have to go.
    pub fn preempted(&self, victims: usize) {
        self.victims.observe(victims as f64);
    }

    /// A pod is bound.
    pub fn bound(&self, entry: &Entry, now: Timestamp) {
        let attempts = if entry.attempts >= 15 { "15+".to_owned() } else { entry.attempts.to_string() };
        let since = entry.first_attempt.unwrap_or(entry.last_attempt);
        self.registry.series(&SLI_DURATION, &[&attempts]).observe(seconds(since, now));
        self.attempts.observe(f64::from(entry.attempts));
        if entry.flushed {
            self.registry.series(&AFTER_FLUSH, &[]).add(1.0);
        }
    }
}

fn seconds(since: Timestamp, now: Timestamp) -> f64 {
    now.duration_since(since).as_secs_f64().max(0.0)
}

/// The series of one profile.
pub struct ProfileSeries {
    metrics: Arc<Metrics>,
    profile: String,
    attempts: [(Arc<Series>, Arc<Series>); 3],
    /// Of points that succeeded.
    points: [Arc<Series>; Point::ALL.len()],
    evaluations: Vec<((&'static str, Point), Arc<Series>)>,
    searches: AtomicU64,
}

impl ProfileSeries {
    pub fn new(metrics: &Arc<Metrics>, profile: &str, plugins: &[(&'static str, Point)]) -> ProfileSeries {
        let registry = &metrics.registry;
        let attempts = RESULTS.map(|result| {
            let of = |family| registry.series(family, &[profile, result]);
            (of(&SCHEDULE_ATTEMPTS), of(&ATTEMPT_DURATION))
        });
        let point = |point: Point| registry.series(&POINT_DURATION, &[point.name(), profile, "Success"]);
        let evaluated = |(plugin, point): &(&'static str, Point)| {
            ((*plugin, *point), registry.series(&EVALUATIONS, &[point.name(), plugin, profile]))
        };
        ProfileSeries {
            metrics: metrics.clone(),
            profile: profile.to_owned(),
            attempts,
            points: Point::ALL.map(point),
            evaluations: plugins.iter().map(evaluated).collect(),
            searches: AtomicU64::new(0),
        }
    }

    /// An attempt ended.
    pub fn attempt(&self, result: Attempt, since: Timestamp, now: Timestamp) {
        let (count, duration) = &self.attempts[result as usize];
        count.add(1.0);
        duration.observe(seconds(since, now));
    }

    /// Room is looked for.
    pub fn preemption(&self) {
        self.metrics.preemptions.add(1.0);
    }

    /// A node was chosen, or found not to be there.
    pub fn decided(&self, began: Instant) {
        self.metrics.algorithm.observe(began.elapsed().as_secs_f64());
    }

    /// All plugins of a point have been heard.
    pub fn point(&self, point: Point, status: &'static str, began: Instant) {
        let spent = began.elapsed().as_secs_f64();
        match status {
            "Success" => self.points[point as usize].observe(spent),
            _ => self.metrics.registry.series(&POINT_DURATION, &[point.name(), &self.profile, status]).observe(spent),
        }
    }

    /// One plugin has been heard.
    pub fn plugin(&self, plugin: &'static str, point: Point, status: &'static str, began: Instant) {
        let series = self.metrics.registry.series(&PLUGIN_DURATION, &[point.name(), plugin, status]);
        series.observe(began.elapsed().as_secs_f64());
    }

    /// A plugin was asked so many times.
    pub fn evaluated(&self, plugin: &'static str, point: Point, times: usize) {
        if let Some((_, series)) = self.evaluations.iter().find(|(of, _)| *of == (plugin, point)) {
            series.add(times as f64);
        }
    }

    /// Whether the plugins are to be timed one by one this time.
    pub fn sample(&self) -> bool {
        self.searches.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }
}

impl Verdict {
    /// Upstream's word for it.
    pub fn status(&self) -> &'static str {
        match self {
            Verdict::Fits => "Success",
            Verdict::Unschedulable(_) => "Unschedulable",
            Verdict::Unresolvable(_) => "UnschedulableAndUnresolvable",
            Verdict::Error(_) => "Error",
        }
    }
}
