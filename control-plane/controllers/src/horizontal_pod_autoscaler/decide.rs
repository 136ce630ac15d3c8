//! What an autoscaler does now and what it tells: replicas, conditions, current metrics, events. Pure.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
    HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus, MetricSpec, MetricStatus, MetricTarget,
    MetricValueStatus, ResourceMetricStatus,
};
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_meta::{Quantity, Value};
use jiff::Timestamp;

use super::behavior::{Bounds, History, WITHIN_RANGE, permitted};
use super::metrics::PodMetrics;
use super::usage::{Answer, Question, TOLERANCE, Target, replicas};

/// Everything the decision depends on, besides what happened lately.
pub struct Observed {
    pub autoscaler: HorizontalPodAutoscaler,
    pub scale: Result<Value, String>,
    /// The target's scale says which pods it is about.
    pub selectable: bool,
    pub pods: Vec<Pod>,
    pub metrics: Result<BTreeMap<String, PodMetrics>, String>,
}

impl Observed {
    pub fn current_replicas(&self) -> Option<i32> {
        let replicas = self.scale.as_ref().ok()?["spec"]["replicas"].as_i64().unwrap_or(0);
        i32::try_from(replicas).ok()
    }
}

pub struct Decision {
    /// The replicas to scale to, if they differ.
    pub replicas: Option<i32>,
    pub status: HorizontalPodAutoscalerStatus,
    /// Whether it is a warning, its reason and its message.
    pub events: Vec<(bool, &'static str, String)>,
    reason: String,
}

pub fn decide(observed: &Observed, history: &mut History, now: Timestamp) -> Decision {
    let spec = observed.autoscaler.spec.clone();
    let mut decision = Decision {
        replicas: None,
        status: observed.autoscaler.status.clone().unwrap_or_default(),
        events: Vec::new(),
        reason: String::new(),
    };
    decision.status.observed_generation = observed.autoscaler.metadata.generation;
    let current = match (&observed.scale, observed.current_replicas()) {
        (Ok(_), Some(current)) => current,
        (scale, _) => {
            let error = scale.as_ref().err().cloned().unwrap_or_default();
            let message = format!("the HPA controller was unable to get the target's current scale: {error}");
            decision.set("AbleToScale", "False", "FailedGetScale", message, now);
            decision.events.push((true, "FailedGetScale", error));
            return decision;
        }
    };
    let found = "the HPA controller was able to get the target's current scale";
    decision.set("AbleToScale", "True", "SucceededGetScale", found, now);
    decision.status.current_replicas = Some(current);
    let min = spec.min_replicas.unwrap_or(1);
    if current == 0 {
        let message = "scaling is disabled since the replica count of the target is zero";
        decision.set("ScalingActive", "False", "ScalingDisabled", message, now);
        decision.status.desired_replicas = 0;
    } else if current > spec.max_replicas {
        decision.scale_to(spec.max_replicas, "Current number of replicas above Spec.MaxReplicas");
    } else if current < min {
        decision.scale_to(min, "Current number of replicas below Spec.MinReplicas");
    } else {
        decision.follow_metrics(observed, &spec, history, current, now);
    }
    decision
}

impl Decision {
    fn scale_to(&mut self, replicas: i32, reason: &str) {
        self.replicas = Some(replicas);
        self.reason = reason.to_owned();
        self.status.desired_replicas = replicas;
    }

    /// What came of writing the scale; says whether it was done.
    pub fn scaled(&mut self, observed: &Observed, outcome: Result<(), String>, now: Timestamp) -> bool {
        let Some(replicas) = self.replicas else { return false };
        let reason = std::mem::take(&mut self.reason);
        match outcome {
            Ok(()) => {
                let message = format!("the HPA controller was able to update the target scale to {replicas}");
                self.set("AbleToScale", "True", "SucceededRescale", message, now);
                self.events.push((false, "SuccessfulRescale", format!("New size: {replicas}; reason: {reason}")));
                self.status.last_scale_time = Some(Time(now));
                true
            }
            Err(error) => {
                let message = format!("the HPA controller was unable to update the target scale: {error}");
                self.set("AbleToScale", "False", "FailedUpdateScale", message, now);
                let told = format!("New size: {replicas}; reason: {reason}; error: {error}");
                self.events.push((true, "FailedRescale", told));
                self.status.desired_replicas = observed.current_replicas().unwrap_or(replicas);
                false
            }
        }
    }

