//! The rules of workloads: a selector, a matching template, and an update strategy.

use corten_meta::field::{FieldError, Path};
use corten_meta::labels::Selector;
use corten_meta::{Value, names};

use crate::check::{At, Errors};
use crate::core::claim_validation::validate_claim_spec;
use crate::core::pod_validation::{validate_template, validate_template_metadata};
use crate::core::replica_validation::validate_endless;
use crate::ratchet::unforgiven;
use crate::rules::{self, Site};
use crate::schema::equal;
use crate::validation::{is_zero, label_selector};

/// Validates that the selector is not empty, and the template with it. `word` is upstream's name of the kind here.
fn validate_selector(spec: &At<'_>, word: &str, errors: &mut Errors) {
    let selector = spec.get("selector");
    if !selector.is_object() {
        if word != "daemonset" {
            errors.push(selector.required(""));
        }
        return;
    }
    errors.extend(label_selector(selector.value, &selector.path));
    if selector.get("matchLabels").is_empty() && selector.get("matchExpressions").is_empty() {
        errors.push(selector.invalid(format!("empty selector is invalid for {word}")));
    }
}

/// Validates that the template's pods restart always and that the selector matches them. `kind` is the kind's name.
fn validate_workload_template(spec: &At<'_>, template: &At<'_>, (kind, scope): (&str, Scope), errors: &mut Errors) {
    let selector = spec.get("selector");
    let labels = template.get("metadata").get("labels");
    let parsed = Selector::from_label_selector(selector.value);
    // An absent selector selects nothing, an empty one everything.
    let misses = match &parsed {
        Ok(parsed) => !parsed.is_empty() && !parsed.matches(&corten_meta::labels(template.value)),
        Err(_) => false,
    };
    if misses || !selector.is_object() {
        errors.push(labels.invalid("`selector` does not match template `labels`"));
    }
    // Upstream validates the template only with a valid selector; a DaemonSet's always.
    if parsed.is_err() && kind != "DaemonSet" {
        errors.push(selector.invalid(if kind == "StatefulSet" { "" } else { "invalid label selector" }));
        if kind == "StatefulSet" {
            validate_endless(template, kind, errors);
        }
        return;
    }
    if scope != Scope::WithoutPods {
        errors.extend(validate_template(template.value, &template.path));
    }
    if kind == "StatefulSet" {
        // Upstream validates this twice.
        errors.extend(validate_template_metadata(template.value, &template.path));
    }
    validate_endless(template, kind, errors);
}

pub(crate) fn deployment_selector(site: &Site<'_, '_>, errors: &mut Errors) {
    validate_selector(site.of, "deployment", errors);
}

pub(crate) fn daemon_set_selector(site: &Site<'_, '_>, errors: &mut Errors) {
    validate_selector(site.of, "daemonset", errors);
}

pub(crate) fn replica_set_template(site: &Site<'_, '_>, errors: &mut Errors) {
    validate_workload_template(site.of, site.at, ("ReplicaSet", Scope::All), errors);
}

pub(crate) fn daemon_set_template(site: &Site<'_, '_>, errors: &mut Errors) {
    validate_workload_template(site.of, site.at, ("DaemonSet", Scope::All), errors);
}

pub(crate) fn progress_deadline(site: &Site<'_, '_>, errors: &mut Errors) {
    let ready = site.of.get("minReadySeconds").number().unwrap_or_default();
    if site.at.number().is_some_and(|deadline| deadline <= ready) {
        errors.push(site.at.invalid("must be greater than minReadySeconds"));
    }
}

/// Validates that a rolling update of a Deployment may replace a pod.
pub(crate) fn some_surge_or_unavailable(rolling: &At<'_>, errors: &mut Errors) {
    let unavailable = rolling.get("maxUnavailable");
    if is_zero(unavailable.value) && is_zero(rolling.get("maxSurge").value) {
        errors.push(unavailable.invalid("may not be 0 when `maxSurge` is 0"));
    }
}

