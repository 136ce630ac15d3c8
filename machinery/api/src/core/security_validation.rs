//! The rules of security contexts, of a pod and of its containers, and of the pod's operating system.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::quote::quote;
use corten_meta::{Value, names};

use crate::check::{At, Errors, local_descending};
use crate::rules;

/// Returns every container of a pod spec with its path, in upstream's order.
pub(super) fn containers<'a>(spec: &At<'a>) -> impl Iterator<Item = At<'a>> + use<'a> {
    let lists = ["initContainers", "containers", "ephemeralContainers"].map(|field| spec.get(field));
    lists.into_iter().flat_map(|list| list.items())
}

/// Validates the security context of a pod.
pub(super) fn validate_pod_security(spec: &At<'_>, errors: &mut Errors) {
    let context = spec.get("securityContext");
    rules::check(".core.v1.PodSecurityContext/ids", &context, errors);
    if spec.get("hostPID").is_true() && spec.get("shareProcessNamespace").is_true() {
        let path = context.path.child("shareProcessNamespace");
        let detail = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(FieldError::invalid(&path, true, detail));
    }
    validate_sysctls(spec, &context.get("sysctls"), errors);
    rules::check(".core.v1.PodSecurityContext/profiles", &context, errors);
}

/// Validates the security context of a container. `host_users` is whether the pod shares the host's users.
pub(super) fn validate_container_security(context: &At<'_>, host_users: bool, errors: &mut Errors) {
    rules::check(".core.v1.SecurityContext/ids", context, errors);
    let proc_mount = context.get("procMount");
    if host_users && proc_mount.text() == "Unmasked" {
        errors.push(proc_mount.invalid("`hostUsers` must be false to use `Unmasked`"));
    }
    rules::check(".core.v1.SecurityContext/seccomp", context, errors);
    if context.get("allowPrivilegeEscalation").value == &Value::Bool(false) {
        if context.get("privileged").is_true() {
            errors.push(context.invalid("cannot set `allowPrivilegeEscalation` to false and `privileged` to true"));
        }
        for _ in context.get("capabilities").get("add").texts().filter(|c| *c == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(context.invalid(detail));
        }
    }
    rules::check(".core.v1.SecurityContext/profiles", context, errors);
}

pub(crate) fn apparmor_file(file: &At<'_>, errors: &mut Errors) {
    if file.text().trim() != file.text() {
        errors.push(file.invalid("must not be padded with whitespace"));
    } else if file.is_empty() {
        errors.push(file.required("must be set when AppArmor type is Localhost"));
    }
}

fn validate_sysctls(spec: &At<'_>, sysctls: &At<'_>, errors: &mut Errors) {
    let mut seen = BTreeSet::new();
    for sysctl in sysctls.items() {
        let name = sysctl.get("name");
        if !name.must(errors) {
        } else if !is_sysctl_name(name.text()) {
            let detail = "must have at most 253 characters and match regex \
                ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.push(name.invalid(detail));
        } else if seen.contains(name.text()) {
            errors.push(name.duplicate());
        }
        let dotted = name.text().replace('/', ".");
        let ipc =
            ["kernel.shm", "kernel.msg", "fs.mqueue."].iter().any(|p| dotted.starts_with(p)) || dotted == "kernel.sem";
        if spec.get("hostNetwork").is_true() && dotted.starts_with("net.") {
            errors.push(name.invalid("may not be specified when 'hostNetwork' is true"));
        } else if spec.get("hostIPC").is_true() && ipc {
            errors.push(name.invalid("may not be specified when 'hostIPC' is true"));
        }
        seen.insert(name.text());
    }
}

fn is_sysctl_name(name: &str) -> bool {
    let segment = |part: &str| {
        let ends = [part.bytes().next(), part.bytes().last()];
        let end = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        ends.into_iter().all(end) && part.bytes().all(inner)
    };
    name.len() <= 253 && name.split(['.', '/']).all(segment)
}

