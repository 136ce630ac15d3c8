//! Tests of the kinds of the smaller groups.

use serde_json::{Value, json};

use super::{Subject, texts};

#[test]
fn autoscalers() {
    let spec =
        json!({"maxReplicas": 3, "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}});
    let subject = Subject::versioned("autoscaling", "v2", "horizontalpodautoscalers", json!({ "spec": spec }));
    let metric = |metric: Value| json!([metric]);
    subject.creates(&[
        ("/spec/maxReplicas", json!(0), &[
            "spec.maxReplicas: Required value: must be set and greater than 0",
            "spec.maxReplicas: Invalid value: 0: must be greater than or equal to `minReplicas`",
        ]),
        ("/spec/minReplicas", json!(0), &[
            "spec.minReplicas: Invalid value: 0: must be greater than or equal to 1",
            "spec.metrics: Forbidden: must specify at least one Object or External metric to support scaling to zero replicas",
        ]),
        ("/spec/scaleTargetRef/apiVersion", json!("v1"), &[
            "spec.scaleTargetRef.apiVersion: Invalid value: \"v1\": apiVersion must specify API group",
        ]),
        ("/spec/metrics", metric(json!({"type": "Resource"})), &[
            "spec.metrics[0].resource: Required value: must populate information for the given metric source",
        ]),
        ("/spec/metrics", metric(json!({"type": "Pods", "pods": {"metric": {"name": "m"}, "target": {"type": "Value", "value": "1"}}})), &[
            "spec.metrics[0].pods.target.averageValue: Required value: must specify a positive target averageValue",
        ]),
        ("/spec/behavior", json!({"scaleUp": {"stabilizationWindowSeconds": 4000}}), &[
            "spec.behavior.scaleUp.stabilizationWindowSeconds: Invalid value: 4000: must be less than or equal to 3600",
        ]),
    ]);
}

#[test]
fn storage() {
    Subject::new("storage.k8s.io", "storageclasses", json!({"provisioner": "a.b/c"})).creates(&[
        ("/provisioner", json!(""), &["provisioner: Required value"]),
        (
            "/reclaimPolicy",
            json!("Recycle"),
            &["reclaimPolicy: Unsupported value: \"Recycle\": supported values: \"Delete\", \"Retain\""],
        ),
        (
            "/allowedTopologies",
            json!([{"matchLabelExpressions": [{"key": "zone", "values": []}]}]),
            &["allowedTopologies[0].matchLabelExpressions[0].values: Required value"],
        ),
    ]);
    Subject::new("storage.k8s.io", "storageclasses", json!({"provisioner": "a.b/c"})).updates(&[(
        "/provisioner",
        json!("x"),
        &["provisioner: Invalid value: \"x\": field is immutable"],
    )]);
    let attachment = json!({"spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}});
    Subject::new("storage.k8s.io", "volumeattachments", attachment).creates(&[
        (
            "/spec/source",
            json!({}),
            &["spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName"],
        ),
        ("/spec/attacher", json!(""), &["spec.attacher: Required value"]),
    ]);
    Subject::new("storage.k8s.io", "csinodes", json!({"spec": {"drivers": []}})).creates(&[(
        "/spec/drivers",
        json!([{"name": "d", "nodeID": "n"}, {"name": "d", "nodeID": ""}]),
        &["spec.drivers[1].nodeID: Required value", "spec.drivers[1].name: Duplicate value: \"d\""],
    )]);
    Subject::new("storage.k8s.io", "csidrivers", json!({"spec": {}})).creates(&[
        ("/spec/fsGroupPolicy", json!("Odd"), &[
            "spec.fsGroupPolicy: Unsupported value: \"Odd\": supported values: \"File\", \"None\", \"ReadWriteOnceWithFSType\"",
        ]),
        ("/spec/tokenRequests", json!([{"audience": "a", "expirationSeconds": 1}]), &[
            "spec.tokenRequests[0].expirationSeconds: Invalid value: 1: may not specify a duration less than 10 minutes",
        ]),
    ]);
    let class = json!({"driverName": "d", "parameters": {"a": "b"}});
    Subject::new("storage.k8s.io", "volumeattributesclasses", class).updates(&[(
        "/parameters",
        json!({"a": "c"}),
        &["parameters: Forbidden: updates to parameters are forbidden."],
    )]);
    let capacity = json!({"storageClassName": "c", "capacity": "1Gi"});
    let capacity = Subject::new("storage.k8s.io", "csistoragecapacities", capacity);
    capacity.creates(&[(
        "/capacity",
        json!("-1"),
        &["capacity: Invalid value: \"-1\": must be greater than or equal to 0"],
    )]);
    capacity.updates(&[("/nodeTopology", json!({}), &["nodeTopology: Invalid value: {}: field is immutable"])]);
}

#[test]
fn flows() {
    let subject = json!({"kind": "User", "user": {"name": "u"}});
    let rule = json!({"subjects": [subject], "resourceRules": [{"verbs": ["get"], "apiGroups": [""],
        "resources": ["pods"], "namespaces": ["*"]}]});
    let spec = json!({"priorityLevelConfiguration": {"name": "l"}, "matchingPrecedence": 5, "rules": [rule]});
    Subject::new("flowcontrol.apiserver.k8s.io", "flowschemas", json!({ "spec": spec })).creates(&[
        ("/spec/matchingPrecedence", json!(1), &[
            "spec.matchingPrecedence: Invalid value: 1: only the schema named 'exempt' may have matchingPrecedence 1",
        ]),
        ("/spec/rules/0/subjects/0/group", json!({"name": "g"}), &[
            "spec.rules[0].subjects[0].group: Forbidden: group is forbidden when subject kind is not 'Group'",
        ]),
        ("/spec/rules/0/resourceRules/0/verbs", json!(["*", "get"]), &[
            "spec.rules[0].resourceRules[0].verbs: Invalid value: [\"*\",\"get\"]: if '*' is present, must not specify other verbs",
        ]),
        ("/spec/rules/0/nonResourceRules", json!([{"verbs": ["get"], "nonResourceURLs": ["/a*"]}]), &[
            "spec.rules[0].nonResourceRules[0].nonResourceURLs[0]: Invalid value: \"/a*\": wildcard can only do suffix matching",
        ]),
    ]);
    let spec = json!({"type": "Limited", "limited": {"limitResponse": {"type": "Queue", "queuing": {}}}});
    Subject::new("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations", json!({ "spec": spec })).creates(&[
        ("/spec/limited/limitResponse", json!({"type": "Reject", "queuing": {}}), &[
            "spec.limited.limitResponse.queuing: Forbidden: must be nil if limited.limitResponse.type is not Limited",
        ]),
        ("/spec/limited/limitResponse/queuing/handSize", json!(65), &[
            "spec.limited.limitResponse.queuing.handSize: Invalid value: 65: should not be greater than queues (64)",
        ]),
        ("/spec/type", json!("Exempt"), &[
            "spec.type: Invalid value: \"Exempt\": must be 'Exempt' if and only if `name` is 'exempt'",
            "spec.limited: Forbidden: must be nil if the type is not Limited",
        ]),
    ]);
}

#[test]
fn events() {
    let event = json!({"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p"}});
    Subject::new("", "events", event).creates(&[(
        "/involvedObject/namespace",
        json!("other"),
        &["involvedObject.namespace: Invalid value: \"other\": does not match event.namespace"],
    )]);
    let event = json!({"regarding": {"kind": "Pod", "namespace": "default"}, "eventTime": "2024-01-01T00:00:00.000000Z",
        "reportingController": "a.b/c", "reportingInstance": "i", "action": "a", "reason": "r", "type": "Normal"});
    let subject = Subject::new("events.k8s.io", "events", event);
    subject.creates(&[
        ("/action", json!(""), &["action: Required value"]),
        ("/type", json!("Odd"), &["type: Invalid value: \"\": has invalid value: Odd"]),
        ("/deprecatedCount", json!(1), &["count: Invalid value: \"\": needs to be unset"]),
        (
            "/series",
            json!({"count": 1, "lastObservedTime": "2024-01-01T00:00:00.000000Z"}),
            &["series.count: Invalid value: \"\": should be at least 2"],
        ),
    ]);
    subject.updates(&[("/note", json!("other"), &["message: Invalid value: \"other\": field is immutable"])]);
}

#[test]
fn networking() {
    let backend = json!({"service": {"name": "s", "port": {"number": 80}}});
    let path = json!({"path": "/", "pathType": "Prefix", "backend": backend});
    let ingress = json!({"spec": {"rules": [{"host": "a.b", "http": {"paths": [path]}}]}});
    Subject::new("networking.k8s.io", "ingresses", ingress).creates(&[
        (
            "/spec/rules/0/http/paths/0/path",
            json!("x"),
            &["spec.rules[0].http.paths[0].path: Invalid value: \"x\": must be an absolute path"],
        ),
        (
            "/spec/rules/0/host",
            json!("1.2.3.4"),
            &["spec.rules[0].host: Invalid value: \"1.2.3.4\": must be a DNS name, not an IP address"],
        ),
        (
            "/spec/rules/0/http/paths/0/backend",
            json!({"resource": {"name": "n"}}),
            &["spec.rules[0].http.paths[0].backend.resource.kind: Required value"],
        ),
    ]);
    Subject::new("networking.k8s.io", "networkpolicies", json!({"spec": {"podSelector": {}}})).creates(&[(
        "/spec/ingress",
        json!([{"ports": [{"port": "web", "endPort": 80}]}]),
        &["spec.ingress[0].ports[0].endPort: Invalid value: 80: may not be specified when `port` is non-numeric"],
    )]);
    Subject::new("networking.k8s.io", "ingressclasses", json!({"spec": {"controller": "a.b/c"}})).creates(&[
        (
            "/spec/controller",
            json!("x"),
            &["spec.controller: Invalid value: \"x\": must be a domain-prefixed path (such as \"acme.io/foo\")"],
        ),
        (
            "/spec/parameters",
            json!({"kind": "K", "name": "n", "scope": "Namespace"}),
            &["spec.parameters.namespace: Required value: `parameters.scope` is set to 'Namespace'"],
        ),
    ]);
    let cidrs = Subject::new("networking.k8s.io", "servicecidrs", json!({"spec": {"cidrs": ["10.0.0.0/24"]}}));
    cidrs.creates(&[("/spec/cidrs", json!(["10.0.0.0/24", "10.0.1.0/24"]), &[
        "spec.cidrs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64",
    ])]);
    cidrs.updates(&[
        ("/spec/cidrs", json!(["10.0.0.0/24", "fd00::/112"]), &[]),
        ("/spec/cidrs", json!(["10.0.1.0/24"]), &["spec.cidrs[0]: Invalid value: \"10.0.1.0/24\": field is immutable"]),
    ]);
    let address =
        json!({"metadata": {"name": "10.0.0.1"}, "spec": {"parentRef": {"resource": "services", "name": "s"}}});
    Subject::new("networking.k8s.io", "ipaddresses", address).creates(&[(
        "/spec",
        json!({}),
        &["spec.parentRef: Required value"],
    )]);
    let slice = json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"]}]});
    Subject::new("discovery.k8s.io", "endpointslices", slice).creates(&[
        ("/ports", json!([{"port": 1}, {"port": 2}]), &["ports[1].name: Duplicate value: \"\""]),
        (
            "/endpoints/0/hints",
            json!({"forZones": [{"name": "a"}, {"name": "a"}]}),
            &["endpoints[0].hints.forZones[1].name: Duplicate value: \"a\""],
        ),
    ]);
}

#[test]
fn admission() {
    let rule = json!({"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]});
    let hook = json!({"name": "a.b.c", "admissionReviewVersions": ["v1"], "sideEffects": "None",
        "clientConfig": {"service": {"name": "s", "namespace": "n"}}, "rules": [rule]});
    let configuration = json!({"webhooks": [hook]});
    for plural in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
        Subject::new("admissionregistration.k8s.io", plural, configuration.clone()).creates(&[
            ("/webhooks/0/sideEffects", Value::Null, &[
                "webhooks[0].sideEffects: Required value: must specify one of None, NoneOnDryRun",
            ]),
            ("/webhooks/0/rules/0/operations", json!(["*", "CREATE"]), &[
                "webhooks[0].rules[0].operations: Invalid value: [\"*\",\"CREATE\"]: if '*' is present, must not specify other operations",
            ]),
            ("/webhooks/0/clientConfig", json!({}), &[
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
            ]),
            ("/webhooks/0/clientConfig/service/path", json!("ü"), &[
                "webhooks[0].clientConfig.service.path: Invalid value: \"ü\": must start with a '/'",
                "webhooks[0].clientConfig.service.path: Invalid value: \"ü\": segment[0]: a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')",
            ]),
            ("/webhooks/0/clientConfig", json!({"url": "http://h"}), &[
                "webhooks[0].clientConfig.url: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]",
            ]),
            ("/webhooks/0/name", json!("a.b"), &[
                "webhooks[0].name: Invalid value: \"a.b\": should be a domain with at least three segments separated by dots",
            ]),
            ("/webhooks/0/rules/0/resources", json!(["pods/*", "pods/log"]), &[
                "webhooks[0].rules[0].resources[1]: Invalid value: \"pods/log\": if 'pods/*' is present, must not specify pods/log",
            ]),
            ("/webhooks/0/matchConditions", json!([{"name": "m", "expression": " "}]), &[
                "webhooks[0].matchConditions[0].expression: Required value",
            ]),
        ]);
    }
    let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]});
    Subject::new("admissionregistration.k8s.io", "validatingadmissionpolicies", json!({ "spec": spec })).creates(&[
        (
            "/spec/validations",
            json!([]),
            &[
                "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
                "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
            ],
        ),
        (
            "/spec/variables",
            json!([{"name": "if", "expression": "1"}]),
            &["spec.variables[0].name: Invalid value: \"if\": must be a valid CEL identifier"],
        ),
        ("/spec/paramKind", json!({"apiVersion": "v1"}), &["spec.paramKind.kind: Required value"]),
    ]);
    let binding = json!({"spec": {"policyName": "p", "validationActions": ["Deny"]}});
    Subject::new("admissionregistration.k8s.io", "validatingadmissionpolicybindings", binding).creates(&[
        (
            "/spec/validationActions",
            json!(["Deny", "Odd"]),
            &["spec.validationActions[1]: Unsupported value: \"Odd\": supported values: \"Audit\", \"Deny\", \"Warn\""],
        ),
        ("/spec/paramRef", json!({"name": "n"}), &["spec.paramRef.parameterNotFoundAction: Required value"]),
    ]);
    let spec = json!({"matchConstraints": {"resourceRules": [rule]}, "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": "[]"}}]});
    Subject::new("admissionregistration.k8s.io", "mutatingadmissionpolicies", json!({ "spec": spec })).creates(&[
        ("/spec/mutations/0/jsonPatch", Value::Null, &[
            "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
        ]),
        ("/spec/matchConstraints/resourceRules/0/operations", json!(["DELETE"]), &[
            "spec.matchConstraints.resourceRules.operations: Unsupported value: \"DELETE\": supported values: \"*\", \"CONNECT\", \"CREATE\", \"UPDATE\"",
        ]),
    ]);
    Subject::new(
        "admissionregistration.k8s.io",
        "mutatingadmissionpolicybindings",
        json!({"spec": {"policyName": "p"}}),
    )
    .creates(&[("/spec/policyName", json!(""), &["spec.policyName: Required value"])]);
}

