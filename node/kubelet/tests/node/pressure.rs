//! A node under pressure: its conditions, the evicted pods and the rejected ones.

use serde_json::json;

use super::{Fixture, condition, eventually, one};

fn ended(status: &corten_meta::Value) -> bool {
    status["phase"] == "Failed" && status["reason"] == "Evicted"
}

#[tokio::test]
async fn a_full_disk_ends_pods_but_not_critical_ones() {
    let fixture = Fixture::start_with(|config| {
        // More than any disk has free, also an empty one.
        config.eviction.hard = [("nodefs.available".to_owned(), "1Ei".to_owned())].into();
    })
    .await;
    let mut critical = one("present");
    critical["priority"] = json!(2_000_001_000);
    fixture.create_pod("critical", critical);
    fixture.create_pod("ordinary", one("present"));

    let status = fixture.pod("ordinary", "it is evicted", ended).await;
    let message = status["message"].as_str().unwrap();
    let refused = "Pod was rejected: The node had condition: [DiskPressure]. ";
    assert!(
        message.starts_with("The node was low on resource: ephemeral-storage. ") || message == refused,
        "{message}"
    );
    let node = || fixture.api.get("/api/v1/nodes/n1").map(|node| node["status"].clone()).unwrap_or_default();
    let pressed = || (condition(&node(), "DiskPressure") == "True").then_some(());
    eventually("the node tells of its pressure", pressed, || format!("{:#}", node())).await;

    fixture.create_pod("late", one("present"));
    let status = fixture.pod("late", "it is refused", ended).await;
    assert_eq!(status["message"], refused);
    let status = fixture.pod("critical", "it runs", |status| condition(status, "Ready") == "True").await;
    assert_eq!(status["phase"], "Running");
}

#[tokio::test]
async fn a_volume_beyond_its_limit_evicts_its_pod() {
    let fixture = Fixture::start().await;
    let mut spec = one("present");
    spec["volumes"] = json!([{"name": "scratch", "emptyDir": {"sizeLimit": "10Ki"}}]);
    spec["containers"][0]["volumeMounts"] = json!([{"name": "scratch", "mountPath": "/scratch"}]);
    fixture.create_pod("p", spec);
    fixture.pod("p", "it runs", |status| condition(status, "Ready") == "True").await;
    let volume = fixture.root.path().join("kubelet/pods/uid-p/volumes/kubernetes.io~empty-dir/scratch");
    std::fs::write(volume.join("large"), vec![1; 64 << 10]).unwrap();
    let status = fixture.pod("p", "it is evicted", ended).await;
    assert_eq!(status["message"], "Usage of EmptyDir volume \"scratch\" exceeds the limit \"10Ki\". ");
    fixture.event("Evicted").await;
}