/// Validates that a rolling update of a DaemonSet either surges or makes pods unavailable.
pub(crate) fn one_of_surge_and_unavailable(rolling: &At<'_>, errors: &mut Errors) {
    let unavailable = rolling.get("maxUnavailable");
    let surge = rolling.get("maxSurge");
    match (is_zero(unavailable.value), is_zero(surge.value)) {
        (false, false) => errors.push(surge.invalid("may not be set when maxUnavailable is non-zero")),
        (true, true) => errors.push(unavailable.required("cannot be 0 when maxSurge is 0")),
        _ => {}
    }
}

pub(crate) fn not_zero(at: &At<'_>, errors: &mut Errors) {
    if is_zero(at.value) {
        errors.push(at.invalid("cannot be 0"));
    }
}

/// The parts of a StatefulSet that are validated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Scope {
    All,
    /// All but the claims and the name of the Service, which are immutable.
    WithoutImmutable,
    /// Also without the pods: the old set was invalid.
    WithoutPods,
}

/// Validates everything but the change.
pub(super) fn validate_stateful_set(object: &Value, scope: Scope) -> Errors {
    let is_new = scope == Scope::All;
    let spec = At::object(object).get("spec");
    let mut errors = Errors::new();
    rules::check(".apps.v1.StatefulSetSpec/strategy", &spec, &mut errors);
    if is_new {
        spec.get("volumeClaimTemplates").each(&mut errors, |claim, e| validate_claim_spec(&claim.get("spec"), e));
    }
    rules::check(".apps.v1.StatefulSetSpec/counts", &spec, &mut errors);
    if is_new {
        spec.get("serviceName").follows(&mut errors, names::dns1123_label);
    }
    validate_selector(&spec, "statefulset", &mut errors);
    let template = template_with_claims(&spec);
    let template = At::new(&template, &spec.path.child("template"));
    validate_workload_template(&spec, &template, ("StatefulSet", scope), &mut errors);
    errors
}

/// Returns the template as its pods will be: the set names them, and adds the volumes of its claims.
fn template_with_claims(spec: &At<'_>) -> Value {
    let mut template = spec.get("template").value.clone();
    // Templates of the same name make one volume.
    let mut claims: Vec<&str> = Vec::new();
    for claim in spec.get("volumeClaimTemplates").items() {
        let name = claim.get("metadata").get("name").text();
        if !claims.contains(&name) {
            claims.push(name);
        }
    }
    let Some(pod) = template.get_mut("spec").and_then(Value::as_object_mut) else { return template };
    pod.remove("subdomain");
    pod.remove("hostname");
    if !claims.is_empty() {
        let claimed = |name: &&str| serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let mut volumes: Vec<Value> = claims.iter().map(claimed).collect();
        let own = pod.get("volumes").and_then(Value::as_array).cloned().unwrap_or_default();
        volumes.extend(own.into_iter().filter(|v| !claims.contains(&v["name"].as_str().unwrap_or_default())));
        pod.insert("volumes".to_string(), volumes.into());
    }
    template
}

/// Validates an update. The pods of a set that was invalid before, beyond the forgiven errors, are not validated again.
pub(super) fn validate_stateful_set_update(new: &Value, old: &Value) -> Errors {
    let before = validate_stateful_set(old, Scope::WithoutImmutable);
    let was_invalid = !unforgiven("StatefulSet", before.clone(), [old, old], || before.clone()).is_empty();
    let scope = if was_invalid { Scope::WithoutPods } else { Scope::WithoutImmutable };
    let mut errors = validate_stateful_set(new, scope);
    errors.extend(validate_stateful_set_change(new, old));
    errors
}

fn validate_stateful_set_change(new: &Value, old: &Value) -> Option<FieldError> {
    const MUTABLE: [&str; 7] = [
        "replicas",
        "ordinals",
        "template",
        "updateStrategy",
        "revisionHistoryLimit",
        "persistentVolumeClaimRetentionPolicy",
        "minReadySeconds",
    ];
    let fixed = |object: &Value| {
        let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
        spec.retain(|field, _| !MUTABLE.contains(&field.as_str()));
        Value::from(spec)
    };
    if equal("io.k8s.api.apps.v1.StatefulSetSpec", &fixed(new), &fixed(old)) {
        return None;
    }
    let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
                  'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
    Some(FieldError::forbidden(&Path::root("spec"), detail))
}
