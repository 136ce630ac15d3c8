//! The decision of an autoscaler: replicas, conditions, current metrics, events. Pure.

use std::collections::BTreeMap;

use corten_api::k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition, HorizontalPodAutoscalerSpec,
    HorizontalPodAutoscalerStatus,
};
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use corten_meta::Value;
use jiff::Timestamp;

use super::behavior::{Bounds, History, WITHIN_RANGE, permitted};
use super::custom::Measured;
use super::metrics::PodMetrics;
use super::sources::{Context, recommend};

/// Everything the decision depends on, except the history.
pub struct Observed {
    pub autoscaler: HorizontalPodAutoscaler,
    pub scale: Result<Value, String>,
    /// Whether the target's scale has a selector.
    pub selectable: bool,
    pub pods: Vec<Pod>,
    pub metrics: Result<BTreeMap<String, PodMetrics>, String>,
    /// The values of each metric of the spec that is not a resource metric.
    pub others: Vec<Option<Result<Measured, String>>>,
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
    /// Whether the event is a warning, its reason and its message.
    pub events: Vec<(bool, &'static str, String)>,
    /// The type of each metric, and the replicas that it recommends, if its value is known.
    pub evaluated: Vec<(String, Option<i32>)>,
    reason: String,
}

pub fn decide(observed: &Observed, history: &mut History, now: Timestamp) -> Decision {
    let spec = observed.autoscaler.spec.clone();
    let mut decision = Decision {
        replicas: None,
        status: observed.autoscaler.status.clone().unwrap_or_default(),
        events: Vec::new(),
        evaluated: Vec::new(),
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
    history.begin(current, now);
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

    /// Records the outcome of the update of the scale; reports whether it succeeded.
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
                let message = format!("New size: {replicas}; reason: {reason}; error: {error}");
                self.events.push((true, "FailedRescale", message));
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
        let Some((desired, metric)) = self.evaluate_metrics(observed, spec, current, now) else { return };
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

    /// Returns the highest recommendation and its metric; none if too few metrics are known.
    fn evaluate_metrics(
        &mut self,
        observed: &Observed,
        spec: &HorizontalPodAutoscalerSpec,
        current: i32,
        now: Timestamp,
    ) -> Option<(i32, String)> {
        let metrics = spec.metrics.as_deref().unwrap_or_default();
        let mut best: Option<(i32, String)> = None;
        let (mut statuses, mut failures) = (Vec::new(), Vec::new());
        for (place, metric) in metrics.iter().enumerate() {
            let measured = observed.others.get(place).and_then(Option::as_ref);
            let answer = recommend(metric, &Context { observed, spec, measured, current, now });
            self.evaluated.push((metric.type_.clone(), answer.as_ref().ok().map(|(replicas, ..)| *replicas)));
            match answer {
                Ok((replicas, status, name)) => {
                    statuses.push(status);
                    if best.as_ref().is_none_or(|(most, _)| replicas > *most) {
                        best = Some((replicas, name));
                    }
                }
                Err(failure) => failures.push(failure),
            }
        }
        self.status.current_metrics = Some(statuses).filter(|all| !all.is_empty());
        // With a metric missing, scaling up is allowed, scaling down is not: the missing metric might recommend more.
        let usable = best.filter(|(most, _)| failures.is_empty() || *most >= current);
        for (reason, inner, _) in &failures {
            self.events.push((true, reason, inner.clone()));
        }
        if usable.is_none()
            && let Some((reason, inner, outer)) = failures.first()
        {
            let message = format!("the HPA was unable to compute the replica count: {inner}");
            self.set("ScalingActive", "False", reason, message, now);
            let message = format!(
                "invalid metrics ({} invalid out of {}), first error is: {outer}",
                failures.len(),
                metrics.len()
            );
            self.events.push((true, "FailedComputeMetricsReplicas", message));
        }
        let (_, name) = usable.as_ref()?;
        let message = format!("the HPA was able to successfully calculate a replica count from {name}");
        self.set("ScalingActive", "True", "ValidMetricFound", message, now);
        usable
    }

    /// Sets reason and message; the transition time changes only with the status.
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
