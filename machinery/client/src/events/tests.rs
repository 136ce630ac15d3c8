//! Tests of events end to end over a server in memory, and of the correlator by itself.

use super::*;
use crate::fake::FakeServer;
use jiff::ToSpan;

fn web() -> ObjectRef {
    ObjectRef {
        kind: "Pod".into(),
        namespace: "prod".into(),
        name: "web".into(),
        uid: "u".into(),
        ..ObjectRef::default()
    }
}

fn recorder() -> EventRecorder {
    let (queue, _) = mpsc::channel(1);
    EventRecorder { queue, component: "kubelet".into(), host: "n1".into() }
}

fn at(seconds: i64) -> Timestamp {
    Timestamp::new(1_700_000_000, 0).unwrap() + seconds.seconds()
}

fn event(reason: &str, message: &str, now: Timestamp) -> Event {
    recorder().make(&web(), EventType::Normal, reason, message.into(), now)
}

/// Waits until the server's events satisfy a condition.
async fn wait_for(server: &FakeServer, done: impl Fn(&[Value]) -> bool) -> Vec<Value> {
    for _ in 0..1000 {
        let events: Vec<Value> = server.objects("events").iter().map(|object| object.value()).collect();
        if done(&events) {
            return events;
        }
        tokio::task::yield_now().await;
    }
    panic!("the events did not arrive: {:?}", server.state().requests);
}

#[tokio::test(start_paused = true)]
async fn a_repeated_event_is_counted_and_others_are_created() {
    let server = FakeServer::default();
    let recorder = EventRecorder::new(server.client(), "kubelet", "n1");
    for _ in 0..3 {
        recorder.event(&web(), EventType::Warning, "BackOff", "again");
    }
    recorder.event(&ObjectRef { namespace: String::new(), ..web() }, EventType::Normal, "Starting", "up");
    let events = wait_for(&server, |e| e.len() == 2 && e.iter().any(|e| e["count"] == 3)).await;
    let counted = events.iter().find(|e| e["reason"] == "BackOff").unwrap();
    assert_eq!(counted["metadata"]["namespace"], "prod");
    assert_eq!(counted["type"], "Warning");
    assert_eq!(counted["source"], json!({"component": "kubelet", "host": "n1"}));
    assert_eq!(counted["reportingComponent"], "kubelet");
    assert!(counted["metadata"]["name"].as_str().unwrap().starts_with("web."));
    let other = events.iter().find(|e| e["reason"] == "Starting").unwrap();
    assert_eq!((&other["metadata"]["namespace"], &other["count"]), (&json!("default"), &json!(1)));
}

#[tokio::test(start_paused = true)]
async fn a_counted_event_that_expired_is_created_again() {
    let server = FakeServer::default();
    let recorder = EventRecorder::new(server.client(), "kubelet", "n1");
    recorder.event(&web(), EventType::Normal, "Pulled", "image");
    wait_for(&server, |e| e.len() == 1).await;
    let name = server.objects("events")[0].header.name.clone();
    let events = server.client();
    events.delete::<Event>("prod", &name, &crate::DeleteOptions::default()).await.unwrap();
    recorder.event(&web(), EventType::Normal, "Pulled", "image");
    let events = wait_for(&server, |e| e.len() == 1).await;
    assert_eq!(events[0]["count"], 2);
}

#[tokio::test(start_paused = true)]
async fn events_wait_for_an_unavailable_server() {
    let server = FakeServer::default();
    let (client, cut) = server.cable();
    cut.store(true, std::sync::atomic::Ordering::SeqCst);
    let recorder = EventRecorder::new(client, "kubelet", "n1");
    recorder.event(&web(), EventType::Normal, "Pulled", "image");
    tokio::time::sleep(Duration::from_secs(25)).await;
    assert!(server.objects("events").is_empty());
    cut.store(false, std::sync::atomic::Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(11)).await;
    assert_eq!(server.objects("events").len(), 1);
}

#[test]
fn similar_events_are_combined() {
    let mut correlator = Correlator::default();
    let mut verdicts = Vec::new();
    for n in 0..12 {
        let now = at(n);
        verdicts.push(correlator.correlate(event("Failed", &format!("message {n}"), now), now));
    }
    assert!(
        verdicts[..9]
            .iter()
            .all(|v| matches!(v, Verdict::Create(e) if e.message.as_deref().unwrap().starts_with("message")))
    );
    let Verdict::Create(first) = &verdicts[9] else { panic!("{:?}", verdicts[9]) };
    assert_eq!(first.message.as_deref(), Some("(combined from similar events): message 9"));
    let Verdict::Count(later) = &verdicts[11] else { panic!("{:?}", verdicts[11]) };
    assert_eq!((later.count, &later.metadata.name), (Some(3), &first.metadata.name));
    assert_eq!(later.message.as_deref(), Some("(combined from similar events): message 11"));
    let now = at(11 + 601);
    assert!(
        matches!(correlator.correlate(event("Failed", "fresh", now), now), Verdict::Create(e) if e.message.as_deref() == Some("fresh"))
    );
}

#[test]
fn a_source_may_not_flood_an_object() {
    let mut correlator = Correlator::default();
    let sent = |correlator: &mut Correlator, n: usize, seconds: i64| {
        let now = at(seconds);
        (0..n).filter(|_| correlator.correlate(event("Failed", "same", now), now) != Verdict::Drop).count()
    };
    assert_eq!(sent(&mut correlator, 40, 0), 25);
    assert_eq!(sent(&mut correlator, 5, 299), 0);
    assert_eq!(sent(&mut correlator, 5, 301), 1);
    assert_eq!(sent(&mut correlator, 5, 301 + 600), 2);
    let now = at(301);
    let other = recorder().make(&ObjectRef { name: "db".into(), ..web() }, EventType::Normal, "x", "y".into(), now);
    assert!(matches!(correlator.correlate(other, now), Verdict::Create(_)), "another object has its own budget");
}

#[test]
fn invalid_names_are_replaced() {
    assert!(event_name("web", at(0)).starts_with("web.17979cfe362a0000"));
    assert_eq!(event_name(&"x".repeat(250), at(0)).len(), 36);
    assert_eq!(event_name("system:node", at(0)).len(), 36);
}
