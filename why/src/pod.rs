//! Pods that are pending, not ready, restarting, failed or evicted.

use corten_meta::Value;

use crate::events::{self, Warning};
use crate::objects::{self, condition, items, number, text};
use crate::{Finding, Sources, claim, node};

/// The reasons of a container whose image is not there.
const IMAGE: &[&str] = &["ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName"];
const CONFIG: &[&str] = &["CreateContainerConfigError", "CreateContainerError", "RunContainerError"];
const MOUNTS: &[&str] = &["FailedMount", "FailedAttachVolume", "FailedMapVolume", "FailedCreatePodSandBox"];

/// The exit code of a container that the kernel killed.
const KILLED: i64 = 137;

pub async fn explain(sources: Sources<'_>, pod: &Value) -> Vec<Finding> {
    let warnings = events::warnings(sources, pod).await;
    match text(pod, "/status/phase") {
        "Succeeded" => Vec::new(),
        "Failed" => vec![failed(pod)],
        _ if text(pod, "/spec/nodeName").is_empty() => unplaced(sources, pod).await,
        _ => on_its_node(sources, pod, &warnings).await,
    }
}

fn failed(pod: &Value) -> Finding {
    let place = format!("-n {} {}", corten_meta::namespace(pod), corten_meta::name(pod));
    let reason = text(pod, "/status/reason");
    if reason == "Evicted" {
        return Finding::new("It was evicted from its node.")
            .because(text(pod, "/status/message"))
            .help(format!("corten why node/{}", text(pod, "/spec/nodeName")));
    }
    let mut finding = Finding::new(match reason {
        "" => "A container of it ended with an error, and it is not restarted.".to_owned(),
        reason => format!("It failed: {reason}."),
    });
    finding = finding.because(text(pod, "/status/message"));
    for status in statuses(pod) {
        if let Some(end) = status.pointer("/state/terminated") {
            finding = finding.because(ending(text(status, "/name"), end));
        }
    }
    finding.help(format!("kubectl logs {place} --all-containers"))
}

/// Explains a pod without a node: by its gates, its claims and the scheduler's own reckoning.
async fn unplaced(sources: Sources<'_>, pod: &Value) -> Vec<Finding> {
    let namespace = corten_meta::namespace(pod);
    let gates: Vec<&str> = items(pod, "/spec/schedulingGates").map(|gate| text(gate, "/name")).collect();
    if !gates.is_empty() {
        let cause = format!("It is not scheduled before its scheduling gates are removed: {}.", gates.join(", "));
        return vec![Finding::new(cause).because("the controller that set a gate removes it")];
    }
    let mut findings = Vec::new();
    for name in items(pod, "/spec/volumes").map(|volume| text(volume, "/persistentVolumeClaim/claimName")) {
        if !name.is_empty() {
            findings.extend(claim::blocking(sources, namespace, name).await);
        }
    }
    let message = condition(pod, "PodScheduled").map_or("", |one| text(one, "/message"));
    let (message, explanation) = match sources.placement.explain(namespace, corten_meta::name(pod)).await {
        // The explanation begins with the scheduler's sentence, unless the cluster has changed since.
        Ok(explanation) if explanation.starts_with(message) => ("", explanation),
        Ok(explanation) => (message, explanation),
        Err(error) => (message, format!("the scheduler's plugins cannot be asked: {error}")),
    };
    findings.push(Finding::new("No node takes it.").because(message).because(explanation.trim_end()));
    findings
}

/// Explains a pod that has a node: the node itself, volumes and sandbox, then each container.
async fn on_its_node(sources: Sources<'_>, pod: &Value, warnings: &[Warning]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let name = text(pod, "/spec/nodeName");
    match sources.objects.get(&objects::nodes(), "", name).await {
        Ok(Some(found)) => {
            let lost = node::explain(&found).into_iter().find(|one| one.cause.starts_with("Its kubelet"));
            findings.extend(lost.map(|one| Finding { cause: format!("Its node {name} is not ready."), ..one }));
        }
        Ok(None) => findings.push(Finding::new(format!("Its node {name} does not exist any more."))),
        // The user may not read nodes.
        Err(_) => {}
    }
    let waits =
        statuses(pod).any(|status| status.pointer("/state/waiting").is_some()) || statuses(pod).next().is_none();
    if waits && let Some(warning) = events::newest(warnings, MOUNTS) {
        findings.push(mount(pod, warning));
    }
    for status in statuses(pod) {
        findings.extend(container(sources, pod, status, warnings).await);
    }
    findings
}

fn mount(pod: &Value, warning: &Warning) -> Finding {
    let cause = match warning.reason.as_str() {
        "FailedCreatePodSandBox" => "Its sandbox or network cannot be set up.",
        "FailedAttachVolume" => "A volume of it cannot be attached to the node.",
        _ => "A volume of it cannot be mounted.",
    };
    Finding::new(cause).because(&warning.message).help(format!(
        "kubectl describe pod -n {} {}",
        corten_meta::namespace(pod),
        corten_meta::name(pod)
    ))
}

fn statuses(pod: &Value) -> impl Iterator<Item = &Value> {
    ["/status/initContainerStatuses", "/status/containerStatuses"].into_iter().flat_map(move |at| items(pod, at))
}

