//! Tests of the order of causes and of rules that run together: an answer lists its causes as they were found.

use serde_json::json;

use super::Subject;

#[test]
fn rules_of_a_change_are_in_order() {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]});
    let spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": pod}}}});
    let mut invalid = spec.clone();
    invalid["timeZone"] = json!("Mars/Base");
    invalid["concurrencyPolicy"] = json!("x");
    Subject::new("batch", "cronjobs", json!({ "spec": spec })).updates(&[(
        "/spec",
        invalid,
        &[
            "spec.timeZone: Invalid value: \"Mars/Base\": unknown time zone Mars/Base",
            "spec.concurrencyPolicy: Unsupported value: \"x\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
        ],
    )]);
    let spec =
        json!({"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}});
    let mut invalid = spec.clone();
    invalid["scaleTargetRef"] = json!({"apiVersion": "", "kind": "Deployment"});
    invalid["metrics"] = json!([{"type": "Pods"}]);
    Subject::versioned("autoscaling", "v2", "horizontalpodautoscalers", json!({ "spec": spec })).updates(&[(
        "/spec",
        invalid,
        &[
            "spec.scaleTargetRef.name: Required value",
            "spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group",
            "spec.metrics[0].pods: Required value: must populate information for the given metric source",
        ],
    )]);
}

#[test]
fn counts_are_validated_in_the_order_of_the_kind() {
    const NEGATIVE: &str = "Invalid value: -1: must be greater than or equal to 0";
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    for (plural, field, first, second) in [
        ("deployments", "updatedReplicas", "observedGeneration", "updatedReplicas"),
        ("statefulsets", "updatedReplicas", "updatedReplicas", "observedGeneration"),
        ("daemonsets", "numberUnavailable", "observedGeneration", "numberUnavailable"),
        ("replicasets", "fullyLabeledReplicas", "fullyLabeledReplicas", "observedGeneration"),
    ] {
        let messages = [first, second].map(|field| format!("status.{field}: {NEGATIVE}"));
        let status = json!({"observedGeneration": -1, field: -1});
        Subject::new("apps", plural, json!({ "spec": spec })).status_updates(&[(
            "/status",
            status,
            &[&messages[0], &messages[1]],
        )]);
    }
    let status =
        json!({"declaredFeatures": ["x"], "addresses": [{"type": "t", "address": "a"}, {"type": "t", "address": "a"}]});
    Subject::new("", "nodes", json!({})).status_updates(&[(
        "/status",
        status,
        &[
            "status.declaredFeatures[0]: Invalid value: \"x\": invalid feature name \"x\": must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes",
            "status.addresses[1]: Duplicate value: {\"address\":\"a\",\"type\":\"t\"}",
        ],
    )]);
}

#[test]
fn volumes_of_a_network() {
    const FORMAT: &str = "must be valid format starting with iqn, eui, or naa";
    let source = json!({"targetPortal": "p", "iqn": "x", "lun": 600, "initiatorName": ""});
    let messages = [
        format!("spec.volumes[0].iscsi.iqn: Invalid value: \"x\": {FORMAT}"),
        "spec.volumes[0].iscsi.lun: Invalid value: 600: must be between 0 and 255, inclusive".to_owned(),
        format!("spec.volumes[0].iscsi.initiatorname: Invalid value: \"\": {FORMAT}"),
    ];
    Subject::new("", "pods", json!({"spec": {"containers": [{"name": "a", "image": "i"}]}})).creates(&[(
        "/spec/volumes",
        json!([{"name": "v", "iscsi": source}]),
        &[&messages[0], &messages[1], &messages[2]],
    )]);
    let key = |key: &str| json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]}});
    let spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"},
        "nodeAffinity": key("beta.kubernetes.io/os")});
    let fixed = "nodeAffinity: Invalid value: {\"required\":{\"nodeSelectorTerms\":[{\"matchExpressions\":[{\"key\":\"k\",\"operator\":\"Exists\"}]}]}}: field is immutable, except for updating from beta label to GA";
    Subject::new("", "persistentvolumes", json!({ "spec": spec }))
        .updates(&[("/spec/nodeAffinity", key("kubernetes.io/os"), &[]), ("/spec/nodeAffinity", key("k"), &[fixed])]);
    let portal = "p".repeat(64);
    let long = format!(
        "spec.iscsi.targetportal: Invalid value: \"{portal}\": Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified."
    );
    let mut network = spec;
    network["hostPath"] = serde_json::Value::Null;
    network["iscsi"] = json!({"targetPortal": portal, "iqn": "eui.0123456789abcdef", "lun": 600, "initiatorName": "eui.0123456789abcdef"});
    let good = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}});
    Subject::new("", "persistentvolumes", json!({ "spec": good })).creates(&[(
        "/spec",
        network,
        &[&long, "spec.iscsi.lun: Invalid value: 600: must be between 0 and 255, inclusive"],
    )]);
}

