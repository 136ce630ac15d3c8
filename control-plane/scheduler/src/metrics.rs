//! The scheduler's metrics, under upstream's names.
//!
//! No decision depends on them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use corten_meta::metrics::{Registry, Series, exponential, families};
use jiff::Timestamp;

use crate::framework::{Point, Verdict};
use crate::queue_entry::Entry;

static MILLISECONDS: [f64; 15] = exponential(0.001, 2.0);
static TENTHS: [f64; 12] = exponential(0.0001, 2.0);
static HUNDREDTHS: [f64; 20] = exponential(0.000_01, 1.5);
static SLI: [f64; 20] = exponential(0.01, 2.0);
static VICTIMS: [f64; 7] = exponential(1.0, 2.0);
static ATTEMPTS: [f64; 5] = exponential(1.0, 2.0);

families! {
    SCHEDULE_ATTEMPTS = Counter "scheduler_schedule_attempts_total" ["profile", "result"],
        "[STABLE] Number of attempts to schedule pods, by the result. 'unschedulable' means a pod could not be \
         scheduled, while 'error' means an internal scheduler problem.";
    ATTEMPT_DURATION = Histogram(&MILLISECONDS) "scheduler_scheduling_attempt_duration_seconds" ["profile", "result"],
        "[STABLE] Scheduling attempt latency in seconds (scheduling algorithm + binding)";
    ALGORITHM_DURATION = Histogram(&MILLISECONDS) "scheduler_scheduling_algorithm_duration_seconds" [],
        "[ALPHA] Duration of scheduling decisions.";
    PREEMPTION_VICTIMS = Histogram(&VICTIMS) "scheduler_preemption_victims" [],
        "[STABLE] Number of selected preemption victims";
    PREEMPTION_ATTEMPTS = Counter "scheduler_preemption_attempts_total" [],
        "[STABLE] Total preemption attempts in the cluster till now";
    PENDING_PODS = Gauge "scheduler_pending_pods" ["queue"],
        "[STABLE] Number of pending pods, by the queue type. 'active' means number of pods in activeQ; 'backoff' means \
         number of pods in backoffQ; 'unschedulable' means number of pods in unschedulablePods that the scheduler \
         attempted to schedule and failed; 'gated' is the number of unschedulable pods that the scheduler never \
         attempted to schedule because they are gated.";
    GOROUTINES = Gauge "scheduler_goroutines" ["operation"], "[ALPHA] Number of running tasks, by their work.";
    SLI_DURATION = Histogram(&SLI) "scheduler_pod_scheduling_sli_duration_seconds" ["attempts"],
        "[BETA] E2e latency for a pod being scheduled, from the time the pod enters the scheduling queue and might \
         involve multiple scheduling attempts.";
    POD_ATTEMPTS = Histogram(&ATTEMPTS) "scheduler_pod_scheduling_attempts" [],
        "[STABLE] Number of attempts to successfully schedule a pod.";
    AFTER_FLUSH = Counter "scheduler_pod_scheduled_after_flush_total" [],
        "[ALPHA] Pods that were bound after they had waited so long that they were tried without a reason.";
    POINT_DURATION = Histogram(&TENTHS) "scheduler_framework_extension_point_duration_seconds"
        ["extension_point", "profile", "status"],
        "[STABLE] Latency for running all plugins of a specific extension point.";
    PLUGIN_DURATION = Histogram(&HUNDREDTHS) "scheduler_plugin_execution_duration_seconds"
        ["extension_point", "plugin", "status"],
        "[ALPHA] Duration of a plugin at an extension point, sampled.";
    EVALUATIONS = Counter "scheduler_plugin_evaluation_total" ["extension_point", "plugin", "profile"],
        "[ALPHA] Number of evaluations of a plugin, by extension point.";
    INCOMING_PODS = Counter "scheduler_queue_incoming_pods_total" ["event", "queue"],
        "[STABLE] Number of pods added to scheduling queues by event and queue type.";
    CACHE_SIZE = Gauge "scheduler_cache_size" ["type"], "[ALPHA] Nodes, pods and assumed pods that are known.";
    UNSCHEDULABLE_PODS = Gauge "scheduler_unschedulable_pods" ["plugin", "profile"],
        "[ALPHA] Number of unschedulable pods, by each plugin that rejected them.";
}

/// The plugins are timed one by one in one of this many attempts.
const SAMPLED: u64 = 64;

