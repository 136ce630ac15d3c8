//! The queues of pods, and the events that wake them.

use super::*;
use crate::rows::tests::{node, typed_pod};
use serde_json::json;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn queue() -> (Queue, Snapshot) {
    let profile = Profile::by_default();
    let profiles = Arc::new(Profiles::from([(profile.name.clone(), Arc::new(profile))]));
    let queue = Queue::new(profiles, Duration::from_secs(1), Duration::from_secs(10), Arc::default());
    (queue, Snapshot::default())
}

fn row(snapshot: &mut Snapshot, name: &str, priority: i32) -> Arc<PodRow> {
    let containers = json!([{"name": "c", "resources": {"requests": {"cpu": "2"}}}]);
    Arc::new(snapshot.row(typed_pod(name, json!({"priority": priority, "containers": containers}))))
}

fn rejected(queue: &mut Queue, snapshot: &mut Snapshot, name: &str, plugin: &'static str) {
    let pod = row(snapshot, name, 0);
    queue.add(pod, at(0));
    let entry = queue.pop(at(0)).unwrap();
    queue.put_back(entry, vec![plugin]);
}

#[test]
fn important_pods_go_first_and_equals_in_order() {
    let (mut queue, mut snapshot) = queue();
    for (second, (name, priority)) in [("a", 0), ("b", 0), ("c", 10)].into_iter().enumerate() {
        let pod = row(&mut snapshot, name, priority);
        queue.add(pod, at(second as i64));
    }
    let order: Vec<Arc<str>> = std::iter::from_fn(|| queue.pop(at(9))).map(|entry| entry.pod.uid.clone()).collect();
    assert_eq!(order, ["c", "a", "b"].map(Arc::from));
}

#[test]
fn a_rejected_pod_waits_for_an_event_that_helps() {
    let (mut queue, mut snapshot) = queue();
    rejected(&mut queue, &mut snapshot, "a", "NodeResourcesFit");
    assert!(queue.pop(at(100)).is_none());
    let other = row(&mut snapshot, "other", 0);
    queue.wake(&ClusterEvent::PodPlaced(&other), &snapshot, at(100));
    assert!(queue.pop(at(100)).is_none(), "a pod more does not make room");
    snapshot.set_node(node("small", "1", json!({})));
    queue.wake(&ClusterEvent::NodeAdded(snapshot.find("small").unwrap()), &snapshot, at(100));
    assert!(queue.pop(at(100)).is_none(), "a node too small does not help");
    snapshot.set_node(node("large", "4", json!({})));
    queue.wake(&ClusterEvent::NodeAdded(snapshot.find("large").unwrap()), &snapshot, at(100));
    assert!(queue.pop(at(100)).is_some());
}

#[test]
fn room_on_a_node_wakes_only_those_it_is_enough_for() {
    let (mut queue, mut snapshot) = queue();
    snapshot.set_node(node("n", "3", json!({})));
    rejected(&mut queue, &mut snapshot, "a", "NodeResourcesFit");
    let mut gone = (*row(&mut snapshot, "gone", 5)).clone();
    gone.node_name = "n".to_owned();
    let mut stays = gone.clone();
    stays.uid = "stays".into();
    snapshot.add_pod(Arc::new(stays));
    queue.wake(&ClusterEvent::PodRemoved(&gone), &snapshot, at(50));
    assert!(queue.pop(at(50)).is_none(), "one processor is left, two are asked for");
    snapshot.remove_pod("stays");
    queue.wake(&ClusterEvent::PodRemoved(&gone), &snapshot, at(50));
    assert!(queue.pop(at(50)).is_some());
}

#[test]
fn a_woken_pod_in_backoff_is_tried_when_nothing_else_is() {
    let (mut queue, mut snapshot) = queue();
    rejected(&mut queue, &mut snapshot, "a", "NodeResourcesFit");
    snapshot.set_node(node("n", "4", json!({})));
    queue.wake(&ClusterEvent::NodeAdded(snapshot.find("n").unwrap()), &snapshot, at(0));
    assert_eq!(queue.lengths(), [0, 1, 0, 0]);
    assert!(queue.pop(at(0)).is_some());
}

#[test]
fn an_error_backs_off_and_doubles() {
    let (mut queue, mut snapshot) = queue();
    let pod = row(&mut snapshot, "a", 0);
    queue.add(pod, at(0));
    for (tried, next) in [(0, 1), (1, 3), (3, 7), (7, 15), (15, 25), (25, 35)] {
        let entry = queue.pop(at(tried)).unwrap();
        queue.put_back(entry, vec![]);
        assert!(queue.pop(at(tried)).is_none());
        assert_eq!(queue.next_deadline(), Some(at(next)));
    }
}

#[test]
fn a_gated_pod_waits_for_its_gates_to_go() {
    let (mut queue, mut snapshot) = queue();
    let gated = snapshot.row(typed_pod("a", json!({"schedulingGates": [{"name": "g"}], "containers": []})));
    assert!(queue.add(Arc::new(gated), at(0)).is_some());
    assert!(queue.pop(at(1000)).is_none());
    let free = snapshot.row(typed_pod("a", json!({"containers": []})));
    assert!(queue.add(Arc::new(free), at(0)).is_none());
    assert!(queue.pop(at(1000)).is_some());
}

#[test]
fn a_status_update_of_a_rejected_pod_is_no_news() {
    let (mut queue, mut snapshot) = queue();
    rejected(&mut queue, &mut snapshot, "a", "NodeName");
    let mut again = (*row(&mut snapshot, "a", 0)).clone();
    again.revision += 1;
    queue.add(Arc::new(again), at(50));
    assert_eq!(queue.lengths(), [0, 0, 1, 0]);
    let pod = row(&mut snapshot, "a", 7);
    queue.add(pod, at(50));
    assert_eq!(queue.lengths(), [1, 0, 0, 0]);
}

#[test]
fn a_status_update_does_not_put_a_woken_pod_to_sleep_again() {
    let (mut queue, mut snapshot) = queue();
    rejected(&mut queue, &mut snapshot, "a", "NodeResourcesFit");
    snapshot.set_node(node("n", "4", json!({})));
    queue.wake(&ClusterEvent::NodeAdded(snapshot.find("n").unwrap()), &snapshot, at(0));
    let again = row(&mut snapshot, "a", 0);
    queue.add(again.clone(), at(0));
    assert_eq!(queue.lengths(), [0, 1, 0, 0], "it sits out its backoff");
    let entry = queue.pop(at(2)).unwrap();
    queue.put_back(entry, vec!["NodeResourcesFit"]);
    queue.wake(&ClusterEvent::NodeAdded(snapshot.find("n").unwrap()), &snapshot, at(60));
    queue.add(again, at(60));
    assert_eq!(queue.lengths(), [1, 0, 0, 0], "it is to be tried");
}

#[test]
fn a_forgotten_pod_is_tried_after_five_minutes() {
    let (mut queue, mut snapshot) = queue();
    rejected(&mut queue, &mut snapshot, "a", "NodeName");
    assert_eq!(queue.next_deadline(), Some(at(300)));
    assert!(queue.pop(at(299)).is_none());
    assert!(queue.pop(at(300)).is_some());
    assert_eq!(queue.lengths(), [0; 4]);
}
