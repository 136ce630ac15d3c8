//! The probes of containers: one task per probe of a running container, owned by the pod's worker. A task runs its
//! probe at its period, counts results against the thresholds, and wakes the worker when the verdict changes. It
//! decides nothing about the container.

mod action;
mod grpc;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::{Container, Pod, Probe};
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

pub use action::Outcome;

use crate::cri::Runtime;
use crate::events::{Events, WARNING};
use crate::pod::observed::{Instance, Observed};
use crate::pod::spec::{self, Role};
use crate::pod::verdict::Verdict;
use crate::pod::waker::Waker;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Startup,
    Liveness,
    Readiness,
}

impl Kind {
    fn title(self) -> &'static str {
        match self {
            Kind::Startup => "Startup",
            Kind::Liveness => "Liveness",
            Kind::Readiness => "Readiness",
        }
    }
}

/// The probes of one pod.
pub struct Probes {
    runtime: Runtime,
    events: Events,
    waker: Waker,
    tasks: HashMap<(String, Kind), JoinHandle<()>>,
    verdicts: Arc<Mutex<HashMap<String, Verdict>>>,
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.tasks.values().for_each(JoinHandle::abort);
    }
}

impl Probes {
    pub fn new(runtime: Runtime, events: Events, waker: Waker) -> Probes {
        Probes { runtime, events, waker, tasks: HashMap::new(), verdicts: Arc::default() }
    }

    /// Returns the verdicts of the probes, by container id.
    pub fn verdicts(&self) -> HashMap<String, Verdict> {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Starts the probes that are due and stops those of containers that no longer run. While the pod terminates, only
    /// readiness probes run.
    pub fn sync(&mut self, pod: &Arc<Pod>, observed: &Observed, pod_ip: &str, ending: bool) {
        self.end_old(observed, ending);
        for declared in spec::containers(pod) {
            if !matches!(declared.role, Role::Main | Role::Sidecar) {
                continue;
            }
            let running = observed.running().find(|instance| instance.name == declared.container.name);
            if let Some(instance) = running {
                self.sync_container(pod, &declared.container, instance, pod_ip, ending);
            }
        }
    }

    fn end_old(&mut self, observed: &Observed, ending: bool) {
        self.tasks.retain(|(id, kind), task| {
            let keep = observed.running().any(|instance| instance.id == *id) && (!ending || *kind == Kind::Readiness);
            if !keep {
                task.abort();
            }
            keep
        });
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.retain(|id, _| observed.instances.iter().any(|instance| instance.id == *id));
    }

    fn sync_container(
        &mut self,
        pod: &Arc<Pod>,
        container: &Container,
        instance: &Instance,
        pod_ip: &str,
        ending: bool,
    ) {
        self.adopt(pod, container, instance);
        let started = container.startup_probe.is_none() || self.verdict(&instance.id).startup == Some(true);
        let due = [
            (Kind::Startup, container.startup_probe.as_ref().filter(|_| !started && !ending)),
            (Kind::Liveness, container.liveness_probe.as_ref().filter(|_| started && !ending)),
            (Kind::Readiness, container.readiness_probe.as_ref().filter(|_| started)),
        ];
        for (kind, probe) in due {
            let key = (instance.id.clone(), kind);
            if let Some(probe) = probe
                && !self.tasks.contains_key(&key)
            {
                let task = self.task(pod, container, instance, kind, probe, pod_ip);
                self.tasks.insert(key, tokio::spawn(task.run()));
            }
        }
    }

    /// Keeps the verdict of an earlier kubelet: a container that was started and ready stays so until a probe fails.
    fn adopt(&self, pod: &Pod, container: &Container, instance: &Instance) {
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        verdicts.entry(instance.id.clone()).or_insert_with(|| {
            let status = spec::status(pod);
            let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
            let known = all.into_iter().find(|status| {
                status.name == container.name
                    && status.container_id.as_deref().is_some_and(|id| id.ends_with(&instance.id))
            });
            Verdict {
                startup: known.filter(|known| known.started == Some(true)).map(|_| true),
                readiness: known.filter(|known| known.ready).map(|_| true),
                liveness: None,
            }
        });
    }

    fn verdict(&self, id: &str) -> Verdict {
        self.verdicts.lock().unwrap_or_else(PoisonError::into_inner).get(id).copied().unwrap_or_default()
    }

    fn task(
        &self,
        pod: &Arc<Pod>,
        container: &Container,
        instance: &Instance,
        kind: Kind,
        probe: &Probe,
        pod_ip: &str,
    ) -> Task {
        Task {
            runtime: self.runtime.clone(),
            events: self.events.clone(),
            waker: self.waker.clone(),
            verdicts: self.verdicts.clone(),
            pod: pod.clone(),
            container: container.clone(),
            id: instance.id.clone(),
            started_at: instance.started_at,
            kind,
            probe: probe.clone(),
            pod_ip: pod_ip.to_owned(),
        }
    }
}

/// One probe of one running container.
struct Task {
    runtime: Runtime,
    events: Events,
    waker: Waker,
    verdicts: Arc<Mutex<HashMap<String, Verdict>>>,
    pod: Arc<Pod>,
    container: Container,
    id: String,
    /// The start of the container, in nanoseconds since the epoch.
    started_at: i64,
    kind: Kind,
    probe: Probe,
    pod_ip: String,
}

impl Task {
    async fn run(self) {
        tokio::time::sleep(self.initial_wait()).await;
        let mut ticks = tokio::time::interval(seconds(self.probe.period_seconds, 10));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut counter = Counter::new(&self.probe);
        loop {
            ticks.tick().await;
            let outcome = self.probe_once().await;
            self.record_event(&outcome);
            self.note(&outcome);
            if let Some(good) = counter.count(outcome.is_success()) {
                self.set(good);
                // A container whose liveness probe failed is restarted, and one whose startup probe succeeded is
                // started: both end this task.
                if self.kind == Kind::Startup || (self.kind == Kind::Liveness && !good) {
                    return;
                }
            }
        }
    }

