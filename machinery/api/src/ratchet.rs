//! Validation ratcheting: the errors that an update may keep although no new object may have them, because an older
//! release accepted them.
//!
//! Upstream forgives few errors, and by name. Every other error refuses an update.

use corten_meta::Value;
use corten_meta::field::FieldError;

/// A sort of errors: the prefix of their field, its value, and their message. Indices and keys of fields are left out.
#[derive(Clone, Copy)]
struct Sort(&'static str, &'static str, &'static str);

/// The condition under which errors are forgiven.
#[derive(Clone, Copy)]
enum When {
    /// These parts are unchanged.
    Unchanged(&'static [&'static str]),
    /// The old object has errors of the same sort.
    Again,
    /// The old object has errors of another sort.
    Before(Sort),
    /// The old object has the value in one of these fields too.
    Known(&'static [&'static str]),
    /// The old object has a value in this field, and it is one of these, if there are any.
    Has(&'static str, &'static [&'static str]),
}

/// The label values of a selector.
const VALUES: &str = ".matchExpressions[].values[]";
const OWN_VALUES: Sort = Sort("spec.selector", VALUES, "");
const OF_OTHER_PODS: Sort = Sort("affinity.pod", "Selector", "");

/// The sorts of the pods that an object describes, with fields below the spec of the pod.
const OF_PODS: [(Sort, When); 9] = [
    (Sort("affinity.pod", VALUES, ""), When::Before(OF_OTHER_PODS)),
    (Sort("affinity.nodeAffinity.requiredDuring", VALUES, ""), When::Again),
    (Sort("topologySpreadConstraints[].labelSelector", "", ""), When::Again),
    (Sort("volumes[].projected.path", "", "Invalid value"), When::Again),
    (Sort("securityContext.sysctls[].name", "", "may not be specified when 'host"), When::Again),
    (Sort("initContainers[].resizePolicy[].restartPolicy", "", "for non-sidecar initContainers"), When::Again),
    (
        Sort("securityContext.seLinuxChangePolicy", "", "Unsupported value"),
        When::Has("/securityContext/seLinuxChangePolicy", &["MountOption"]),
    ),
    (Sort("", ".volumeDevices", "when `hostUsers` is false"), When::Again),
    (Sort("", "", "is not positive integer multiple of "), When::Again),
];

const WEBHOOKS: &[&str] = &["MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"];
const POLICIES: &[&str] = &["MutatingAdmissionPolicy", "ValidatingAdmissionPolicy"];
const WITH_PODS: &[&str] = &[
    "Pod",
    "PodTemplate",
    "ReplicationController",
    "DaemonSet",
    "Deployment",
    "ReplicaSet",
    "StatefulSet",
    "Job",
    "CronJob",
];

/// The other sorts, by kind.
const OF_KINDS: &[(&[&str], Sort, When)] = &[
    (WITH_PODS, Sort("", "annotations[]", "must be a 32bit integer"), When::Again),
    (&["DaemonSet", "Job"], OWN_VALUES, When::Again),
    (&["DaemonSet", "Job"], OWN_VALUES, When::Before(Sort("spec.template.spec.affinity.pod", "Selector", ""))),
    (&["DaemonSet", "Job"], Sort("spec.template.spec.affinity.pod", VALUES, ""), When::Before(OWN_VALUES)),
    (&["Endpoints"], Sort("subsets", "", ""), When::Unchanged(&["/subsets"])),
    (&["EndpointSlice"], Sort("endpoints", "", ""), When::Unchanged(&["/endpoints"])),
    (&["NetworkPolicy"], Sort("spec.", VALUES, ""), When::Before(Sort("spec.podSelector", "", ""))),
    (&["NetworkPolicy"], Sort("spec.", "ipBlock", "must be a valid CIDR"), When::Known(POLICY_BLOCKS)),
    (&["NetworkPolicy"], Sort("spec.", "ipBlock", "must not have"), When::Known(POLICY_BLOCKS)),
    (&["PodDisruptionBudget"], OWN_VALUES, When::Before(Sort("spec.selector", "", ""))),
    (&["ClusterRole"], Sort("aggregationRule", VALUES, ""), When::Before(Sort("aggregationRule", "[].match", ""))),
    (&["CSIStorageCapacity"], Sort("nodeTopology", VALUES, ""), When::Before(Sort("nodeTopology", "", ""))),
    (&["PersistentVolumeClaim"], OWN_VALUES, When::Before(Sort("spec.selector", "", ""))),
    (&["PersistentVolumeClaim"], Sort("spec.dataSource", ".apiGroup", ""), When::Has("/spec/dataSource/apiGroup", &[])),
    (
        &["PersistentVolumeClaim"],
        Sort("spec.dataSource", ".apiGroup", ""),
        When::Has("/spec/dataSourceRef/apiGroup", &[]),
    ),
    (&["PersistentVolume"], Sort("spec.nodeAffinity", VALUES, ""), When::Again),
    (WEBHOOKS, Sort("webhooks[]", VALUES, ""), When::Before(Sort("webhooks[]", "Selector.match", ""))),
    (WEBHOOKS, Sort("webhooks[].name", "", "Duplicate value"), When::Again),
    (WEBHOOKS, Sort("webhooks[].admissionReviewVersions", "", "must include at least one of"), When::Again),
    (WEBHOOKS, Sort("webhooks[].matchConditions", "", ""), When::Unchanged(&["/webhooks/*/matchConditions"])),
    (POLICIES, Sort("spec.matchConditions", "", ""), When::Unchanged(&["/spec/paramKind", "/spec/matchConditions"])),
    (&["HorizontalPodAutoscaler"], Sort("spec.metrics[].object.describedObject.apiVersion", "", ""), When::Again),
    (&["Ingress"], Sort("spec.tls[].secretName", "", ""), When::Again),
    (&["CertificateSigningRequest"], Sort("spec.usages[]", "", "Unsupported value"), When::Again),
    (&["CertificateSigningRequest"], Sort("spec.usages[]", "", "Duplicate value"), When::Again),
    (
        &["CertificateSigningRequest"],
        Sort("spec.signerName", "", ""),
        When::Has("/spec/signerName", &["kubernetes.io/legacy-unknown"]),
    ),
    (&["CertificateSigningRequest"], Sort("status.conditions[].type", "", "Duplicate value"), When::Again),
    (&["CertificateSigningRequest"], Sort("status.conditions[].type", "", "Required value"), When::Again),
    (&["CertificateSigningRequest"], Sort("status.conditions", "", "mutually exclusive"), When::Again),
    (&["CertificateSigningRequest"], Sort("status.certificate", "", "Invalid value"), When::Again),
    (
        &["CertificateSigningRequest"],
        Sort("status.certificate", "", "Invalid value"),
        When::Unchanged(&["/status/certificate"]),
    ),
    (&["Pod"], Sort("status.podIPs[]", "", "IP address"), When::Known(&["/status/podIPs/*/ip"])),
    (&["Pod"], Sort("status.hostIPs[]", "", "IP address"), When::Known(&["/status/hostIPs/*/ip"])),
    (
        &["Ingress", "Service"],
        Sort("status.loadBalancer.ingress[].ip", "", "IP address"),
        When::Known(&["/status/loadBalancer/ingress/*/ip"]),
    ),
];

/// The fields of IP blocks in a network policy.
const POLICY_BLOCKS: &[&str] = &[
    "/spec/ingress/*/from/*/ipBlock/cidr",
    "/spec/ingress/*/from/*/ipBlock/except/*",
    "/spec/egress/*/to/*/ipBlock/cidr",
    "/spec/egress/*/to/*/ipBlock/except/*",
];

/// Returns the errors of a new object that are not forgiven; `before` finds those of the old one.
pub(crate) fn unforgiven(
    kind: &str,
    mut errors: Vec<FieldError>,
    [new, old]: [&Value; 2],
    before: impl Fn() -> Vec<FieldError>,
) -> Vec<FieldError> {
    if errors.is_empty() {
        return errors;
    }
    let before = before();
    let pod = spec_of_pods(kind);
    let of_pods = OF_PODS.iter().filter_map(|(sort, when)| Some((pod?, *sort, *when)));
    let is_of = |kinds: &[&str]| kinds.contains(&kind);
    let of_kinds = OF_KINDS.iter().filter(|(kinds, ..)| is_of(kinds)).map(|(_, sort, when)| ("", *sort, *when));
    for (prefix, sort, when) in of_pods.chain(of_kinds) {
        let had = |sort: Sort| before.iter().any(|error| sort.is_of(error, prefix));
        let is_forgiven = |error: &FieldError| match when {
            When::Unchanged(parts) => parts.iter().all(|part| same(&values_at(new, part), &values_at(old, part))),
            When::Again => had(sort),
            When::Before(other) => had(other),
            When::Known(parts) => parts.iter().any(|part| values_at(old, part).contains(&Some(&error.value))),
            When::Has(part, values) => {
                let part = format!("{}{part}", pointer_of(prefix));
                let is_one = values.is_empty() || values.iter().any(|value| error.value == **value);
                is_one && old.pointer(&part).is_some_and(|value| !value.is_null())
            }
        };
        errors.retain(|error| !(sort.is_of(error, prefix) && is_forgiven(error)));
    }
    errors
}

impl Sort {
    /// Reports whether the error is of this sort, in fields below a prefix.
    fn is_of(&self, error: &FieldError, prefix: &str) -> bool {
        let field = plain(&error.field);
        let Some(field) = field.strip_prefix(prefix) else { return false };
        let text = format!("{}: {}", error.kind.text(), error.detail);
        field.starts_with(self.0) && field.contains(self.1) && text.contains(self.2)
    }
}

/// Returns a field without the indices and keys of lists and maps.
fn plain(field: &str) -> String {
    let mut depth = 0;
    let is_outside = |character: &char| {
        depth += usize::from(*character == '[');
        depth = depth.saturating_sub(usize::from(*character == ']'));
        depth == 0 || *character == '['
    };
    field.chars().filter(is_outside).collect()
}

/// Returns the JSON pointer of a field, which has names only.
fn pointer_of(field: &str) -> String {
    field.trim_end_matches('.').split('.').filter(|name| !name.is_empty()).map(|name| format!("/{name}")).collect()
}

/// Returns the path of the pod spec that a kind has.
fn spec_of_pods(kind: &str) -> Option<&'static str> {
    match kind {
        "Pod" => Some("spec."),
        "PodTemplate" => Some("template.spec."),
        "CronJob" => Some("spec.jobTemplate.spec.template.spec."),
        _ => WITH_PODS.contains(&kind).then_some("spec.template.spec."),
    }
}