#[test]
fn the_rest() {
    Subject::new("policy", "poddisruptionbudgets", json!({"spec": {"minAvailable": 1}})).creates(&[
        ("/spec/minAvailable", json!("200%"), &[
            "spec.minAvailable: Invalid value: \"200%\": must not be greater than 100%",
        ]),
        ("/spec/unhealthyPodEvictionPolicy", json!("Never"), &[
            "spec.unhealthyPodEvictionPolicy: Unsupported value: \"Never\": supported values: \"AlwaysAllow\", \"IfHealthyBudget\"",
        ]),
    ]);
    Subject::new("scheduling.k8s.io", "priorityclasses", json!({"value": 1})).creates(&[
        ("/value", json!(1_000_000_001), &[
            "value: Forbidden: maximum allowed value of a user defined priority is 1000000000",
        ]),
        ("/metadata/name", json!("system-x"), &[
            "metadata.name: Forbidden: priority class names with 'system-' prefix are reserved for system use only. error: system-x is not a known system priority class",
        ]),
    ]);
    Subject::new("node.k8s.io", "runtimeclasses", json!({"handler": "h"})).creates(&[
        ("/handler", json!(""), &["handler: Required value"]),
        (
            "/scheduling",
            json!({"tolerations": [{"key": "k", "operator": "Exists"}, {"key": "k", "operator": "Exists"}]}),
            &["scheduling.tolerations[1]: Duplicate value: {\"key\":\"k\",\"operator\":\"Exists\"}"],
        ),
    ]);
    Subject::new("coordination.k8s.io", "leases", json!({"spec": {}})).creates(&[(
        "/spec/leaseDurationSeconds",
        json!(0),
        &["spec.leaseDurationSeconds: Invalid value: 0: must be greater than 0"],
    )]);
    let service = json!({"metadata": {"name": "v1.a.b"}, "spec": {"group": "a.b", "version": "v1",
        "groupPriorityMinimum": 10, "versionPriority": 10, "service": {"name": "s", "namespace": "n"}}});
    Subject::new("apiregistration.k8s.io", "apiservices", service).creates(&[
        (
            "/spec/versionPriority",
            json!(0),
            &["spec.versionPriority: Invalid value: 0: must be positive and less than 1000"],
        ),
        ("/spec/service/name", json!(""), &["spec.service.name: Required value"]),
    ]);
}

