//! The baseline level: it forbids the known ways to escalate a pod's privileges.

use std::collections::BTreeSet;

use corten_meta::Value;

use super::{Check, Pod, Violation, containers, plural, quoted, uses, violation};

/// The checks of both levels, in upstream's order.
pub const CHECKS: &[Check] = &[
    app_armor,
    host_namespaces,
    host_ports,
    host_probes,
    privileged,
    proc_mount,
    se_linux,
    sysctls,
    windows_host_process,
];

/// The checks that the restricted level replaces by stricter ones.
pub const LENIENT: &[Check] = &[capabilities, host_path_volumes, seccomp];

const CAPABILITIES: &[&str] = &[
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];
const SE_LINUX_TYPES: &[&str] = &["", "container_t", "container_init_t", "container_kvm_t"];
/// The allowed sysctls, with the minor version that first allowed each.
const SYSCTLS: &[(&str, u32)] = &[
    ("kernel.shm_rmid_forced", 0),
    ("net.ipv4.ip_local_port_range", 0),
    ("net.ipv4.tcp_syncookies", 0),
    ("net.ipv4.ping_group_range", 0),
    ("net.ipv4.ip_unprivileged_port_start", 0),
    ("net.ipv4.ip_local_reserved_ports", 27),
    ("net.ipv4.tcp_keepalive_time", 29),
    ("net.ipv4.tcp_fin_timeout", 29),
    ("net.ipv4.tcp_keepalive_intvl", 29),
    ("net.ipv4.tcp_keepalive_probes", 29),
    ("net.ipv4.tcp_rmem", 32),
    ("net.ipv4.tcp_wmem", 32),
];

fn string<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn is_true(value: &Value, pointer: &str) -> bool {
    value.pointer(pointer) == Some(&Value::Bool(true))
}

/// Returns the setters of a forbidden value in a security context: the pod, containers, or both.
pub fn setters(pod: &Pod<'_>, bad: impl Fn(&Value) -> bool) -> Option<String> {
    let mut setters = Vec::new();
    if bad(&pod.spec["securityContext"]) {
        setters.push("pod".to_owned());
    }
    let names = pod.bad(|container| bad(&container["securityContext"]));
    if !names.is_empty() {
        setters.push(containers(&names));
    }
    (!setters.is_empty()).then(|| setters.join(" and "))
}

/// Returns the values of a field of all security contexts that fail a test.
pub fn bad_values<'a>(pod: &Pod<'a>, pointer: &str, bad: impl Fn(&str) -> bool) -> Vec<&'a str> {
    let contexts = std::iter::once(&pod.spec["securityContext"]).chain(pod.containers().map(|c| &c["securityContext"]));
    let values = contexts.filter_map(|context| context.pointer(pointer)).filter_map(Value::as_str);
    values.filter(|value| bad(value)).collect::<BTreeSet<_>>().into_iter().collect()
}

fn app_armor(pod: &Pod<'_>) -> Option<Violation> {
    let bad = |kind: &str| !matches!(kind, "RuntimeDefault" | "Localhost");
    let mut values: Vec<String> =
        bad_values(pod, "/appArmorProfile/type", bad).into_iter().map(str::to_owned).collect();
    let mut subject: Vec<String> =
        setters(pod, |context| context.pointer("/appArmorProfile/type").and_then(Value::as_str).is_some_and(bad))
            .into_iter()
            .collect();
    let annotations: Vec<&String> = pod
        .annotations
        .iter()
        .filter(|(key, value)| {
            key.starts_with("container.apparmor.security.beta.kubernetes.io/")
                && !value.is_empty()
                && *value != "runtime/default"
                && !value.starts_with("localhost/")
        })
        .map(|(_, value)| value)
        .collect();
    if !annotations.is_empty() {
        subject.push(plural("annotation", annotations.len()));
        values.extend(annotations.into_iter().cloned());
    }
    let reason = plural("forbidden AppArmor profile", values.len());
    violation(!values.is_empty(), &reason, || {
        format!("{} must not set AppArmor profile type to {}", subject.join(" and "), quoted(&values))
    })
}

fn host_namespaces(pod: &Pod<'_>) -> Option<Violation> {
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| pod.spec[*field] == true)
        .map(|field| format!("{field}=true"))
        .collect();
    violation(!set.is_empty(), "host namespaces", || set.join(", "))
}

fn host_path_volumes(pod: &Pod<'_>) -> Option<Violation> {
    let volumes: Vec<&str> = pod.spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|volume| volume.get("hostPath").is_some_and(|h| !h.is_null()))
        .map(|volume| volume["name"].as_str().unwrap_or_default())
        .collect();
    violation(!volumes.is_empty(), "hostPath volumes", || {
        format!("{} {}", plural("volume", volumes.len()), quoted(&volumes))
    })
}

fn host_ports(pod: &Pod<'_>) -> Option<Violation> {
    let ports = |container: &Value| -> Vec<String> {
        let ports = container["ports"].as_array().cloned().unwrap_or_default();
        ports.iter().filter_map(|p| p["hostPort"].as_i64()).filter(|p| *p != 0).map(|p| p.to_string()).collect()
    };
    let bad = pod.bad(|container| !ports(container).is_empty());
    let all: BTreeSet<String> = pod.containers().flat_map(ports).collect();
    violation(!bad.is_empty(), "hostPort", || {
        let numbers: Vec<String> = all.iter().cloned().collect();
        format!("{} {} {} {}", containers(&bad), uses(bad.len()), plural("hostPort", all.len()), numbers.join(", "))
    })
}

