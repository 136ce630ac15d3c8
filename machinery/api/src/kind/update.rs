//! The order of a write's validation: upstream runs some rules of some kinds more than once, and its answer lists the
//! causes as often and in the order in which they were found.
//!
//! Only order and number come from here; the rules are those of the kind and of `metadata`.

use corten_meta::Value;
use corten_meta::field::FieldError;

use super::{Kind, NameRule, objectmeta};

/// The steps of validation in order: the change of metadata (`u`), the complete metadata (`m`), the object (`o`), the
/// change of the object (`c`). Before them every kind runs `m` and `u`.
const USUAL: &str = "uoc";
const ORDERS: [(&str, &[&str]); 10] = [
    ("o", &["PodDisruptionBudget"]),
    ("uc", &["CronJob", "HorizontalPodAutoscaler", "ResourceSlice", "Service", "ServiceCIDR", "StatefulSet"]),
    ("uco", &["DaemonSet"]),
    ("ucmo", &["ConfigMap", "IngressClass", "Secret", "VolumeAttributesClass"]),
    (
        "umoc",
        &["APIService", "ControllerRevision", "Endpoints", "Ingress", "PersistentVolumeClaim", "Pod", "ServiceAccount"],
    ),
    (
        "moc",
        &[
            "CSINode",
            "EndpointSlice",
            "FlowSchema",
            "LimitRange",
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "PriorityLevelConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
            "VolumeAttachment",
        ],
    ),
    (
        "mouc",
        &[
            "CSIStorageCapacity",
            "CertificateSigningRequest",
            "ClusterRole",
            "ClusterRoleBinding",
            "IPAddress",
            "Namespace",
            "Node",
            "ResourceClaim",
            "ResourceClaimTemplate",
            "Role",
            "RoleBinding",
            "RuntimeClass",
            "StorageClass",
        ],
    ),
    ("muoc", &["DeviceClass"]),
    ("mouoc", &["Job"]),
    ("momoc", &["PersistentVolume"]),
];

/// The steps of a write of the status, where they differ; otherwise the status comes last, as the change of the object.
const STATUS_ORDERS: [(&str, &[&str]); 3] = [
    ("c", &["CronJob", "ValidatingAdmissionPolicy"]),
    (
        "uc",
        &["Ingress", "Job", "Namespace", "Node", "PersistentVolume", "PersistentVolumeClaim", "Pod", "ResourceClaim"],
    ),
    ("mcu", &["CertificateSigningRequest"]),
];

fn order(kind: &Kind) -> &'static str {
    match kind.kind.as_str() {
        _ if kind.is_custom() => USUAL,
        "Event" if kind.group.is_empty() => "oc",
        "Event" => "ouc",
        name => ORDERS.iter().find(|(_, kinds)| kinds.contains(&name)).map_or(USUAL, |(order, _)| order),
    }
}

/// Returns every error of a new object. Metadata comes first, except for kinds whose rules do not include it, or
/// include it late. The common rules come last, and only without other errors.
pub(crate) fn validate_new(kind: &Kind, object: &Value) -> Vec<FieldError> {
    let metadata = || objectmeta::validate(kind, object);
    match order(kind) {
        "o" | "oc" => match kind.behaviour.validate_new(object) {
            errors if errors.is_empty() => metadata(),
            errors => errors,
        },
        "ouc" => [kind.behaviour.validate(object), metadata(), kind.behaviour.validate_create(object)].concat(),
        _ => match [metadata(), kind.behaviour.validate_new(object)].concat() {
            errors if errors.is_empty() && kind.rules.name_rule == NameRule::None => objectmeta::validate_name(object),
            errors => errors,
        },
    }
}

/// Returns every error of an update. Old errors count again, except those that upstream forgives. `sent` is the new
/// object with the empty lists and maps of its author: the object's rules see them, while to those of a change empty
/// and absent are equal, and errors only show them as they came; except for few kinds.
pub(crate) fn validate(kind: &Kind, new: &Value, sent: &Value, old: &Value) -> Vec<FieldError> {
    let unforgiven = |errors| kind.unforgiven(errors, [new, old], || kind.behaviour.validate_new(old));
    let own = |object: &Value| kind.behaviour.validate_present(object, old);
    let rule = |object: &Value| kind.behaviour.validate_update(object, old);
    // A field that is always written is stored as null if it is empty.
    let rule_of_new = || match rule(new) {
        errors if errors.is_empty() => errors,
        _ => rule(&kind.settled(new)),
    };
    // A kind without the step `o` validates the object together with the change.
    let (own, change) = match order(kind).contains('o') {
        true if kind.rules.counts_empty => (unforgiven(own(sent)), rule(sent)),
        true => (unforgiven(own(sent)), as_shown(rule_of_new(), || rule(sent))),
        false => (Vec::new(), unforgiven(rule(sent))),
    };
    run_steps(kind, order(kind), new, old, [&own, &change])
}

