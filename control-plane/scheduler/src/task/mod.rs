//! The task that owns the scheduler's state, and its one loop: hear what changed, decide about what waits, carry out.

mod glance;
pub mod watches;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use corten_api::decode_object;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Caches, Change, Client};
use jiff::Timestamp;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::extender::Extenders;
use crate::outcome::Outcomes;
use crate::queue::Entry;
use crate::scheduler::{Decision, Placed, Scheduler, Unplaced};
use watches::{Watched, Watches};

/// The most requests to the API under way at once.
const MAX_IN_FLIGHT: usize = 256;

pub async fn run(config: &Config, client: Client, shutdown: CancellationToken) {
    let caches = Caches::new(client.clone(), shutdown.clone());
    let watches = Watches::start(&caches).await;
    let outcomes = config.profiles.iter().map(|profile| {
        let name = &profile.scheduler_name;
        (name.clone(), Arc::new(Outcomes::new(client.clone(), name)))
    });
    let task = Task {
        outcomes: outcomes.collect(),
        extenders: Arc::new(Extenders::new(&config.extenders)),
        client,
        watches,
        scheduler: Scheduler::new(config),
        waiting: HashMap::new(),
        in_flight: JoinSet::new(),
    };
    task.run(shutdown).await;
    caches.ended().await;
}

/// How something that went out beside the task ended.
enum Finished {
    /// What had to be written before the binding is.
    PreBound(Placed),
    Bound(Placed),
    BindingFailed(Placed),
    EvictionFailed(Box<Unplaced>),
    Other,
}

struct Task {
    client: Client,
    outcomes: HashMap<String, Arc<Outcomes>>,
    extenders: Arc<Extenders>,
    watches: Watches,
    scheduler: Scheduler,
    /// Placed pods whose volumes are being bound, and until when.
    waiting: HashMap<Arc<str>, (Placed, Timestamp)>,
    in_flight: JoinSet<Finished>,
}

