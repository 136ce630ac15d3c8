//! The eviction manager: it observes memory, disk and processes, reports pressure in the node's conditions, reclaims
//! resources that no pod needs (dead containers, unused images), and else evicts pods, one at a time, in upstream's
//! order.
//!
//! `thresholds` is the configuration, `decide` and `rank` are pure; this file observes and acts. It never evicts a
//! critical pod, and never touches a container itself: the pod's worker does.

mod decide;
mod rank;

use std::sync::Arc;
use std::time::Duration;

use corten_api::k8s_openapi::api::core::v1::Pod;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

pub use crate::thresholds::{EvictionConfig, Pressure, Signal, default_hard, parse_flag};

use crate::error::Result;
use crate::events::WARNING;
use crate::images::collect::ImageCollector;
use crate::pod::phase::is_terminal;
use crate::pod::spec;
use crate::pod::terminations::PodTermination;
use crate::pod::view::{View, Views};
use crate::services::Services;
use crate::stats::{Collector, Detail};
use crate::summary::{PodStats, Summary};
use crate::thresholds::{Resource, Threshold};
use decide::{Observations, State};
use rank::Candidate;

/// The interval of observations: upstream's monitoring period, and that of its counters.
const PERIOD: Duration = Duration::from_secs(10);
/// The time for which the next observation waits for an evicted pod to release its resources.
const CLEANUP: Duration = Duration::from_secs(30);
/// The grace period of pods that a hard threshold evicts.
const IMMEDIATE_GRACE_SECONDS: i64 = 1;
const REASON: &str = "Evicted";

/// The eviction manager of one node.
pub struct Evictor {
    services: Arc<Services>,
    views: Views,
    collector: Collector,
    images: ImageCollector,
    thresholds: Vec<Threshold>,
    state: State,
}

impl Evictor {
    pub fn new(services: Arc<Services>, views: Views, collector: Collector, images: ImageCollector) -> Result<Evictor> {
        let thresholds = services.config.eviction.thresholds().map_err(crate::error::Error::Configuration)?;
        Ok(Evictor { services, views, collector, images, thresholds, state: State::default() })
    }

