//! The rules of environment variables, and of the references to fields and resources that volumes share with them.

use corten_meta::field::FieldError;
use corten_meta::names;

use crate::check::{At, Errors};
use crate::rules;

/// The fields of a pod that a variable may refer to.
const ENV_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

/// All fields that `fieldRef` knows, before the use restricts it.
const KNOWN_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];

const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

pub(super) fn validate_env(env: &At<'_>, errors: &mut Errors) {
    for variable in env.items() {
        rules::check(".core.v1.EnvVar", &variable, errors);
        let from = variable.get("valueFrom");
        if from.is_object() {
            validate_value_from(&from, !variable.get("value").is_empty(), errors);
        }
    }
}

fn validate_value_from(from: &At<'_>, has_value: bool, errors: &mut Errors) {
    let mut sources = 0;
    let mut source = |field: &str, errors: &mut Errors, rule: &dyn Fn(&At<'_>, &mut Errors)| {
        let at = from.get(field);
        if at.is_object() {
            sources += 1;
            rule(&at, errors);
        }
    };
    source("fieldRef", errors, &|at, e| validate_field_reference(at, ENV_FIELDS, e));
    source("resourceFieldRef", errors, &|at, e| validate_resource_reference(at, false, e));
    source("configMapKeyRef", errors, &|at, e| rules::check(".core.v1.ConfigMapKeySelector", at, e));
    source("secretKeyRef", errors, &|at, e| rules::check(".core.v1.SecretKeySelector", at, e));
    source("fileKeyRef", errors, &|at, e| rules::check(".core.v1.FileKeySelector", at, e));
    let detail = match sources {
        0 => "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        _ if has_value => "may not be specified when `value` is not empty",
        1 => return,
        _ => "may not have more than one field specified at a time",
    };
    errors.push(FieldError::invalid(&from.path, "", detail));
}

/// Validates a reference to a field of the pod; of a map, it may be one key: `metadata.labels['key']`.
pub(super) fn validate_field_reference(at: &At<'_>, allowed: &[&str], errors: &mut Errors) {
    let field = at.get("fieldPath");
    if !at.get("apiVersion").must(errors) || !field.must(errors) {
        return;
    }
    let subscripted = field.text().strip_suffix("']").and_then(|text| text.split_once("['"));
    let (path, subscript) = subscripted.map_or((field.text(), None), |(path, key)| (path, Some(key)));
    // `spec.host` is the first name of the node's name.
    let path = if path == "spec.host" { "spec.nodeName" } else { path };
    let unknown = match subscript {
        Some(_) => !["metadata.annotations", "metadata.labels"].contains(&path),
        None => !KNOWN_FIELDS.contains(&path),
    };
    if at.get("apiVersion").text() != "v1" {
        let detail = format!("error converting fieldPath: unsupported pod version: {}", at.get("apiVersion").text());
        errors.push(field.invalid(detail));
    } else if unknown {
        let detail = match subscript {
            Some(_) => format!("error converting fieldPath: field label does not support subscript: {}", field.text()),
            None => format!("error converting fieldPath: field label not supported: {path}"),
        };
        errors.push(field.invalid(detail));
    } else if let Some(key) = subscript {
        let key = if path == "metadata.annotations" { key.to_lowercase() } else { key.to_string() };
        let messages = names::qualified_name(&key).into_iter();
        errors.extend(messages.map(|m| FieldError::invalid(&at.path, key.as_str(), m)));
    } else if !allowed.contains(&path) {
        errors.push(FieldError::not_supported(&field.path, path, allowed).as_text());
    }
}

/// Validates a reference to a request or limit of a container; a volume must name the container.
pub(super) fn validate_resource_reference(at: &At<'_>, in_volume: bool, errors: &mut Errors) {
    let container = at.get("containerName");
    let resource = at.get("resource");
    let huge = ["requests.hugepages-", "limits.hugepages-"].iter().any(|p| resource.text().starts_with(p));
    if in_volume && container.is_empty() {
        container.must(errors);
    } else if resource.must(errors) && !huge {
        resource.one_of_texts(errors, RESOURCES);
    }
    validate_divisor(at, resource.text(), errors);
}

fn validate_divisor(at: &At<'_>, resource: &str, errors: &mut Errors) {
    const SIZES: &[&str] = &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];
    let Some(divisor) = at.get("divisor").quantity().filter(|q| !q.is_zero()) else { return };
    let (allowed, what): (&[&str], &str) = match resource.split_once('.').map_or("", |(_, name)| name) {
        "cpu" => (&["1m", "1"], "cpu"),
        "memory" => (SIZES, "memory"),
        "ephemeral-storage" => (SIZES, "local ephemeral storage"),
        huge if huge.starts_with("hugepages-") => (SIZES, "hugepages"),
        _ => return,
    };
    if !allowed.contains(&divisor.to_string().as_str()) {
        let values = if what == "cpu" { "1m and 1".to_string() } else { SIZES.join(", ") };
        let detail = format!("only divisor's values {values} are supported with the {what} resource");
        errors.push(FieldError::invalid(&at.path.child("divisor"), resource, detail));
    }
}

pub(super) fn validate_env_from(sources: &At<'_>, errors: &mut Errors) {
    for source in sources.items() {
        source.get("prefix").follows(errors, names::relaxed_env_var_name);
        let mut count = 0;
        for field in ["configMapRef", "secretRef"] {
            let reference = source.get(field);
            if reference.is_object() {
                count += 1;
                // Upstream validates the name as a prefix, which may end in a hyphen.
                let name = reference.get("name");
                if name.must(errors) {
                    let messages = crate::kind::objectmeta::name_errors(crate::NameRule::Subdomain, name.text(), true);
                    errors.extend(messages.into_iter().map(|m| name.invalid(m)));
                }
            }
        }
        let detail = match count {
            0 => "must specify one of: `configMapRef` or `secretRef`",
            1 => continue,
            _ => "may not have more than one field specified at a time",
        };
        errors.push(FieldError::invalid(&sources.path, "", detail));
    }
}
