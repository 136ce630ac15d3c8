//! The task that owns the scheduler's state, and its loop: receive changes, decide about queued pods, carry out.

mod glance;
mod likeness;
pub mod watches;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_client::{Caches, Change, Client, Error};
use corten_meta::Object;
use corten_meta::time::SteadyClock;
use futures::future::BoxFuture;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::cycle::Rejection;
use crate::extender::{Consulted, Extenders};
use crate::framework::{Effect, Point};
use crate::metrics::Attempt;
use crate::outcome::Outcomes;
use crate::profile::Profile;
use crate::queue::Entry;
use crate::rows::PodRow;
use crate::scheduler::{Decision, Placed, Scheduler, Unplaced};
use likeness::Likeness;
use watches::{Watched, Watches};

/// The most requests to the API in flight at once.
const MAX_IN_FLIGHT: usize = 256;
/// After the limit was reached, no pod is scheduled until this few are in flight: bindings are sent in groups.
const FEW_IN_FLIGHT: usize = 192;
/// The number of pods that are scheduled before other work gets its turn: bindings that are sent together become
/// durable together.
const RUN: usize = 16;
/// The number of objects that are decoded at once at the start: typed objects are large.
const BLOCK: usize = 4096;
/// The size of the first block, because most pods resemble one of a few.
const FIRST_BLOCK: usize = 64;

pub async fn run(config: &Config, client: Client, shutdown: CancellationToken) {
    let caches = Caches::new(client.clone(), shutdown.clone());
    config.metrics.catch_up(true);
    let watches = Watches::start(&caches).await;
    config.metrics.catch_up(false);
    let (busy, is_busy) = watch::channel(false);
    let outcomes = config.profiles.iter().map(|profile| {
        let name = &profile.scheduler_name;
        (name.clone(), Arc::new(Outcomes::new(client.clone(), name, &config.identity, is_busy.clone())))
    });
    let task = Task {
        outcomes: outcomes.collect(),
        extenders: Arc::new(Extenders::new(&config.extenders)),
        watches,
        scheduler: Scheduler::new(config),
        likeness: Likeness::default(),
        waiting: HashMap::new(),
        in_flight: JoinSet::new(),
        clock: SteadyClock::default(),
        shutdown,
        busy,
    };
    task.run().await;
    caches.ended().await;
}

/// The result of work outside the task.
enum Finished {
    /// The writes before the binding are done.
    PreBound(Placed),
    Bound(Placed),
    BindingFailed(Placed),
    EvictionFailed(Box<Unplaced>),
    Other,
}

/// The result of calling extenders.
enum Consulting {
    /// Feasible nodes, and the extenders' scores.
    Nodes(Vec<usize>, Vec<i64>),
    Nowhere(Rejection),
    /// The pod was deleted during the calls.
    Gone,
}

struct Task {
    outcomes: HashMap<String, Arc<Outcomes>>,
    extenders: Arc<Extenders>,
    watches: Watches,
    scheduler: Scheduler,
    likeness: Likeness,
    /// Assumed pods whose volumes are being bound, with their deadlines.
    waiting: HashMap<Arc<str>, (Placed, Timestamp)>,
    in_flight: JoinSet<Finished>,
    clock: SteadyClock,
    shutdown: CancellationToken,
    /// Whether pods are being scheduled or bound; events wait until that is over.
    busy: watch::Sender<bool>,
}

impl Task {
    async fn run(mut self) {
        let shutdown = self.shutdown.clone();
        self.catch_up();
        let (mut placed, mut most) = (0, MAX_IN_FLIGHT);
        while !shutdown.is_cancelled() {
            self.hear_all();
            self.scheduler.note_sizes(self.in_flight.len());
            let now = self.clock.now();
            self.bind_what_is_ready(now);
            most = if self.in_flight.len() < most { MAX_IN_FLIGHT } else { FEW_IN_FLIGHT };
            if most == MAX_IN_FLIGHT
                && let Some(entry) = self.scheduler.next(now)
            {
                self.is_busy(true);
                self.schedule_one(entry, now).await;
                placed += 1;
                if placed % RUN == 0 {
                    // Yields, so that a long queue does not delay the bindings.
                    tokio::task::yield_now().await;
                }
                continue;
            }
            self.is_busy(!self.in_flight.is_empty());
            // Due work has to wait for the requests in flight.
            let wait = if most == MAX_IN_FLIGHT { self.until_deadline(now) } else { Duration::from_secs(1) };
            tokio::select! {
                () = shutdown.cancelled() => break,
                (kind, change) = self.watches.next() => self.hear(kind, &change),
                Some(finished) = self.in_flight.join_next() => self.finished(finished),
                () = tokio::time::sleep(wait) => {}
            }
        }
        while self.in_flight.join_next().await.is_some() {}
    }

