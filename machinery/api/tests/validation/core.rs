//! Tests of Services, nodes, quotas and the other kinds of the core group.

use serde_json::json;

use super::Subject;

fn service() -> Subject {
    Subject::new("", "services", json!({"spec": {"ports": [{"port": 80}]}}))
}

#[test]
fn services() {
    service().creates(&[
        ("/metadata/name", json!("1a"), &[]),
        ("/spec/ports", json!([]), &["spec.ports: Required value"]),
        ("/spec/clusterIP", json!("None"), &[]),
        ("/spec/ports", json!([{"port": 80}, {"port": 81}]), &[
            "spec.ports[0].name: Required value",
            "spec.ports[1].name: Required value",
        ]),
        ("/spec/ports", json!([{"port": 80, "nodePort": 30000}]), &[
            "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
        ]),
        ("/spec/type", json!("Odd"), &[
            "spec.type: Unsupported value: \"Odd\": supported values: \"ClusterIP\", \"ExternalName\", \"LoadBalancer\", \"NodePort\"",
        ]),
        ("/spec/type", json!("ExternalName"), &["spec.externalName: Required value"]),
        ("/spec/clusterIP", json!("010.0.0.1"), &[
            "spec.clusterIPs[0]: Invalid value: \"010.0.0.1\": must not have leading 0s",
        ]),
        ("/spec/externalIPs", json!(["127.0.0.1"]), &[
            "spec.externalIPs[0]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ]),
        ("/spec/sessionAffinity", json!("ClientIP"), &[]),
        ("/spec/trafficDistribution", json!("Far"), &[
            "spec.trafficDistribution: Unsupported value: \"Far\": supported values: \"PreferClose\", \"PreferSameZone\", \"PreferSameNode\"",
        ]),
        ("/spec/loadBalancerSourceRanges", json!(["10.0.0.0/8"]), &[
            "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ]),
        ("/spec/loadBalancerClass", json!("a/b"), &[
            "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
        ]),
    ]);
    let mut stored = service();
    stored.good["spec"]["clusterIP"] = "10.96.0.5".into();
    stored.good["spec"]["clusterIPs"] = json!(["10.96.0.5"]);
    stored.good["spec"]["ipFamilies"] = json!(["IPv4"]);
    stored.updates(&[
        ("/spec/clusterIPs", json!(["10.96.0.6"]), &[
            "spec.clusterIPs[0]: Invalid value: [\"10.96.0.6\"]: may not change once set",
            "spec.clusterIPs: Invalid value: [\"10.96.0.6\"]: first value must match `clusterIP`",
        ]),
        ("/spec/ipFamilies", json!(["IPv6"]), &[
            "spec.ipFamilies[0]: Invalid value: [\"IPv6\"]: may not change once set",
            "spec.clusterIPs[0]: Invalid value: \"10.96.0.5\": expected an IPv6 value as indicated by `ipFamilies[0]`",
        ]),
    ]);
    stored.status_updates(&[(
        "/status/loadBalancer/ingress",
        json!([{"ip": "1.2.3.4"}]),
        &["status.loadBalancer.ingress: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"],
    )]);
}

#[test]
fn nodes_and_namespaces() {
    let mut node = Subject::new("", "nodes", json!({"spec": {}}));
    node.creates(&[
        ("/spec/taints", json!([{"key": "a", "effect": "NoExecute"}, {"key": "a", "effect": "NoExecute"}]), &[
            "metadata.taints[1]: Duplicate value: {\"effect\":\"NoExecute\",\"key\":\"a\"}: taints must be unique by key and effect pair",
        ]),
        ("/spec/podCIDRs", json!(["10.0.0.0/24", "10.0.1.0/24"]), &[
            "spec.podCIDRs: Invalid value: [\"10.0.0.0/24\",\"10.0.1.0/24\"]: may specify no more than one CIDR for each IP family",
        ]),
    ]);
    node.good["spec"] = json!({"podCIDR": "10.0.0.0/24", "podCIDRs": ["10.0.0.0/24"], "providerID": "a"});
    node.updates(&[
        (
            "/spec/providerID",
            json!("b"),
            &["spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid"],
        ),
        ("/spec/unschedulable", json!(true), &[]),
    ]);
    let namespace = Subject::new("", "namespaces", json!({"spec": {}}));
    namespace.creates(&[("/spec/finalizers", json!(["odd"]), &[
        "spec.finalizers: Invalid value: \"odd\": name is neither a standard finalizer name nor is it fully qualified",
    ])]);
    namespace.status_updates(&[(
        "/status/phase",
        json!("Terminating"),
        &["status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"],
    )]);
}

#[test]
fn quotas_and_limits() {
    let quota = Subject::new("", "resourcequotas", json!({"spec": {"hard": {"pods": "5", "requests.cpu": "1"}}}));
    quota.creates(&[
        ("/spec/hard", json!({"pods": "-1"}), &[
            "spec.hard[pods]: Invalid value: \"-1\": must be greater than or equal to 0",
        ]),
        ("/spec/hard", json!({"count/pods": "1", "odd": "1"}), &[
            "spec.hard[odd]: Invalid value: \"odd\": must be a standard resource type or fully qualified",
            "spec.hard[odd]: Invalid value: \"odd\": must be a standard resource for quota",
        ]),
        ("/spec/scopes", json!(["BestEffort"]), &[
            "spec.scopes: Invalid value: [\"BestEffort\"]: unsupported scope applied to resource",
        ]),
        ("/spec/scopeSelector", json!({"matchExpressions": [{"scopeName": "Terminating", "operator": "In", "values": ["a"]}]}), &[
            "spec.scopeSelector.matchExpressions.operator: Invalid value: \"In\": must be 'Exists' when scope is any of ResourceQuotaScopeTerminating, ResourceQuotaScopeNotTerminating, ResourceQuotaScopeBestEffort, ResourceQuotaScopeNotBestEffort or ResourceQuotaScopeCrossNamespacePodAffinity",
        ]),
    ]);
    quota.updates(&[(
        "/spec/scopes",
        json!(["NotTerminating"]),
        &["spec.scopes: Invalid value: [\"NotTerminating\"]: field is immutable"],
    )]);
    let limit = |limit| json!([limit]);
    let ratio = |min: &str, max: &str, ratio: &str| json!([{"type": "Container", "min": {"cpu": min}, "max": {"cpu": max}, "maxLimitRequestRatio": {"cpu": ratio}}]);
    Subject::new("", "limitranges", json!({"spec": {"limits": []}})).creates(&[
        ("/spec/limits", limit(json!({"type": "Container", "min": {"cpu": "1"}, "max": {"cpu": "2"}})), &[]),
        ("/spec/limits", limit(json!({"type": "Pod", "min": {"cpu": "3"}, "max": {"cpu": "2"}})), &[
            "spec.limits[0].min[cpu]: Invalid value: \"3\": min value 3 is greater than max value 2",
        ]),
        // Upstream computes with integers, and so accepts a ratio that overflows.
        ("/spec/limits", ratio("1", "2", "9223372036854775808"), &[]),
        ("/spec/limits", ratio("1", "2", "9223372036854775807"), &[
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"9223372036854775807\": ratio 9223372036854775807 is greater than max/min = 2.000000",
        ]),
        ("/spec/limits", ratio("1", "2", "1e19"), &[]),
        ("/spec/limits", ratio("1", "2", "0.999"), &[
            "spec.limits[0].maxLimitRequestRatio[cpu]: Invalid value: \"999m\": ratio 999m is less than 1",
        ]),
        ("/spec/limits", limit(json!({"type": "Pod", "default": {"cpu": "1"}})), &[
            "spec.limits[0].default: Forbidden: may not be specified when `type` is 'Pod'",
        ]),
        ("/spec/limits", limit(json!({"type": "Odd"})), &[
            "spec.limits[0].type: Invalid value: \"Odd\": must be a standard limit type or fully qualified",
        ]),
        ("/spec/limits", limit(json!({"type": "PersistentVolumeClaim"})), &[
            "spec.limits[0].limits: Required value: either minimum or maximum storage value is required, but neither was provided",
        ]),
    ]);
}

#[test]
fn endpoints_and_secrets() {
    Subject::new("", "endpoints", json!({"subsets": []})).creates(&[
        ("/subsets", json!([{"addresses": [{"ip": "10.0.0.1"}], "ports": [{"port": 80}]}]), &[]),
        ("/subsets", json!([{"addresses": [{"ip": "169.254.0.1"}]}]), &[
            "subsets[0].addresses[0].ip: Invalid value: \"169.254.0.1\": may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        ]),
        ("/subsets", json!([{}]), &[
            "subsets[0]: Required value: must specify `addresses` or `notReadyAddresses`",
        ]),
    ]);
    let secret =
        Subject::new("", "secrets", json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}));
    secret.creates(&[("/data", json!({"tls.crt": ""}), &["data[tls.key]: Required value"])]);
    let key =
        Subject::new("", "secrets", json!({"type": "kubernetes.io/ssh-auth", "data": {"ssh-privatekey": "YQ=="}}));
    key.creates(&[("/data/ssh-privatekey", json!(""), &["data[ssh-privatekey]: Required value"])]);
    let registry =
        Subject::new("", "secrets", json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": "e30="}}));
    let unread = |why: &str| format!("data[.dockercfg]: Invalid value: \"<secret contents redacted>\": {why}");
    registry.creates(&[
        ("/data/.dockercfg", json!("bnVsbA=="), &[]),
        ("/data/.dockercfg", json!(""), &[&unread("unexpected end of JSON input")]),
        ("/data/.dockercfg", json!("Ug=="), &[&unread("invalid character 'R' looking for beginning of value")]),
        (
            "/data/.dockercfg",
            json!("W10="),
            &[&unread("json: cannot unmarshal array into Go value of type map[string]interface {}")],
        ),
    ]);
    secret.updates(&[("/type", json!("Opaque"), &["type: Invalid value: \"Opaque\": field is immutable"])]);
    Subject::new("", "secrets", json!({"immutable": true, "data": {"a": "YQ=="}})).updates(&[(
        "/data",
        json!({}),
        &["data: Forbidden: field is immutable when `immutable` is set"],
    )]);
}

#[test]
fn an_immutable_config_map_may_have_an_empty_map() {
    let fixed = |field: &str| format!("{field}: Forbidden: field is immutable when `immutable` is set");
    Subject::new("", "configmaps", json!({"immutable": true})).updates(&[
        ("/data", json!({}), &[]),
        ("/data", json!({"a": "b"}), &[&fixed("data")]),
        ("/binaryData", json!({}), &[&fixed("binaryData")]),
    ]);
    Subject::new("", "secrets", json!({"immutable": true})).updates(&[("/data", json!({}), &[&fixed("data")])]);
}

#[test]
fn finalizers_have_a_domain_where_upstream_wants_one() {
    let finalizers = "/metadata/finalizers";
    Subject::new("", "configmaps", json!({})).creates(&[
        (finalizers, json!(["example.com/keep", "orphan"]), &[]),
        (finalizers, json!(["keep"]), &[
            "metadata.finalizers[0]: Invalid value: \"keep\": name is neither a standard finalizer name nor is it fully qualified",
        ]),
    ]);
    Subject::new("coordination.k8s.io", "leases", json!({"spec": {}})).creates(&[(finalizers, json!(["keep"]), &[])]);
}
