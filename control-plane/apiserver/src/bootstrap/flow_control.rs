//! The FlowSchemas and PriorityLevelConfigurations that upstream's API server always has.
//!
//! The exempt and the catch-all ones are mandatory: changes of their specs are reverted. The others are updated by this
//! program as long as their annotation allows it.

use corten_meta::Value;
use corten_meta::quote::quote;
use serde_json::json;

use super::Wanted;

/// The field manager of the server's Dangling condition.
pub const CONSUMER: &str = "api-priority-and-fairness-config-consumer-v1";

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

/// Returns the objects without which requests could not be classified.
pub fn mandatory() -> Vec<Wanted> {
    wanted().into_iter().filter(|w| matches!(corten_meta::name(&w.object), "exempt" | "catch-all")).collect()
}

/// Restores a spec that this program manages.
fn repair(present: &Value, wanted: &Value) -> Option<Value> {
    let mandatory = matches!(corten_meta::name(wanted), "exempt" | "catch-all");
    let followed = corten_meta::annotations(present).get(AUTOUPDATE).is_some_and(|value| value == "true");
    if !(mandatory || followed) || covers(&present["spec"], &wanted["spec"]) {
        return None;
    }
    let mut object = present.clone();
    object["spec"] = wanted["spec"].clone();
    Some(object)
}

/// Reports whether a value contains all fields of another; it may have defaults in addition.
fn covers(present: &Value, wanted: &Value) -> bool {
    match (present, wanted) {
        (Value::Object(present), Value::Object(wanted)) => {
            wanted.iter().all(|(key, value)| present.get(key).is_some_and(|p| covers(p, value)))
        }
        (Value::Array(present), Value::Array(wanted)) => {
            present.len() == wanted.len() && present.iter().zip(wanted).all(|(p, w)| covers(p, w))
        }
        (present, wanted) => present == wanted,
    }
}

fn metadata(name: &str) -> Value {
    json!({ "name": name, "annotations": { AUTOUPDATE: "true" } })
}

/// Makes an object with the server's field manager, which is repaired at each start.
fn produced(plural: &'static str, object: Value) -> Wanted {
    let author = "api-priority-and-fairness-config-producer-v1";
    Wanted { author, ..Wanted::new(GROUP, "v1", plural, object).repaired_by(repair) }
}

fn level(name: &str, spec: Value) -> Wanted {
    produced("prioritylevelconfigurations", json!({ "metadata": metadata(name), "spec": spec }))
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
    let message = format!(
        "This FlowSchema references the PriorityLevelConfiguration object named {} and it exists",
        quote(level)
    );
    let condition = json!({ "type": "Dangling", "status": "False", "reason": "Found", "message": message,
                            "lastTransitionTime": corten_meta::time::rfc3339(jiff::Timestamp::now()) });
    let status = json!({ "conditions": [condition] });
    let object = json!({ "metadata": metadata(name), "spec": spec, "status": status });
    Wanted { status_author: Some(CONSUMER), ..produced("flowschemas", object) }
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

const ALL: &[&str] = &["*"];

fn schemas() -> Vec<Wanted> {
    let all_users = || vec![group("system:unauthenticated"), group("system:authenticated")];
    let kube_system = || account("kube-system", "*");
    let open = |name, level, precedence, by, subjects| {
        let rules = vec![rule(subjects, vec![resources(ALL, ALL, ALL, ALL, true)], Some((ALL, ALL)))];
        schema(name, level, precedence, by, rules)
    };
    let by_user = Some("ByUser");
    let by_namespace = Some("ByNamespace");
    let controller_manager = || user("system:kube-controller-manager");
    let scheduler = || user("system:kube-scheduler");
    let elected = vec![controller_manager(), scheduler(), kube_system()];
    vec![
        open("exempt", "exempt", 1, None, vec![group("system:masters")]),
        schema("probes", "exempt", 2, None, vec![probes(all_users())]),
        schema("system-leader-election", "leader-election", 100, by_user, vec![leader_election(elected)]),
        schema("system-node-high", "node-high", 400, by_user, vec![nodes()]),
        open("system-nodes", "system", 500, by_user, vec![group("system:nodes")]),
        open("kube-controller-manager", "workload-high", 800, by_namespace, vec![controller_manager()]),
        open("kube-scheduler", "workload-high", 800, by_namespace, vec![scheduler()]),
        open("kube-system-service-accounts", "workload-high", 900, by_namespace, vec![kube_system()]),
        open("service-accounts", "workload-low", 9000, by_user, vec![group("system:serviceaccounts")]),
        open("global-default", "global-default", 9900, by_user, all_users()),
        open("catch-all", "catch-all", 10000, by_user, all_users()),
    ]
}

fn probes(subjects: Vec<Value>) -> Value {
    rule(subjects, Vec::new(), Some((&["get"], &["/healthz", "/readyz", "/livez"])))
}

fn leader_election(subjects: Vec<Value>) -> Value {
    let leases = resources(&["get", "create", "update"], &["coordination.k8s.io"], &["leases"], ALL, false);
    rule(subjects, vec![leases], None)
}

fn nodes() -> Value {
    let nodes = resources(ALL, &[""], &["nodes", "nodes/status"], ALL, true);
    let leases = resources(ALL, &["coordination.k8s.io"], &["leases"], ALL, false);
    rule(vec![group("system:nodes")], vec![nodes, leases], None)
}
