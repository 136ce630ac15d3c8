//! A pod that was deleted by force and replaced by another with its name, on the same node.

use serde_json::json;

use super::{Fixture, eventually, one, path};

#[tokio::test]
async fn a_replaced_pod_terminates_beside_a_pod_with_its_name() {
    let fixture = Fixture::start().await;
    fixture.create_pod("p", one("present"));
    fixture.pod("p", "running", |status| status["phase"] == "Running").await;
    let old = fixture.api.get(&path("p")).unwrap();
    let old_dir = fixture.config.root_dir.join("pods").join(old["metadata"]["uid"].as_str().unwrap());
    assert!(old_dir.exists());

    let mut new = old.clone();
    new["metadata"]["uid"] = json!("namesake");
    new["status"] = json!({"phase": "Pending"});
    fixture.api.remove(&path("p"));
    fixture.api.put(&path("p"), new);

    let is_gone = || (!old_dir.exists()).then_some(());
    eventually("the replaced pod is gone", is_gone, || fixture.api.log().join("\n")).await;
    fixture.pod("p", "the namesake runs", |status| status["phase"] == "Running").await;
    assert_eq!(fixture.api.get(&path("p")).unwrap()["metadata"]["uid"], "namesake");
}
