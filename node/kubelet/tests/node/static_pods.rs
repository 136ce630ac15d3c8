//! Pods from manifests on the node: they run, the API shows their mirrors, and only removing the manifest terminates
//! them.

use std::path::PathBuf;

use serde_json::json;

use super::{Fixture, condition, eventually, path};

const MANIFEST: &str = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: ns}\nspec:\n  containers: [{name: main, image: present}]\n";

#[tokio::test]
async fn a_manifest_runs_and_its_mirror_shows_it() {
    let fixture = Fixture::start_with(|config| {
        let manifests = PathBuf::from(&config.root_dir).join("manifests");
        std::fs::create_dir_all(&manifests).unwrap();
        std::fs::write(manifests.join("web.yaml"), MANIFEST).unwrap();
        config.static_pod_path = Some(manifests);
    })
    .await;
    let manifest = fixture.config.static_pod_path.clone().unwrap().join("web.yaml");
    fixture.pod("web-n1", "its mirror is ready", |status| condition(status, "Ready") == "True").await;
    let mirror = || fixture.api.get(&path("web-n1"));
    let first = mirror().unwrap();
    let annotations = &first["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/config.mirror"], annotations["kubernetes.io/config.hash"]);
    assert_eq!(first["metadata"]["ownerReferences"][0]["kind"], "Node");
    let starts = || fixture.cri.calls().iter().filter(|call| call.starts_with("start main")).count();
    assert_eq!(starts(), 1);

    // Deleting the mirror does not terminate the pod; a new mirror is created.
    fixture.api.remove(&path("web-n1"));
    let again = || mirror().filter(|mirror| mirror["status"]["phase"] == "Running");
    eventually("there is another mirror", again, || format!("{:?}", mirror())).await;
    assert_eq!(starts(), 1);

    // Another content is another pod; without a manifest there is none.
    std::fs::write(&manifest, MANIFEST.replace("spec:", "spec:\n  terminationGracePeriodSeconds: 1")).unwrap();
    eventually("the changed pod is started", || (starts() == 2).then_some(()), || format!("{:?}", fixture.cri.calls()))
        .await;
    std::fs::remove_file(&manifest).unwrap();
    eventually(
        "the mirror goes with the manifest",
        || mirror().is_none().then_some(()),
        || json!(mirror()).to_string(),
    )
    .await;
}