/// Shows errors with the values that were sent, if they are the same errors.
pub(crate) fn as_shown(errors: Vec<FieldError>, sent: impl FnOnce() -> Vec<FieldError>) -> Vec<FieldError> {
    if errors.is_empty() {
        return errors;
    }
    let shown = sent();
    if shown.len() == errors.len() { shown } else { errors }
}

/// Returns the errors of a write of the status, of which `found` are its own.
pub(crate) fn validate_status(kind: &Kind, new: &Value, old: &Value, found: &[FieldError]) -> Vec<FieldError> {
    let own = STATUS_ORDERS.iter().find(|(_, kinds)| !kind.is_custom() && kinds.contains(&kind.kind.as_str()));
    match own {
        Some((order, _)) => run_steps(kind, order, new, old, [&[], found]),
        None => [run_steps(kind, order(kind), new, old, [&[], &[]]).as_slice(), found].concat(),
    }
}

/// Returns the errors of metadata alone, for writes with their own rules.
pub(crate) fn validate_metadata(kind: &Kind, new: &Value, old: &Value) -> Vec<FieldError> {
    run_steps(kind, order(kind), new, old, [&[], &[]])
}

/// Returns the errors of metadata for a write of a spec's finalizers, which validates metadata less often.
pub(crate) fn validate_metadata_once(kind: &Kind, new: &Value, old: &Value) -> Vec<FieldError> {
    run_steps(kind, "u", new, old, [&[], &[]])
}

