//! Tests of steps, of the order of watches, and of the outputs.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use corten_meta::Value;
use expect_test::expect;
use jiff::Timestamp;
use serde_json::json;

use super::*;

fn at(milliseconds: i64) -> Timestamp {
    Timestamp::from_millisecond(1_767_225_600_000 + milliseconds).unwrap()
}

fn object(kind: &str, name: &str, owner: Option<&str>) -> Value {
    let owners: Vec<Value> = owner.iter().map(|uid| json!({"kind": "Owner", "name": "o", "uid": uid})).collect();
    let managers = json!([{"manager": "kube-controller-manager", "time": "2026-01-01T00:00:00Z"}]);
    json!({"kind": kind, "metadata": {"name": name, "uid": name, "generation": 1, "ownerReferences": owners,
        "managedFields": managers, "creationTimestamp": "2026-01-01T00:00:00Z"}})
}

fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, field) = pointer.rsplit_once('/').unwrap();
    let mut current = &mut object;
    for part in parent.split('/').filter(|part| !part.is_empty()) {
        current = &mut current[part];
    }
    current[field] = value;
    object
}

fn tracer() -> Tracer {
    Tracer::new(vec![Root { kind: "Deployment".to_owned(), name: "web".to_owned() }])
}

fn lines(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("{}\n", step.line(at(0)).trim())).collect()
}

#[test]
fn a_deployment_is_followed_to_its_pods_in_whatever_order_watches_arrive() {
    let deployment = object("Deployment", "web", None);
    let set = object("ReplicaSet", "web-1", Some("web"));
    let pod = object("Pod", "web-1-a", Some("web-1"));
    let other = object("Pod", "other", Some("elsewhere"));
    let orders = [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1], [1, 3, 0, 2]];
    for order in orders {
        let mut tracer = tracer();
        let mut steps = Vec::new();
        for index in order {
            let object = [&deployment, &set, &pod, &other][index].clone();
            steps.extend(tracer.see(object, at(index as i64), false));
        }
        steps.sort_by_key(|step| step.at);
        let names: Vec<&str> = steps.iter().map(|step| step.object.as_str()).collect();
        assert_eq!(names, ["Deployment/web", "ReplicaSet/web-1", "Pod/web-1-a"], "{order:?}");
    }
}

#[test]
fn all_pods_of_a_full_namespace_are_found_after_others() {
    let mut tracer = tracer();
    let pods = |owner: &'static str, count: usize| {
        (0..count).map(move |index| object("Pod", &format!("{owner}-{index}"), Some(owner)))
    };
    tracer.see_existing(vec![object("Deployment", "web", None)], at(0));
    tracer.see_existing(pods("elsewhere", 10_000).collect(), at(0));
    let set = object("ReplicaSet", "web-1", Some("web"));
    tracer.see_existing(pods("web-1", 500).chain([set]).collect(), at(0));
    assert_eq!(tracer.objects().count(), 502);
}