/// Returns the hosts that a container's probes and hooks name.
fn hosts(container: &Value) -> Vec<String> {
    let handlers = ["/livenessProbe", "/readinessProbe", "/startupProbe", "/lifecycle/postStart", "/lifecycle/preStop"];
    let found = handlers
        .iter()
        .filter_map(|at| container.pointer(at))
        .flat_map(|handler| ["/httpGet/host", "/tcpSocket/host"].into_iter().map(|at| string(handler, at).to_owned()));
    found.filter(|host| !host.is_empty()).collect()
}

fn host_probes(pod: &Pod<'_>) -> Option<Violation> {
    if !pod.version.since(34) {
        return None;
    }
    let bad: Vec<&str> = pod.bad(|c| !hosts(c).is_empty()).into_iter().collect::<BTreeSet<_>>().into_iter().collect();
    let all: Vec<String> = pod.containers().flat_map(hosts).collect::<BTreeSet<_>>().into_iter().collect();
    violation(!bad.is_empty(), "probe or lifecycle host", || {
        format!(
            "{} {} {} {}",
            containers(&bad),
            uses(bad.len()),
            plural("probe or lifecycle host", all.len()),
            quoted(&all)
        )
    })
}

fn privileged(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.bad(|c| is_true(c, "/securityContext/privileged"));
    violation(!bad.is_empty(), "privileged", || {
        format!("{} must not set securityContext.privileged=true", containers(&bad))
    })
}

fn proc_mount(pod: &Pod<'_>) -> Option<Violation> {
    // A pod in a user namespace of its own may see all of /proc.
    if pod.has_own_users() {
        return None;
    }
    let is_bad = |c: &Value| !matches!(string(c, "/securityContext/procMount"), "" | "Default");
    let bad = pod.bad(is_bad);
    violation(!bad.is_empty(), "procMount", || {
        let values = bad_values(pod, "/procMount", |v| !matches!(v, "" | "Default"));
        format!("{} must not set securityContext.procMount to {}", containers(&bad), quoted(&values))
    })
}

fn se_linux(pod: &Pod<'_>) -> Option<Violation> {
    let is_bad_type =
        |kind: &str| !(SE_LINUX_TYPES.contains(&kind) || kind == "container_engine_t" && pod.version.since(31));
    let is_bad = |context: &Value| {
        is_bad_type(string(context, "/seLinuxOptions/type"))
            || !string(context, "/seLinuxOptions/user").is_empty()
            || !string(context, "/seLinuxOptions/role").is_empty()
    };
    let subject = setters(pod, is_bad)?;
    let mut what = Vec::new();
    let types = bad_values(pod, "/seLinuxOptions/type", is_bad_type);
    if !types.is_empty() {
        what.push(format!("{} {}", plural("type", types.len()), quoted(&types)));
    }
    for (field, shown) in [("user", "user may not be set"), ("role", "role may not be set")] {
        if !bad_values(pod, &format!("/seLinuxOptions/{field}"), |v| !v.is_empty()).is_empty() {
            what.push(shown.to_owned());
        }
    }
    violation(true, "seLinuxOptions", || {
        format!("{subject} set forbidden securityContext.seLinuxOptions: {}", what.join("; "))
    })
}

fn sysctls(pod: &Pod<'_>) -> Option<Violation> {
    let list = pod.spec.pointer("/securityContext/sysctls").and_then(Value::as_array);
    let names = list.into_iter().flatten().map(|s| s["name"].as_str().unwrap_or_default());
    let bad: Vec<&str> =
        names.filter(|name| !SYSCTLS.iter().any(|(known, since)| known == name && pod.version.since(*since))).collect();
    violation(!bad.is_empty(), "forbidden sysctls", || bad.join(", "))
}

fn windows_host_process(pod: &Pod<'_>) -> Option<Violation> {
    let subject = setters(pod, |context| is_true(context, "/windowsOptions/hostProcess"))?;
    violation(true, "hostProcess", || format!("{subject} must not set securityContext.windowsOptions.hostProcess=true"))
}

/// Returns the capabilities that a container adds beyond the allowed ones.
pub fn added<'a>(container: &'a Value, allowed: &[&str]) -> Vec<&'a str> {
    let list = container.pointer("/securityContext/capabilities/add").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).filter(|name| !allowed.contains(name)).collect()
}

pub fn capabilities(pod: &Pod<'_>) -> Option<Violation> {
    let bad = pod.bad(|c| !added(c, CAPABILITIES).is_empty());
    violation(!bad.is_empty(), "non-default capabilities", || {
        let names: BTreeSet<&str> = pod.containers().flat_map(|c| added(c, CAPABILITIES)).collect();
        let names: Vec<&str> = names.into_iter().collect();
        format!("{} must not include {} in securityContext.capabilities.add", containers(&bad), quoted(&names))
    })
}

pub fn seccomp(pod: &Pod<'_>) -> Option<Violation> {
    let is_bad = |kind: &str| !matches!(kind, "RuntimeDefault" | "Localhost");
    let subject =
        setters(pod, |context| context.pointer("/seccompProfile/type").and_then(Value::as_str).is_some_and(is_bad))?;
    violation(true, "seccompProfile", || {
        let values = bad_values(pod, "/seccompProfile/type", is_bad);
        format!("{subject} must not set securityContext.seccompProfile.type to {}", quoted(&values))
    })
}
