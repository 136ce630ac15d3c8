//! The rules of workloads: a selector, a template that it matches, and how pods are replaced.

use corten_meta::field::{FieldError, Path};
use corten_meta::labels::Selector;
use corten_meta::{Value, names};

use crate::cells::{list, number, text};
use crate::core::pod_validation::validate_template;
use crate::defaulting::absent;
use crate::validation::{immutable, int_or_percent, invalid_each, is_zero, label_selector, nonnegative, supported};

/// What Deployment, ReplicaSet, DaemonSet and StatefulSet share.
pub(super) fn validate_workload(object: &Value, restart_policies: &[&str]) -> Vec<FieldError> {
    let path = Path::root("spec");
    let spec = &object["spec"];
    let mut errors = Vec::new();
    for field in ["replicas", "minReadySeconds", "revisionHistoryLimit"] {
        errors.extend(nonnegative(&spec[field], &path.child(field)));
    }
    errors.extend(validate_selector(object, &path));
    let claims: Vec<&str> = list(spec, "/volumeClaimTemplates").iter().map(|c| text(c, "/metadata/name")).collect();
    errors.extend(validate_template(&spec["template"], &claims, &path.child("template")));
    errors.extend(validate_restart_policy(spec, restart_policies, &path));
    errors
}

fn validate_restart_policy(spec: &Value, allowed: &[&str], path: &Path) -> Option<FieldError> {
    let policy = text(spec, "/template/spec/restartPolicy");
    let path = path.child("template").child("spec").child("restartPolicy");
    (!allowed.contains(&policy)).then(|| FieldError::not_supported(&path, policy, allowed))
}

fn validate_selector(object: &Value, path: &Path) -> Vec<FieldError> {
    let selector = &object["spec"]["selector"];
    let selector_path = path.child("selector");
    if !selector.is_object() {
        return vec![FieldError::required(&selector_path, "")];
    }
    let mut errors = label_selector(selector, &selector_path);
    let Ok(parsed) = Selector::from_label_selector(selector) else { return errors };
    let template = object.pointer("/spec/template").cloned().unwrap_or_default();
    if parsed.is_empty() {
        let kind = text(object, "/kind").to_lowercase();
        let detail = format!("empty selector is invalid for {kind}");
        errors.push(FieldError::invalid(&selector_path, selector.clone(), detail));
    } else if !parsed.matches(&corten_meta::labels(&template)) {
        let labels = template.pointer("/metadata/labels").cloned().unwrap_or_default();
        let path = path.child("template").child("metadata").child("labels");
        errors.push(FieldError::invalid(&path, labels, "`selector` does not match template `labels`"));
    }
    errors
}

/// A ReplicationController's selector is a plain map.
pub(crate) fn validate_plain_selector_workload(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let spec = &object["spec"];
    let mut errors = Vec::new();
    for field in ["replicas", "minReadySeconds"] {
        errors.extend(nonnegative(&spec[field], &path.child(field)));
    }
    let selector = spec["selector"].as_object().filter(|s| !s.is_empty());
    let labels = spec.pointer("/template/metadata/labels").and_then(Value::as_object);
    match selector {
        None => errors.push(FieldError::required(&path.child("selector"), "")),
        Some(selector) if !selector.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v)) => {
            let path = path.child("template").child("metadata").child("labels");
            let value = labels.cloned().map_or(Value::Null, Value::Object);
            errors.push(FieldError::invalid(&path, value, "`selector` does not match template `labels`"));
        }
        Some(_) => {}
    }
    if spec["template"].is_object() {
        errors.extend(validate_template(&spec["template"], &[], &path.child("template")));
        errors.extend(validate_restart_policy(spec, &["Always"], &path));
    } else {
        errors.push(FieldError::required(&path.child("template"), ""));
    }
    errors
}

pub(super) fn validate_selector_immutable(new: &Value, old: &Value) -> Vec<FieldError> {
    immutable(new, old, "/spec/selector", &Path::root("spec").child("selector")).into_iter().collect()
}

