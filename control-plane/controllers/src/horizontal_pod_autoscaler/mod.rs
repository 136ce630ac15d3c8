//! The HorizontalPodAutoscaler controller: as many replicas as the metrics recommend, within bounds and rate limits.
//!
//! Every period it reads the target's scale, its pods and their metrics; decides purely ([`decide`]) by the
//! recommendations ([`sources`], [`usage`]) and the scaling behavior ([`behavior`]); then updates the scale and the
//! conditions. Without metrics nothing is scaled, and the conditions name the missing ones.

pub(crate) mod behavior;
pub(crate) mod custom;
pub(crate) mod decide;
pub(crate) mod metrics;
mod sources;
mod usage;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscaler, MetricSpec};
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_client::{Cache, Caches, Client, Error, EventRecorder, EventType, ObjectRef, Resource, WorkQueue};
use corten_meta::{Key, Selector, Value};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::runtime::workqueue::{enqueue_changes, run_workers};
use crate::runtime::{Count, Counter, Label};
use behavior::History;
use decide::{Decision, Observed, decide};

const WORKERS: usize = 5;
/// The period between two reconciles of an autoscaler.
const PERIOD: Duration = Duration::from_secs(15);

pub struct AutoscalerController {
    autoscalers: Arc<Cache>,
    pods: Arc<Cache>,
    client: Client,
    recorder: EventRecorder,
    /// The recent recommendations and changes, by autoscaler; removed with it.
    histories: Mutex<HashMap<Key, History>>,
    counter: Counter,
}

/// The result of one reconcile, as the metrics name it.
struct Look {
    action: &'static str,
    error: &'static str,
    desired: i32,
    /// By the type of a metric: its action, its error, and the time to compute it.
    metrics: Vec<(String, &'static str, &'static str, Duration)>,
}

/// Returns the direction of a change of replicas.
fn step(from: i32, to: i32) -> &'static str {
    match to.cmp(&from) {
        Ordering::Less => "scale_down",
        Ordering::Equal => "none",
        Ordering::Greater => "scale_up",
    }
}

impl AutoscalerController {
    pub fn new(caches: &Caches, client: Client, counter: Counter) -> AutoscalerController {
        AutoscalerController {
            autoscalers: caches.of::<HorizontalPodAutoscaler>(),
            pods: caches.of::<Pod>(),
            recorder: EventRecorder::new(client.clone(), "horizontal-pod-autoscaler", ""),
            client,
            histories: Mutex::default(),
            counter,
        }
    }

    pub async fn run(self, queue: WorkQueue<Key>, shutdown: CancellationToken) {
        let this = Arc::new(self);
        let cache = this.autoscalers.clone();
        let changed = |change: &corten_client::Change| {
            // A change of its own status does not enqueue the autoscaler before the period is over.
            let generation =
                |object: &Option<Arc<corten_meta::Object>>| object.as_ref().map(|one| one.header.generation);
            let news = change.new.is_none() || generation(&change.old) != generation(&change.new);
            if news { vec![change.key.clone()] } else { Vec::new() }
        };
        let handle = move |key: Key| {
            let this = this.clone();
            async move {
                let began = Instant::now();
                let look = this.scale(&key).await;
                this.count(&key, look.as_ref(), began.elapsed());
                Ok(look?.map(|_| PERIOD))
            }
        };
        tokio::join!(
            enqueue_changes(cache, queue.clone(), shutdown.clone(), changed),
            run_workers("horizontal-pod-autoscaler", queue, WORKERS, shutdown, handle),
        );
    }

    /// Reconciles one autoscaler.
    async fn scale(&self, key: &Key) -> Result<Option<Look>, Error> {
        let Some(autoscaler) = self.autoscalers.typed::<HorizontalPodAutoscaler>(key) else {
            self.histories().remove(key);
            return Ok(None);
        };
        let target = self.target(&autoscaler).await;
        let (observed, took) = self.observe(&autoscaler, target.as_ref().map(|(_, scale)| scale)).await;
        let now = crate::runtime::now();
        let mut decision = {
            let mut histories = self.histories();
            decide(&observed, histories.entry(key.clone()).or_default(), now)
        };
        let before = observed.current_replicas().unwrap_or_default();
        let desired = decision.replicas.unwrap_or(before);
        let metric = |((kind, replicas), took): ((String, Option<i32>), &Duration)| match replicas {
            Some(replicas) => (kind, step(before, replicas), "none", *took),
            None => (kind, "none", "internal", *took),
        };
        let metrics = std::mem::take(&mut decision.evaluated).into_iter().zip(&took).map(metric).collect();
        let error = if decision.events.iter().any(|(warning, ..)| *warning) { "internal" } else { "none" };
        if let (Some(replicas), Ok((resource, scale))) = (decision.replicas, &target) {
            let written = self.write_scale(resource, scale, replicas).await;
            let done = decision.scaled(&observed, written.map_err(|error| error.to_string()), now);
            if done {
                let change = replicas - observed.current_replicas().unwrap_or(replicas);
                self.histories().entry(key.clone()).or_default().changed(change, now);
            }
        }
        self.tell(&autoscaler, decision).await?;
        Ok(Some(Look { action: step(before, desired), error, desired, metrics }))
    }

