//! The worker's first step: the admission of its pod by the node. A pod that was here before is admitted without a
//! check; a new one that does not fit fails, and nothing is created for it.

use corten_api::k8s_openapi::api::core::v1::{Node, Pod};
use corten_meta::Key;
use jiff::Timestamp;

use super::plan::Termination;
use super::resize;
use super::worker::Worker;
use crate::admission::{NodeInfo, Rejection};
use crate::error::Result;
use crate::events::WARNING;
use crate::metrics;
use crate::pod::observed::Observed;
use crate::pod::phase::is_terminal;
use crate::pod::spec;
use crate::pod::terminations::PodTermination;

/// Reports whether the node has admitted the pod before.
pub fn was_admitted(pod: &Pod) -> bool {
    spec::status(pod).start_time.is_some() && !is_over(pod)
}

fn is_over(pod: &Pod) -> bool {
    spec::status(pod).phase.as_deref().is_some_and(is_terminal)
}

impl Worker {
    /// Admits the pod once; afterwards this does nothing.
    pub(super) async fn admit(&mut self, observed: &Observed, now: Timestamp) -> Result<()> {
        if self.allocated.is_some() || self.memory.termination.is_some() || is_over(&self.pod) {
            return Ok(());
        }
        let known = was_admitted(&self.pod) || !observed.sandboxes.is_empty();
        if known || self.pod.metadata.deletion_timestamp.is_some() {
            self.allocated = Some(resize::last_allocated(&self.pod));
            self.pod = resize::with_resources(&self.pod, self.allocated.as_ref());
            self.services.resources.allocations.hold(&self.pod);
            return Ok(());
        }
        match self.admit_by_current_node().await? {
            Ok(()) => match self.services.resources.allocate(&self.pod).await {
                Ok(()) => self.allocated = Some(resize::resources_of(&self.pod)),
                Err(rejection) => {
                    self.services.resources.allocations.release(spec::uid(&self.pod));
                    self.reject(rejection, now);
                }
            },
            Err(rejection) if rejection.is_shortage() && self.make_room().await? => {}
            Err(rejection) => self.reject(rejection, now),
        }
        Ok(())
    }

    /// Reports whether other pods are being preempted so that this one fits; until they are gone, nothing is created
    /// for it.
    pub(super) fn waits_for_room(&self) -> bool {
        self.allocated.is_none() && self.memory.termination.is_none() && !is_over(&self.pod)
    }

    /// Preempts less important pods for a critical one; false if it is not critical, or that would not help.
    async fn make_room(&self) -> Result<bool> {
        if !spec::is_critical(&self.pod) {
            return Ok(false);
        }
        let node_info = NodeInfo { allocatable: self.services.resources.allocatable(), ..NodeInfo::default() };
        let Some(victims) = self.services.resources.allocations.preempt(&self.pod, &node_info, &self.waker) else {
            return Ok(false);
        };
        for uid in &victims {
            let message = "Preempted in order to admit critical pod".to_owned();
            let end = PodTermination { reason: "Preempting".into(), message, grace: i64::MAX, disrupted: true };
            self.services.signals.terminations.end(uid, end);
        }
        tracing::info!(pod = %spec::describe(&self.pod), victims = victims.len(), "making room for a critical pod");
        Ok(true)
    }

    /// Admits by the current node: the cached node may be stale, so its labels are read again before they reject the
    /// pod.
    async fn admit_by_current_node(&self) -> Result<std::result::Result<(), Rejection>> {
        let services = &self.services;
        let name = services.config.node_name.as_str();
        let cached: Option<Node> =
            services.api.own_node.typed(&Key { namespace: String::new(), name: name.to_owned() });
        if let Some(node) = cached {
            let verdict = services.resources.allocations.admit(&self.pod, &NodeInfo::new(&node, services));
            if !verdict.as_ref().is_err_and(Rejection::is_node_affinity) {
                return Ok(verdict);
            }
        }
        let node = services.api.client.get::<Node>("", name).await?;
        Ok(services.resources.allocations.admit(&self.pod, &NodeInfo::new(&node, services)))
    }

    /// Rejects the pod: it fails.
    pub(super) fn reject(&mut self, rejection: Rejection, now: Timestamp) {
        let Rejection { reason, message } = rejection;
        self.services.metrics.count(&metrics::ADMISSION_REJECTIONS, &[&reason]);
        self.services.api.events.pod(&self.pod, WARNING, &reason, &message);
        let failed = Some((reason, format!("Pod was rejected: {message}")));
        self.memory.termination = Some(Termination { since: now, failed, rejected: true, ..Termination::default() });
    }
}
