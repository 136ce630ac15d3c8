//! The flow schemas and priority levels that upstream's API server always has.
//!
//! They are served as objects; this server limits requests in flight by number (see `pipeline::Limits`).

use corten_meta::Value;
use serde_json::json;

use super::Wanted;

const GROUP: &str = "flowcontrol.apiserver.k8s.io";
const AUTOUPDATE: &str = "apf.kubernetes.io/autoupdate-spec";

/// Name, nominal concurrency shares, lendable percent, and queues, hand size and queue length if it queues.
type Level = (&'static str, i64, i64, Option<(i64, i64, i64)>);

const LEVELS: &[Level] = &[
    ("system", 30, 33, Some((64, 6, 50))),
    ("node-high", 40, 25, Some((64, 6, 50))),
    ("leader-election", 10, 0, Some((16, 4, 50))),
    ("workload-high", 40, 50, Some((128, 6, 50))),
    ("workload-low", 100, 90, Some((128, 6, 50))),
    ("global-default", 20, 50, Some((128, 6, 50))),
    ("catch-all", 5, 0, None),
];

pub fn wanted() -> Vec<Wanted> {
    let mut wanted = vec![level(
        "exempt",
        json!({ "type": "Exempt", "exempt": { "nominalConcurrencyShares": 0, "lendablePercent": 0 } }),
    )];
    wanted.extend(LEVELS.iter().map(|(name, shares, lendable, queuing)| {
        let response = match queuing {
            Some((queues, hand, length)) => {
                json!({ "type": "Queue", "queuing": { "queues": queues, "handSize": hand, "queueLengthLimit": length } })
            }
            None => json!({ "type": "Reject" }),
        };
        let limited = json!({ "nominalConcurrencyShares": shares, "lendablePercent": lendable, "limitResponse": response });
        level(name, json!({ "type": "Limited", "limited": limited }))
    }));
    wanted.extend(schemas());
    wanted
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "annotations": { AUTOUPDATE: "true" } })
}

fn level(name: &str, spec: Value) -> Wanted {
    Wanted::new(GROUP, "v1", "prioritylevelconfigurations", json!({ "metadata": metadata(name), "spec": spec }))
}

fn group(name: &str) -> Value {
    json!({ "kind": "Group", "group": { "name": name } })
}

fn user(name: &str) -> Value {
    json!({ "kind": "User", "user": { "name": name } })
}

fn account(namespace: &str, name: &str) -> Value {
    json!({ "kind": "ServiceAccount", "serviceAccount": { "namespace": namespace, "name": name } })
}

fn resources(verbs: &[&str], groups: &[&str], resources: &[&str], namespaces: &[&str], cluster: bool) -> Value {
    let mut rule = json!({ "verbs": verbs, "apiGroups": groups, "resources": resources, "namespaces": namespaces });
    if cluster {
        rule["clusterScope"] = true.into();
    }
    rule
}

fn schema(name: &str, level: &str, precedence: i64, distinguisher: Option<&str>, rules: Vec<Value>) -> Wanted {
    let mut spec = json!({
        "priorityLevelConfiguration": { "name": level }, "matchingPrecedence": precedence, "rules": rules,
    });
    if let Some(by) = distinguisher {
        spec["distinguisherMethod"] = json!({ "type": by });
    }
    Wanted::new(GROUP, "v1", "flowschemas", json!({ "metadata": metadata(name), "spec": spec }))
}

fn rule(subjects: Vec<Value>, resource_rules: Vec<Value>, urls: Option<(&[&str], &[&str])>) -> Value {
    let mut rule = json!({ "subjects": subjects });
    if !resource_rules.is_empty() {
        rule["resourceRules"] = json!(resource_rules);
    }
    if let Some((verbs, urls)) = urls {
        rule["nonResourceRules"] = json!([{ "verbs": verbs, "nonResourceURLs": urls }]);
    }
    rule
}

fn schemas() -> Vec<Wanted> {
    const ALL: &[&str] = &["*"];
    let everything = || resources(ALL, ALL, ALL, ALL, true);
    let any = Some((ALL, ALL));
    let leases = |namespaces: &[&str]| {
        resources(&["get", "create", "update"], &["coordination.k8s.io"], &["leases"], namespaces, false)
    };
    let all = |subjects: Vec<Value>| vec![rule(subjects, vec![everything()], any)];
    let everybody = || vec![group("system:unauthenticated"), group("system:authenticated")];
    let probes: &[&str] = &["/healthz", "/readyz", "/livez"];
    vec![
        schema("exempt", "exempt", 1, None, all(vec![group("system:masters")])),
        schema("probes", "exempt", 2, None, vec![rule(everybody(), Vec::new(), Some((&["get"], probes)))]),
        schema(
            "system-leader-election",
            "leader-election",
            100,
            Some("ByUser"),
            vec![rule(
                vec![
                    user("system:kube-controller-manager"),
                    user("system:kube-scheduler"),
                    account("kube-system", "*"),
                ],
                vec![leases(ALL)],
                None,
            )],
        ),
        schema(
            "endpoint-controller",
            "workload-high",
            150,
            Some("ByUser"),
            vec![rule(
                vec![
                    user("system:kube-controller-manager"),
                    account("kube-system", "endpoint-controller"),
                    account("kube-system", "endpointslicemirroring-controller"),
                ],
                vec![resources(&["get", "create", "update"], &[""], &["endpoints"], ALL, false)],
                None,
            )],
        ),
        schema(
            "workload-leader-election",
            "leader-election",
            200,
            Some("ByUser"),
            vec![rule(vec![account("kube-system", "*")], vec![leases(ALL)], None)],
        ),
        schema(
            "system-node-high",
            "node-high",
            400,
            Some("ByUser"),
            vec![rule(
                vec![group("system:nodes")],
                vec![
                    resources(ALL, &[""], &["nodes", "nodes/status"], ALL, true),
                    resources(ALL, &["coordination.k8s.io"], &["leases"], ALL, false),
                ],
                None,
            )],
        ),
        schema("system-nodes", "system", 500, Some("ByUser"), all(vec![group("system:nodes")])),
        schema(
            "kube-controller-manager",
            "workload-high",
            800,
            Some("ByNamespace"),
            all(vec![user("system:kube-controller-manager")]),
        ),
        schema("kube-scheduler", "workload-high", 800, Some("ByNamespace"), all(vec![user("system:kube-scheduler")])),
        schema(
            "kube-system-service-accounts",
            "workload-high",
            900,
            Some("ByNamespace"),
            all(vec![account("kube-system", "*")]),
        ),
        schema("service-accounts", "workload-low", 9000, Some("ByUser"), all(vec![group("system:serviceaccounts")])),
        schema("global-default", "global-default", 9900, Some("ByUser"), all(everybody())),
        schema("catch-all", "catch-all", 10000, Some("ByUser"), all(everybody())),
    ]
}
