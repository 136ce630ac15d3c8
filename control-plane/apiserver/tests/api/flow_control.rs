//! Priority and fairness: a client that floods waits for itself.

use std::collections::BTreeMap;

use crate::hook::{Act, Hook};
use crate::server::{TestServer, call};
use serde_json::{Value, json};
use testkit::eventually::eventually;

const GROUP: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

/// Creates a level of one seat that queues `length` requests a queue, and a schema that puts a user into it.
async fn confine(server: &TestServer, user: &str, length: i64) -> (Value, Value) {
    let level = json!({ "metadata": { "name": "narrow" }, "spec": { "type": "Limited", "limited": {
        "nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0,
        "limitResponse": { "type": "Queue", "queuing": { "queues": 1, "handSize": 1, "queueLengthLimit": length } } } } });
    let level = server.post(&format!("{GROUP}/prioritylevelconfigurations"), level).await.expect(201);
    let rules = json!([{ "subjects": [{ "kind": "User", "user": { "name": user } }],
        "resourceRules": [{ "verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true }] }]);
    let schema = json!({ "metadata": { "name": "narrow" }, "spec": {
        "priorityLevelConfiguration": { "name": "narrow" }, "matchingPrecedence": 50, "rules": rules } });
    let schema = server.post(&format!("{GROUP}/flowschemas"), schema).await.expect(201);
    (level, schema)
}

/// Waits until requests of the user are classified under the level.
async fn until_confined(server: &TestServer, user: &str, level: &Value) {
    let user = server.user(user, &["system:masters-not"]);
    eventually("the level is used", async || {
        let answer = call(&user, "GET", "/api/v1/namespaces/default", None, "").await;
        // The FlowSchema is read from a cache.
        let uid = answer.headers.get("x-kubernetes-pf-prioritylevel-uid");
        let is_used = uid.is_some_and(|uid| uid == level["metadata"]["uid"].as_str().unwrap());
        if is_used { Ok(()) } else { Err(format!("{answer:?}")) }
    })
    .await;
}

#[tokio::test]
async fn a_flood_is_refused_and_leases_are_not_delayed() {
    let server = TestServer::start().await;
    let binding = json!({ "metadata": { "name": "all" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
        "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant" },
                     { "apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "other" }] });
    server.post("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", binding).await.expect(201);
    let (level, _) = confine(&server, "tenant", 2).await;
    until_confined(&server, "tenant", &level).await;
    // A hanging webhook delays the requests of the tenant.
    let hook = Hook::start(|_, _| Act::Hang).await;
    let webhook = json!({ "name": "slow.hook.test", "clientConfig": hook.client("/"), "sideEffects": "None",
        "admissionReviewVersions": ["v1"], "timeoutSeconds": 30,
        "rules": [{ "operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["secrets"] }] });
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    server.post(path, json!({ "metadata": { "name": "slow" }, "webhooks": [webhook] })).await.expect(201);
    server.get(path).await.expect(200);
    let write = |name: String| {
        let tenant = server.user("tenant", &[]);
        tokio::spawn(async move {
            let body = json!({ "metadata": { "name": name } });
            call(&tenant, "POST", "/api/v1/namespaces/default/secrets", Some(body), "application/json").await
        })
    };
    // The share of the level is at least one seat; with two in the queue, the rest is refused at once.
    let mut flood: Vec<_> = (0..40).map(|n| write(format!("s{n}"))).collect();
    let mut refused = 0;
    eventually("the rest is refused", async || {
        for answer in flood.extract_if(.., |one| one.is_finished()) {
            let answer = answer.await.unwrap();
            assert_eq!(answer.code, 429, "{}", answer.body);
            assert_eq!(answer.headers["retry-after"], "1");
            refused += 1;
        }
        if refused >= 30 { Ok(()) } else { Err(refused.to_string()) }
    })
    .await;
    let lease = json!({ "metadata": { "name": "n" }, "spec": { "holderIdentity": "n" } });
    let other = server.user("other", &[]);
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    call(&other, "POST", leases, Some(lease), "application/json").await.expect(201);
    // The requests that are not inside by now are still being refused.
    eventually("the others are inside", async || {
        flood.retain(|one| !one.is_finished());
        let inside = inside(&server).await;
        if flood.len() == inside { Ok(()) } else { Err(format!("{} are left, {inside} are inside", flood.len())) }
    })
    .await;
    check_dumps(&server, flood.len()).await;
    flood.iter().for_each(tokio::task::JoinHandle::abort);
}

/// Returns the rows of a dump about the level.
async fn dump(server: &TestServer, what: &str) -> Vec<BTreeMap<String, String>> {
    let path = format!("/debug/api_priority_and_fairness/{what}");
    let text = server.get(&path).await.expect(200);
    let cells = |line: &str| line.split(',').map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let mut lines = text.as_str().unwrap().lines().map(cells);
    let header = lines.next().unwrap();
    let of_level = |line: &Vec<String>| line[0] == "narrow";
    lines.filter(of_level).map(|line| header.iter().cloned().zip(line).collect()).collect()
}

/// Returns how many requests execute or wait.
async fn inside(server: &TestServer) -> usize {
    let level = dump(server, "dump_priority_levels").await.remove(0);
    ["WaitingRequests", "ExecutingRequests"].map(|cell| level[cell].parse::<usize>().unwrap()).iter().sum()
}

/// Checks the dumps of a level with one executing and two waiting requests.
async fn check_dumps(server: &TestServer, inside: usize) {
    let dump = async |what: &str| dump(server, what).await;
    let level = dump("dump_priority_levels").await.remove(0);
    let number = |cell: &str| level[cell].parse::<usize>().unwrap();
    assert_eq!(number("WaitingRequests") + number("ExecutingRequests"), inside, "{level:?}");
    assert_eq!((number("WaitingRequests"), &level["IsIdle"], number("ActiveQueues")), (2, &"false".to_owned(), 1));
    assert!(number("RejectedRequests") >= 30, "{level:?}");
    let queue = dump("dump_queues").await.remove(0);
    assert_eq!((&*queue["Index"], &*queue["PendingRequests"]), ("0", "2"));
    let requests = dump("dump_requests?includeRequestDetails=1").await;
    assert_eq!(requests.len(), inside);
    let attributes = |request: &BTreeMap<String, String>| {
        let cell = |name: &str| request[name].clone();
        [
            cell("UserName"),
            cell("Verb"),
            cell("APIVersion"),
            cell("Resource"),
            cell("Namespace"),
            cell("FlowSchemaName"),
        ]
    };
    assert!(requests.iter().all(|one| attributes(one) == ["tenant", "create", "v1", "secrets", "default", "narrow"]));
    let metrics = server.get("/metrics").await.expect(200);
    let line =
        |start: &str| metrics.as_str().unwrap().lines().find_map(|line| line.strip_prefix(start)).map(str::to_owned);
    let of_level = |name: &str, more: &str| {
        let labels = format!(r#"{{flow_schema="narrow",priority_level="narrow"{more}}} "#);
        line(&format!("apiserver_flowcontrol_{name}{labels}")).and_then(|number| number.parse::<usize>().ok())
    };
    assert_eq!(of_level("current_inqueue_requests", ""), Some(2));
    assert_eq!(of_level("current_executing_requests", ""), Some(inside - 2));
    assert_eq!(of_level("rejected_requests_total", r#",reason="queue-full""#), Some(number("RejectedRequests")));
    assert!(line(r#"apiserver_flowcontrol_nominal_limit_seats{priority_level="narrow"} "#).is_some());
    server.get("/debug/api_priority_and_fairness/other").await.expect(404);
    call(&server.user("jane", &[]), "GET", "/debug/api_priority_and_fairness/dump_queues", None, "").await.expect(403);
}