#[test]
fn signing_requests() {
    let pem = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";
    let spec = json!({"request": pem, "signerName": "a.b/c", "usages": ["client auth"]});
    let subject = Subject::new("certificates.k8s.io", "certificatesigningrequests", json!({ "spec": spec }));
    subject.creates(&[
        ("/spec/usages", json!(["client auth", "client auth"]), &[
            "spec.usages[1]: Duplicate value: \"client auth\"",
        ]),
        ("/spec/signerName", json!("x"), &[
            "spec.signerName: Invalid value: \"x\": must be a fully qualified domain and path of the form 'example.com/signer-name'",
        ]),
        ("/spec/signerName", json!("x/y"), &[
            "spec.signerName: Invalid value: \"x\": should be a domain with at least two segments separated by dots",
        ]),
        ("/spec/request", json!(null), &[
            "spec.request: Invalid value: null: PEM block type must be CERTIFICATE REQUEST",
        ]),
    ]);
    subject.status_updates(&[
        (
            "/status/certificate",
            json!("YQ=="),
            &["status.certificate: Invalid value: \"<certificate data>\": must contain at least one CERTIFICATE PEM block"],
        ),
        ("/status/certificate", json!("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="), &[]),
        (
            "/status/conditions",
            json!([{"type": "Approved", "status": "True"}]),
            &["status.conditions: Forbidden: updates may not add a condition of type \"Approved\""],
        ),
    ]);
    let old = subject.changed("", &Value::Null);
    let approved = subject.changed("/status/conditions", &json!([{"type": "Approved", "status": "True"}]));
    assert_eq!(subject.kind.validate_part_update(corten_api::Role::Approval, &approved, &old), []);
}

