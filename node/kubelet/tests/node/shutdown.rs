//! A machine that shuts down: a fake D-Bus signals the kubelet, which terminates its pods in order, and goes on when
//! the shutdown is cancelled.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use serde_json::json;

use super::{Fixture, condition, eventually, node_object, one};

#[path = "../../src/shutdown/fake_bus.rs"]
mod fake_bus;

use fake_bus::FakeBus;

/// Answers the kubelet's calls, then sends the signals of the channel; ends with the test.
fn serve(listener: UnixListener, signals: std::sync::mpsc::Receiver<u32>) {
    let mut bus = FakeBus::accept(&listener);
    while bus.answer_one(30) != "AddMatch" {}
    for begins in signals {
        bus.prepare_for_shutdown(begins);
        if begins == 0 {
            assert_eq!(bus.answer_one(30), "Inhibit", "the lock is taken again");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_stops_ends_its_pods_in_order() {
    let bus = tempfile::tempdir().unwrap();
    let socket = bus.path().join("bus");
    let listener = UnixListener::bind(&socket).unwrap();
    let (signal, signals) = std::sync::mpsc::channel();
    let serving = std::thread::spawn(move || serve(listener, signals));
    let fixture = Fixture::start_with(|config| {
        config.shutdown.grace_period = Duration::from_secs(30);
        config.shutdown.critical_grace_period = Duration::from_secs(10);
        config.shutdown.bus = Some(socket);
    })
    .await;
    fixture.api.put("/api/v1/nodes/n1", node_object());
    for (name, priority) in [("plain", 0), ("critical", 2_000_000_000)] {
        let mut spec = one("present");
        spec["containers"][0]["name"] = json!(name);
        spec["priority"] = json!(priority);
        fixture.create_pod(name, spec);
    }
    for name in ["plain", "critical"] {
        fixture.pod(name, "the pod runs", |status| condition(status, "Ready") == "True").await;
    }

    signal.send(1).unwrap();
    for name in ["plain", "critical"] {
        let status = fixture.pod(name, "the pod has failed", |status| status["phase"] == "Failed").await;
        assert_eq!(status["reason"], "Terminated");
        assert_eq!(status["message"], "Pod was terminated in response to imminent node shutdown.");
    }
    let stops = |name: &str| -> Vec<usize> {
        let calls = fixture.cri.calls().into_iter().enumerate();
        calls.filter(|(_, call)| call.starts_with(&format!("stop {name}-"))).map(|(at, _)| at).collect()
    };
    let critical = || stops("critical").first().copied();
    let critical = eventually("the critical pod is stopped", critical, || format!("{:?}", fixture.cri.calls())).await;
    assert!(stops("plain").iter().all(|at| *at < critical), "it is stopped last: {:?}", fixture.cri.calls());
    assert!(fixture.cri.calls()[critical].ends_with(" 10"), "within its period: {:?}", fixture.cri.calls());
    let ready = |wanted: &'static str| {
        let api = &fixture.api;
        move || {
            let node = api.get("/api/v1/nodes/n1")?;
            let all = node["status"]["conditions"].as_array()?.clone();
            all.into_iter().find(|found| found["type"] == "Ready" && found["status"] == wanted)
        }
    };
    let explain = || format!("{:#}", fixture.api.get("/api/v1/nodes/n1").unwrap_or_default());
    let found = eventually("the node is not ready", ready("False"), explain).await;
    assert_eq!((&found["reason"], &found["message"]), (&json!("KubeletNotReady"), &json!("node is shutting down")));
    fixture.create_pod("late", one("present"));
    let status = fixture.pod("late", "the pod is rejected", |status| status["phase"] == "Failed").await;
    assert_eq!(
        (&status["reason"], &status["message"]),
        (&json!("NodeShutdown"), &json!("Pod was rejected: Pod was rejected as the node is shutting down."))
    );

    signal.send(0).unwrap();
    eventually("the node is ready again", ready("True"), explain).await;
    drop(signal);
    serving.join().unwrap();
}