/// Returns the values at a pointer whose stars match any item.
fn values_at<'a>(object: &'a Value, pointer: &str) -> Vec<Option<&'a Value>> {
    match pointer.split_once("/*") {
        None => vec![object.pointer(pointer).filter(|value| !value.is_null())],
        Some((list, rest)) => {
            let items = object.pointer(list).and_then(Value::as_array).into_iter().flatten();
            items.flat_map(|item| values_at(item, rest)).collect()
        }
    }
}

/// Reports whether parts are equal; an empty part equals an absent one.
fn same(new: &[Option<&Value>], old: &[Option<&Value>]) -> bool {
    new.len() == old.len() && new.iter().zip(old).all(|(new, old)| new == old)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(group: &str, plural: &str, mut object: Value) -> (std::sync::Arc<crate::Kind>, Value) {
        let kind = crate::lookup(group, "v2", plural).or_else(|| crate::lookup(group, "v1", plural));
        let kind = kind.expect("kind").clone();
        let mut metadata = json!({"name": "a.b.c", "uid": "u", "resourceVersion": "1"});
        if kind.namespaced {
            metadata["namespace"] = "n".into();
        }
        object["metadata"] = metadata;
        kind.default(&mut object);
        (kind, object)
    }

    #[test]
    fn errors_are_not_forgiven_in_other_fields() {
        let policy = |block: &str, except: &str| json!({"spec": {"podSelector": {}, "egress": [{"to": [{"ipBlock": {"cidr": block, "except": [except]}}]}]}});
        let (kind, old) = object("networking.k8s.io", "networkpolicies", policy("010.0.0.0/8", "10.1.0.0/16"));
        let (_, new) = object("networking.k8s.io", "networkpolicies", policy("010.0.0.0/8", "010.1.0.0/16"));
        let errors = kind.validate_update(&new, &old);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert_eq!(errors[0].field, "spec.egress[0].to[0].ipBlock.except[0]");
        // A known range may still be in an invalid field.
        let (_, old) = object("networking.k8s.io", "networkpolicies", policy("10.0.0.0/8", "10.1.0.0/16"));
        let (_, new) = object("networking.k8s.io", "networkpolicies", policy("11.0.0.0/8", "10.1.0.0/16"));
        assert_eq!(kind.validate_update(&new, &old).len(), 1);
        let addresses =
            |port: i64| json!({"subsets": [{"addresses": [{"ip": "10.0.0.01"}], "ports": [{"port": port}]}]});
        let (kind, old) = object("", "endpoints", addresses(80));
        let (_, new) = object("", "endpoints", addresses(81));
        assert_eq!(kind.validate_update(&new, &old).len(), 1);
        assert_eq!(plain("spec.a[0].b[x.y/z][1].c"), "spec.a[].b[][].c");
    }
}
