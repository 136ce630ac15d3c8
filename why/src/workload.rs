//! Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs that do not reach what they should.

use corten_client::ListOptions;
use corten_meta::Value;

use crate::events;
use crate::objects::{self, condition, number, selector, text};
use crate::{Finding, Sources, Subject, pod};

pub async fn explain(sources: Sources<'_>, subject: &Subject, workload: &Value) -> Vec<Finding> {
    let wanted = wanted(subject, workload);
    let ready = number(workload, ready_pointer(subject)).unwrap_or(0);
    let mut findings = Vec::new();
    if workload.pointer("/spec/paused").and_then(Value::as_bool) == Some(true) {
        findings.push(
            Finding::new("Its rollout is paused.")
                .help(format!("kubectl rollout resume -n {} deployment/{}", subject.namespace, subject.name)),
        );
    }
    for kind in ["ReplicaFailure", "Progressing"] {
        let bad = if kind == "Progressing" { "False" } else { "True" };
        let found = condition(workload, kind).filter(|one| text(one, "/status") == bad);
        findings.extend(found.map(|one| {
            let cause = match kind {
                "Progressing" => "Its rollout does not get on.",
                _ => "Its pods cannot be created.",
            };
            Finding::new(cause).because(text(one, "/message"))
        }));
    }
    let updated = number(workload, updated_pointer(subject)).unwrap_or(wanted);
    if ready >= wanted && updated >= wanted && !is_rolling(subject, workload, wanted) {
        return findings;
    }
    if findings.is_empty() {
        let warnings = events::warnings(sources, workload).await;
        let refused = events::newest(&warnings, &["FailedCreate", "FailedPlacement"]);
        findings.extend(refused.map(|one| Finding::new("Its pods cannot be created.").because(&one.message)));
    }
    findings.extend(worst_pod(sources, workload, &format!("{ready} of {wanted} pods are ready.")).await);
    findings
}

fn wanted(subject: &Subject, workload: &Value) -> i64 {
    match subject.resource.plural.as_str() {
        "daemonsets" => number(workload, "/status/desiredNumberScheduled").unwrap_or(0),
        _ => number(workload, "/spec/replicas").unwrap_or(1),
    }
}

fn ready_pointer(subject: &Subject) -> &'static str {
    match subject.resource.plural.as_str() {
        "daemonsets" => "/status/numberReady",
        _ => "/status/readyReplicas",
    }
}

fn updated_pointer(subject: &Subject) -> &'static str {
    match subject.resource.plural.as_str() {
        "daemonsets" => "/status/updatedNumberScheduled",
        _ => "/status/updatedReplicas",
    }
}

/// Reports whether a Deployment still has pods of an earlier template, or more than it wants.
fn is_rolling(subject: &Subject, workload: &Value, wanted: i64) -> bool {
    subject.resource.plural == "deployments" && number(workload, "/status/replicas").is_some_and(|all| all > wanted)
}

/// Explains a workload by the first of its pods that is not as it should be.
async fn worst_pod(sources: Sources<'_>, workload: &Value, count: &str) -> Option<Finding> {
    let labels = workload.pointer("/spec/selector/matchLabels").or_else(|| workload.pointer("/spec/selector"));
    let options = ListOptions::labels(selector(labels));
    if options.label_selector.is_empty() {
        return None;
    }
    let pods = sources.objects.list(&objects::pods(), corten_meta::namespace(workload), options).await.ok()?;
    for one in &pods {
        let Some(found) = pod::explain(sources, one).await.into_iter().next() else { continue };
        let cause = format!("{count} Pod {}: {}", corten_meta::name(one), found.cause);
        return Some(Finding { cause, ..found });
    }
    match pods.is_empty() {
        true => Some(Finding::new(format!("{count} It has no pods yet."))),
        false => None,
    }
}

pub async fn explain_job(sources: Sources<'_>, job: &Value) -> Vec<Finding> {
    if job.pointer("/spec/suspend").and_then(Value::as_bool) == Some(true) {
        return vec![Finding::new("It is suspended.").help(format!(
            "kubectl patch job -n {} {} -p '{{\"spec\":{{\"suspend\":false}}}}'",
            corten_meta::namespace(job),
            corten_meta::name(job)
        ))];
    }
    if condition(job, "Complete").is_some_and(|one| text(one, "/status") == "True") {
        return Vec::new();
    }
    let failed = condition(job, "Failed").filter(|one| text(one, "/status") == "True");
    let mut findings: Vec<Finding> = failed
        .into_iter()
        .map(|one| Finding::new(format!("It failed: {}.", text(one, "/reason"))).because(text(one, "/message")))
        .collect();
    let succeeded = number(job, "/status/succeeded").unwrap_or(0);
    let wanted = number(job, "/spec/completions").unwrap_or(1);
    findings.extend(worst_pod(sources, job, &format!("{succeeded} of {wanted} pods have succeeded.")).await);
    findings
}