/// The result of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    Scheduled,
    Unschedulable,
    Error,
}

const RESULTS: [&str; 3] = ["scheduled", "unschedulable", "error"];
const QUEUES: [&str; 4] = ["active", "backoff", "unschedulable", "gated"];
const SIZES: [&str; 3] = ["nodes", "pods", "assumed_pods"];

/// The series of a scheduler process, and whether it has synced with the cluster.
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

/// The event that adds a new pod to a queue.
pub const ADDED: &str = "UnschedulablePodAdd";

impl Metrics {
    /// Returns all metrics in the Prometheus text format.
    pub fn render(&self) -> String {
        self.registry.render()
    }

    /// Reports whether the process leads but has not synced yet.
    pub fn is_catching_up(&self) -> bool {
        self.catching_up.load(Ordering::Relaxed)
    }

    pub fn catch_up(&self, begins: bool) {
        self.catching_up.store(begins, Ordering::Relaxed);
    }

    /// Sets the lengths of the queues, in their order; the numbers of nodes, pods and assumed pods; and the bindings in
    /// flight.
    pub fn note_sizes(&self, queues: [usize; 4], known: [usize; 3], binding: usize) {
        let pairs =
            self.pending.iter().zip(queues).chain(self.sizes.iter().zip(known)).chain([(&self.binding, binding)]);
        pairs.for_each(|(series, size)| series.set(size as f64));
    }

    /// Counts a pod that enters a queue.
    pub fn incoming(&self, queue: &'static str, event: &'static str) {
        match (queue, event) {
            ("active", ADDED) => self.arrivals.add(1.0),
            _ => self.registry.series(&INCOMING_PODS, &[event, queue]).add(1.0),
        }
    }

    /// Counts a pod that starts or stops waiting because of these plugins.
    pub fn rejected(&self, profile: &str, plugins: &[&'static str], begins: bool) {
        for plugin in plugins {
            self.registry.series(&UNSCHEDULABLE_PODS, &[plugin, profile]).add(if begins { 1.0 } else { -1.0 });
        }
    }

    /// Counts the victims of a preemption.
    pub fn preempted(&self, victims: usize) {
        self.victims.observe(victims as f64);
    }

    /// Counts a bound pod.
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
    /// The durations of successful extension points.
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

    /// Counts an attempt.
    pub fn attempt(&self, result: Attempt, since: Timestamp, now: Timestamp) {
        let (count, duration) = &self.attempts[result as usize];
        count.add(1.0);
        duration.observe(seconds(since, now));
    }

    /// Counts an attempt at preemption.
    pub fn preemption(&self) {
        self.metrics.preemptions.add(1.0);
    }

    /// Observes the duration of the scheduling algorithm.
    pub fn decided(&self, began: Instant) {
        self.metrics.algorithm.observe(began.elapsed().as_secs_f64());
    }

    /// Observes the duration of an extension point.
    pub fn point(&self, point: Point, status: &'static str, began: Instant) {
        let spent = began.elapsed().as_secs_f64();
        match status {
            "Success" => self.points[point as usize].observe(spent),
            _ => self.metrics.registry.series(&POINT_DURATION, &[point.name(), &self.profile, status]).observe(spent),
        }
    }

    /// Observes the duration of one plugin.
    pub fn plugin(&self, plugin: &'static str, point: Point, status: &'static str, began: Instant) {
        let series = self.metrics.registry.series(&PLUGIN_DURATION, &[point.name(), plugin, status]);
        series.observe(began.elapsed().as_secs_f64());
    }

    /// Counts the evaluations of a plugin.
    pub fn evaluated(&self, plugin: &'static str, point: Point, times: usize) {
        if let Some((_, series)) = self.evaluations.iter().find(|(of, _)| *of == (plugin, point)) {
            series.add(times as f64);
        }
    }

    /// Reports whether the plugins are to be timed one by one this time.
    pub fn sample(&self) -> bool {
        self.searches.fetch_add(1, Ordering::Relaxed).is_multiple_of(SAMPLED)
    }
}

impl Verdict {
    /// Returns upstream's name of the status.
    pub fn status(&self) -> &'static str {
        match self {
            Verdict::Fits => "Success",
            Verdict::Unschedulable(_) => "Unschedulable",
            Verdict::Unresolvable(_) => "UnschedulableAndUnresolvable",
            Verdict::Error(_) => "Error",
        }
    }
}