async fn container(sources: Sources<'_>, pod: &Value, status: &Value, warnings: &[Warning]) -> Option<Finding> {
    let name = text(status, "/name");
    let reason = text(status, "/state/waiting/reason");
    let message = text(status, "/state/waiting/message");
    if IMAGE.contains(&reason) {
        return Some(image(pod, status, message, warnings));
    }
    if CONFIG.contains(&reason) {
        let finding = Finding::new(format!("Container {name} cannot be created: {reason}.")).because(message);
        return Some(missing_references(sources, pod, finding).await);
    }
    if reason == "CrashLoopBackOff" {
        return Some(crash(pod, status));
    }
    let is_running = status.pointer("/state/running").is_some();
    let is_ready = status["ready"].as_bool().unwrap_or(false);
    let is_ordinary = items(pod, "/status/containerStatuses").any(|one| text(one, "/name") == name);
    (is_running && !is_ready && is_ordinary).then(|| unready(pod, name, warnings))
}

fn image(pod: &Value, status: &Value, message: &str, warnings: &[Warning]) -> Finding {
    let image = text(status, "/image");
    let mut finding = Finding::new(format!("The image {image} of container {} is not there.", text(status, "/name")));
    finding = finding.because(message);
    let pulled =
        warnings.iter().find(|one| one.message.contains("Failed to pull") || one.message.contains("pull image"));
    if let Some(warning) = pulled {
        finding = finding.because(&warning.message);
    }
    if items(pod, "/spec/imagePullSecrets").next().is_none() {
        finding = finding.because("the pod names no imagePullSecrets");
    }
    finding.help("check the name and the tag").help("a machine without a registry: corten image import FILE.tar")
}

/// Adds the Secrets and ConfigMaps that the pod names and that do not exist.
async fn missing_references(sources: Sources<'_>, pod: &Value, mut finding: Finding) -> Finding {
    let namespace = corten_meta::namespace(pod);
    let containers = ["/spec/containers", "/spec/initContainers"].into_iter().flat_map(|at| items(pod, at));
    let mut names: Vec<(&str, &str)> = Vec::new();
    for container in containers {
        for one in items(container, "/env") {
            names.push(("configmaps", text(one, "/valueFrom/configMapKeyRef/name")));
            names.push(("secrets", text(one, "/valueFrom/secretKeyRef/name")));
        }
        for one in items(container, "/envFrom") {
            names.push(("configmaps", text(one, "/configMapRef/name")));
            names.push(("secrets", text(one, "/secretRef/name")));
        }
    }
    names.retain(|(_, name)| !name.is_empty());
    names.sort_unstable();
    names.dedup();
    for (plural, name) in names {
        if let Ok(None) = sources.objects.get(&objects::core(plural), namespace, name).await {
            finding = finding
                .because(format!("{plural} {name} does not exist in namespace {namespace}"))
                .help(format!("kubectl create {} -n {namespace} {name} …", plural.trim_end_matches('s')));
        }
    }
    finding
}

fn crash(pod: &Value, status: &Value) -> Finding {
    let name = text(status, "/name");
    let end = status.pointer("/lastState/terminated").or_else(|| status.pointer("/state/terminated"));
    let count = number(status, "/restartCount").unwrap_or(0);
    let mut finding = Finding::new(format!("Container {name} ends again and again; it was restarted {count} times."));
    if let Some(end) = end {
        finding = finding.because(ending(name, end)).because(text(end, "/message"));
        if text(end, "/reason") == "OOMKilled" {
            finding = finding.because("it took more memory than its limit").help("raise resources.limits.memory");
        } else if number(end, "/exitCode") == Some(KILLED) {
            finding =
                finding.because("it was killed from outside: a failed liveness probe, or a grace period that ended");
        }
    }
    let namespace = corten_meta::namespace(pod);
    finding.help(format!("kubectl logs -n {namespace} {} -c {name} --previous", corten_meta::name(pod)))
}

fn ending(name: &str, end: &Value) -> String {
    let code = number(end, "/exitCode").unwrap_or(0);
    format!("{name} ended with exit code {code} ({}) at {}", text(end, "/reason"), text(end, "/finishedAt"))
}

fn unready(pod: &Value, name: &str, warnings: &[Warning]) -> Finding {
    let mut finding = Finding::new(format!("Container {name} runs and is not ready."));
    let containers = items(pod, "/spec/containers").find(|one| text(one, "/name") == name);
    let has_probe = containers.is_some_and(|one| one.get("readinessProbe").is_some());
    let probe = events::newest(warnings, &["Unhealthy", "ProbeWarning"]);
    finding = match (has_probe, probe) {
        (_, Some(warning)) => finding.because(&warning.message),
        (true, None) => finding.because("its readiness probe has not succeeded yet"),
        (false, None) => finding.because("its startup or another container is not done yet"),
    };
    let gates = items(pod, "/spec/readinessGates").map(|gate| text(gate, "/conditionType"));
    for gate in gates.filter(|gate| condition(pod, gate).is_none_or(|one| text(one, "/status") != "True")) {
        finding = finding.because(format!("its readiness gate {gate} is not True"));
    }
    finding.help(format!("kubectl logs -n {} {} -c {name}", corten_meta::namespace(pod), corten_meta::name(pod)))
}
