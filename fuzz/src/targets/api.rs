//! Objects of the API as clients send them: protobuf, managed fields, defaulting and validation of every kind.

use serde_json::{Value, json};

use super::{json, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "protobuf", seeds: protobuf_seeds, run: protobuf },
    Target { name: "fields", seeds: fields_seeds, run: fields },
    Target { name: "managed-fields", seeds: managed_seeds, run: managed_fields },
    Target { name: "validation", seeds: object_seeds, run: validation },
    Target { name: "typed", seeds: object_seeds, run: typed },
];

/// Returns objects of the kinds with the most to decode.
pub fn objects() -> Vec<Value> {
    let pod = json!({"containers": [{"name": "c", "image": "i:1@sha256:ab", "command": ["a", "$(B)"], "resources":
        {"limits": {"cpu": "100m", "memory": "1Gi"}}, "livenessProbe": {"httpGet": {"port": "http", "path": "/"}},
        "ports": [{"containerPort": 80, "name": "http"}], "env": [{"name": "B", "valueFrom": {"fieldRef":
        {"fieldPath": "metadata.labels['x']"}}}], "securityContext": {"runAsUser": 1, "capabilities": {"add": ["ALL"]}}}],
        "volumes": [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
        "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 3}], "affinity": {"podAffinity":
        {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "z", "labelSelector": {"matchExpressions":
        [{"key": "a", "operator": "In", "values": ["b"]}]}}]}}});
    let template = json!({"metadata": {"labels": {"a": "b"}}, "spec": pod});
    let selector = json!({"matchLabels": {"a": "b"}});
    let of = |version: &str, kind: &str, spec: Value| json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a", "namespace": "default"}, "spec": spec});
    let schema = json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": {"type":
        "integer", "minimum": 1}, "items": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys":
        ["name"], "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string", "pattern":
        "^[a-z]+$", "maxLength": 9, "default": "d"}}}}}, "x-kubernetes-validations": [{"rule": "self.size < 9"}]}}});
    vec![
        of("v1", "Pod", pod),
        of("apps/v1", "Deployment", json!({"replicas": 3, "selector": selector, "template": template})),
        of(
            "batch/v1",
            "CronJob",
            json!({"schedule": "*/5 * * * *", "timeZone": "UTC", "jobTemplate": {"spec":
            {"completions": 3, "completionMode": "Indexed", "successPolicy": {"rules": [{"succeededIndexes": "0-1"}]},
             "template": template}}}),
        ),
        of(
            "v1",
            "Service",
            json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80, "targetPort": "http"}], "selector": {"a": "b"}}),
        ),
        of(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({"podSelector": selector, "ingress": [{"from": [{"ipBlock":
            {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"port": 1, "endPort": 9}]}]}),
        ),
        of(
            "apiextensions.k8s.io/v1",
            "CustomResourceDefinition",
            json!({"group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"}, "versions": [{"name": "v1", "served": true, "storage": true,
            "schema": {"openAPIV3Schema": schema}, "additionalPrinterColumns": [{"name": "s", "type": "string", "jsonPath":
            ".spec.items[?(@.name=='a')].name"}]}]}),
        ),
        of(
            "admissionregistration.k8s.io/v1",
            "ValidatingAdmissionPolicy",
            json!({"matchConstraints": {"resourceRules":
            [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]}, "validations":
            [{"expression": "object.spec.containers.size() < 9", "messageExpression": "'m' + string(1)"}]}),
        ),
        of(
            "flowcontrol.apiserver.k8s.io/v1",
            "FlowSchema",
            json!({"priorityLevelConfiguration": {"name": "p"},
            "matchingPrecedence": 1, "rules": [{"subjects": [{"kind": "Group", "group": {"name": "g"}}], "resourceRules":
            [{"verbs": ["*"], "apiGroups": [""], "resources": ["pods"], "namespaces": ["*"]}]}]}),
        ),
        of(
            "autoscaling/v2",
            "HorizontalPodAutoscaler",
            json!({"scaleTargetRef": {"kind": "Deployment", "name": "a"},
            "maxReplicas": 9, "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type":
            "Utilization", "averageUtilization": 50}}}], "behavior": {"scaleUp": {"policies": [{"type": "Pods", "value": 1,
            "periodSeconds": 5}]}}}),
        ),
        of(
            "resource.k8s.io/v1",
            "ResourceClaim",
            json!({"devices": {"requests": [{"name": "r", "exactly":
            {"deviceClassName": "c", "selectors": [{"cel": {"expression": "device.driver == 'd'"}}]}}]}}),
        ),
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "a"}, "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": "e30="}}),
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": "a"}, "rules":
            [{"verbs": ["get"], "apiGroups": ["*"], "resources": ["pods/log"], "resourceNames": ["x"]}]}),
    ]
}