    fn is_busy(&self, is: bool) {
        self.busy.send_if_modified(|busy| std::mem::replace(busy, is) != is);
    }

    /// Starts work outside the task. Boxed, so that the runtime's code around it exists once.
    fn launch(&mut self, work: impl Future<Output = Finished> + Send + 'static) {
        let work: BoxFuture<'static, Finished> = Box::pin(work);
        self.in_flight.spawn(work);
    }

    fn until_deadline(&self, now: Timestamp) -> Duration {
        let bindings = self.waiting.values().map(|(_, until)| *until).min();
        let deadline = self.scheduler.next_deadline().into_iter().chain(bindings).min();
        let left = deadline.map(|at| at.duration_since(now).try_into().unwrap_or(Duration::ZERO));
        left.unwrap_or(Duration::from_secs(3600))
    }

    /// Loads the initial state of the cluster, which may be large: nodes and pods are decoded on all CPUs.
    fn catch_up(&mut self) {
        let now = self.clock.now();
        for (kind, changes) in self.watches.known() {
            let (first, others) = changes.split_at(FIRST_BLOCK.min(changes.len()));
            for block in std::iter::once(first).chain(others.chunks(BLOCK)) {
                match kind {
                    Watched::Node => {
                        let objects: Vec<&Arc<Object>> =
                            block.iter().filter_map(|change| change.new.as_ref()).collect();
                        let read = objects.iter().zip(glance::all::<Node>(&objects));
                        read.for_each(|(object, node)| self.scheduler.node_changed(&object.header.name, node, now));
                    }
                    Watched::Pod => self.catch_up_with_pods(block, now),
                    _ => block.iter().for_each(|change| self.hear(kind, change)),
                }
            }
        }
    }

    /// Adds pods in their order, whether they are decoded or recognised.
    fn catch_up_with_pods(&mut self, changes: &[Change], now: Timestamp) {
        let objects = changes.iter().filter_map(|change| change.new.as_ref());
        let rows: Vec<_> = objects.map(|object| (object, self.likeness.row(object))).collect();
        let others: Vec<&Arc<Object>> =
            rows.iter().filter(|(_, row)| row.is_none()).map(|(object, _)| *object).collect();
        let mut decoded = glance::all::<Pod>(&others).into_iter();
        for (object, row) in rows {
            match row {
                Some(row) => self.row_changed(row, now),
                None => decoded.next().flatten().into_iter().for_each(|pod| self.pod_read(object, pod, now)),
            }
        }
    }

    /// Applies all received changes before the next pod is scheduled.
    fn hear_all(&mut self) {
        while let Some((kind, change)) = self.watches.try_next() {
            self.hear(kind, &change);
        }
        while let Some(finished) = self.in_flight.try_join_next() {
            self.finished(finished);
        }
    }

    fn hear(&mut self, kind: Watched, change: &Change) {
        let now = self.clock.now();
        match kind {
            Watched::Pod => self.pod_changed(change, now),
            _ => watches::hear(&mut self.scheduler, kind, change, now),
        }
    }

    fn pod_changed(&mut self, change: &Change, now: Timestamp) {
        if let Some(old) = &change.old
            && change.new.as_ref().is_none_or(|new| new.header.uid != old.header.uid)
        {
            self.scheduler.pod_gone(&old.header.uid, now);
        }
        let Some(object) = &change.new else { return };
        let known = self.scheduler.snapshot.pod(&object.header.uid);
        if known.is_some_and(|known| glance::unchanged(known, object)) {
            return self.scheduler.confirmed(&object.header.uid, now);
        }
        let restated = self.scheduler.queued(&object.header.uid).and_then(|known| glance::restated(known, object));
        match restated.or_else(|| self.likeness.row(object)) {
            Some(row) => self.row_changed(row, now),
            None => glance::decoded::<Pod>(object).into_iter().for_each(|pod| self.pod_read(object, pod, now)),
        }
    }

    fn pod_read(&mut self, object: &Object, pod: Pod, now: Timestamp) {
        let row = self.scheduler.snapshot.row(pod);
        self.likeness.learn(object, &row);
        self.row_changed(row, now);
    }

    fn row_changed(&mut self, row: PodRow, now: Timestamp) {
        if let Some(gated) = self.scheduler.pod_changed(row, now)
            && let Some(outcomes) = self.outcomes.get(&gated.demand.scheduler_name).cloned()
        {
            self.launch(async move {
                outcomes.gated(gated).await;
                Finished::Other
            });
        }
    }