#[test]
fn the_life_of_a_pod() {
    let mut tracer = tracer();
    tracer.see(object("Deployment", "web", None), at(0), true);
    let created = object("Pod", "p", Some("web"));
    let bound = with(created.clone(), "/spec", json!({"nodeName": "n1"}));
    let waits = json!([{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}]);
    let waiting = with(bound.clone(), "/status", json!({"phase": "Pending", "containerStatuses": waits}));
    let condition = json!([{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]);
    let runs = json!([{"name": "c", "state": {"running": {}}}]);
    let status = json!({"phase": "Running", "podIP": "10.1.0.2", "conditions": condition, "containerStatuses": runs});
    let ready = with(bound.clone(), "/status", status);
    let ended = json!([{"name": "c", "state": {"terminated": {"exitCode": 1}}}]);
    let failed = with(bound.clone(), "/status", json!({"phase": "Failed", "containerStatuses": ended}));
    let mut steps = Vec::new();
    for (index, state) in [created, bound, waiting.clone(), waiting, ready, failed].into_iter().enumerate() {
        steps.extend(tracer.see(state, at(10 * index as i64), false));
    }
    expect![[r#"
        0.000  controllers  Pod/p                                     created by kube-controller-manager
        0.010  scheduler    Pod/p                                     bound to node n1
        0.020  kubelet      Pod/p                                     container c waits: ContainerCreating
        0.040  kubelet      Pod/p                                     sandbox and network are set up, address 10.1.0.2
        0.040  kubelet      Pod/p                                     container c runs
        0.040  kubelet      Pod/p                                     Ready is true
        0.050  kubelet      Pod/p                                     container c ended with code 1
        0.050  kubelet      Pod/p                                     failed
    "#]]
    .assert_eq(&lines(&steps));
}

#[test]
fn workloads_endpoints_and_events() {
    let mut tracer = tracer();
    let deployment = object("Deployment", "web", None);
    tracer.see(deployment.clone(), at(0), true);
    let pod = object("Pod", "p", Some("web"));
    tracer.see(pod, at(0), true);
    let slice = with(object("EndpointSlice", "s", None), "/endpoints", json!([]));
    let endpoint = json!([{"targetRef": {"name": "p", "uid": "p"}, "conditions": {"ready": true}}]);
    let event = json!({"kind": "Event", "metadata": {"name": "e", "uid": "e"}, "reason": "Pulled", "message": "Image there\nmore",
        "involvedObject": {"kind": "Pod", "name": "p", "uid": "p"}, "source": {"component": "kubelet"}});
    let scaled = with(deployment.clone(), "/metadata/generation", json!(2));
    let status = json!({"replicas": 2, "conditions": [{"type": "Available", "status": "True"}]});
    let mut steps = Vec::new();
    let states =
        [slice.clone(), with(slice, "/endpoints", endpoint), event, scaled.clone(), with(scaled, "/status", status)];
    for (index, state) in states.into_iter().enumerate() {
        steps.extend(tracer.see(state, at(index as i64), false));
    }
    expect![[r#"
        0.000  controllers  EndpointSlice/s                           created by kube-controller-manager
        0.001  controllers  EndpointSlice/s                           serves p
        0.002  kubelet      Pod/p                                     Pulled: Image there
        0.003  controllers  Deployment/web                            spec changed by kube-controller-manager
        0.004  controllers  Deployment/web                            status: replicas 2
        0.004  controllers  Deployment/web                            Available is true
    "#]]
    .assert_eq(&lines(&steps));
}

#[test]
fn history_is_read_from_the_times_of_objects() {
    let status = json!({
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:01Z"},
            {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:03Z"},
        ],
        "containerStatuses": [{"name": "c", "state": {"running": {"startedAt": "2026-01-01T00:00:02Z"}}}],
    });
    let pod = with(with(object("Pod", "p", None), "/spec", json!({"nodeName": "n1"})), "/status", status);
    let event = json!({"kind": "Event", "metadata": {"name": "e", "uid": "e"}, "reason": "Started", "message": "Container started",
        "eventTime": "2026-01-01T00:00:02.500000Z", "reportingComponent": "kubelet",
        "involvedObject": {"kind": "Pod", "name": "p", "uid": "p"}});
    expect![[r#"
        0.000  controllers  Pod/p                                     created by kube-controller-manager
        1.000  scheduler    Pod/p                                     bound to node n1
        2.000  kubelet      Pod/p                                     container c runs
        2.500  kubelet      Pod/p                                     Started: Container started
        3.000  kubelet      Pod/p                                     Ready is true
    "#]]
    .assert_eq(&lines(&history([&event, &pod])));
    assert!(history([&json!({"kind": "Pod", "metadata": {"creationTimestamp": "nonsense"}})]).is_empty());
}

#[test]
fn objects_settle() {
    let deployment = |replicas: i64, status: Value| {
        json!({"kind": "Deployment", "metadata": {"generation": 2},
        "spec": {"replicas": replicas}, "status": status})
    };
    let done = json!({"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2});
    assert!(is_settled(&deployment(2, done.clone())));
    assert!(!is_settled(&deployment(3, done)));
    assert!(!is_settled(&deployment(2, json!({}))));
    assert!(is_settled(&json!({"kind": "Pod", "status": {"phase": "Failed"}})));
    assert!(!is_settled(&json!({"kind": "Job", "status": {"active": 1}})));
    assert!(is_settled(&json!({"kind": "ConfigMap"})));
}

#[test]
fn a_picture_runs_no_script() {
    let step = Step { at: at(0), actor: Actor::Client, object: "<script>".to_owned(), text: "a & \u{7}b".to_owned() };
    let svg = svg(&[step]);
    assert!(svg.contains("&lt;script&gt; a &amp;  b"), "{svg}");
    assert!(!svg.contains("<script"));
}

#[test]
fn spans_have_a_parent_and_the_steps_as_events() {
    let step = |milliseconds: i64, object: &str| Step {
        at: at(milliseconds),
        actor: Actor::Kubelet,
        object: object.to_owned(),
        text: "runs".to_owned(),
    };
    let request = spans(&[step(0, "Pod/a"), step(5, "Pod/b"), step(9, "Pod/a")], "web", 7);
    let spans = request["resourceSpans"][0]["scopeSpans"][0]["spans"].as_array().unwrap().clone();
    assert_eq!(spans.len(), 3);
    assert_eq!(spans[0]["endTimeUnixNano"], "1767225600009000000");
    assert_eq!(spans[1]["parentSpanId"], spans[0]["spanId"]);
    assert_eq!(spans[1]["events"].as_array().unwrap().len(), 2);
    assert_eq!(super::spans(&[], "web", 7), json!({"resourceSpans": []}));
}

#[test]
fn a_controller_that_writes_a_status_in_the_same_second_did_not_create_the_object() {
    let time = "2026-01-01T00:00:00Z";
    let managers = json!([
        {"manager": "kube-controller-manager", "subresource": "status", "time": time},
        {"manager": "kubectl-create", "time": time},
    ]);
    let deployment = with(object("Deployment", "web", None), "/metadata/managedFields", managers);
    let steps = history([&deployment]);
    assert_eq!(steps[0].to_string(), "2026-01-01T00:00:00Z client Deployment/web: created by kubectl-create");
}
