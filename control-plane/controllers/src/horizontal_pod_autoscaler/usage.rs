//! The replicas that a resource metric recommends. Pure.
//!
//! Pods that are not ready, or not measured, are counted so that they can only damp a change, never cause one.
//! Quantities come from the metrics API: sums saturate instead of overflowing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_meta::Quantity;
use jiff::{SignedDuration, Timestamp};

use super::metrics::PodMetrics;
use crate::workload::pods;

/// The age below which a pod may use much CPU only to start.
const CPU_INITIALIZATION: Duration = Duration::from_secs(5 * 60);
/// A pod that became unready within this time after its start counts as not ready.
const INITIAL_READINESS: SignedDuration = SignedDuration::from_secs(30);
/// The tolerance for a ratio around one.
pub const TOLERANCE: f64 = 0.1;

/// A resource metric, its target and the pods.
pub struct Question<'a> {
    pub resource: &'a str,
    /// The container; none for all containers.
    pub container: Option<&'a str>,
    pub target: Target,
    pub tolerances: (f64, f64),
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// A percentage of the requests.
    Utilization(i32),
    /// Thousandths per pod.
    Average(i64),
}

/// The recommended replicas, and the current values.
#[derive(Debug, PartialEq)]
pub struct Answer {
    pub replicas: i32,
    pub utilization: Option<i32>,
    pub average: i64,
}

struct Groups {
    ready: usize,
    unready: BTreeSet<String>,
    missing: BTreeSet<String>,
    ignored: BTreeSet<String>,
}

pub fn replicas(
    question: &Question<'_>,
    current: i32,
    pods: &[Pod],
    metrics: &BTreeMap<String, PodMetrics>,
    now: Timestamp,
) -> Result<Answer, String> {
    if pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    let measured = |(pod, found): (&String, &PodMetrics)| Some((pod.clone(), value(question, found)?));
    let mut values: BTreeMap<String, i64> = metrics.iter().filter_map(measured).collect();
    let groups = group(question, pods, metrics, &values, now);
    values.retain(|pod, _| !groups.ignored.contains(pod) && !groups.unready.contains(pod));
    if values.is_empty() {
        return Err("did not receive metrics for targeted pods (pods might be unready)".to_owned());
    }
    let requests = match question.target {
        Target::Utilization(_) => requests(question, pods)?,
        Target::Average(_) => BTreeMap::new(),
    };
    let (ratio, utilization, average) = ratio(question.target, &values, &requests)?;
    let answer = |replicas: i32| Answer { replicas, utilization, average };
    let within = |ratio: f64| 1.0 - question.tolerances.0 <= ratio && ratio <= 1.0 + question.tolerances.1;
    let counts_unready = !groups.unready.is_empty() && ratio > 1.0;
    if !counts_unready && groups.missing.is_empty() {
        return Ok(answer(if within(ratio) { current } else { ceiling(ratio, groups.ready) }));
    }
    for pod in &groups.missing {
        // Pods without metrics count as fully used when scaling down, as idle when scaling up.
        let assumed = match question.target {
            _ if ratio > 1.0 => 0,
            Target::Utilization(percent) => share(requests.get(pod).copied().unwrap_or(0), percent.max(100)),
            Target::Average(target) => target,
        };
        if ratio != 1.0 {
            values.insert(pod.clone(), assumed);
        }
    }
    if counts_unready {
        values.extend(groups.unready.iter().map(|pod| (pod.clone(), 0)));
    }
    let (damped, ..) = self::ratio(question.target, &values, &requests)?;
    let turned = (ratio < 1.0 && damped > 1.0) || (ratio > 1.0 && damped < 1.0);
    if within(damped) || turned {
        return Ok(answer(current));
    }
    let wanted = ceiling(damped, values.len());
    let turned = (damped < 1.0 && wanted > current) || (damped > 1.0 && wanted < current);
    Ok(answer(if turned { current } else { wanted }))
}

/// Returns the pod's usage of the resource; none unless all its containers were measured.
fn value(question: &Question<'_>, found: &PodMetrics) -> Option<i64> {
    match question.container {
        Some(container) => found.containers.get(container)?.get(question.resource).copied(),
        None => found.containers.values().try_fold(0_i64, |sum, usage| {
            let used = usage.get(question.resource)?;
            Some(sum.saturating_add(*used))
        }),
    }
}

/// Returns a percentage of a quantity.
fn share(value: i64, percent: i32) -> i64 {
    narrowed(i128::from(value) * i128::from(percent) / 100)
}

/// Converts a number; saturates.
fn narrowed(number: i128) -> i64 {
    number.clamp(i64::MIN.into(), i64::MAX.into()) as i64
}

/// Returns the sum of quantities; saturates.
pub fn total<'a>(values: impl IntoIterator<Item = &'a i64>) -> i64 {
    narrowed(values.into_iter().map(|value| i128::from(*value)).sum())
}

fn group(
    question: &Question<'_>,
    pods: &[Pod],
    metrics: &BTreeMap<String, PodMetrics>,
    values: &BTreeMap<String, i64>,
    now: Timestamp,
) -> Groups {
    let mut groups = Groups { ready: 0, unready: BTreeSet::new(), missing: BTreeSet::new(), ignored: BTreeSet::new() };
    for pod in pods {
        let name = pod.name().to_owned();
        let found = metrics.get(&name).filter(|_| values.contains_key(&name));
        if pods::is_terminating(pod) || pods::phase(pod) == "Failed" {
            groups.ignored.insert(name);
        } else if pods::phase(pod) == "Pending" {
            groups.unready.insert(name);
        } else if let Some(found) = found {
            if question.resource == "cpu" && is_unready(pod, found, now) {
                groups.unready.insert(name);
            } else {
                groups.ready += 1;
            }
        } else {
            groups.missing.insert(name);
        }
    }
    groups
}

