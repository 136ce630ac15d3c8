//! Tests of several fields at once: the order and names of errors, and fields that are dropped before validation.

use serde_json::json;

use super::Subject;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";

fn pod() -> Subject {
    Subject::new("", "pods", json!({"spec": {"containers": [{"name": "a", "image": "i"}]}}))
}

#[test]
fn more_than_one_source_is_reported_under_upstreams_names() {
    const MORE: &str = "Forbidden: may not specify more than 1 volume type";
    let volume = json!([{"name": "v", "emptyDir": {}, "cephfs": {"monitors": ["m"]}, "downwardAPI": {}}]);
    let messages = [format!("spec.volumes[0].cephFS: {MORE}"), format!("spec.volumes[0].downwarAPI: {MORE}")];
    pod().creates(&[("/spec/volumes", volume, &[&messages[0], &messages[1]])]);
    let spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/x"}});
    let messages = [
        format!("spec.flocker: {MORE}"),
        format!("spec.nfs: {MORE}"),
        "spec.flexVolume.driver: Required value".to_owned(),
    ];
    let mut more = spec.clone();
    more["nfs"] = json!({"server": "s", "path": "/"});
    more["flocker"] = json!({"datasetName": "d"});
    more["flexVolume"] = json!({});
    Subject::new("", "persistentvolumes", json!({ "spec": spec })).creates(&[(
        "/spec",
        more,
        &[&messages[0], &messages[1], &messages[2]],
    )]);
}

#[test]
fn fields_that_some_containers_may_not_have() {
    const DETAIL: &str = "Forbidden: cannot be set for an Ephemeral Container";
    let debug = json!([{"name": "e", "image": "i", "lifecycle": {}, "livenessProbe": {}}]);
    let messages = [
        format!("spec.ephemeralContainers[0].livenessProbe: {DETAIL}"),
        format!("spec.ephemeralContainers[0].lifecycle: {DETAIL}"),
    ];
    let rules = json!([{"name": "i", "image": "i", "restartPolicyRules": [{"action": "x"}]}]);
    pod().creates(&[
        (
            "/spec/ephemeralContainers",
            debug,
            &[&messages[0], &messages[1], "spec.ephemeralContainers: Forbidden: cannot be set on create"],
        ),
        (
            "/spec/initContainers",
            rules,
            &["spec.initContainers[0].restartPolicy: Required value: must specify restartPolicy when restart rules are used"],
        ),
    ]);
}