pub(crate) fn windows_user(user: &At<'_>, errors: &mut Errors) {
    errors.extend(windows_user_errors(user.text()).into_iter().map(|detail| user.invalid(detail)));
}

/// Returns the errors of `DOMAIN\user` or `user`, as Windows writes them.
fn windows_user_errors(name: &str) -> Vec<&'static str> {
    if name.is_empty() {
        return vec!["runAsUserName cannot be an empty string"];
    }
    if name.chars().any(|c| c.is_ascii_control()) {
        return vec!["runAsUserName cannot contain control characters"];
    }
    let parts: Vec<&str> = name.split('\\').collect();
    let (domain, user) = match parts.as_slice() {
        [user] => (None, *user),
        [domain, user] => (Some(*domain), *user),
        _ => return vec!["runAsUserName cannot contain more than one backslash"],
    };
    let mut errors = Vec::new();
    if domain.is_some_and(|d| d.len() >= 256) {
        errors.push("runAsUserName's Domain length must be under 256 characters");
    }
    if domain.is_some_and(|d| !is_netbios_name(d) && !is_windows_domain(d)) {
        errors.push("runAsUserName's Domain doesn't match the NetBios nor the DNS format");
    }
    if user.is_empty() {
        errors.push("runAsUserName's User cannot be empty");
    } else if user.len() > 104 {
        errors.push("runAsUserName's User length must not be longer than 104 characters");
    }
    if !user.is_empty() && user.chars().all(|c| c == '.' || c == ' ') {
        errors.push("runAsUserName's User cannot contain only periods or spaces");
    }
    if user.contains(['"', '/', '\\', ':', ';', '|', '=', ',', '+', '*', '?', '<', '>', '@', '[', ']']) {
        errors.push("runAsUserName's User cannot contain the following characters: \"/\\:;|=,+*?<>@[]");
    }
    errors
}

fn is_netbios_name(name: &str) -> bool {
    let length = name.chars().count();
    (1..=15).contains(&length)
        && !name.starts_with('.')
        && !name.contains(['\\', '/', ':', '*', '?', '"', '<', '>', '|'])
}

fn is_windows_domain(name: &str) -> bool {
    name.split('.').all(|label| names::dns1123_label(&label.to_lowercase()).is_empty())
}

/// Validates HostProcess containers on Windows: all of a pod's, or none.
pub(super) fn validate_host_process(spec: &At<'_>, errors: &mut Errors) {
    let host_process = |at: &At<'_>| at.get("securityContext").get("windowsOptions").get("hostProcess").value.as_bool();
    let of_pod = host_process(spec);
    let mut all = 0;
    let mut found = 0;
    for container in containers(spec) {
        let own = host_process(&container);
        if let (Some(of_pod), Some(own)) = (of_pod, own)
            && of_pod != own
        {
            let path = container.path.child("securityContext").child("windowsOptions").child("hostProcess");
            let detail = format!("pod hostProcess value must be identical if both are specified, was {of_pod}");
            errors.push(FieldError::invalid(&path, own, detail));
        }
        all += 1;
        found += usize::from(own.or(of_pod) == Some(true));
    }
    if found == 0 {
        return;
    }
    if found != all {
        let detail = "If pod contains any hostProcess containers then all containers must be HostProcess containers";
        errors.push(FieldError::invalid(&spec.path, "", detail));
    }
    if !spec.get("hostNetwork").is_true() {
        let detail = "hostNetwork must be true if pod contains any hostProcess containers";
        errors.push(FieldError::invalid(&spec.path.child("hostNetwork"), false, detail));
    }
}

/// Validates that pods with their own user namespace do not share other namespaces with the host.
pub(super) fn validate_host_users(spec: &At<'_>, errors: &mut Errors) {
    const DETAIL: &str = "when `hostUsers` is false";
    if spec.get("hostUsers").value != &Value::Bool(false) {
        return;
    }
    for (field, shown) in [("hostNetwork", "hostNetwork"), ("hostPID", "HostPID"), ("hostIPC", "HostIPC")] {
        if spec.get(field).is_true() {
            errors.push(FieldError::forbidden(&spec.path.child(shown), DETAIL));
        }
    }
    for container in containers(spec).filter(|c| !c.get("volumeDevices").is_empty()) {
        errors.push(container.get("volumeDevices").forbidden(DETAIL));
    }
}

