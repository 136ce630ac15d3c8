//! The rules of a container: image, ports, environment, mounts, probes, resources.

use std::collections::BTreeSet;

use corten_meta::field::{FieldError, Path};
use corten_meta::{Value, names};

use crate::cells::{list, number, text};
use crate::defaulting::absent;
use crate::validation::{invalid_each, nonnegative, port, port_number_or_name, quantity, required_word, supported};

/// Everything that regular, init and ephemeral containers share.
pub(super) fn validate_common(container: &Value, volumes: &BTreeSet<&str>, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match text(container, "/name") {
        "" => errors.push(FieldError::required(&path.child("name"), "")),
        name => errors.extend(invalid_each(&path.child("name"), name, names::dns1123_label(name))),
    }
    match text(container, "/image") {
        "" => errors.push(FieldError::required(&path.child("image"), "")),
        image if image.trim() != image => {
            let detail = "must not have leading or trailing whitespace";
            errors.push(FieldError::invalid(&path.child("image"), image, detail));
        }
        _ => {}
    }
    errors.extend(required_word(
        &container["terminationMessagePolicy"],
        &path.child("terminationMessagePolicy"),
        &["File", "FallbackToLogsOnError"],
    ));
    errors.extend(validate_ports(list(container, "/ports"), &path.child("ports")));
    errors.extend(validate_env(list(container, "/env"), &path.child("env")));
    errors.extend(validate_env_from(list(container, "/envFrom"), &path.child("envFrom")));
    errors.extend(validate_mounts(container, volumes, &path.child("volumeMounts")));
    errors.extend(required_word(
        &container["imagePullPolicy"],
        &path.child("imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
    ));
    errors.extend(validate_resources(&container["resources"], &path.child("resources")));
    errors.extend(validate_security(&container["securityContext"], &path.child("securityContext")));
    errors
}

fn validate_ports(ports: &[Value], path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut port_names = BTreeSet::new();
    for (at, container_port) in ports.iter().enumerate() {
        let path = path.index(at);
        let name = text(container_port, "/name");
        if !name.is_empty() {
            let messages = names::port_name(name);
            if messages.is_empty() && !port_names.insert(name) {
                errors.push(FieldError::duplicate(&path.child("name"), name));
            }
            errors.extend(invalid_each(&path.child("name"), name, messages));
        }
        match number(container_port, "/containerPort") {
            0 => errors.push(FieldError::required(&path.child("containerPort"), "")),
            value => errors.extend(port(value, &path.child("containerPort"))),
        }
        match number(container_port, "/hostPort") {
            0 => {}
            value => errors.extend(port(value, &path.child("hostPort"))),
        }
        errors.extend(required_word(&container_port["protocol"], &path.child("protocol"), &["SCTP", "TCP", "UDP"]));
    }
    errors
}

fn validate_env(env: &[Value], path: &Path) -> Vec<FieldError> {
    const SOURCES: [&str; 4] = ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef"];
    let mut errors = Vec::new();
    for (at, variable) in env.iter().enumerate() {
        let path = path.index(at);
        match text(variable, "/name") {
            "" => errors.push(FieldError::required(&path.child("name"), "")),
            name => errors.extend(invalid_each(&path.child("name"), name, names::relaxed_env_var_name(name))),
        }
        let Some(from) = variable.get("valueFrom").filter(|f| f.is_object()) else { continue };
        let path = path.child("valueFrom");
        let given = |source: &&str| from.get(*source).is_some_and(Value::is_object);
        for source in SOURCES.iter().filter(|s| given(s) && s.ends_with("KeyRef")) {
            let reference = &from[*source];
            let path = path.child(source);
            if text(reference, "/name").is_empty() {
                errors.push(FieldError::required(&path.child("name"), ""));
            }
            match text(reference, "/key") {
                "" => errors.push(FieldError::required(&path.child("key"), "")),
                key => errors.extend(invalid_each(&path.child("key"), key, names::config_map_key(key))),
            }
        }
        let count = SOURCES.iter().filter(|s| given(s)).count() + usize::from(given(&"fileKeyRef"));
        let detail = match (count, text(variable, "/value").is_empty()) {
            (0, _) => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef` or `secretKeyRef`",
            (_, false) => "may not be specified when `value` is not empty",
            (1, true) => continue,
            (_, true) => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid(&path, "", detail));
    }
    errors
}

fn validate_env_from(sources: &[Value], path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (at, source) in sources.iter().enumerate() {
        let path = path.index(at);
        let given: Vec<&str> = ["configMapRef", "secretRef"]
            .into_iter()
            .filter(|f| source.get(*f).is_some_and(Value::is_object))
            .collect();
        match given.as_slice() {
            [] => errors.push(FieldError::invalid(&path, "", "must specify one of: `configMapRef` or `secretRef`")),
            [one] if text(source, &format!("/{one}/name")).is_empty() => {
                errors.push(FieldError::required(&path.child(one).child("name"), ""));
            }
            [_] => {}
            _ => errors.push(FieldError::invalid(&path, "", "may not have more than one field specified at a time")),
        }
    }
    errors
}

fn validate_mounts(container: &Value, volumes: &BTreeSet<&str>, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut paths = BTreeSet::new();
    for (at, mount) in list(container, "/volumeMounts").iter().enumerate() {
        let item = path.index(at);
        let (name, mount_path) = (text(mount, "/name"), text(mount, "/mountPath"));
        if name.is_empty() {
            errors.push(FieldError::required(&item.child("name"), ""));
        }
        if !volumes.contains(name) {
            errors.push(FieldError::not_found(&item.child("name"), name));
        }
        if mount_path.is_empty() {
            errors.push(FieldError::required(&item.child("mountPath"), ""));
        }
        if !paths.insert(mount_path) {
            errors.push(FieldError::invalid(&item.child("mountPath"), mount_path, "must be unique"));
        }
        for field in ["subPath", "subPathExpr"] {
            errors.extend(local_descending(text(mount, &format!("/{field}")), &path.child(field)));
        }
        if !absent(mount, "/subPath") && !absent(mount, "/subPathExpr") {
            let value = text(mount, "/subPathExpr");
            let detail = "subPathExpr and subPath are mutually exclusive";
            errors.push(FieldError::invalid(&item.child("subPathExpr"), value, detail));
        }
    }
    errors
}

/// A relative path that stays below where it starts.
pub(super) fn local_descending(target: &str, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if target.starts_with('/') {
        errors.push(FieldError::invalid(path, target, "must be a relative path"));
    }
    if target.split('/').any(|part| part == "..") {
        errors.push(FieldError::invalid(path, target, "must not contain '..'"));
    }
    errors
}

fn validate_resources(resources: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let limits = path.child("limits");
    for side in ["limits", "requests"] {
        let path = path.child(side);
        for (resource, amount) in resources[side].as_object().into_iter().flatten() {
            let path_ = path.key(resource);
            errors.extend(validate_resource_name(resource, &path_));
            let Some(amount_) = quantity(amount) else { continue };
            if amount_.as_milli() < 0 {
                errors.push(FieldError::invalid(&path_, amount_.to_string(), "must be greater than or equal to 0"));
            }
            if side == "limits" {
                continue;
            }
            let overcommit = can_overcommit(resource);
            match resources["limits"].get(resource).and_then(quantity) {
                Some(limit) if !overcommit && amount_ != limit => {
                    let detail = format!("must be equal to {resource} limit of {limit}");
                    errors.push(FieldError::invalid(&path, amount_.to_string(), detail));
                }
                Some(limit) if amount_ > limit => {
                    let detail = format!("must be less than or equal to {resource} limit of {limit}");
                    errors.push(FieldError::invalid(&path, amount_.to_string(), detail));
                }
                None if !overcommit => {
                    let detail = "Limit must be set for non overcommitable resources";
                    errors.push(FieldError::required(&limits, detail));
                }
                _ => {}
            }
        }
    }
    errors
}

fn validate_resource_name(resource: &str, path: &Path) -> Vec<FieldError> {
    let mut errors = invalid_each(path, resource, names::qualified_name(resource));
    let standard = ["cpu", "memory", "ephemeral-storage"].contains(&resource) || resource.starts_with("hugepages-");
    if !resource.contains('/') && !standard {
        errors.push(FieldError::invalid(path, resource, "must be a standard resource for containers"));
    }
    errors
}

/// Extended resources and huge pages are handed out whole.
fn can_overcommit(resource: &str) -> bool {
    let native = !resource.contains('/') || resource.contains("kubernetes.io/");
    native && !resource.starts_with("hugepages-")
}

fn validate_security(context: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let set = |field: &str| context.get(field).and_then(Value::as_bool);
    if set("allowPrivilegeEscalation") == Some(false) {
        if set("privileged") == Some(true) {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(FieldError::invalid(path, context.clone(), detail));
        }
        if list(context, "/capabilities/add").iter().any(|c| c == "CAP_SYS_ADMIN") {
            let detail = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(FieldError::invalid(path, context.clone(), detail));
        }
    }
    for (field, check) in [
        ("runAsUser", names::user_id as fn(i64) -> Vec<String>),
        ("runAsGroup", names::group_id as fn(i64) -> Vec<String>),
    ] {
        if let Some(id) = context.get(field).and_then(Value::as_i64) {
            errors.extend(check(id).into_iter().map(|m| FieldError::invalid(&path.child(field), id, m)));
        }
    }
    errors
}

/// A probe, when it is given.
pub(super) fn validate_probe(probe: &Value, path: &Path, one_success: bool) -> Vec<FieldError> {
    if !probe.is_object() {
        return Vec::new();
    }
    let mut errors = validate_handler(probe, path);
    for field in ["initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold"] {
        errors.extend(nonnegative(&probe[field], &path.child(field)));
    }
    let successes = number(probe, "/successThreshold");
    if one_success && successes != 1 {
        errors.push(FieldError::invalid(&path.child("successThreshold"), successes, "must be 1"));
    }
    errors
}

/// A lifecycle handler or the handler of a probe: exactly one way to act.
pub(super) fn validate_handler(handler: &Value, path: &Path) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut found = false;
    for kind in ["exec", "httpGet", "tcpSocket", "grpc", "sleep"] {
        let Some(action) = handler.get(kind).filter(|a| a.is_object()) else { continue };
        let path = path.child(kind);
        if found {
            errors.push(FieldError::forbidden(&path, "may not specify more than 1 handler type"));
            continue;
        }
        found = true;
        match kind {
            "exec" if list(action, "/command").is_empty() => {
                errors.push(FieldError::required(&path.child("command"), ""));
            }
            "httpGet" => {
                if text(action, "/path").is_empty() {
                    errors.push(FieldError::required(&path.child("path"), ""));
                }
                errors.extend(port_number_or_name(&action["port"], &path.child("port")));
                errors.extend(supported(&action["scheme"], &path.child("scheme"), &["HTTP", "HTTPS"]));
            }
            "tcpSocket" | "grpc" => errors.extend(port_number_or_name(&action["port"], &path.child("port"))),
            _ => {}
        }
    }
    if !found {
        errors.push(FieldError::required(path, "must specify a handler type"));
    }
    errors
}