#[test]
fn rules_for_new_objects_are_in_order() {
    let pod = json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]});
    let spec = json!({"schedule": "* * * * *", "jobTemplate": {"spec": {"template": {"spec": pod}}}});
    let mut invalid = spec.clone();
    invalid["timeZone"] = json!("Mars/Base");
    invalid["concurrencyPolicy"] = json!("x");
    Subject::new("batch", "cronjobs", json!({ "spec": spec })).creates(&[(
        "/spec",
        invalid,
        &[
            "spec.timeZone: Invalid value: \"Mars/Base\": unknown time zone Mars/Base",
            "spec.concurrencyPolicy: Unsupported value: \"x\": supported values: \"Allow\", \"Forbid\", \"Replace\"",
        ],
    )]);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "serviceName": "s", "template": template});
    let mut invalid = spec.clone();
    invalid["serviceName"] = json!("/");
    invalid["volumeClaimTemplates"] = json!([{"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]);
    invalid["selector"] = json!({});
    invalid["template"]["spec"]["restartPolicy"] = json!("Never");
    let messages = format!("spec.serviceName: Invalid value: \"/\": {LABEL}");
    Subject::new("apps", "statefulsets", json!({ "spec": spec })).creates(&[(
        "/spec",
        invalid,
        &[
            "spec.volumeClaimTemplates[0].spec.resources[storage]: Required value",
            &messages,
            "spec.selector: Invalid value: {}: empty selector is invalid for statefulset",
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ],
    )]);
    let spec =
        json!({"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}});
    let mut invalid = spec.clone();
    invalid["scaleTargetRef"]["apiVersion"] = json!("");
    invalid["metrics"] = json!([{"type": "Pods"}]);
    Subject::versioned("autoscaling", "v2", "horizontalpodautoscalers", json!({ "spec": spec })).creates(&[(
        "/spec",
        invalid,
        &[
            "spec.scaleTargetRef.apiVersion: Invalid value: \"\": apiVersion must specify API group",
            "spec.metrics[0].pods: Required value: must populate information for the given metric source",
        ],
    )]);
}

#[test]
fn disabled_fields_are_not_validated() {
    let volume = json!([{"name": "v", "projected": {"sources": [{"podCertificate": {"keyType": "none"}}]}}]);
    pod().creates(&[
        ("/spec/volumes", volume, &[]),
        ("/spec/schedulingGroup", json!({"podGroupName": "Bad Value!"}), &[]),
        ("/spec/containers/0/lifecycle", json!({"stopSignal": "none"}), &[]),
    ]);
    Subject::new("coordination.k8s.io", "leases", json!({"spec": {}}))
        .creates(&[("/spec/preferredHolder", json!("h"), &[]), ("/spec/strategy", json!("Bad Value!"), &[])]);
}

#[test]
fn addresses_in_a_status() {
    const MORE: &str = "may specify no more than one IP for each IP family";
    let odd = format!("status.podIPs: Invalid value: [{{\"ip\":\"10.0.0.1\"}},{{\"ip\":\"x\"}}]: {MORE}");
    let twice = format!("status.podIPs: Invalid value: [{{\"ip\":\"10.0.0.1\"}},{{\"ip\":\"10.0.0.2\"}}]: {MORE}");
    pod().status_updates(&[
        ("/status/podIPs", json!([{"ip": "10.0.0.1"}, {"ip": "::1"}]), &[]),
        ("/status/podIPs", json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}]), &[&twice]),
        (
            "/status/podIPs",
            json!([{"ip": "10.0.0.1"}, {"ip": "x"}]),
            &[
                "status.podIPs[1]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "status.podIPs: Internal error: failed to check for dual stack with error:invalid IP[1]: x",
                &odd,
            ],
        ),
    ]);
}

#[test]
fn duplicates_and_limits() {
    let tolerations = json!([{"operator": "Exists"}, {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1},
                             {"operator": "Exists", "effect": "NoExecute"}]);
    let alike = "scheduling.tolerations[2]: Duplicate value: {\"effect\":\"NoExecute\",\"operator\":\"Exists\"}";
    Subject::new("node.k8s.io", "runtimeclasses", json!({"handler": "h"})).creates(&[(
        "/scheduling",
        json!({ "tolerations": tolerations }),
        &[alike],
    )]);
    let counter = |name: &str| json!({"counterSet": name, "counters": {}});
    let devices = json!([{"name": "d", "consumesCounters": [counter("a"), counter("B"), counter("c")]}]);
    let spec =
        json!({"driver": "d.io", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1}, "devices": []});
    Subject::new("resource.k8s.io", "resourceslices", json!({ "spec": spec })).creates(&[(
        "/spec/devices",
        devices,
        &["spec.devices[0].consumesCounters: Too many: 3: must have at most 2 items"],
    )]);
    let driver = json!([{"name": "d.io", "nodeID": "n"}]);
    Subject::new("storage.k8s.io", "csinodes", json!({"spec": {"drivers": driver}})).updates(&[
        (
            "/spec/drivers/0/nodeID",
            json!("m"),
            &["spec.drivers: Invalid value: {\"name\":\"d.io\",\"nodeID\":\"m\",\"topologyKeys\":null}: field is immutable"],
        ),
        ("/spec/drivers/0/topologyKeys", json!([]), &[]),
    ]);
}

#[test]
fn unknown_words() {
    pod().creates(&[(
        "/spec/securityContext",
        json!({"seLinuxChangePolicy": "MountOption"}),
        &["spec.securityContext.seLinuxChangePolicy: Unsupported value: \"MountOption\": supported values: \"Recursive\""],
    )]);
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "a", "image": "i"}]}});
    let spec = json!({"selector": {"matchLabels": {"a": "b"}}, "template": template});
    Subject::new("apps", "deployments", json!({ "spec": spec })).creates(&[(
        "/spec/strategy",
        json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "-1%", "maxUnavailable": 0}}),
        &[
            "spec.strategy.rollingUpdate.maxSurge: Invalid value: \"-1%\": a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')",
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ],
    )]);
}