    /// Runs the scheduling cycle of one pod.
    async fn schedule_one(&mut self, entry: Entry, now: Timestamp) {
        let (pod, since) = (entry.pod.clone(), entry.last_attempt);
        let decision = match self.extenders.concern(&pod) {
            false => self.scheduler.decide(entry),
            true => self.decide_with_extenders(entry).await,
        };
        match decision {
            Some(Decision::Place(placed)) => self.carry_out(placed),
            Some(Decision::Reject(unplaced)) => {
                let attempt = if unplaced.is_error { Attempt::Error } else { Attempt::Unschedulable };
                self.scheduler.attempted(&pod, attempt, since, self.clock.now());
                self.tell(unplaced, now);
            }
            None => {}
        }
    }

    /// Runs the cycle with calls to extenders. The loop waits for them, as upstream's does: a decision must be made on
    /// one state.
    async fn decide_with_extenders(&mut self, entry: Entry) -> Option<Decision> {
        let profile = self.scheduler.profile(&entry.pod)?;
        match self.consult(&entry.pod, &profile).await {
            Ok(Consulting::Nodes(feasible, scores)) => self.scheduler.conclude(entry, &profile, &feasible, &scores),
            Ok(Consulting::Nowhere(rejection)) => Some(self.scheduler.reject(entry, rejection)),
            Ok(Consulting::Gone) => None,
            Err(error) => {
                let outcomes = self.outcomes.get(&entry.pod.demand.scheduler_name).cloned()?;
                let pod = entry.pod.clone();
                self.scheduler.attempted(&pod, Attempt::Error, entry.last_attempt, self.clock.now());
                self.scheduler.failed(entry);
                self.launch(async move {
                    outcomes.failed(&pod, &error.to_string()).await;
                    Finished::Other
                });
                None
            }
        }
    }

    async fn consult(&mut self, pod: &Arc<PodRow>, profile: &Profile) -> Result<Consulting, Error> {
        let (nodes, pods) = (self.watches.nodes.clone(), self.watches.pods.clone());
        let Some(object) = pods.get(&pod.key()) else { return Ok(Consulting::Gone) };
        let consulted = Consulted { row: pod, pod: object, nodes: &nodes, pods: &pods };
        let extenders = self.extenders.clone();
        let mut search = self.scheduler.search(pod, profile);
        extenders.filter(&consulted, &self.scheduler.snapshot, &mut search).await?;
        if search.nominated && search.feasible.is_empty() {
            let elsewhere = PodRow { nominated: String::new(), ..(**pod).clone() };
            search = self.scheduler.search(&elsewhere, profile);
            extenders.filter(&consulted, &self.scheduler.snapshot, &mut search).await?;
        }
        if !search.feasible.is_empty() {
            let scores = extenders.prioritize(&consulted, &self.scheduler.snapshot, &search.feasible).await;
            return Ok(Consulting::Nodes(search.feasible, scores));
        }
        let mut rejection = self.scheduler.why_not(pod, profile, &search);
        let possible = !rejection.candidates.is_empty();
        let processed = extenders.process_preemption(&consulted, &self.scheduler.snapshot, &mut rejection.candidates);
        match processed.await {
            Ok(()) if possible && rejection.candidates.is_empty() => {
                rejection.post_filter_messages.pop();
                rejection.post_filter_messages.push("preemption: no candidate node for preemption".to_owned());
            }
            Ok(()) => {}
            Err(error) => {
                tracing::error!(%error, pod = %pod.key(), "no room is made: an extender gave no answer");
                rejection.candidates.clear();
                rejection.post_filter_messages.pop();
            }
        }
        Ok(Consulting::Nowhere(rejection))
    }

    /// Writes what must precede the binding, if anything; else binds.
    fn carry_out(&mut self, mut placed: Placed) {
        if placed.effects.is_empty() {
            return self.bind(placed);
        }
        let Some(outcomes) = self.outcomes.get(&placed.row.demand.scheduler_name).cloned() else { return };
        let profile = self.scheduler.profile(&placed.row);
        self.launch(async move {
            let began = Instant::now();
            let written = outcomes.pre_bind(&mut placed).await;
            if let Some(profile) = profile {
                profile.series.point(Point::PreBind, if written.is_ok() { "Success" } else { "Error" }, began);
            }
            match written {
                Ok(()) => Finished::PreBound(placed),
                Err(error) => {
                    outcomes.binding_failed(&placed.row, pre_binder(&placed.effects), &error.to_string()).await;
                    Finished::BindingFailed(placed)
                }
            }
        });
    }

