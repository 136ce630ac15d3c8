//! The restricted level: the settings that a hardened pod must have, besides those that it must not have.

use std::collections::BTreeSet;

use corten_meta::Value;

use super::baseline::{self, added, bad_values, setters};
use super::{Check, Pod, Violation, containers, plural, quoted, uses, violation};

/// The checks of this level beyond the common ones, in upstream's order.
pub const CHECKS: &[Check] =
    &[allow_privilege_escalation, capabilities, proc_mount, volumes, run_as_non_root, run_as_user, seccomp];

const VOLUMES: &[&str] = &[
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
    "image",
];

fn allow_privilege_escalation(pod: &Pod<'_>) -> Option<Violation> {
    if pod.is_windows() || !pod.version.since(8) {
        return None;
    }
    let allowed = |c: &Value| c.pointer("/securityContext/allowPrivilegeEscalation") != Some(&Value::Bool(false));
    let bad = pod.bad(allowed);
    violation(!bad.is_empty(), "allowPrivilegeEscalation != false", || {
        format!("{} must set securityContext.allowPrivilegeEscalation=false", containers(&bad))
    })
}

fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.version.since(22) {
        return baseline::capabilities(pod);
    }
    if pod.is_windows() {
        return None;
    }
    let drops_all = |c: &Value| {
        let dropped = c.pointer("/securityContext/capabilities/drop").and_then(Value::as_array);
        dropped.is_some_and(|list| list.iter().any(|name| name == "ALL"))
    };
    let missing = pod.bad(|c| !drops_all(c));
    let adding = pod.bad(|c| !added(c, &["NET_BIND_SERVICE"]).is_empty());
    let mut details = Vec::new();
    if !missing.is_empty() {
        details.push(format!("{} must set securityContext.capabilities.drop=[\"ALL\"]", containers(&missing)));
    }
    if !adding.is_empty() {
        let names: BTreeSet<&str> = pod.containers().flat_map(|c| added(c, &["NET_BIND_SERVICE"])).collect();
        let names: Vec<&str> = names.into_iter().collect();
        let subject = containers(&adding);
        details.push(format!("{subject} must not include {} in securityContext.capabilities.add", quoted(&names)));
    }
    violation(!details.is_empty(), "unrestricted capabilities", || details.join("; "))
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    // The common check handles a pod without a user namespace of its own.
    if !pod.has_own_users() {
        return None;
    }
    let is_bad = |v: &str| !matches!(v, "" | "Default");
    let bad = pod.bad(|c| c.pointer("/securityContext/procMount").and_then(Value::as_str).is_some_and(is_bad));
    violation(!bad.is_empty(), "procMount", || {
        let values = bad_values(pod, "/procMount", is_bad);
        format!("{} must not set securityContext.procMount to {}", containers(&bad), quoted(&values))
    })
}

fn volumes(pod: &Pod<'_>) -> Option<Violation> {
    let mut names = Vec::new();
    let mut types = BTreeSet::new();
    for volume in pod.spec["volumes"].as_array().into_iter().flatten() {
        let source = volume.as_object().into_iter().flatten().find(|(key, value)| *key != "name" && !value.is_null());
        let kind = source.map_or("unknown", |(key, _)| key.as_str());
        // A volume without a source is an emptyDir.
        if source.is_some() && !VOLUMES.contains(&kind) {
            names.push(volume["name"].as_str().unwrap_or_default());
            types.insert(kind);
        }
    }
    violation(!names.is_empty(), "restricted volume types", || {
        let types: Vec<&str> = types.into_iter().collect();
        format!(
            "{} {} {} {} {}",
            plural("volume", names.len()),
            quoted(&names),
            uses(names.len()),
            plural("restricted volume type", types.len()),
            quoted(&types)
        )
    })
}

fn run_as_non_root(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() {
        return None;
    }
    const REASON: &str = "runAsNonRoot != true";
    let says = |context: &Value, value: bool| context.pointer("/runAsNonRoot") == Some(&Value::Bool(value));
    let by_pod = says(&pod.spec["securityContext"], true);
    let mut subject = Vec::new();
    if says(&pod.spec["securityContext"], false) {
        subject.push("pod".to_owned());
    }
    let explicit = pod.bad(|c| says(&c["securityContext"], false));
    if !explicit.is_empty() {
        subject.push(containers(&explicit));
    }
    // The pod's own false does not matter if all containers set true.
    if !explicit.is_empty() || (!subject.is_empty() && !pod.bad(|c| !says(&c["securityContext"], true)).is_empty()) {
        return violation(true, REASON, || {
            format!("{} must not set securityContext.runAsNonRoot=false", subject.join(" and "))
        });
    }
    let implicit = pod.bad(|c| !says(&c["securityContext"], true));
    violation(!by_pod && !implicit.is_empty(), REASON, || {
        format!("pod or {} must set securityContext.runAsNonRoot=true", containers(&implicit))
    })
}

fn run_as_user(pod: &Pod<'_>) -> Option<Violation> {
    if pod.has_own_users() || !pod.version.since(23) {
        return None;
    }
    let subject = setters(pod, |context| context.pointer("/runAsUser").and_then(Value::as_i64) == Some(0))?;
    violation(true, "runAsUser=0", || format!("{subject} must not set runAsUser=0"))
}

fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.version.since(19) {
        return baseline::seccomp(pod);
    }
    if pod.is_windows() {
        return None;
    }
    let kind = |context: &Value| context.pointer("/seccompProfile/type").and_then(Value::as_str).map(str::to_owned);
    let is_good = |kind: &str| matches!(kind, "RuntimeDefault" | "Localhost");
    if let Some(subject) = setters(pod, |context| kind(context).is_some_and(|k| !is_good(&k))) {
        let values = bad_values(pod, "/seccompProfile/type", |k| !is_good(k));
        return violation(true, "seccompProfile", || {
            format!("{subject} must not set securityContext.seccompProfile.type to {}", quoted(&values))
        });
    }
    let by_pod = kind(&pod.spec["securityContext"]).is_some();
    let implicit = pod.bad(|c| kind(&c["securityContext"]).is_none());
    violation(!by_pod && !implicit.is_empty(), "seccompProfile", || {
        let subject = containers(&implicit);
        format!("pod or {subject} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\"")
    })
}
