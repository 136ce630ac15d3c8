//! Graceful node shutdown: when logind signals that the machine is about to shut down, the kubelet admits no more pods,
//! reports the shutdown in the node's status, and terminates its pods by priority, the lowest first, each group within
//! its grace period; then it releases the inhibitor lock.
//!
//! It never terminates a pod itself: it orders the termination, and the pods' workers do it.

pub(crate) mod dbus;
mod logind;

pub use crate::config::Period;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::config::{Config, ShutdownConfig};
use crate::error::{Error, Result};
use crate::pod::phase::is_terminal;
use crate::pod::spec;
use crate::pod::terminations::PodTermination;
use crate::pod::view::{View, Views};
use crate::services::Services;
use logind::Logind;

/// The priority from which pods are system-critical.
const SYSTEM_CRITICAL: i32 = 2_000_000_000;
const BUS: &str = "/run/dbus/system_bus_socket";
const REASON: &str = "Terminated";
const MESSAGE: &str = "Pod was terminated in response to imminent node shutdown.";

/// Returns the grace periods by priority, the lowest first; none without graceful shutdown.
pub fn periods(config: &ShutdownConfig) -> Vec<Period> {
    let mut periods = config.by_priority.clone();
    if periods.is_empty() && !config.grace_period.is_zero() {
        let all = config.grace_period.as_secs();
        let critical = config.critical_grace_period.as_secs();
        periods = vec![
            Period { priority: 0, seconds: all.saturating_sub(critical) },
            Period { priority: SYSTEM_CRITICAL, seconds: critical },
        ];
    }
    periods.sort_unstable_by_key(|period| period.priority);
    periods
}

/// Listens for the machine's shutdown; `None` if it is not configured.
pub struct Shutdown {
    logind: Logind,
    periods: Vec<Period>,
}

impl Shutdown {
    pub fn new(config: &Config) -> Result<Option<Shutdown>> {
        let periods = periods(&config.shutdown);
        if periods.is_empty() {
            return Ok(None);
        }
        let socket = config.shutdown.bus.clone().unwrap_or_else(|| BUS.into());
        let whole = Duration::from_secs(periods.iter().map(|period| period.seconds).sum());
        match Logind::connect(&socket, Path::new("/"), whole) {
            Ok(logind) => Ok(Some(Shutdown { logind, periods })),
            Err(error) if config.shutdown.is_optional => {
                info!("a shutdown of the machine ends pods without warning: logind cannot be used: {error}");
                Ok(None)
            }
            Err(error) => Err(Error::Configuration(format!(
                "shutdownGracePeriod needs logind, and {} cannot be used: {error}",
                socket.display()
            ))),
        }
    }

    pub async fn run(mut self, services: Arc<Services>, views: Views, stop: CancellationToken) {
        loop {
            let begins = tokio::select! {
                () = stop.cancelled() => return,
                begins = self.logind.shutdowns.recv() => begins,
            };
            let Some(begins) = begins else {
                warn!("logind does not answer any more: the node would be stopped without warning");
                return stop.cancelled().await;
            };
            services.signals.shutting_down.send_replace(begins);
            if !begins {
                info!("the shutdown of the machine was called off");
                continue;
            }
            info!("the machine shuts down: ending pods");
            tokio::select! {
                () = stop.cancelled() => return,
                () = end_pods(&self.periods, &services, &views) => {}
            }
            self.logind.release();
        }
    }
}

/// Terminates the pods, group by group.
async fn end_pods(periods: &[Period], services: &Services, views: &Views) {
    let active: Vec<View> = views.all().into_iter().filter(is_active).collect();
    let priority = |view: &View| spec::spec(&view.pod).priority.unwrap_or(0);
    let pods: Vec<(String, i32)> =
        active.iter().map(|view| (spec::uid(&view.pod).to_owned(), priority(view))).collect();
    for (seconds, uids) in groups(periods, pods) {
        let grace = i64::try_from(seconds).unwrap_or(i64::MAX);
        for uid in &uids {
            let end = PodTermination { reason: REASON.into(), message: MESSAGE.into(), grace, disrupted: true };
            services.signals.terminations.end(uid, end);
        }
        let ended = futures::future::join_all(uids.iter().map(|uid| ended(views, uid)));
        if tokio::time::timeout(Duration::from_secs(seconds), ended).await.is_err() {
            warn!(seconds, "shutdown: pods did not end in their time");
        }
    }
}

async fn ended(views: &Views, uid: &str) {
    let Some(mut view) = views.get(uid) else { return };
    // A view whose pod was deleted is done as well.
    let _ = view.wait_for(|view| !is_active(view)).await;
}

fn is_active(view: &View) -> bool {
    !view.status.phase.as_deref().is_some_and(is_terminal) || view.observed.running().next().is_some()
}

/// Returns the pods that are terminated together: each in the group of the highest period that is not above its
/// priority, those below all periods in the lowest.
fn groups(periods: &[Period], pods: Vec<(String, i32)>) -> Vec<(u64, Vec<String>)> {
    let mut groups: Vec<(u64, Vec<String>)> = periods.iter().map(|period| (period.seconds, Vec::new())).collect();
    for (uid, priority) in pods {
        let above = periods.partition_point(|period| period.priority <= priority);
        if let Some((_, group)) = groups.get_mut(above.saturating_sub(1)) {
            group.push(uid);
        }
    }
    groups.retain(|(_, group)| !group.is_empty());
    groups
}

#[cfg(test)]
mod fake_bus;
#[cfg(test)]
mod tests;