/// Reports whether the CPU usage of a starting pod is not representative yet.
fn is_unready(pod: &Pod, found: &PodMetrics, now: Timestamp) -> bool {
    let started = pod.status.as_ref().and_then(|status| status.start_time.as_ref()).map(|time| time.0);
    let (Some(ready), Some(started)) = (pods::condition(pod, "Ready"), started) else { return true };
    let since = ready.last_transition_time.as_ref().map_or(started, |time| time.0);
    let young = Duration::try_from(now.duration_since(started)).is_ok_and(|age| age < CPU_INITIALIZATION);
    if young {
        let window = SignedDuration::try_from(found.window).unwrap_or_default();
        ready.status == "False" || found.at.is_some_and(|at| at < later(since, window))
    } else {
        ready.status == "False" && later(started, INITIAL_READINESS) > since
    }
}

/// Adds a duration to a time; saturates.
fn later(time: Timestamp, by: SignedDuration) -> Timestamp {
    time.checked_add(by).unwrap_or(Timestamp::MAX)
}

/// Returns the requests of each pod.
fn requests(question: &Question<'_>, pods: &[Pod]) -> Result<BTreeMap<String, i64>, String> {
    let of = |pod: &Pod| {
        let request = match question.container {
            None if has_pod_level_requests(pod) => pod_level_request(question.resource, pod)?,
            _ => container_requests(question, pod)?,
        };
        Ok((pod.name().to_owned(), request))
    };
    pods.iter().map(of).collect()
}

fn has_pod_level_requests(pod: &Pod) -> bool {
    let requests = pod.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
    requests.is_some_and(|list| !list.is_empty())
}

/// Returns the request of a pod that has requests itself; they override those of its containers.
fn pod_level_request(resource: &str, pod: &Pod) -> Result<i64, String> {
    let value = serde_json::to_value(pod).map_err(|error| error.to_string())?;
    let requests = corten_api::quota::pod_resources(&value, "requests");
    let request = requests.get(resource).map(|request| narrowed(request.as_milli()));
    request.ok_or_else(|| format!("missing pod-level request for {resource} in Pod {}", pod.name()))
}

/// Returns the sum of the requests of the containers in question; every one must have a request.
fn container_requests(question: &Question<'_>, pod: &Pod) -> Result<i64, String> {
    let spec = pod.spec.as_ref();
    let init = spec.and_then(|spec| spec.init_containers.as_ref()).into_iter().flatten();
    let sidecars = init.filter(|container| container.restart_policy.as_deref() == Some("Always"));
    let all = spec.into_iter().flat_map(|spec| &spec.containers).chain(sidecars);
    let mut counted = all.filter(|container| question.container.is_none_or(|name| container.name == name)).peekable();
    if let (Some(name), None) = (question.container, counted.peek()) {
        return Err(format!("container {name} not found in Pod {}", pod.name()));
    }
    counted.try_fold(0_i64, |sum, container| {
        let requests = container.resources.as_ref().and_then(|resources| resources.requests.as_ref());
        let request = requests.and_then(|requests| Quantity::parse(&requests.get(question.resource)?.0).ok());
        let request = request.ok_or_else(|| {
            format!("missing request for {} in container {} of Pod {}", question.resource, container.name, pod.name())
        })?;
        Ok(sum.saturating_add(narrowed(request.as_milli())))
    })
}

/// Returns the ratio of the usage to the target, the utilization in percent of the requests if the target is one, and
/// the average per pod.
fn ratio(
    target: Target,
    values: &BTreeMap<String, i64>,
    requests: &BTreeMap<String, i64>,
) -> Result<(f64, Option<i32>, i64), String> {
    let count = i64::try_from(values.len()).unwrap_or(i64::MAX).max(1);
    match target {
        Target::Average(target) => {
            let average = total(values.values()) / count;
            Ok((average as f64 / target.max(1) as f64, None, average))
        }
        Target::Utilization(percent) => {
            let known: Vec<(&i64, &i64)> =
                values.iter().filter_map(|(pod, used)| Some((used, requests.get(pod)?))).collect();
            let used = total(known.iter().map(|(used, _)| *used));
            let requested = total(known.iter().map(|(_, requested)| *requested));
            if requested == 0 {
                return Err("no metrics returned matched known pods".to_owned());
            }
            let percentage = i128::from(used) * 100 / i128::from(requested);
            let utilization = percentage.clamp(i32::MIN.into(), i32::MAX.into()) as i32;
            let each = used / i64::try_from(known.len()).unwrap_or(i64::MAX);
            Ok((f64::from(utilization) / f64::from(percent.max(1)), Some(utilization), each))
        }
    }
}

/// Counts the pods that run and are ready.
pub fn ready_pods(pods: &[Pod]) -> Result<usize, String> {
    if pods.is_empty() {
        return Err("no pods returned by selector while calculating replica count".to_owned());
    }
    Ok(pods.iter().filter(|pod| pods::phase(pod) == "Running" && pods::is_ready(pod)).count())
}

pub fn ceiling(ratio: f64, pods: usize) -> i32 {
    (ratio * pods as f64).ceil().min(f64::from(i32::MAX)) as i32
}