    /// Observes until shutdown.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let ended = match self.observe_once().await {
                Ok(ended) => ended,
                Err(error) => {
                    warn!(%error, "the node's resources could not be observed");
                    Vec::new()
                }
            };
            let pause = async {
                if ended.is_empty() {
                    tokio::time::sleep(PERIOD).await;
                } else {
                    let _ = tokio::time::timeout(CLEANUP, self.all_ended(&ended)).await;
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = pause => {}
            }
        }
    }

    /// Waits until no container of the pods runs.
    async fn all_ended(&self, uids: &[String]) {
        for uid in uids {
            let Some(mut view) = self.views.get(uid) else { continue };
            // A worker that ended has terminated its pod.
            let _ = view.wait_for(|view| view.observed.running().next().is_none()).await;
        }
    }

    /// Observes once; returns the uids of the evicted pods.
    async fn observe_once(&mut self) -> Result<Vec<String>> {
        let pods: Vec<View> = self.views.all().into_iter().filter(is_active).collect();
        let limited = pods.iter().any(|view| rank::has_own_limit(&view.pod));
        let mut summary = self.collector.summary(if limited { Detail::All } else { Detail::Node }).await?;
        let seen = decide::observe(&summary);
        let transition = self.services.config.eviction.pressure_transition_period;
        let decision = self.state.decide(&self.thresholds, &seen, transition, Timestamp::now());
        self.services.signals.pressure.send_if_modified(|current| {
            let changed = *current != decision.pressures;
            current.clone_from(&decision.pressures);
            changed
        });
        let over = self.evict_over_own_limit(&pods, &summary);
        if !over.is_empty() {
            return Ok(over);
        }
        let Some(first) = decision.met.first() else { return Ok(Vec::new()) };
        if !limited {
            // The ranking needs the usage of every pod.
            summary = self.collector.summary(Detail::All).await?;
        }
        self.reclaim(first, &decision.met, &seen, &pods, &summary).await
    }

    /// Reports whether images are on another file system than the pods' files.
    fn dedicated_image_fs(&self, summary: &Summary) -> bool {
        let image_fs = summary.node.runtime.as_ref().and_then(|runtime| runtime.image_fs.as_ref());
        let of = |fs: &crate::summary::FsStats| (fs.capacity_bytes, fs.inodes, fs.inodes_free);
        match (image_fs, &summary.node.fs) {
            (Some(image_fs), Some(node_fs)) => of(image_fs) != of(node_fs),
            _ => false,
        }
    }

    fn evict_over_own_limit(&self, pods: &[View], summary: &Summary) -> Vec<String> {
        let dedicated = self.dedicated_image_fs(summary);
        let mut ended = Vec::new();
        for view in pods {
            let Some(stats) = stats_of(&view.pod, summary) else { continue };
            let Some(message) = rank::over_own_limit(&view.pod, stats, dedicated) else { continue };
            if self.evict(&view.pod, "ephemeralpodfs.limit", message, IMMEDIATE_GRACE_SECONDS, false) {
                ended.push(spec::uid(&view.pod).to_owned());
            }
        }
        ended
    }

    /// Acts on a threshold: first reclaims without harm to a pod, then evicts one.
    async fn reclaim(
        &self,
        threshold: &Threshold,
        met: &[Threshold],
        seen: &Observations,
        pods: &[View],
        summary: &Summary,
    ) -> Result<Vec<String>> {
        let resource = threshold.signal.resource();
        self.services.api.events.node(
            WARNING,
            "EvictionThresholdMet",
            &format!("Attempting to reclaim {}", resource.name()),
        );
        if self.reclaim_from_node(threshold, self.dedicated_image_fs(summary)).await? {
            info!(resource = resource.name(), "the pressure was reduced without an eviction");
            return Ok(Vec::new());
        }
        let mut candidates: Vec<Candidate<'_>> =
            pods.iter().map(|view| Candidate { pod: &view.pod, stats: stats_of(&view.pod, summary) }).collect();
        rank::rank(&mut candidates, threshold.signal, self.dedicated_image_fs(summary));
        for candidate in candidates {
            let message = rank::message(threshold.signal, &candidate, met, seen);
            let own = spec::spec(candidate.pod).termination_grace_period_seconds.unwrap_or(30);
            let most = self.services.config.eviction.max_pod_grace_period;
            let grace = if threshold.is_hard() { IMMEDIATE_GRACE_SECONDS } else { most.min(own) };
            if self.evict(candidate.pod, threshold.signal.name(), message, grace, true) {
                return Ok(vec![spec::uid(candidate.pod).to_owned()]);
            }
        }
        warn!(resource = resource.name(), "the node is low on a resource and has no pod to evict");
        Ok(Vec::new())
    }

    /// Removes dead containers and unused images if that can help; returns whether it was enough.
    async fn reclaim_from_node(&self, threshold: &Threshold, dedicated_image_fs: bool) -> Result<bool> {
        let on_disk = matches!(threshold.signal.resource(), Resource::EphemeralStorage | Resource::Inodes);
        let images = matches!(threshold.signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
        if !on_disk || (dedicated_image_fs && !images) {
            return Ok(false);
        }
        self.images.remove_dead_containers().await;
        self.images.remove_unused().await?;
        let seen = decide::observe(&self.collector.summary(Detail::Node).await?);
        Ok(decide::met(&self.thresholds, &seen, true).is_empty())
    }

    /// Evicts the pod, unless it is critical.
    fn evict(&self, pod: &Pod, signal: &str, message: String, grace: i64, disrupted: bool) -> bool {
        if spec::is_critical(pod) {
            return false;
        }
        let end = PodTermination { reason: REASON.into(), message: message.clone(), grace, disrupted };
        let ordered = self.services.signals.terminations.end(spec::uid(pod), end);
        if ordered {
            info!(pod = %spec::describe(pod), message, "evicting a pod");
            self.services.metrics.count(&crate::metrics::EVICTIONS, &[signal]);
            self.services.api.events.pod(pod, WARNING, REASON, &message);
        }
        ordered
    }
}

fn is_active(view: &View) -> bool {
    !view.status.phase.as_deref().is_some_and(is_terminal) && view.observed.running().next().is_some()
}

fn stats_of<'a>(pod: &Pod, summary: &'a Summary) -> Option<&'a PodStats> {
    summary.pods.iter().find(|stats| stats.pod_ref.uid == spec::uid(pod))
}
