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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn workload(plural: &str, spec: Value) -> (std::sync::Arc<crate::Kind>, Value) {
        let kind = crate::lookup("apps", "v1", plural).expect("kind").clone();
        let mut object = json!({"kind": kind.kind, "metadata": {"name": "x", "namespace": "d"}, "spec": spec});
        kind.default(&mut object);
        (kind, object)
    }

    fn check(plural: &str, spec: Value) -> Vec<String> {
        let (kind, object) = workload(plural, spec);
        kind.validate(&object).iter().map(ToString::to_string).collect()
    }

    fn good() -> Value {
        json!({"selector": {"matchLabels": {"a": "b"}},
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}})
    }

    fn with(pointer: &str, value: Value) -> Value {
        let mut spec = good();
        crate::defaulting::put(&mut spec, pointer, value);
        spec
    }

    #[test]
    fn workloads() {
        for plural in ["deployments", "replicasets", "daemonsets", "statefulsets"] {
            assert_eq!(check(plural, good()), Vec::<String>::new(), "{plural}");
        }
        let cases: Vec<(&str, Value, &[&str])> = vec![
            (
                "deployments",
                with("/selector", Value::Null),
                &[
                    "spec.selector: Required value",
                    "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
                ],
            ),
            (
                "deployments",
                with("/selector", json!({"matchLabels": {"a": "c"}})),
                &[
                    "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`",
                ],
            ),
            (
                "deployments",
                with("/strategy", json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}})),
                &["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"],
            ),
            (
                "deployments",
                with("/minReadySeconds", json!(600)),
                &["spec.progressDeadlineSeconds: Invalid value: 600: must be greater than minReadySeconds"],
            ),
            (
                "deployments",
                with("/selector", json!({})),
                &["spec.selector: Invalid value: {}: empty selector is invalid for deployment"],
            ),
            (
                "replicasets",
                with("/template/spec/restartPolicy", json!("Never")),
                &["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""],
            ),
            (
                "daemonsets",
                with("/template/spec/activeDeadlineSeconds", json!(5)),
                &[
                    "spec.template.spec.activeDeadlineSeconds: Forbidden: activeDeadlineSeconds in DaemonSet is not Supported",
                ],
            ),
            (
                "daemonsets",
                with("/updateStrategy", json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 1}})),
                &[
                    "spec.updateStrategy.rollingUpdate.maxSurge: Invalid value: 1: may not be set when maxUnavailable is non-zero",
                ],
            ),
            (
                "statefulsets",
                with("/podManagementPolicy", json!("Random")),
                &["spec.podManagementPolicy: Invalid value: \"Random\": must be 'OrderedReady' or 'Parallel'"],
            ),
            (
                "statefulsets",
                with(
                    "/volumeClaimTemplates",
                    json!([{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]),
                ),
                &["spec.volumeClaimTemplates[0].spec.resources[storage]: Required value"],
            ),
        ];
        for (plural, spec, wanted) in cases {
            assert_eq!(check(plural, spec.clone()), wanted, "{plural} {spec}");
        }
    }

    #[test]
    fn a_set_mounts_what_it_claims() {
        let mut spec = good();
        spec["volumeClaimTemplates"] = json!([{"metadata": {"name": "v"},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}]);
        spec["template"]["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "v", "mountPath": "/v"}]);
        assert_eq!(check("statefulsets", spec), Vec::<String>::new());
    }

    #[test]
    fn updates() {
        let (kind, old) = workload("deployments", good());
        let mut new = old.clone();
        new["spec"]["replicas"] = 5.into();
        assert_eq!(kind.validate_update(&new, &old), []);
        new["spec"]["selector"]["matchLabels"] = json!({"a": "b", "c": "d"});
        new["spec"]["template"]["metadata"]["labels"] = json!({"a": "b", "c": "d"});
        assert_eq!(
            crate::check::messages(&kind.validate_update(&new, &old)),
            ["spec.selector: Invalid value: {\"matchLabels\":{\"a\":\"b\",\"c\":\"d\"}}: field is immutable"]
        );
        let (kind, old) = workload("statefulsets", good());
        let mut new = old.clone();
        new["spec"]["serviceName"] = "other".into();
        assert_eq!(kind.validate_update(&new, &old).len(), 1);
    }

    #[test]
    fn statuses() {
        let (kind, old) = workload("deployments", good());
        let mut new = old.clone();
        new["status"] = json!({"replicas": 1, "readyReplicas": 2, "availableReplicas": 1, "observedGeneration": -1});
        assert_eq!(
            crate::check::messages(&kind.validate_status_update(&new, &old)),
            [
                "status.observedGeneration: Invalid value: -1: must be greater than or equal to 0",
                "status.readyReplicas: Invalid value: 2: cannot be greater than status.replicas",
            ]
        );
    }
}
