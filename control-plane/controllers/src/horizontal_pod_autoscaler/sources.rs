//! The recommendation of one metric of an autoscaler, with its status and its name. Pure.

use corten_api::k8s_openapi::api::autoscaling::v2::{
    ContainerResourceMetricStatus, ExternalMetricStatus, HorizontalPodAutoscalerSpec, MetricIdentifier, MetricSpec,
    MetricStatus, MetricTarget, MetricValueStatus, ObjectMetricStatus, PodsMetricStatus, ResourceMetricStatus,
};
use corten_api::k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use corten_meta::Quantity;
use corten_meta::quantity::Format;
use jiff::Timestamp;

use super::custom::{Measured, VALUE, described};
use super::decide::Observed;
use super::usage::{self, Answer, Question, TOLERANCE, Target, ready_pods};

/// The failure of a metric: the reason of its event, the error itself, and the error with its context.
pub type Failure = (&'static str, String, String);
/// The replicas, the status, and the name of the metric.
pub type Recommendation = Result<(i32, MetricStatus, String), Failure>;

/// Everything that the recommendation of one metric depends on.
pub struct Context<'a> {
    pub observed: &'a Observed,
    pub spec: &'a HorizontalPodAutoscalerSpec,
    /// The values of this metric, if it is not a resource metric.
    pub measured: Option<&'a Result<Measured, String>>,
    pub current: i32,
    pub now: Timestamp,
}

pub fn recommend(metric: &MetricSpec, context: &Context<'_>) -> Recommendation {
    if let Some(source) = &metric.pods {
        return recommend_by_pods(&source.metric, &source.target, context);
    }
    if let Some(source) = &metric.object {
        let name = format!("{} metric {}", source.described_object.kind, source.metric.name);
        let kind = Kind { reason: "FailedGetObjectMetric", word: "object", name };
        let (replicas, current) = ask_one(&source.metric, &source.target, kind.clone(), context)?;
        let object = ObjectMetricStatus {
            current,
            described_object: source.described_object.clone(),
            metric: source.metric.clone(),
        };
        let status = MetricStatus { type_: "Object".to_owned(), object: Some(object), ..MetricStatus::default() };
        return Ok((replicas, status, kind.name));
    }
    if let Some(source) = &metric.external {
        let name = format!("external metric {}({})", source.metric.name, described(&source.metric));
        let kind = Kind { reason: "FailedGetExternalMetric", word: "external", name };
        let (replicas, current) = ask_one(&source.metric, &source.target, kind.clone(), context)?;
        let external = ExternalMetricStatus { current, metric: source.metric.clone() };
        let status = MetricStatus { type_: "External".to_owned(), external: Some(external), ..MetricStatus::default() };
        return Ok((replicas, status, kind.name));
    }
    recommend_by_resource(metric, context)
}