fn object_seeds() -> Vec<Vec<u8>> {
    objects().iter().map(|object| object.to_string().into_bytes()).collect()
}

pub fn kind_of(object: &Value) -> Option<&'static corten_api::Kind> {
    let version = object["apiVersion"].as_str()?;
    let (group, version) = version.split_once('/').unwrap_or(("", version));
    corten_api::by_gvk(group, version, object["kind"].as_str()?).map(|kind| &**kind)
}

/// Returns seeds that begin with the type of the message: its index among the kinds.
fn protobuf_seeds() -> Vec<Vec<u8>> {
    let seed = |object: &Value| {
        let kind = kind_of(object)?;
        let number = corten_api::kinds().iter().position(|known| known.schema == kind.schema)?;
        Some([&[number as u8][..], &corten_apiserver::fuzz::to_protobuf(object, &kind.schema)].concat())
    };
    objects().iter().filter_map(seed).collect()
}

fn protobuf(input: &[u8]) {
    let Some((number, body)) = input.split_first() else { return };
    let kinds = corten_api::kinds();
    let schema = &kinds[usize::from(*number) % kinds.len()].schema;
    let Some(value) = corten_apiserver::fuzz::protobuf(body, schema) else { return };
    let written = corten_apiserver::fuzz::to_protobuf(&value, schema);
    let again = corten_apiserver::fuzz::protobuf(&written, schema).expect("what was written is read");
    let twice = corten_apiserver::fuzz::to_protobuf(&again, schema);
    assert_eq!(written, twice, "a message is written the same again");
}

fn fields_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"f:metadata":{"f:labels":{".":{},"f:x":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\",\"p\":1}":{".":{}}},
        "f:finalizers":{"v:\"f\"":{},"i:3":{}}}}"#,
    ])
}

fn fields(input: &[u8]) {
    let Some(value) = json(input) else { return };
    let Some(written) = corten_apiserver::fuzz::fields(&value) else { return };
    let again = corten_apiserver::fuzz::fields(&written).expect("what was written is read");
    assert_eq!(again, written, "fields are written the same again");
}

fn managed_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"[{"manager":"m","operation":"Apply","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1",
        "fieldsV1":{"f:data":{"f:a":{}}},"subresource":"status"},{"manager":"n","operation":"Update","apiVersion":"apps/v1"}]"#,
    ])
}

fn managed_fields(input: &[u8]) {
    let Some(value) = json(input) else { return };
    let Some(written) = corten_apiserver::fuzz::managed_fields(&value) else { return };
    let again = corten_apiserver::fuzz::managed_fields(&written);
    assert_eq!(again.as_ref(), Some(&written), "managers are written the same again");
}

/// Checks, prunes, defaults and validates an object, also as an update of itself.
fn validation(input: &[u8]) {
    let Some(mut object) = json(input) else { return };
    let Some(kind) = kind_of(&object) else { return };
    let report = corten_api::check_fields(&kind.schema, &object);
    if !report.type_errors.is_empty() || kind.behaviour.unreadable(&object).is_some() {
        return;
    }
    report.restore_quantities(&mut object);
    corten_api::prune(&kind.schema, &mut object);
    let given = object.clone();
    kind.default(&mut object);
    if kind.validate(&object).is_empty() {
        let mut twice = object.clone();
        kind.default(&mut twice);
        assert_eq!(twice, object, "defaulting twice changes nothing");
    }
    let _ = kind.validate_update(&object, &given);
    let _ = kind.validate_status_update(&object, &given);
    let _ = kind.cells(&object, corten_meta::time::now());
    kind.drop_gated(&mut object, None);
    kind.settle(&mut object);
}

fn typed(input: &[u8]) {
    let Some(object) = json(input) else { return };
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let round_trip = |bytes: &[u8]| corten_api::typed::round_trip(&text("apiVersion"), &text("kind"), bytes);
    let Some(Ok(written)) = round_trip(input) else { return };
    let again = round_trip(&written).and_then(Result::ok);
    assert_eq!(again.as_ref(), Some(&written), "an object is written the same again");
}