/// Validates that the settings exist on the pod's operating system.
pub(super) fn validate_os(spec: &At<'_>, errors: &mut Errors) {
    const POD: &[&str] = &[
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "fsGroup",
        "fsGroupChangePolicy",
        "sysctls",
        "runAsUser",
        "runAsGroup",
        "supplementalGroups",
        "supplementalGroupsPolicy",
        "seLinuxChangePolicy",
    ];
    const CONTAINER: &[&str] = &[
        "appArmorProfile",
        "seLinuxOptions",
        "seccompProfile",
        "capabilities",
        "readOnlyRootFilesystem",
        "privileged",
        "allowPrivilegeEscalation",
        "procMount",
        "runAsUser",
        "runAsGroup",
    ];
    const NOT_WINDOWS: &str = "cannot be set for a windows pod";
    const NOT_LINUX: &str = "windows options cannot be set for a linux pod";
    let os = spec.get("os");
    if !os.is_object() || !os.get("name").must(errors) {
        return;
    }
    let set = |at: &At<'_>, fields: &[&str], detail: &str, errors: &mut Errors| {
        let set = fields.iter().map(|field| at.get(field)).filter(|at| at.is_set());
        errors.extend(set.map(|at| at.forbidden(detail)));
    };
    match os.get("name").text() {
        "linux" => {
            set(&spec.get("securityContext"), &["windowsOptions"], NOT_LINUX, errors);
            containers(spec).for_each(|c| set(&c.get("securityContext"), &["windowsOptions"], NOT_LINUX, errors));
        }
        "windows" => {
            set(&spec.get("securityContext"), POD, NOT_WINDOWS, errors);
            set(spec, &["hostUsers", "shareProcessNamespace"], NOT_WINDOWS, errors);
            for field in ["hostPID", "hostIPC"].into_iter().filter(|f| spec.get(f).is_true()) {
                errors.push(spec.get(field).forbidden(NOT_WINDOWS));
            }
            containers(spec).for_each(|c| set(&c.get("securityContext"), CONTAINER, NOT_WINDOWS, errors));
        }
        other => errors.push(FieldError::not_supported(&os.path, other, &["linux", "windows"])),
    }
}

/// Validates the seccomp and AppArmor annotations that preceded the fields.
pub(super) fn validate_profile_annotations(annotations: &At<'_>, spec: &At<'_>, errors: &mut Errors) {
    for (key, value) in annotations.entries() {
        let seccomp = key == "seccomp.security.alpha.kubernetes.io/pod"
            || key.starts_with("container.seccomp.security.alpha.kubernetes.io/");
        if seccomp {
            let path = annotations.path.child(key);
            match value.text() {
                "runtime/default" | "docker/default" | "unconfined" => {}
                text => match text.strip_prefix("localhost/") {
                    Some(file) => local_descending(&At::new(&Value::from(file), &path), errors),
                    None => errors.push(FieldError::invalid(&path, text, "must be a valid seccomp profile")),
                },
            }
        }
        if let Some(container) = key.strip_prefix("container.apparmor.security.beta.kubernetes.io/") {
            validate_apparmor_annotation(container, value.text(), &value.path, spec, errors);
        }
    }
}

fn validate_apparmor_annotation(container: &str, profile: &str, path: &Path, spec: &At<'_>, errors: &mut Errors) {
    if !containers(spec).any(|c| c.get("name").text() == container) {
        errors.push(FieldError::invalid(path, container, "container not found"));
    }
    let known = ["", "runtime/default", "unconfined"].contains(&profile) || profile.starts_with("localhost/");
    if !known {
        errors.push(FieldError::invalid(path, profile, format!("invalid AppArmor profile name: {}", quote(profile))));
    }
}