    fn follow_metrics(
        &mut self,
        observed: &Observed,
        spec: &HorizontalPodAutoscalerSpec,
        history: &mut History,
        current: i32,
        now: Timestamp,
    ) {
        if !observed.selectable {
            self.events.push((true, "SelectorRequired", "selector is required".to_owned()));
            let message = "the HPA target's scale is missing a selector";
            return self.set("ScalingActive", "False", "InvalidSelector", message, now);
        }
        let Some((desired, metric)) = self.ask_metrics(observed, spec, current, now) else { return };
        let (min, max) = (spec.min_replicas.unwrap_or(1), spec.max_replicas);
        let allowed = permitted(&Bounds { min, max, behavior: spec.behavior.as_ref() }, history, current, desired, now);
        let steady = ("ReadyForNewScale", "recommended size matches current size");
        let (reason, message) = allowed.stabilized.unwrap_or(steady);
        self.set("AbleToScale", "True", reason, message, now);
        let (reason, message) = allowed.limited.unwrap_or(WITHIN_RANGE);
        let limited = if allowed.limited.is_some() { "True" } else { "False" };
        self.set("ScalingLimited", limited, reason, message, now);
        self.status.desired_replicas = allowed.replicas;
        if allowed.replicas > current {
            self.scale_to(allowed.replicas, &format!("{metric} above target"));
        } else if allowed.replicas < current {
            self.scale_to(allowed.replicas, "All metrics below target");
        }
    }

    /// The greatest that a metric asks for, and which one; none if too little is known to act upon.
    fn ask_metrics(
        &mut self,
        observed: &Observed,
        spec: &HorizontalPodAutoscalerSpec,
        current: i32,
        now: Timestamp,
    ) -> Option<(i32, String)> {
        let asked = spec.metrics.as_deref().unwrap_or_default();
        let mut best: Option<(i32, String)> = None;
        let (mut statuses, mut failures) = (Vec::new(), Vec::new());
        for metric in asked {
            match ask(metric, observed, spec, current, now) {
                Ok((answer, status, name)) => {
                    statuses.push(status);
                    if best.as_ref().is_none_or(|(most, _)| answer.replicas > *most) {
                        best = Some((answer.replicas, name));
                    }
                }
                Err(failure) => failures.push(failure),
            }
        }
        self.status.current_metrics = Some(statuses).filter(|all| !all.is_empty());
        // With a metric missing it may go up, never down: the missing one might have said otherwise.
        let usable = best.filter(|(most, _)| failures.is_empty() || *most >= current);
        for (reason, inner, _) in &failures {
            self.events.push((true, reason, inner.clone()));
        }
        if usable.is_none()
            && let Some((reason, inner, outer)) = failures.first()
        {
            let message = format!("the HPA was unable to compute the replica count: {inner}");
            self.set("ScalingActive", "False", reason, message, now);
            let told =
                format!("invalid metrics ({} invalid out of {}), first error is: {outer}", failures.len(), asked.len());
            self.events.push((true, "FailedComputeMetricsReplicas", told));
        }
        let (_, name) = usable.as_ref()?;
        let message = format!("the HPA was able to successfully calculate a replica count from {name}");
        self.set("ScalingActive", "True", "ValidMetricFound", message, now);
        usable
    }