impl Task {
    async fn run(mut self, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            self.hear_all();
            let now = corten_meta::time::now();
            self.bind_what_is_ready(now);
            if self.in_flight.len() < MAX_IN_FLIGHT
                && let Some(entry) = self.scheduler.next(now)
            {
                self.schedule_one(entry, now).await;
                // Give way, so that a long queue does not keep the bindings waiting.
                tokio::task::yield_now().await;
                continue;
            }
            let wait = self.until_deadline(now);
            tokio::select! {
                () = shutdown.cancelled() => break,
                (kind, change) = self.watches.next() => self.hear(kind, &change),
                Some(finished) = self.in_flight.join_next() => self.finished(finished),
                () = tokio::time::sleep(wait) => {}
            }
        }
        while self.in_flight.join_next().await.is_some() {}
    }

    fn until_deadline(&self, now: Timestamp) -> Duration {
        let bindings = self.waiting.values().map(|(_, until)| *until).min();
        let deadline = self.scheduler.next_deadline().into_iter().chain(bindings).min();
        let left = deadline.map(|at| at.duration_since(now).try_into().unwrap_or(Duration::ZERO));
        left.unwrap_or(Duration::from_secs(3600))
    }

    /// Everything that is known by now counts before the next pod is placed.
    fn hear_all(&mut self) {
        while let Some((kind, change)) = self.watches.try_next() {
            self.hear(kind, &change);
        }
        while let Some(finished) = self.in_flight.try_join_next() {
            self.finished(finished);
        }
    }

    fn hear(&mut self, kind: Watched, change: &Change) {
        let now = corten_meta::time::now();
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
        let Ok(pod) = decode_object::<Pod>(object) else { return };
        if let Some(gated) = self.scheduler.pod_changed(pod, now)
            && let Some(outcomes) = self.outcomes.get(&gated.demand.scheduler_name).cloned()
        {
            self.in_flight.spawn(async move {
                outcomes.gated(gated).await;
                Finished::Other
            });
        }
    }

    /// The scheduling cycle of one pod.
    async fn schedule_one(&mut self, entry: Entry, now: Timestamp) {
        let pod = entry.pod.clone();
        let decision = match self.extenders.concern(&pod) {
            false => self.scheduler.decide(entry),
            true => self.decide_with_extenders(entry).await,
        };
        match decision {
            Some(Decision::Place(placed)) => self.carry_out(placed),
            Some(Decision::Reject(unplaced)) => self.tell(unplaced, now),
            None => {}
        }
    }

    /// The cycle with the extenders' words in between. The loop waits for them, as upstream's does: a decision must
    /// be made on one state.
    async fn decide_with_extenders(&mut self, entry: Entry) -> Option<Decision> {
        let profile = self.scheduler.profile(&entry.pod)?;
        let mut search = self.scheduler.search(&entry.pod, &profile);
        let extenders = self.extenders.clone();
        let asked = async {
            let object = self.client.get::<Pod>(entry.pod.namespace(), &entry.pod.name).await?;
            let consulted = crate::extender::Consulted { client: &self.client, pod: &object, row: &entry.pod };
            extenders.filter(&consulted, &self.scheduler.snapshot, &mut search).await?;
            extenders.prioritize(&consulted, &self.scheduler.snapshot, &search.feasible).await
        };
        match asked.await {
            Ok(scores) => {
                let decision = self.scheduler.conclude(entry, &profile, &search, &scores);
                Some(self.extenders_on_preemption(decision).await)
            }
            Err(error) => {
                let outcomes = self.outcomes.get(&entry.pod.demand.scheduler_name).cloned()?;
                let pod = entry.pod.clone();
                self.scheduler.failed(entry);
                self.in_flight.spawn(async move {
                    outcomes.binding_failed(&pod, "an extender", &error.to_string()).await;
                    Finished::Other
                });
                None
            }
        }
    }

    /// Extenders may object to a preemption; the pod then waits without one.
    async fn extenders_on_preemption(&mut self, decision: Decision) -> Decision {
        let Decision::Reject(mut unplaced) = decision else { return decision };
        let Some(room) = unplaced.preemption.clone() else { return Decision::Reject(unplaced) };
        let pod = unplaced.pod.clone();
        if !self.extenders.allow_preemption(&self.client, &pod, &room).await {
            self.scheduler.eviction_failed(&pod, &room);
            unplaced.preemption = None;
        }
        Decision::Reject(unplaced)
    }

    /// Pre-bind, if there is something to write first; else bind.
    fn carry_out(&mut self, placed: Placed) {
        if placed.effects.is_empty() {
            return self.bind(placed);
        }
        let Some(outcomes) = self.outcomes.get(&placed.row.demand.scheduler_name).cloned() else { return };
        self.in_flight.spawn(async move {
            match outcomes.pre_bind(&placed).await {
                Ok(()) => Finished::PreBound(placed),
                Err(error) => {
                    let step = "PreBind plugin \"VolumeBinding\"";
                    outcomes.binding_failed(&placed.row, step, &error.to_string()).await;
                    Finished::BindingFailed(placed)
                }
            }
        });
    }

    fn bind(&mut self, placed: Placed) {
        let Some(outcomes) = self.outcomes.get(&placed.row.demand.scheduler_name).cloned() else { return };
        let extenders = self.extenders.clone();
        self.in_flight.spawn(async move {
            let bound = match extenders.binder(&placed.row) {
                Some(extender) => extender.bind(&placed.row).await,
                None => outcomes.bind(&placed.row).await,
            };
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

    /// Binds pods whose volumes are there, and gives up on those that failed or take too long.
    fn bind_what_is_ready(&mut self, now: Timestamp) {
        let judged: Vec<(Arc<str>, Result<bool, String>)> = self
            .waiting
            .iter()
            .map(|(uid, (placed, until))| {
                let late = || Err("binding volumes: context deadline exceeded".to_owned());
                let ready = if *until <= now { late() } else { self.scheduler.ready_to_bind(placed) };
                (uid.clone(), if self.scheduler.is_assumed(uid) { ready } else { Err(String::new()) })
            })
            .filter(|(_, ready)| *ready != Ok(false))
            .collect();
        for (uid, ready) in judged {
            let Some((placed, _)) = self.waiting.remove(&uid) else { continue };
            match ready {
                Ok(_) => self.bind(placed),
                Err(why) => self.give_up(placed, why, now),
            }
        }
    }

    fn give_up(&mut self, placed: Placed, why: String, now: Timestamp) {
        let row = placed.row.clone();
        self.scheduler.binding_failed(placed, now);
        let Some(outcomes) = self.outcomes.get(&row.demand.scheduler_name).cloned().filter(|_| !why.is_empty()) else {
            return;
        };
        self.in_flight.spawn(async move {
            outcomes.binding_failed(&row, "PreBind plugin \"VolumeBinding\"", &why).await;
            Finished::Other
        });
    }

    fn finished(&mut self, finished: Result<Finished, tokio::task::JoinError>) {
        let now = corten_meta::time::now();
        match finished {
            Ok(Finished::PreBound(placed)) => {
                let patience = self.scheduler.profile(&placed.row).map(|profile| profile.patience());
                let until = now.checked_add(patience.unwrap_or_default()).unwrap_or(Timestamp::MAX);
                self.waiting.insert(placed.row.uid.clone(), (placed, until));
            }
            Ok(Finished::Bound(placed)) => self.scheduler.bound(&placed),
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

    /// Says why a pod found no node, and makes room if that was found to help.
    fn tell(&mut self, unplaced: Unplaced, now: Timestamp) {
        let Some(outcomes) = self.outcomes.get(&unplaced.pod.demand.scheduler_name).cloned() else { return };
        self.in_flight.spawn(async move {
            outcomes.unschedulable(&unplaced).await;
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