#[test]
fn slices_select_their_nodes() {
    let spec =
        json!({"driver": "d.io", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}, "nodeName": "n"});
    let mut invalid = spec.clone();
    invalid["nodeName"] = serde_json::Value::Null;
    invalid["nodeSelector"] = json!({"nodeSelectorTerms": []});
    invalid["perDeviceNodeSelection"] = json!(false);
    let name = "a".repeat(100);
    let shown = format!("{}...{}", "a".repeat(47), "a".repeat(46));
    let messages =
        format!("spec.devices[0].attributes[{shown}]: Invalid value: \"\": exactly one value must be specified");
    Subject::new("resource.k8s.io", "resourceslices", json!({ "spec": spec })).creates(&[
        (
            "/spec",
            invalid,
            &[
                "spec.nodeSelector.nodeSelectorTerms: Required value: must have at least one node selector term",
                "spec.nodeSelector.nodeSelectorTerms: Invalid value: []: must have exactly one node selector term",
                "spec.perDeviceNodeSelection: Invalid value: false: must be either unset or set to true",
            ],
        ),
        (
            "/spec/devices",
            json!([{"name": "d", "attributes": {name: {}}}]),
            &["spec.devices[0].attributes: Too long: may not be more than 32 bytes", &messages],
        ),
    ]);
}

#[test]
fn messages_of_the_newer_rules() {
    let name = "a".repeat(254);
    let long = |unit: &str| format!("metadata.name: Invalid value: \"{name}\": must be no more than 253 {unit}");
    let bytes = long("bytes");
    let characters = long("characters");
    Subject::new("resource.k8s.io", "deviceclasses", json!({"spec": {}})).creates(&[(
        "/metadata/name",
        json!(name),
        &[&bytes],
    )]);
    Subject::new("", "configmaps", json!({})).creates(&[("/metadata/name", json!(name), &[&characters])]);
    let empty = "spec.securityContext.windowsOptions.gmsaCredentialSpecName: Invalid value: \"\": a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
    Subject::new("", "pods", json!({"spec": {"containers": [{"name": "a", "image": "i"}]}})).creates(&[(
        "/spec/securityContext/windowsOptions",
        json!({"gmsaCredentialSpecName": ""}),
        &[empty],
    )]);
}

#[test]
fn a_device_taint_has_its_time() {
    let kind = corten_api::lookup("resource.k8s.io", "v1", "resourceslices").expect("kind");
    let slice =
        |since: serde_json::Value| json!({"spec": {"devices": [{"taints": [{"key": "k", "timeAdded": since}]}]}});
    for (input, wanted) in
        [(serde_json::Value::Null, "1970-01-01T00:00:00Z"), ("2020-01-01T00:00:00Z".into(), "2020-01-01T00:00:00Z")]
    {
        let mut slice = slice(input);
        kind.behaviour.default_times(&mut slice, jiff::Timestamp::UNIX_EPOCH);
        assert_eq!(slice["spec"]["devices"][0]["taints"][0]["timeAdded"], wanted);
    }
}

#[test]
fn a_local_api_service_is_available_at_once() {
    let kind = corten_api::lookup("apiregistration.k8s.io", "v1", "apiservices").expect("kind");
    for (spec, wanted) in [(json!({}), json!("Local")), (json!({"service": {"name": "s"}}), serde_json::Value::Null)] {
        let mut service = json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z"}, "spec": spec});
        kind.behaviour.prepare_create(&mut service);
        assert_eq!(service["status"]["conditions"][0]["reason"], wanted);
    }
}
