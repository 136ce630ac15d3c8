//! The life of a simulated pod, by tables and by property: the status of each act is merged into the object, and read
//! again.

use super::*;
use proptest::prelude::*;

fn object(policy: &str, status: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", "namespace": "prod", "uid": "u-1"},
        "spec": {"nodeName": "n1", "restartPolicy": policy, "containers": [{"name": "c", "image": "i"}]},
        "status": status,
    })
}

fn read(value: &Value) -> Pod {
    Pod::read(&Object::from_value(value, 1).unwrap()).unwrap()
}

fn times(fail_rate: f64) -> PodTimes {
    let second = Duration::from_secs;
    PodTimes { start: second(2), run: second(30), stop: second(5), fail_rate }
}

fn facts() -> Facts {
    let now = Timestamp::from_second(1_700_000_000).unwrap();
    Facts { host: Ipv4Addr::new(198, 18, 0, 1), pod: Some(Ipv4Addr::new(10, 244, 0, 2)), now }
}

/// Merges the status of an act into the object. Lists are complete in each status.
fn act(value: &mut Value, action: Action) {
    let patch = status(&read(value), action, &facts()).unwrap();
    corten_meta::patch::merge_patch(value, &patch);
}

#[test]
fn the_next_act_follows_from_the_object() {
    let pending = json!({"phase": "Pending"});
    let admitted = json!({"phase": "Pending", "startTime": "2026-01-01T00:00:00Z"});
    let ready = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
        "conditions": [{"type": "Ready", "status": "True"}]});
    let crashed = json!({"phase": "Running", "startTime": "2026-01-01T00:00:00Z",
        "containerStatuses": [{"restartCount": 3}]});
    let done = json!({"phase": "Succeeded", "startTime": "2026-01-01T00:00:00Z"});
    for (policy, status, fail_rate, expected) in [
        ("Always", &pending, 0.0, Some((Action::Admit, 0))),
        ("Always", &admitted, 0.0, Some((Action::Start, 2))),
        ("Always", &admitted, 1.0, Some((Action::Crash, 2))),
        ("OnFailure", &admitted, 1.0, Some((Action::Crash, 2))),
        ("Never", &admitted, 1.0, Some((Action::Fail, 2))),
        ("Always", &ready, 1.0, None),
        ("Never", &ready, 0.0, Some((Action::Complete, 30))),
        ("OnFailure", &ready, 0.0, Some((Action::Complete, 30))),
        ("Always", &crashed, 0.0, Some((Action::Start, 40))),
        ("Never", &done, 0.0, None),
    ] {
        let pod = read(&object(policy, status.clone()));
        let found = next(&pod, &times(fail_rate)).map(|due| (due.action, due.after.as_secs()));
        assert_eq!(found, expected, "{policy} {status}");
        let deleted = Pod { deleted: Some(3), ..pod };
        let runs = deleted.admitted && deleted.phase != Phase::Succeeded;
        let after = Duration::from_secs(if runs { 3 } else { 0 });
        assert_eq!(next(&deleted, &times(fail_rate)), Some(Due { action: Action::Remove, after }), "{status}");
    }
}

#[test]
fn a_pod_becomes_ready_with_its_addresses() {
    let mut value = object("Always", json!({}));
    act(&mut value, Action::Admit);
    assert_eq!(value["status"]["podIP"], Value::Null);
    assert_eq!(value["status"]["containerStatuses"][0]["state"]["waiting"]["reason"], "ContainerCreating");
    act(&mut value, Action::Start);
    assert_eq!(value["status"]["podIP"], "10.244.0.2");
    assert_eq!(value["status"]["hostIP"], "198.18.0.1");
    assert!(value["status"]["startTime"].is_string());
    assert!(read(&value).ready);
    value["spec"]["hostNetwork"] = json!(true);
    act(&mut value, Action::Start);
    assert_eq!(value["status"]["podIP"], "198.18.0.1");
    act(&mut value, Action::Crash);
    let pod = read(&value);
    assert_eq!((pod.ready, pod.restarts), (false, 1));
}

#[test]
fn failures_are_as_frequent_as_their_rate_and_the_same_in_every_run() {
    let pod = read(&object("Always", json!({})));
    let failed = |rate: f64| (0..2000).filter(|n| fails(&Pod { uid: format!("u-{n}"), ..pod.clone() }, rate)).count();
    assert_eq!(failed(0.0), 0);
    assert_eq!(failed(1.0), 2000);
    assert!((400..600).contains(&failed(0.25)), "{}", failed(0.25));
    assert_eq!(failed(0.25), failed(0.25));
}

#[test]
fn other_objects_and_unbound_pods_are_none() {
    let mut value = object("Always", json!({}));
    value["spec"]["nodeName"] = json!("");
    assert_eq!(Pod::read(&Object::from_value(&value, 1).unwrap()), None);
    value["spec"] = json!("x");
    assert_eq!(Pod::read(&Object::from_value(&value, 1).unwrap()), None);
}

proptest! {
    /// Whatever its policy and the rate of failures, a pod reaches a state in which its kubelet rests, never leaves the
    /// last phase, and is removed once it is deleted.
    #[test]
    fn every_pod_comes_to_rest(policy in 0..3usize, rate in 0.0..0.9f64, uid in "[a-f0-9]{8}", deleted_after in 0..20usize) {
        let policy = ["Always", "OnFailure", "Never"][policy];
        let mut value = object(policy, json!({}));
        value["metadata"]["uid"] = json!(uid);
        let mut acts = 0;
        while let Some(due) = next(&read(&value), &times(rate)) {
            if due.action == Action::Remove {
                break;
            }
            let before = read(&value);
            act(&mut value, due.action);
            let after = read(&value);
            prop_assert_ne!(&before, &after, "{:?} changes the pod", due.action);
            prop_assert!(!matches!(before.phase, Phase::Succeeded | Phase::Failed));
            acts += 1;
            if acts == deleted_after {
                value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
                value["metadata"]["deletionGracePeriodSeconds"] = json!(30);
            }
            prop_assert!(acts < 1000, "no rest after {} acts", acts);
        }
        let pod = read(&value);
        let rests = pod.deleted.is_some() || pod.ready || matches!(pod.phase, Phase::Succeeded | Phase::Failed);
        prop_assert!(rests);
    }
}