pub(super) fn validate_deployment_strategy(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let strategy = &object["spec"]["strategy"];
    let strategy_path = path.child("strategy");
    let rolling_path = strategy_path.child("rollingUpdate");
    let mut errors = Vec::new();
    match text(strategy, "/type") {
        "Recreate" if strategy["rollingUpdate"].is_object() => {
            let detail = "may not be specified when strategy `type` is 'Recreate'";
            errors.push(FieldError::forbidden(&rolling_path, detail));
        }
        "Recreate" => {}
        "RollingUpdate" => {
            let (unavailable, surge) =
                (&strategy["rollingUpdate"]["maxUnavailable"], &strategy["rollingUpdate"]["maxSurge"]);
            let unavailable_path = rolling_path.child("maxUnavailable");
            errors.extend(int_or_percent(unavailable, &unavailable_path));
            errors.extend(int_or_percent(surge, &rolling_path.child("maxSurge")));
            if is_zero(unavailable) && is_zero(surge) {
                let detail = "may not be 0 when `maxSurge` is 0";
                errors.push(FieldError::invalid(&unavailable_path, unavailable.clone(), detail));
            }
            let percent = unavailable.as_str().and_then(|t| t.trim_end_matches('%').parse::<i64>().ok());
            if percent.is_some_and(|p| p > 100) {
                errors.push(FieldError::invalid(
                    &unavailable_path,
                    unavailable.clone(),
                    "must not be greater than 100%",
                ));
            }
        }
        _ => errors.push(FieldError::not_supported(&strategy_path, strategy.clone(), &["Recreate", "RollingUpdate"])),
    }
    let (deadline, ready) = (number(object, "/spec/progressDeadlineSeconds"), number(object, "/spec/minReadySeconds"));
    let deadline_path = path.child("progressDeadlineSeconds");
    errors.extend(nonnegative(&object["spec"]["progressDeadlineSeconds"], &deadline_path));
    if !absent(object, "/spec/progressDeadlineSeconds") && deadline <= ready {
        errors.push(FieldError::invalid(&deadline_path, deadline, "must be greater than minReadySeconds"));
    }
    errors
}

pub(super) fn validate_stateful_set(object: &Value) -> Vec<FieldError> {
    let path = Path::root("spec");
    let mut errors = Vec::new();
    let policy = text(object, "/spec/podManagementPolicy");
    if !["OrderedReady", "Parallel"].contains(&policy) {
        let detail = "must be 'OrderedReady' or 'Parallel'";
        errors.push(FieldError::invalid(&path.child("podManagementPolicy"), policy, detail));
    }
    let strategy = &object["spec"]["updateStrategy"];
    let strategy_path = path.child("updateStrategy");
    match text(strategy, "/type") {
        "RollingUpdate" => {
            let partition = strategy_path.child("rollingUpdate").child("partition");
            errors.extend(nonnegative(&strategy["rollingUpdate"]["partition"], &partition));
        }
        "OnDelete" if strategy["rollingUpdate"].is_object() => {
            let detail = "only allowed for updateStrategy 'RollingUpdate'";
            let path = strategy_path.child("rollingUpdate");
            errors.push(FieldError::invalid(&path, strategy["rollingUpdate"].clone(), detail));
        }
        "OnDelete" => {}
        _ => {
            let detail = "must be 'RollingUpdate' or 'OnDelete'";
            errors.push(FieldError::invalid(&strategy_path, strategy.clone(), detail));
        }
    }
    for field in ["whenDeleted", "whenScaled"] {
        let retention = &object["spec"]["persistentVolumeClaimRetentionPolicy"][field];
        let path = path.child("persistentVolumeClaimRetentionPolicy").child(field);
        errors.extend(supported(retention, &path, &["Retain", "Delete"]));
    }
    let service = text(object, "/spec/serviceName");
    if !service.is_empty() {
        errors.extend(invalid_each(&path.child("serviceName"), service, names::dns1123_label(service)));
    }
    errors
}

pub(super) fn validate_stateful_set_update(new: &Value, old: &Value) -> Vec<FieldError> {
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
        spec
    };
    if fixed(new) == fixed(old) {
        return Vec::new();
    }
    let detail = "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', \
                  'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden";
    vec![FieldError::forbidden(&Path::root("spec"), detail)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    fn check(plural: &str, spec: serde_json::Value) -> Vec<String> {
        let kind = crate::lookup("apps", "v1", plural).expect("kind");
        let mut object = json!({"kind": kind.kind, "metadata": {"name": "x", "namespace": "d"}, "spec": spec});
        kind.default(&mut object);
        kind.validate(&object).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn selectors_and_strategies() {
        let template =
            json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let good = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
        for plural in ["deployments", "replicasets", "daemonsets", "statefulsets"] {
            assert_eq!(check(plural, good.clone()), Vec::<String>::new(), "{plural}");
        }
        assert_eq!(check("deployments", json!({"template": template})), ["spec.selector: Required value"]);
        assert_eq!(
            check("deployments", json!({"selector": {"matchLabels": {"a": "c"}}, "template": template})),
            [
                "spec.template.metadata.labels: Invalid value: {\"a\":\"b\"}: `selector` does not match template `labels`"
            ]
        );
        let mut odd = good.clone();
        odd["strategy"] = json!({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}});
        assert_eq!(
            check("deployments", odd),
            ["spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0"]
        );
        let mut never = good;
        never["template"]["spec"]["restartPolicy"] = "Never".into();
        assert_eq!(
            check("replicasets", never),
            ["spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\""]
        );
    }
}