#[test]
fn changes_are_validated_with_their_objects() {
    let toleration = json!([{"key": "k", "operator": "Exists", "tolerationSeconds": 1}]);
    let invalid = "effect must be 'NoExecute' when `tolerationSeconds` is set";
    let messages = format!("spec.tolerations[0].effect: Invalid value: \"\": {invalid}");
    let subject = pod();
    let old = subject.changed("", &json!(null));
    let new = subject.changed("/spec/tolerations", &toleration);
    let causes: Vec<String> = subject.kind.validate_update(&new, &old).iter().map(ToString::to_string).collect();
    assert_eq!(causes, [messages.clone(), messages], "once for the pod, once for the change");
    Subject::new("", "nodes", json!({"spec": {}})).updates(&[(
        "/spec/externalID",
        json!("x"),
        &["spec.externalID: Forbidden: may not be updated"],
    )]);
}

/// A set list or map without items is still set: rules that check whether it is set see it.
#[test]
fn empty_fields_are_set() {
    const NO_DEBUG: &str = "Forbidden: cannot be set for an Ephemeral Container";
    let spec = json!({"containers": [{"name": "a", "image": "i"}]});
    Subject::new("", "podtemplates", json!({"template": {"metadata": {}, "spec": spec}})).creates(&[
        (
            "/template/spec/ephemeralContainers",
            json!([{"name": "e", "image": "i", "resizePolicy": [], "resources": {}, "command": [], "terminationMessagePolicy": "File"}]),
            &[
                &format!("template.spec.ephemeralContainers[0].resizePolicy: {NO_DEBUG}"),
                "template.spec.ephemeralContainers: Forbidden: ephemeral containers not allowed in pod template",
            ],
        ),
        (
            "/template/spec/resources",
            json!({"claims": [], "limits": {"cpu": "1"}}),
            &["template.spec.resources.claims: Forbidden: claims may not be set for Resources at pod-level"],
        ),
    ]);
    let slice = json!({"spec": {"driver": "a.b", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d"}]}});
    Subject::new("resource.k8s.io", "resourceslices", slice).creates(&[(
        "/spec/sharedCounters",
        json!([]),
        &["spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed"],
    )]);
    let claim =
        json!({"spec": {"spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "d"}}]}}}});
    Subject::new("resource.k8s.io", "resourceclaimtemplates", claim).creates(&[(
        "/spec/metadata",
        json!({"ownerReferences": [], "generateName": "", "finalizers": ["a"], "namespace": "n", "labels": {}}),
        &[
            "spec.metadata.namespace: Forbidden: cannot be set",
            "spec.metadata.ownerReferences: Forbidden: cannot be set",
            "spec.metadata.finalizers: Forbidden: cannot be set",
        ],
    )]);
    let affinity = json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}});
    Subject::new("", "services", affinity).creates(&[("/spec/sessionAffinityConfig", json!({}), &[])]);
}

#[test]
fn defaults_of_several_fields_agree() {
    let defaulted = |plural: &str, mut object: serde_json::Value| {
        corten_api::lookup("", "v1", plural).expect("kind").default(&mut object);
        object["spec"].clone()
    };
    let pod_level = |resources: serde_json::Value, containers: serde_json::Value| {
        defaulted("pods", json!({"spec": {"resources": resources, "containers": containers}}))["resources"].clone()
    };
    let containers = json!([{"name": "a", "resources": {"requests": {"cpu": "100m", "ex.io/x": "1"}}},
        {"name": "b", "resources": {"limits": {"cpu": "200m", "hugepages-2Mi": "2Mi"}}}]);
    assert_eq!(
        pod_level(json!({"limits": {"cpu": "1", "memory": "1Gi"}}), containers.clone()),
        json!({"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi"},
               "requests": {"cpu": "300m", "memory": "1Gi", "hugepages-2Mi": "2Mi"}})
    );
    assert_eq!(pod_level(json!({}), containers), json!({}));
    let node = json!({"spec": {"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.1.0.0/24", "fd00::/64"]}});
    assert_eq!(defaulted("nodes", node)["podCIDRs"], json!(["10.0.0.0/24"]));
    let volume = json!({"spec": {"azureDisk": {"diskName": "d", "diskURI": "u"}}});
    assert_eq!(defaulted("persistentvolumes", volume)["azureDisk"]["readOnly"], false);
}

/// For a change, empty and absent are equal.
#[test]
fn empty_fields_are_no_change() {
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]}});
    let rules = json!({"rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}}]});
    let job = json!({"spec": {"template": template, "podFailurePolicy": rules, "manualSelector": true,
        "selector": {"matchLabels": {"a": "b"}}}});
    let mut job = Subject::new("batch", "jobs", job);
    job.good["spec"]["template"]["metadata"] = json!({"labels": {"a": "b"}});
    job.updates(&[
        ("/spec/podFailurePolicy/rules/0/onPodConditions", json!([]), &[]),
        ("/spec/template/spec/containers/0/args", json!([]), &[]),
        ("/spec/selector/matchExpressions", json!([]), &[]),
    ]);
    pod().updates(&[("/spec/containers/0/args", json!([]), &[]), ("/spec/nodeSelector", json!({}), &[])]);
}

#[test]
fn causes_are_in_upstreams_order_and_number() {
    let spec = json!({"driver": "a.b", "nodeName": "n", "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
        "devices": [{"name": "d"}]});
    let slices = Subject::new("resource.k8s.io", "resourceslices", json!({ "spec": spec }));
    slices.updates(&[(
        "/spec/nodeName",
        serde_json::Value::Null,
        &[
            "spec.nodeName: Invalid value: null: field is immutable",
            "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
        ],
    )]);
    let messages = ["spec: Invalid value: \"\": only one of `sharedCounters` or `devices` is allowed"];
    slices.updates(&[("/spec/sharedCounters", json!([]), &messages)]);
    let mut class = json!({"provisioner": "p", "metadata": {"name": "c"}, "allowedTopologies": [{}, {}]});
    let classes = corten_api::lookup("storage.k8s.io", "v1", "storageclasses").expect("kind");
    classes.default(&mut class);
    assert_eq!(classes.validate(&class).len(), 5);
    let event = json!({"metadata": {"name": "e", "namespace": "default"}, "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "a.b/c", "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal",
        "regarding": {"kind": "Pod", "name": "p", "namespace": "default"}, "note": "n"});
    Subject::new("events.k8s.io", "events", event).updates(&[(
        "/related",
        json!({}),
        &["related: Invalid value: {}: field is immutable"],
    )]);
    let rule = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]});
    let policy =
        json!({"spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]}});
    Subject::new("admissionregistration.k8s.io", "validatingadmissionpolicies", policy).status_updates(&[
        (
            "/status",
            json!({"typeChecking": {"expressionWarnings": [{"fieldRef": " "}]}}),
            &[
                "status.typeChecking.expressionWarnings[0].warning: Required value",
                "status.typeChecking.expressionWarnings[0].fieldRef: Required value",
            ],
        ),
        (
            "/status",
            json!({"typeChecking": {"expressionWarnings": [{"fieldRef": "spec.validations[0]", "warning": "w"},
                {"fieldRef": " 10.0.0.5/24", "warning": "w"}]}}),
            &["status.typeChecking.expressionWarnings[1].fieldRef: Invalid value: \"10.0.0.5/24\": \
               invalid JSONPath: cannot parse number 10.0.0.5"],
        ),
    ]);
}

/// A string with its own type upstream is shown as JSON, which escapes HTML; a plain one is quoted.
#[test]
fn strings_are_shown_by_their_type() {
    let service = json!({"metadata": {"name": "s", "namespace": "n"}, "spec": {"ports": [{"port": 80}]}});
    Subject::new("", "services", service).creates(&[
        (
            "/spec/externalTrafficPolicy",
            json!(">"),
            &[r#"spec.externalTrafficPolicy: Invalid value: "\u003e": may only be set for externally-accessible services"#],
        ),
        (
            "/spec/trafficDistribution",
            json!(">"),
            &[
                r#"spec.trafficDistribution: Unsupported value: ">": supported values: "PreferClose", "PreferSameZone", "PreferSameNode""#,
            ],
        ),
    ]);
    let volume = json!({"metadata": {"name": "v"}, "spec": {"accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/v"}}});
    let affinity = |operator| {
        let expression = json!({"key": "k", "operator": operator, "values": ["1"]});
        json!({"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}})
    };
    Subject::new("", "persistentvolumes", volume).creates(&[(
        "/spec/nodeAffinity",
        affinity(">"),
        &[
            r#"spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].operator: Invalid value: "\u003e": not a valid selector operator"#,
        ],
    )]);
}
