//! Stops a container: the Killing event, its `preStop` hook within the grace period, then the runtime's SIGTERM and
//! SIGKILL. It runs beside the worker, so that a shorter grace period can overtake it.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corten_api::k8s_openapi::api::core::v1::Pod;
use tokio::task::JoinHandle;
use tracing::warn;

use super::plan::Stop;
use crate::events::{NORMAL, WARNING};
use crate::lifecycle;
use crate::pod::spec;
use crate::pod::waker::Waker;
use crate::services::Services;

/// The shortest time between SIGTERM and SIGKILL.
const MINIMUM_GRACE: i64 = 2;

/// The containers of one pod that are being stopped.
#[derive(Default)]
pub struct Stops {
    going: HashMap<String, Vec<JoinHandle<()>>>,
}

impl Drop for Stops {
    fn drop(&mut self) {
        self.going.values().flatten().for_each(JoinHandle::abort);
    }
}

impl Stops {
    /// Returns the ids of the containers that are being stopped.
    pub fn ids(&mut self) -> HashSet<String> {
        self.going.retain(|_, tasks| tasks.iter().any(|task| !task.is_finished()));
        self.going.keys().cloned().collect()
    }

    pub fn begin(&mut self, services: &Arc<Services>, waker: &Waker, pod: &Arc<Pod>, pod_ip: &str, stop: Stop) {
        let id = stop.id.clone();
        let task = tokio::spawn(stop_container(services.clone(), waker.clone(), pod.clone(), pod_ip.to_owned(), stop));
        self.going.entry(id).or_default().push(task);
    }

    /// Stops containers again with a shorter grace period.
    pub fn shorten_grace(&mut self, services: &Arc<Services>, waker: &Waker, grace: i64) {
        for id in self.ids() {
            let services = services.clone();
            let waker = waker.clone();
            let container = id.clone();
            let task = tokio::spawn(async move {
                call_runtime(&services, &container, grace).await;
                waker.wake();
            });
            self.going.entry(id).or_default().push(task);
        }
    }
}

async fn stop_container(services: Arc<Services>, waker: Waker, pod: Arc<Pod>, pod_ip: String, stop: Stop) {
    services.api.events.container(&pod, &stop.name, NORMAL, "Killing", &stop.message);
    let spent = run_pre_stop(&services, &pod, &pod_ip, &stop).await;
    let spent = i64::try_from(spent.as_secs()).unwrap_or(i64::MAX);
    call_runtime(&services, &stop.id, (stop.grace - spent).max(MINIMUM_GRACE.min(stop.grace.max(0)))).await;
    waker.wake();
}

/// Runs the hook for at most the grace period; returns the time that it took.
async fn run_pre_stop(services: &Services, pod: &Pod, pod_ip: &str, stop: &Stop) -> Duration {
    let begun = Instant::now();
    let Some(declared) = spec::container(pod, &stop.name) else { return Duration::ZERO };
    let handler = declared.container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.clone());
    let (Some(handler), Ok(grace @ 1..)) = (handler, u64::try_from(stop.grace)) else { return Duration::ZERO };
    let hook = lifecycle::run(&services.runtime.client, &handler, &declared.container, &stop.id, pod_ip);
    if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(grace), hook).await {
        warn!(%error, container = stop.name, pod = %spec::describe(pod), "preStop hook failed");
        services.api.events.container(pod, &stop.name, WARNING, "FailedPreStopHook", "PreStopHook failed");
    }
    begun.elapsed()
}

async fn call_runtime(services: &Services, id: &str, grace: i64) {
    if let Err(error) = services.runtime.client.stop_container(id, grace).await {
        warn!(%error, container = id, "container not stopped");
    }
}