    /// The newest reason and message are told; the time moves only with the status.
    fn set(&mut self, kind: &str, status: &str, reason: &str, message: impl Into<String>, now: Timestamp) {
        let all = self.status.conditions.get_or_insert_default();
        let old = all.iter().position(|one| one.type_ == kind);
        let since = old.map(|place| &all[place]).filter(|one| one.status == status);
        let condition = HorizontalPodAutoscalerCondition {
            type_: kind.to_owned(),
            status: status.to_owned(),
            reason: Some(reason.to_owned()),
            message: Some(message.into()),
            last_transition_time: since.and_then(|one| one.last_transition_time.clone()).or(Some(Time(now))),
        };
        match old {
            Some(place) => all[place] = condition,
            None => all.push(condition),
        }
    }
}

/// Why a metric has no answer: the reason of its event, the error itself, and the error in its context.
type Failure = (&'static str, String, String);

fn ask(
    metric: &MetricSpec,
    observed: &Observed,
    spec: &HorizontalPodAutoscalerSpec,
    current: i32,
    now: Timestamp,
) -> Result<(Answer, MetricStatus, String), Failure> {
    let (resource, container, target, reason) = match (&metric.resource, &metric.container_resource) {
        (Some(source), _) => (&source.name, None, &source.target, "FailedGetResourceMetric"),
        (None, Some(source)) => {
            (&source.name, Some(source.container.as_str()), &source.target, "FailedGetContainerResourceMetric")
        }
        (None, None) => return Err(unserved(metric)),
    };
    let (target, what) = match wanted(target) {
        Some(Target::Utilization(percent)) => (Target::Utilization(percent), "utilization"),
        Some(average) => (average, "usage"),
        None => {
            let error = "invalid resource metric source: neither an average utilization nor an average value \
                         (usage) target was set";
            return Err((reason, error.to_owned(), error.to_owned()));
        }
    };
    let question = Question { resource, container, target, tolerances: tolerances(spec) };
    let answer = match &observed.metrics {
        Ok(metrics) => replicas(&question, current, &observed.pods, metrics, now),
        Err(error) => Err(format!("unable to get metrics for resource {resource}: {error}")),
    };
    let answer = answer.map_err(|error| {
        let inner = format!("failed to get {resource} {what}: {error}");
        let outer = match container {
            Some(container) => format!("failed to get {container} container metric value: {inner}"),
            None => format!("failed to get {resource} resource metric value: {inner}"),
        };
        (reason, inner, outer)
    })?;
    let status = status_of(resource, container, &answer);
    let kind = if container.is_some() { "container resource" } else { "resource" };
    let name = match target {
        Target::Utilization(_) => format!("{resource} {kind} utilization (percentage of request)"),
        Target::Average(_) => format!("{resource} {kind}"),
    };
    Ok((answer, status, name))
}

/// Metrics of other kinds come from APIs that a cluster has only if somebody installed them.
fn unserved(metric: &MetricSpec) -> Failure {
    let (reason, api) = match metric.type_.as_str() {
        "Pods" => ("FailedGetPodsMetric", "custom metrics API"),
        "Object" => ("FailedGetObjectMetric", "custom metrics API"),
        "External" => ("FailedGetExternalMetric", "external metrics API"),
        _ => ("InvalidMetricSourceType", "metrics API"),
    };
    let error = format!("unable to fetch metrics from {api}: no such API is served");
    let kind = metric.type_.to_lowercase();
    (reason, error.clone(), format!("failed to get {kind} metric value: {error}"))
}

fn wanted(target: &MetricTarget) -> Option<Target> {
    if let Some(value) = &target.average_value {
        let milli = Quantity::parse(&value.0).ok()?.as_milli();
        return Some(Target::Average(i64::try_from(milli).unwrap_or(i64::MAX)));
    }
    target.average_utilization.map(Target::Utilization)
}

/// How far below and above one a ratio may be without effect.
fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> (f64, f64) {
    let behavior = spec.behavior.as_ref();
    let of = |quantity: Option<&ApiQuantity>| {
        quantity.and_then(|one| Quantity::parse(&one.0).ok()).map_or(TOLERANCE, |one| one.as_f64())
    };
    (
        of(behavior.and_then(|b| b.scale_down.as_ref()?.tolerance.as_ref())),
        of(behavior.and_then(|b| b.scale_up.as_ref()?.tolerance.as_ref())),
    )
}

fn status_of(resource: &str, container: Option<&str>, answer: &Answer) -> MetricStatus {
    let average = Quantity::from_milli(answer.average.into(), corten_meta::quantity::Format::DecimalSi);
    let current = MetricValueStatus {
        average_utilization: answer.utilization,
        average_value: Some(ApiQuantity(average.to_string())),
        value: None,
    };
    let name = resource.to_owned();
    match container {
        Some(container) => MetricStatus {
            type_: "ContainerResource".to_owned(),
            container_resource: Some(ContainerResourceMetricStatus { container: container.to_owned(), current, name }),
            ..MetricStatus::default()
        },
        None => MetricStatus {
            type_: "Resource".to_owned(),
            resource: Some(ResourceMetricStatus { current, name }),
            ..MetricStatus::default()
        },
    }
}