    fn count(&self, key: &Key, look: Result<&Option<Look>, &Error>, took: Duration) {
        let (action, error, desired) = match look {
            Ok(Some(look)) => (look.action, look.error, Some(look.desired)),
            Ok(None) => return self.counter.count(key, &[], true, took),
            Err(_) => ("none", "internal", None),
        };
        let labels: [Label; 2] = [action.into(), error.into()];
        let mut counts = vec![
            Count::new(&crate::metrics::SCALINGS, labels.clone(), 1.0),
            Count::took(&crate::metrics::SCALING_SECONDS, labels),
            Count::new(&crate::metrics::AUTOSCALERS, [], 1.0),
        ];
        for (kind, action, error, took) in look.into_iter().flatten().flat_map(|look| &look.metrics) {
            let labels: [Label; 3] = [(*action).into(), (*error).into(), kind.as_str().into()];
            counts.push(Count::new(&crate::metrics::METRIC_SECONDS, labels.clone(), took.as_secs_f64()));
            counts.push(Count::new(&crate::metrics::METRICS_EVALUATED, labels, 1.0));
        }
        if let Some(desired) = desired {
            let labels: [Label; 2] = [key.namespace.as_str().into(), key.name.as_str().into()];
            counts.push(Count::new(&crate::metrics::DESIRED_REPLICAS, labels, desired.into()));
        }
        self.counter.count(key, &counts, true, took);
    }

    fn histories(&self) -> std::sync::MutexGuard<'_, HashMap<Key, History>> {
        self.histories.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the resource of the target, and its scale.
    async fn target(&self, autoscaler: &HorizontalPodAutoscaler) -> Result<(Resource, Value), String> {
        let spec = &autoscaler.spec;
        let reference = &spec.scale_target_ref;
        let api_version = reference.api_version.clone().unwrap_or_default();
        let resource = custom::resource_of(&self.client, &api_version, &reference.kind).await?;
        let scale = self
            .client
            .dynamic(&resource)
            .get_subresource(autoscaler.namespace(), &reference.name, "scale")
            .await
            .map_err(|error| error.to_string())?;
        Ok((resource, scale))
    }

    /// Reads everything the decision depends on, and the time that each metric took; the resource metrics are read once
    /// for all metrics that need them.
    async fn observe(
        &self,
        autoscaler: &HorizontalPodAutoscaler,
        scale: Result<&Value, &String>,
    ) -> (Observed, Vec<Duration>) {
        let scale = scale.cloned().map_err(Clone::clone);
        let text = scale.as_ref().ok().and_then(|scale| scale["status"]["selector"].as_str()).unwrap_or_default();
        let selector = Some(text).filter(|text| !text.is_empty()).and_then(|text| Selector::parse(text).ok());
        let mut pods: Vec<Pod> = Vec::new();
        let mut measured = Err("no metrics returned from resource metrics API".to_owned());
        let of_resource = |metric: &MetricSpec| metric.resource.is_some() || metric.container_resource.is_some();
        let began = Instant::now();
        if let Some(selector) = &selector {
            let chosen = self.pods.select(autoscaler.namespace(), selector);
            pods = chosen.iter().filter_map(|pod| corten_api::decode_object(pod).ok()).collect();
            if autoscaler.spec.metrics.iter().flatten().any(of_resource) {
                measured = metrics::read(&self.client, autoscaler.namespace(), text).await;
            }
        }
        let of_pods = began.elapsed();
        let (mut others, mut took) = (Vec::new(), Vec::new());
        for metric in autoscaler.spec.metrics.iter().flatten().filter(|_| selector.is_some()) {
            let began = Instant::now();
            others.push(custom::read(&self.client, autoscaler.namespace(), metric, text).await);
            took.push(if of_resource(metric) { of_pods } else { began.elapsed() });
        }
        let observed = Observed {
            autoscaler: autoscaler.clone(),
            scale,
            selectable: selector.is_some(),
            pods,
            metrics: measured,
            others,
        };
        (observed, took)
    }

    async fn write_scale(&self, resource: &Resource, scale: &Value, replicas: i32) -> Result<(), Error> {
        let mut scale = scale.clone();
        scale["spec"]["replicas"] = json!(replicas);
        let (namespace, name) = (corten_meta::namespace(&scale).to_owned(), corten_meta::name(&scale).to_owned());
        self.client.dynamic(resource).update_subresource(&namespace, &name, "scale", &scale).await.map(drop)
    }

    async fn tell(&self, autoscaler: &HorizontalPodAutoscaler, decision: Decision) -> Result<(), Error> {
        let about = ObjectRef::of(autoscaler);
        for (warning, reason, message) in decision.events {
            let kind = if warning { EventType::Warning } else { EventType::Normal };
            self.recorder.event(&about, kind, reason, message);
        }
        if autoscaler.status.as_ref() == Some(&decision.status) {
            return Ok(());
        }
        let updated = HorizontalPodAutoscaler { status: Some(decision.status), ..autoscaler.clone() };
        match self.client.update_status(&updated).await {
            Err(error) if !error.is_not_found() && !error.is_conflict() => Err(error),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