    /// Returns the rest of `initialDelaySeconds`, counted from the container's start.
    fn initial_wait(&self) -> Duration {
        let delay = seconds(self.probe.initial_delay_seconds, 0);
        let since = jiff::Timestamp::now().as_nanosecond() - i128::from(self.started_at);
        delay.saturating_sub(Duration::from_nanos(u64::try_from(since).unwrap_or(0)))
    }

    async fn probe_once(&self) -> Outcome {
        let timeout = seconds(self.probe.timeout_seconds, 1);
        action::probe(&self.runtime, &self.probe, &self.container, &self.id, &self.pod_ip, timeout).await
    }

    fn record_event(&self, outcome: &Outcome) {
        let title = self.kind.title();
        let (reason, message) = match outcome {
            Outcome::Success => return,
            Outcome::Warning(output) => ("ProbeWarning", format!("{title} probe warning: {output}")),
            Outcome::Failure(output) => ("Unhealthy", format!("{title} probe failed: {output}")),
            Outcome::Error(error) => {
                ("Unhealthy", format!("{title} probe errored and resulted in unknown state: {error}"))
            }
        };
        self.events.container(&self.pod, &self.container.name, WARNING, reason, &message);
    }

    fn note(&self, outcome: &Outcome) {
        let result = match outcome {
            Outcome::Success | Outcome::Warning(_) => "successful",
            Outcome::Failure(_) => "failed",
            Outcome::Error(_) => "unknown",
        };
        let pod = &self.pod;
        let container = self.container.name.as_str();
        let namespace = spec::namespace(pod);
        let name = spec::name(pod);
        let uid = spec::uid(pod);
        let labels = [container, namespace, name, uid, self.kind.title(), result];
        self.runtime.metrics().probed(&labels);
    }

    fn set(&self, good: bool) {
        let mut verdicts = self.verdicts.lock().unwrap_or_else(PoisonError::into_inner);
        let verdict = verdicts.entry(self.id.clone()).or_default();
        let slot = match self.kind {
            Kind::Startup => &mut verdict.startup,
            Kind::Liveness => &mut verdict.liveness,
            Kind::Readiness => &mut verdict.readiness,
        };
        if *slot != Some(good) {
            *slot = Some(good);
            self.waker.wake();
        }
    }
}

fn seconds(value: Option<i32>, default: u64) -> Duration {
    let value = value.and_then(|value| u64::try_from(value).ok()).filter(|value| *value > 0);
    Duration::from_secs(value.unwrap_or(default))
}

/// Counts equal results in a row against the probe's thresholds.
struct Counter {
    success: u32,
    failure: u32,
    last: Option<bool>,
    row: u32,
}

impl Counter {
    fn new(probe: &Probe) -> Counter {
        let threshold = |value: Option<i32>, default| {
            value.and_then(|v| u32::try_from(v).ok()).filter(|v| *v > 0).unwrap_or(default)
        };
        Counter {
            success: threshold(probe.success_threshold, 1),
            failure: threshold(probe.failure_threshold, 3),
            last: None,
            row: 0,
        }
    }

    /// Returns the verdict, once the threshold of this result is reached.
    fn count(&mut self, good: bool) -> Option<bool> {
        if self.last == Some(good) {
            self.row = self.row.saturating_add(1);
        } else {
            (self.last, self.row) = (Some(good), 1);
        }
        let threshold = if good { self.success } else { self.failure };
        (self.row >= threshold).then_some(good)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_change_at_the_thresholds() {
        let probe = Probe { success_threshold: Some(2), failure_threshold: Some(3), ..Probe::default() };
        let mut counter = Counter::new(&probe);
        let results = [true, true, false, false, true, false, false, false, false];
        let verdicts: Vec<_> = results.into_iter().map(|good| counter.count(good)).collect();
        assert_eq!(verdicts, [None, Some(true), None, None, None, None, None, Some(false), Some(false)]);
    }
}