#[test]
fn crds() {
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let definition = json!({"metadata": {"name": "foos.a.b"}, "spec": {"group": "a.b", "scope": "Namespaced",
        "names": {"plural": "foos", "kind": "Foo"}, "versions": [version]}});
    let subject = Subject::new("apiextensions.k8s.io", "customresourcedefinitions", definition);
    subject.creates(&[
        ("/metadata/name", json!("x"), &["metadata.name: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group"]),
        ("/metadata/generateName", json!("x"), &[
            "metadata.generateName: Invalid value: \"x\": must be spec.names.plural+\".\"+spec.group",
        ]),
        ("/spec/versions/0/schema", Value::Null, &["spec.versions[0].schema.openAPIV3Schema: Required value"]),
        ("/spec/versions/0/additionalPrinterColumns", json!([{"name": "n", "type": "odd", "jsonPath": ".a"}]), &[
            "spec.additionalPrinterColumns[0].type: Invalid value: \"odd\": must be one of boolean,date,integer,number,string",
        ]),
        ("/spec/versions/0/subresources", json!({"scale": {"specReplicasPath": ".a", "statusReplicasPath": ".status.b"}}), &[
            "spec.subresources.scale.specReplicasPath: Invalid value: \".a\": should be a json path under .spec",
        ]),
        ("/spec/conversion", json!({"strategy": "Webhook"}), &[
            "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
            "spec.conversion.conversionReviewVersions: Required value",
        ]),
        ("/spec/names/shortNames", json!(["A"]), &[
            "spec.names.shortNames[0]: Invalid value: \"A\": a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')",
        ]),
    ]);
    let mut protected = subject;
    protected.good["metadata"]["name"] = "foos.x.k8s.io".into();
    protected.good["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "https://example.com"});
    protected.good["spec"]["group"] = "x.k8s.io".into();
    protected.creates(&[("/metadata/annotations", json!({}), &[
        "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111",
    ])]);
}

#[test]
fn devices() {
    let request = json!({"name": "r", "exactly": {"deviceClassName": "c"}});
    let claim =
        Subject::new("resource.k8s.io", "resourceclaims", json!({"spec": {"devices": {"requests": [request]}}}));
    claim.creates(&[
        ("/spec/devices/requests", json!([{"name": "r"}]), &[
            "spec.devices.requests[0]: Required value: exactly one of `exactly` or `firstAvailable` is required",
        ]),
        ("/spec/devices/requests/0/exactly/allocationMode", json!("Some"), &[
            "spec.devices.requests[0].exactly.allocationMode: Unsupported value: \"Some\": supported values: \"All\", \"ExactCount\"",
        ]),
        ("/spec/devices/constraints", json!([{"requests": ["x"], "matchAttribute": "a.b/c"}]), &[
            "spec.devices.constraints[0].requests[0]: Invalid value: \"x\": must be the name of a request in the claim or the name of a request and a subrequest separated by '/'",
        ]),
    ]);
    claim.updates(&[("/spec/devices/requests/0/name", json!("s"), &[
        "spec: Invalid value: {\"devices\":{\"requests\":[{\"exactly\":{\"allocationMode\":\"ExactCount\",\"count\":1,\"deviceClassName\":\"c\"},\"name\":\"s\"}]}}: field is immutable",
    ])]);
    claim.status_updates(&[(
        "/status/reservedFor",
        json!([{"resource": "pods", "name": "p", "uid": "u"}]),
        &["status.reservedFor: Forbidden: may not be specified when `allocated` is not set"],
    )]);
    let spec = json!({"driver": "d", "nodeName": "n", "pool": {"name": "p", "resourceSliceCount": 1}, "devices": [{"name": "x"}]});
    Subject::new("resource.k8s.io", "resourceslices", json!({ "spec": spec })).creates(&[
        ("/spec/nodeName", Value::Null, &[
            "spec: Required value: exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
        ]),
        ("/spec/devices/0/attributes", json!({"a": {"version": "1.0"}}), &[
            "spec.devices[0].attributes[a].version: Invalid value: \"1.0\": must be a string compatible with semver.org spec 2.0.0",
        ]),
        ("/spec/devices", json!([{"name": "x"}, {"name": "x"}]), &["spec.devices[1]: Duplicate value: \"x\""]),
    ]);
    Subject::new("resource.k8s.io", "deviceclasses", json!({"spec": {}})).creates(&[(
        "/spec/selectors",
        json!([{}]),
        &["spec.selectors[0].cel: Required value"],
    )]);
    let template = json!({"spec": {"spec": {"devices": {"requests": [request]}}}});
    Subject::new("resource.k8s.io", "resourceclaimtemplates", template).creates(&[(
        "/spec/metadata",
        json!({"name": "x"}),
        &["spec.metadata.name: Forbidden: cannot be set"],
    )]);
}

/// Errors refuse every update, also one that leaves the field unchanged.
#[test]
fn an_update_is_refused_for_old_errors() {
    let subject = Subject::new("", "services", json!({"spec": {"ports": [{"port": 80, "appProtocol": "Bad Value!"}]}}));
    let old = subject.changed("/spec/clusterIP", &json!("None"));
    let mut labelled = old.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    for errors in [subject.kind.validate(&old), subject.kind.validate_update(&labelled, &old)] {
        assert!(texts(&errors).iter().any(|error| error.contains("appProtocol")), "{errors:?}");
    }
}
