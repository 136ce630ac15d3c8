//! A CSI driver that refuses calls, against a complete kubelet: the effect on the pod, the claim and the driver.

use serde_json::json;
use tonic::Code;

use super::plugins::{Plugin, put_claim, running, with_volume};
use super::*;

const CLAIM: &str = "/api/v1/namespaces/ns/persistentvolumeclaims/data";

async fn start(refused: &'static str, code: Code) -> (Fixture, Plugin) {
    let fixture = Fixture::start().await;
    put_claim(&fixture, false);
    let driver = Plugin::new(fixture.root.path(), "CSIPlugin", "d.example", &["1.0.0"]);
    driver.refuse(refused, Some(code));
    driver.register(&fixture.config.root_dir);
    driver.called("registered true").await;
    fixture.create_pod("p", with_volume(json!({"persistentVolumeClaim": {"claimName": "data"}})));
    (fixture, driver)
}

async fn gone(fixture: &Fixture) {
    let found = || fixture.api.get(&path("p")).is_none().then_some(());
    eventually("the pod to go", found, || format!("{:?}", fixture.api.get(&path("p")))).await;
}

#[tokio::test]
async fn a_pod_is_deleted_before_its_volume_is_unstaged() {
    let (fixture, driver) = start("unstage", Code::DeadlineExceeded).await;
    fixture.pod("p", "the pod to run", running).await;
    fixture.delete_pod("p", 0);
    driver.called("unstage h-1").await;
    gone(&fixture).await;
    let staged = fixture.config.root_dir.join("plugins/kubernetes.io/csi/d.example");
    assert_eq!(std::fs::read_dir(&staged).unwrap().count(), 1, "what is staged is written down");

    driver.refuse("unstage", None);
    let empty = || (std::fs::read_dir(&staged).ok()?.count() == 0).then_some(());
    eventually("the volume to be unstaged", empty, || format!("{staged:?}")).await;
    assert!(driver.count("unstage h-1") > 1);
    assert_eq!(driver.count("unpublish h-1"), 1);
}

#[tokio::test]
async fn a_volume_whose_staging_failed_for_sure_is_not_unstaged() {
    for (code, unstaged) in [(Code::InvalidArgument, false), (Code::DeadlineExceeded, true)] {
        let (fixture, driver) = start("stage", code).await;
        driver.called("stage h-1").await;
        fixture.event("told to").await;
        fixture.delete_pod("p", 0);
        gone(&fixture).await;
        assert_eq!(driver.count("unstage h-1") > 0, unstaged, "{code:?}");
    }
}

#[tokio::test]
async fn a_failed_expansion_is_reported_and_the_pod_runs() {
    let (fixture, driver) = start("expand", Code::InvalidArgument).await;
    fixture.pod("p", "the pod to run with the size that is there", running).await;
    let claim = fixture.api.get(CLAIM).unwrap();
    let status = &claim["status"];
    assert_eq!(status["allocatedResourceStatuses"]["storage"], "NodeResizeInfeasible", "{claim}");
    assert_eq!(status["capacity"]["storage"], "1Gi");
    assert_eq!(driver.count("expand h-1"), 1, "it is not tried again");
}

#[tokio::test]
async fn a_volume_that_cannot_be_expanded_in_use_does_not_block_the_pod() {
    let (fixture, _driver) = start("expand", Code::FailedPrecondition).await;
    fixture.pod("p", "the pod to run", running).await;
    let claim = fixture.api.get(CLAIM).unwrap();
    assert_eq!(claim["status"]["allocatedResourceStatuses"]["storage"], "NodeResizeInProgress", "{claim}");
}

#[tokio::test]
async fn a_read_write_once_pod_volume_is_not_mounted_for_a_second_pod() {
    let fixture = Fixture::start().await;
    put_claim(&fixture, false);
    fixture.api.change("/api/v1/persistentvolumes/pv-1", |volume| {
        volume["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    });
    let driver = Plugin::new(fixture.root.path(), "CSIPlugin", "d.example", &["1.0.0"]);
    driver.register(&fixture.config.root_dir);
    driver.called("registered true").await;
    let spec = with_volume(json!({"persistentVolumeClaim": {"claimName": "data"}}));
    fixture.create_pod("p", spec.clone());
    fixture.pod("p", "the first pod to run", running).await;
    fixture.create_pod("q", spec);
    fixture.event("volume uses the ReadWriteOncePod access mode and is already in use by another pod").await;
    assert_eq!(driver.count("publish h-1 for q"), 0);
    fixture.delete_pod("p", 0);
    fixture.pod("q", "the second pod to run after the first", running).await;
}