/// Runs the steps; `found` are the errors of the object and of its change.
fn run_steps(kind: &Kind, order: &str, new: &Value, old: &Value, found: [&[FieldError]; 2]) -> Vec<FieldError> {
    let [own, change] = found;
    let common = objectmeta::validate_present(NameRule::PathSegment, new);
    let complete = objectmeta::validate_complete(kind, new, &common);
    let updated = objectmeta::validate_update(new, old);
    let finalizers = objectmeta::validate_own_finalizers(kind, new);
    let mut errors = [common.as_slice(), &updated].concat();
    for (at, question) in order.char_indices() {
        let is_repeated = order[..at].contains('o');
        let found: [&[FieldError]; 2] = match question {
            // A Job's name, generated labels and selector are no part of its spec, which is validated again.
            'o' if is_repeated && kind.kind == "Job" => {
                let is_generated = |error: &&FieldError| {
                    error.field == "metadata.name"
                        || error.field.starts_with("spec.template.metadata.labels[")
                        || error.detail.ends_with("not auto-generated")
                };
                errors.extend(own.iter().filter(|error| !is_generated(error)).cloned());
                continue;
            }
            'm' => [&complete, &finalizers],
            'u' => [&updated, &finalizers],
            'o' => [own, &[]],
            _ => [change, &[]],
        };
        errors.extend(found.into_iter().flatten().cloned());
    }
    errors
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn some_kinds_validate_a_name_again() {
        let named = json!({"metadata": {"name": "A_b", "namespace": "b"}});
        for (group, plural, wanted) in [("", "configmaps", 1), ("apps", "deployments", 0), ("", "services", 0)] {
            let kind = crate::lookup(group, "v1", plural).expect("kind");
            let errors = super::validate_metadata(kind, &named, &named);
            assert_eq!(errors.iter().filter(|error| error.field == "metadata.name").count(), wanted, "{plural}");
        }
    }

    #[test]
    fn causes_are_as_many_as_upstream_finds() {
        let old = json!({"metadata": {"name": "a", "namespace": "b"}});
        let new = json!({"metadata": {"name": "a", "namespace": "b", "labels": {"Bad Key!": "v"}}});
        for (group, plural, wanted) in
            [("", "events", 2), ("apps", "deployments", 3), ("", "configmaps", 4), ("", "persistentvolumes", 4)]
        {
            let kind = crate::lookup(group, "v1", plural).expect("kind");
            let errors = super::validate_metadata(kind, &new, &old);
            assert_eq!(errors.iter().filter(|error| error.field == "metadata.labels").count(), wanted, "{plural}");
        }
        for (group, plural, wanted) in [("", "pods", 3), ("batch", "cronjobs", 2), ("apps", "deployments", 3)] {
            let kind = crate::lookup(group, "v1", plural).expect("kind");
            assert_eq!(kind.validate_status_update(&new, &old).len(), wanted, "{plural}");
        }
        let grace = json!({"metadata": {"name": "a", "namespace": "b", "generateName": "A",
            "deletionGracePeriodSeconds": 1}});
        for (group, plural, wanted) in [
            ("", "serviceaccounts", ["u", "u", "m"].as_slice()),
            ("rbac.authorization.k8s.io", "roles", &["u", "u"]),
            ("", "namespaces", &["u", "m", "u"]),
            ("resource.k8s.io", "deviceclasses", &["u", "u"]),
            ("", "endpoints", &["u", "u", "m"]),
        ] {
            let kind = crate::lookup(group, "v1", plural).expect("kind");
            let errors = super::validate_metadata(kind, &grace, &old);
            let run_steps = |error: &corten_meta::FieldError| if error.field.ends_with("Name") { "m" } else { "u" };
            assert_eq!(errors.iter().map(run_steps).collect::<Vec<_>>(), wanted, "{plural}");
        }
        let held = json!({"metadata": {"name": "a", "finalizers": ["Bad !"]}});
        let classes = crate::lookup("resource.k8s.io", "v1", "deviceclasses").expect("kind");
        let errors = super::validate_metadata(classes, &held, &json!({"metadata": {"name": "a"}}));
        let fields: Vec<&str> = errors.iter().map(|error| error.field.trim_start_matches("metadata.")).collect();
        assert_eq!(fields, ["finalizers", "finalizers", "finalizers[0]", "finalizers[0]"]);
        let claims = crate::lookup("resource.k8s.io", "v1", "resourceclaims").expect("kind");
        let named = json!({"metadata": {"name": "a", "namespace": "b", "generateName": "A"}});
        assert_eq!(claims.validate_status_update(&named, &old), Vec::new());
        let policies =
            crate::lookup("admissionregistration.k8s.io", "v1", "validatingadmissionpolicies").expect("kind");
        let (named, old) =
            (json!({"metadata": {"name": "a", "generateName": "A"}}), json!({"metadata": {"name": "a"}}));
        assert_eq!(policies.validate_status_update(&named, &old), Vec::new());
        let graced = json!({"metadata": {"name": "a", "deletionGracePeriodSeconds": 5}});
        assert_eq!(policies.validate_status_update(&graced, &old).len(), 1);
        let classes = crate::lookup("resource.k8s.io", "v1", "deviceclasses").expect("kind");
        let odd = json!({"metadata": {"name": "a", "labels": {"Bad Key!": "v"}, "finalizers": ["x"]}});
        let errors = super::validate_metadata(classes, &odd, &json!({"metadata": {"name": "a"}}));
        let fields: Vec<&str> = errors.iter().map(|error| &error.field["metadata.".len()..]).collect();
        assert_eq!(fields, ["labels", "labels", "labels", "finalizers[0]", "labels", "finalizers[0]"]);
        let requests = crate::lookup("certificates.k8s.io", "v1", "certificatesigningrequests").expect("kind");
        let signed = json!({"metadata": {"name": "a", "finalizers": ["x"]}, "status": {"certificate": "YQ=="}});
        let errors = requests.validate_status_update(&signed, &json!({"metadata": {"name": "a"}}));
        let fields = errors.iter().map(|error| error.field.as_str()).filter(|field| !field.starts_with("spec."));
        let fields: Vec<&str> = fields.collect();
        assert_eq!(fields, ["metadata.finalizers[0]", "status.certificate", "metadata.finalizers[0]"]);
        // A list that is always written is stored as null if it is empty.
        let claim = |requests: serde_json::Value| {
            json!({"metadata": {"name": "a", "namespace": "b", "uid": "u", "resourceVersion": "1"},
                "spec": {"devices": {"requests": requests}}})
        };
        assert_eq!(claims.validate_update(&claim(json!([])), &claim(json!(null))), Vec::new());
        assert_eq!(claims.validate_update(&claim(json!([{"name": "r"}])), &claim(json!(null))).len(), 1);
        // Immutable fields are compared with the sent values: an empty map differs from none.
        for (plural, field) in [("configmaps", "binaryData"), ("secrets", "data")] {
            let kind = crate::lookup("", "v1", plural).expect("kind");
            let fixed = json!({"metadata": {"name": "a", "namespace": "b"}, "immutable": true, "type": "Opaque"});
            let mut sent = fixed.clone();
            sent[field] = json!({});
            assert_eq!(kind.validate_sent_update(&fixed, &fixed, &fixed), Vec::new());
            let errors = kind.validate_sent_update(&fixed, &sent, &fixed);
            assert_eq!(errors.iter().map(|error| error.field.as_str()).collect::<Vec<_>>(), [field]);
        }
        let namespaces = crate::lookup("", "v1", "namespaces").expect("kind");
        let errors = namespaces.validate_part_update(crate::Role::Finalize, &new, &old);
        assert_eq!(errors.iter().filter(|error| error.field == "metadata.labels").count(), 3);
    }
}