    fn bind(&mut self, placed: Placed) {
        let Some(outcomes) = self.outcomes.get(&placed.row.demand.scheduler_name).cloned() else { return };
        let (extenders, profile) = (self.extenders.clone(), self.scheduler.profile(&placed.row));
        let shutdown = self.shutdown.clone();
        self.launch(async move {
            let began = Instant::now();
            let by_extender = match extenders.binder(&placed.row) {
                Some(extender) => extender.bind(&placed.row).await,
                None => Ok(false),
            };
            let bound = match by_extender {
                Ok(false) => outcomes.bind(&placed.row, &shutdown).await,
                bound => bound.map(drop),
            };
            if let Some(profile) = profile {
                profile.series.point(Point::Bind, if bound.is_ok() { "Success" } else { "Error" }, began);
            }
            match bound {
                Ok(()) => {
                    outcomes.scheduled(&placed.row);
                    Finished::Bound(placed)
                }
                Err(error) => {
                    tracing::debug!(pod = %placed.row.key(), node = placed.row.node_name, %error, "cannot bind");
                    if !error.is_not_found() && !error.is_conflict() {
                        let step = "Bind plugin \"DefaultBinder\"";
                        outcomes.binding_failed(&placed.row, step, &error.to_string()).await;
                    }
                    Finished::BindingFailed(placed)
                }
            }
        });
    }

    /// Binds pods whose volumes are ready, and fails those whose volumes failed or timed out.
    fn bind_what_is_ready(&mut self, now: Timestamp) {
        let decisions: Vec<(Arc<str>, Result<bool, String>)> = self
            .waiting
            .iter()
            .map(|(uid, (placed, until))| {
                let what = if of_devices(&placed.effects) { "device binding timeout" } else { "binding volumes" };
                let late = || Err(format!("{what}: context deadline exceeded"));
                let ready = if *until <= now { late() } else { self.scheduler.ready_to_bind(placed) };
                (uid.clone(), if self.scheduler.is_assumed(uid) { ready } else { Err(String::new()) })
            })
            .filter(|(_, ready)| *ready != Ok(false))
            .collect();
        for (uid, ready) in decisions {
            let Some((placed, _)) = self.waiting.remove(&uid) else { continue };
            match ready {
                Ok(_) => self.bind(placed),
                Err(why) => self.give_up(placed, why, now),
            }
        }
    }

    fn give_up(&mut self, placed: Placed, why: String, now: Timestamp) {
        let (row, step) = (placed.row.clone(), pre_binder(&placed.effects));
        self.scheduler.binding_failed(placed, now);
        let Some(outcomes) = self.outcomes.get(&row.demand.scheduler_name).cloned().filter(|_| !why.is_empty()) else {
            return;
        };
        self.launch(async move {
            outcomes.binding_failed(&row, step, &why).await;
            Finished::Other
        });
    }

    fn finished(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let now = self.clock.now();
        match finished {
            Ok(Finished::PreBound(placed)) => {
                let patience = self.scheduler.profile(&placed.row).map(|profile| profile.patience());
                let until = now.checked_add(patience.unwrap_or_default()).unwrap_or(Timestamp::MAX);
                self.waiting.insert(placed.row.uid.clone(), (placed, until));
            }
            Ok(Finished::Bound(placed)) => self.scheduler.bound(&placed, now),
            Ok(Finished::BindingFailed(placed)) => self.scheduler.binding_failed(placed, now),
            Ok(Finished::EvictionFailed(unplaced)) => {
                if let Some(room) = &unplaced.preemption {
                    self.scheduler.eviction_failed(&unplaced.pod, room);
                }
            }
            Ok(Finished::Other) => {}
            Err(error) => tracing::error!(%error, "a request of the scheduler ended badly"),
        }
    }

    /// Reports why a pod is unschedulable, and evicts the victims if preemption helps.
    fn tell(&mut self, unplaced: Unplaced, now: Timestamp) {
        let Some(outcomes) = self.outcomes.get(&unplaced.pod.demand.scheduler_name).cloned() else { return };
        self.launch(async move {
            outcomes.unschedulable(&unplaced).await;
            outcomes.deallocate(&unplaced).await;
            match outcomes.preempt(&unplaced, now).await {
                Ok(()) => Finished::Other,
                Err(error) => {
                    tracing::warn!(pod = %unplaced.pod.key(), %error, "cannot make room for a pod");
                    Finished::EvictionFailed(Box::new(unplaced))
                }
            }
        });
    }
}

/// Returns the plugin whose effects did not take place.
fn pre_binder(effects: &[Effect]) -> &'static str {
    match of_devices(effects) {
        true => "PreBind plugin \"DynamicResources\"",
        false => "PreBind plugin \"VolumeBinding\"",
    }
}

fn of_devices(effects: &[Effect]) -> bool {
    let of_volume = |effect: &Effect| matches!(effect, Effect::BindVolume { .. } | Effect::Provision { .. });
    !effects.iter().any(of_volume)
}