fn recommend_by_resource(metric: &MetricSpec, context: &Context<'_>) -> Recommendation {
    let (resource, container, target, reason) = match (&metric.resource, &metric.container_resource) {
        (Some(source), _) => (&source.name, None, &source.target, "FailedGetResourceMetric"),
        (None, Some(source)) => {
            (&source.name, Some(source.container.as_str()), &source.target, "FailedGetContainerResourceMetric")
        }
        (None, None) => {
            let error = format!("unknown metric source type {:?}", metric.type_);
            return Err(("InvalidMetricSourceType", error.clone(), error));
        }
    };
    let (target, what) = match wanted(target) {
        Some(Target::Utilization(percent)) => (Target::Utilization(percent), "utilization"),
        Some(average) => (average, "usage"),
        None => {
            let error = "invalid resource metric source: neither an average utilization target nor an average value \
                         (usage) target was set";
            return Err((reason, error.to_owned(), error.to_owned()));
        }
    };
    let question = Question { resource, container, target, tolerances: tolerances(context.spec) };
    let answer = match &context.observed.metrics {
        Ok(metrics) => usage::replicas(&question, context.current, &context.observed.pods, metrics, context.now),
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
    let kind = if container.is_some() { "container resource" } else { "resource" };
    let name = match target {
        Target::Utilization(_) => format!("{resource} {kind} utilization (percentage of request)"),
        Target::Average(_) => format!("{resource} resource"),
    };
    Ok((answer.replicas, status_of(resource, container, &answer), name))
}

/// Recommends by a value per pod: like a resource, except that no pod counts as too young.
fn recommend_by_pods(metric: &MetricIdentifier, target: &MetricTarget, context: &Context<'_>) -> Recommendation {
    let failed =
        |error: String| ("FailedGetPodsMetric", error.clone(), format!("failed to get pods metric value: {error}"));
    let Some(Target::Average(average)) = wanted(target) else {
        return Err(failed("invalid pods metric source: no average value target was set".to_owned()));
    };
    let question = Question {
        resource: VALUE,
        container: None,
        target: Target::Average(average),
        tolerances: tolerances(context.spec),
    };
    let answer = match context.measured {
        Some(Ok(Measured::Pods(metrics))) => {
            usage::replicas(&question, context.current, &context.observed.pods, metrics, context.now)
        }
        Some(Err(error)) => Err(error.clone()),
        _ => Err(format!("unable to get metric {}: it was not read", metric.name)),
    };
    let answer = answer.map_err(failed)?;
    let current = MetricValueStatus { average_value: Some(decimal(answer.average)), ..MetricValueStatus::default() };
    let status = MetricStatus {
        type_: "Pods".to_owned(),
        pods: Some(PodsMetricStatus { current, metric: metric.clone() }),
        ..MetricStatus::default()
    };
    Ok((answer.replicas, status, format!("pods metric {}", metric.name)))
}

#[derive(Clone)]
struct Kind {
    reason: &'static str,
    word: &'static str,
    name: String,
}

/// Recommends by one value for all pods: against the target value, or against the target average per pod.
fn ask_one(
    metric: &MetricIdentifier,
    target: &MetricTarget,
    kind: Kind,
    context: &Context<'_>,
) -> Result<(i32, MetricValueStatus), Failure> {
    let failed =
        |error: String| (kind.reason, error.clone(), format!("failed to get {} metric value: {error}", kind.word));
    let value = match context.measured {
        Some(Ok(Measured::One(value))) => *value,
        Some(Err(error)) => return Err(failed(error.clone())),
        _ => return Err(failed(format!("unable to get metric {}: it was not read", metric.name))),
    };
    let milli = |quantity: &ApiQuantity| i64::try_from(Quantity::parse(&quantity.0).ok()?.as_milli()).ok();
    if let Some(each) = target.average_value.as_ref().and_then(milli) {
        let (replicas, average) = for_each_pod(value, each, context);
        return Ok((
            replicas,
            MetricValueStatus { average_value: Some(decimal(average)), ..MetricValueStatus::default() },
        ));
    }
    let Some(target_value) = target.value.as_ref().and_then(milli) else {
        let word = kind.word;
        let error = format!("invalid {word} metric source: neither a value target nor an average value target was set");
        return Err(failed(error));
    };
    let ratio = value as f64 / target_value.max(1) as f64;
    let replicas = if within(ratio, context.spec) {
        context.current
    } else {
        usage::ceiling(ratio, ready_pods(&context.observed.pods).map_err(failed)?)
    };
    Ok((replicas, MetricValueStatus { value: Some(decimal(value)), ..MetricValueStatus::default() }))
}

/// Returns the replicas that share the value by the target average, and the current average per pod.
fn for_each_pod(value: i64, each: i64, context: &Context<'_>) -> (i32, i64) {
    let running = context.observed.scale.as_ref().ok().and_then(|scale| scale["status"]["replicas"].as_i64());
    let running = running.filter(|count| *count > 0).unwrap_or_else(|| context.current.into()).max(1);
    let ratio = value as f64 / (each.max(1) as f64 * running as f64);
    let replicas = if within(ratio, context.spec) {
        i32::try_from(running).unwrap_or(i32::MAX)
    } else {
        usage::ceiling(value as f64 / each.max(1) as f64, 1)
    };
    (replicas, (value as f64 / running as f64).ceil() as i64)
}

fn within(ratio: f64, spec: &HorizontalPodAutoscalerSpec) -> bool {
    let (down, up) = tolerances(spec);
    1.0 - down <= ratio && ratio <= 1.0 + up
}

fn wanted(target: &MetricTarget) -> Option<Target> {
    if let Some(value) = &target.average_value {
        let milli = Quantity::parse(&value.0).ok()?.as_milli();
        return Some(Target::Average(i64::try_from(milli).unwrap_or(i64::MAX)));
    }
    target.average_utilization.map(Target::Utilization)
}

/// Returns the tolerances for a ratio below and above one.
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

fn decimal(milli: i64) -> ApiQuantity {
    ApiQuantity(Quantity::from_milli(milli.into(), Format::DecimalSi).to_string())
}

fn status_of(resource: &str, container: Option<&str>, answer: &Answer) -> MetricStatus {
    let average = match resource {
        // Memory is reported in bytes.
        "memory" => ApiQuantity(Quantity::from_value(answer.average / 1000, Format::BinarySi).to_string()),
        _ => decimal(answer.average),
    };
    let current =
        MetricValueStatus { average_utilization: answer.utilization, average_value: Some(average), value: None };
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
