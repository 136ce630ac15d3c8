//! Devices on the real API server: claims, classes with expressions, alternatives, admin access, taints, partitionable
//! devices. The test acts as the ResourceClaim controller.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod cluster;

use cluster::Cluster;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Namespace, Pod};
use corten_api::k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceSlice};
use corten_client::{DeleteOptions, Patch};
use corten_scheduler::Config;
use serde_json::{Value, json};

const DRIVER: &str = "gpu.example.com";

/// Starts two nodes with two devices each, the second node's of a newer model.
async fn start() -> Cluster {
    let cluster = Cluster::start(Config::default()).await;
    for (name, model) in [("a", "old"), ("b", "new")] {
        cluster.node(name, "4").await;
        let device = |number: u32| json!({"name": format!("gpu-{number}"), "attributes": {"model": {"string": model}}});
        slice(&cluster, name, json!({"nodeName": name, "devices": [device(0), device(1)]})).await;
    }
    let expression = format!("device.driver == '{DRIVER}'");
    let spec = json!({"selectors": [{"cel": {"expression": expression}}]});
    cluster.create::<DeviceClass>(json!({"metadata": {"name": "gpu"}, "spec": spec})).await;
    cluster
}

async fn slice(cluster: &Cluster, name: &str, mut spec: Value) {
    let pool = name.split('.').next().unwrap();
    let count = if name.contains('.') { 2 } else { 1 };
    spec["driver"] = json!(DRIVER);
    spec["pool"] = json!({"name": pool, "generation": 1, "resourceSliceCount": count});
    cluster.create::<ResourceSlice>(json!({"metadata": {"name": name}, "spec": spec})).await;
}

async fn claim(cluster: &Cluster, name: &str, request: Value) {
    claim_in(cluster, "test", name, request).await;
}

async fn claim_in(cluster: &Cluster, namespace: &str, name: &str, request: Value) {
    let mut request = request;
    request["name"] = json!("r");
    let spec = json!({"devices": {"requests": [request]}});
    cluster.create::<ResourceClaim>(json!({"metadata": {"namespace": namespace, "name": name}, "spec": spec})).await;
}

fn exactly(extra: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu"});
    corten_meta::patch::merge_patch(&mut exactly, &extra);
    json!({"exactly": exactly})
}

fn of_model(model: &str) -> Value {
    let expression = format!("device.attributes['{DRIVER}'].model == '{model}'");
    exactly(json!({"selectors": [{"cel": {"expression": expression}}]}))
}

fn using(claim: &str) -> Value {
    json!({"resourceClaims": [{"name": "c", "resourceClaimName": claim}]})
}

async fn devices_of(cluster: &Cluster, claim: &str) -> Vec<String> {
    let claim = cluster.admin.get::<ResourceClaim>("test", claim).await.unwrap().to_value();
    let results = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
    results.iter().map(|one| format!("{}/{}", one["pool"].as_str().unwrap(), one["device"].as_str().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_gets_devices_before_its_pod_is_bound() {
    let cluster = start().await;
    claim(&cluster, "c", of_model("new")).await;
    cluster.pod("p", "1", using("c")).await;
    cluster.is_on("p", "b").await;
    let claim = cluster.admin.get::<ResourceClaim>("test", "c").await.unwrap().to_value();
    assert_eq!(claim["status"]["reservedFor"][0]["name"], "p");
    assert_eq!(claim["metadata"]["finalizers"][0], "resource.kubernetes.io/delete-protection");
    let field = &claim["status"]["allocation"]["nodeSelector"]["nodeSelectorTerms"][0]["matchFields"][0];
    assert_eq!(field, &json!({"key": "metadata.name", "operator": "In", "values": ["b"]}));
    // Another pod may share the claim, and must be on the same node.
    cluster.pod("q", "1", using("c")).await;
    cluster.is_on("q", "b").await;
    let claim = cluster.admin.get::<ResourceClaim>("test", "c").await.unwrap().to_value();
    assert_eq!(claim["status"]["reservedFor"].as_array().unwrap().len(), 2, "{claim}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_given_once_and_again_when_it_is_given_back() {
    let cluster = start().await;
    for number in 0..5 {
        claim(&cluster, &format!("c{number}"), exactly(json!({}))).await;
        cluster.pod(&format!("p{number}"), "100m", using(&format!("c{number}"))).await;
    }
    let placed = || async {
        let mut placed = 0;
        for number in 0..5 {
            placed += usize::from(!cluster.get(&format!("p{number}")).await["spec"]["nodeName"].is_null());
        }
        placed == 4
    };
    cluster.eventually("four pods have the four devices", placed).await;
    let mut all = Vec::new();
    for number in 0..5 {
        all.extend(devices_of(&cluster, &format!("c{number}")).await);
    }
    all.sort();
    assert_eq!(all, ["a/gpu-0", "a/gpu-1", "b/gpu-0", "b/gpu-1"]);
    // Deallocates the claim of a deleted pod, as the ResourceClaim controller would.
    let mut left = 0;
    for number in 0..5 {
        if cluster.get(&format!("p{number}")).await["spec"]["nodeName"].is_null() {
            left = number;
        }
    }
    let done = (left + 1) % 5;
    cluster.admin.delete::<Pod>("test", &format!("p{done}"), &DeleteOptions::now()).await.unwrap();
    let free = Patch::Merge(json!({"status": {"allocation": null, "reservedFor": null}}));
    cluster.admin.patch::<ResourceClaim>("test", &format!("c{done}"), &free, Some("status")).await.unwrap();
    let has = || async { !cluster.get(&format!("p{left}")).await["spec"]["nodeName"].is_null() };
    cluster.eventually("the last pod gets what was given back", has).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn all_devices_of_a_node_are_had_only_where_none_is_taken() {
    let cluster = start().await;
    claim(&cluster, "one", of_model("old")).await;
    cluster.pod("one", "1", using("one")).await;
    cluster.is_on("one", "a").await;
    claim(&cluster, "all", exactly(json!({"allocationMode": "All"}))).await;
    cluster.pod("all", "1", using("all")).await;
    cluster.is_on("all", "b").await;
    assert_eq!(devices_of(&cluster, "all").await, ["b/gpu-0", "b/gpu-1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_node_with_the_better_alternative_is_preferred() {
    let cluster = start().await;
    let sub = |name: &str, model: &str| {
        let expression = format!("device.attributes['{DRIVER}'].model == '{model}'");
        json!({"name": name, "deviceClassName": "gpu", "selectors": [{"cel": {"expression": expression}}]})
    };
    for number in 0..3 {
        let request = json!({"firstAvailable": [sub("best", "new"), sub("good", "old")]});
        claim(&cluster, &format!("c{number}"), request).await;
        cluster.pod(&format!("p{number}"), "100m", using(&format!("c{number}"))).await;
        let expected = if number < 2 { "b" } else { "a" };
        cluster.is_on(&format!("p{number}"), expected).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn administrators_see_devices_that_others_have() {
    let cluster = start().await;
    for name in ["x", "y"] {
        claim(&cluster, name, of_model("old")).await;
        cluster.pod(name, "100m", using(name)).await;
        cluster.is_on(name, "a").await;
    }
    let labels = json!({"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}});
    cluster.admin.patch::<Namespace>("", "test", &Patch::Merge(labels), None).await.unwrap();
    let expression = format!("device.attributes['{DRIVER}'].model == 'old'");
    let selectors = json!([{"cel": {"expression": expression}}]);
    claim(&cluster, "admin", exactly(json!({"adminAccess": true, "selectors": selectors}))).await;
    cluster.pod("admin", "100m", using("admin")).await;
    cluster.is_on("admin", "a").await;
    let claim = cluster.admin.get::<ResourceClaim>("test", "admin").await.unwrap().to_value();
    assert_eq!(claim["status"]["allocation"]["devices"]["results"][0]["adminAccess"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn tainted_devices_are_for_those_that_tolerate_them() {
    let cluster = start().await;
    cluster.node("c", "4").await;
    let taints = json!([{"key": "example.com/broken", "value": "yes", "effect": "NoSchedule"}]);
    let attributes = json!({"model": {"string": "tainted"}});
    let device = json!({"name": "gpu-0", "attributes": attributes, "taints": taints});
    slice(&cluster, "c", json!({"nodeName": "c", "devices": [device]})).await;
    claim(&cluster, "wary", of_model("tainted")).await;
    cluster.pod("wary", "1", using("wary")).await;
    let why = "0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, preemption: 0/3 nodes are \
               available: 3 Preemption is not helpful for scheduling.";
    cluster.says("wary", why).await;
    let mut request = of_model("tainted");
    request["exactly"]["tolerations"] = json!([{"key": "example.com/broken", "operator": "Exists"}]);
    claim(&cluster, "bold", request).await;
    cluster.pod("bold", "1", using("bold")).await;
    cluster.is_on("bold", "c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parts_of_a_device_share_what_it_has() {
    let cluster = start().await;
    cluster.node("c", "4").await;
    let memory = |quantity: &str| json!({"memory": {"value": quantity}});
    slice(
        &cluster,
        "c.counters",
        json!({"nodeName": "c", "sharedCounters": [{"name": "card", "counters": memory("40Gi")}]}),
    )
    .await;
    let part = |name: &str, quantity: &str| {
        json!({"name": name, "attributes": {"model": {"string": name}},
            "consumesCounters": [{"counterSet": "card", "counters": memory(quantity)}]})
    };
    slice(
        &cluster,
        "c.devices",
        json!({"nodeName": "c", "devices": [part("whole", "40Gi"), part("half-0", "20Gi"), part("half-1", "20Gi")]}),
    )
    .await;
    claim(&cluster, "half", of_model("half-0")).await;
    cluster.pod("half", "1", using("half")).await;
    cluster.is_on("half", "c").await;
    claim(&cluster, "whole", of_model("whole")).await;
    cluster.pod("whole", "1", using("whole")).await;
    let why = "0/3 nodes are available: 3 cannot allocate all claims. still not schedulable, preemption: 0/3 nodes are \
               available: 3 Preemption is not helpful for scheduling.";
    cluster.says("whole", why).await;
    claim(&cluster, "other", of_model("half-1")).await;
    cluster.pod("other", "1", using("other")).await;
    cluster.is_on("other", "c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_from_a_template_waits_until_its_claim_is_made() {
    let cluster = start().await;
    let uses = json!({"resourceClaims": [{"name": "c", "resourceClaimTemplateName": "t"}]});
    cluster.pod("p", "1", uses).await;
    let pod = cluster.get("p").await;
    let (uid, owner) = (pod["metadata"]["uid"].clone(), "v1");
    let reference = json!([{"apiVersion": owner, "kind": "Pod", "name": "p", "uid": uid, "controller": true}]);
    let metadata = json!({"namespace": "test", "name": "p-c-x1", "ownerReferences": reference});
    let request = json!({"name": "r", "exactly": {"deviceClassName": "gpu"}});
    let spec = json!({"devices": {"requests": [request]}});
    cluster.create::<ResourceClaim>(json!({"metadata": metadata, "spec": spec})).await;
    assert!(cluster.get("p").await["spec"]["nodeName"].is_null());
    let made = json!({"status": {"resourceClaimStatuses": [{"name": "c", "resourceClaimName": "p-c-x1"}]}});
    cluster.admin.patch::<Pod>("test", "p", &Patch::Strategic(made), Some("status")).await.unwrap();
    cluster.eventually("it is placed", || async { !cluster.get("p").await["spec"]["nodeName"].is_null() }).await;
    assert_eq!(devices_of(&cluster, "p-c-x1").await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_allocation_that_no_node_can_use_is_given_up() {
    let cluster = start().await;
    claim(&cluster, "c", of_model("new")).await;
    cluster.pod("first", "1", using("c")).await;
    cluster.is_on("first", "b").await;
    cluster.admin.delete::<Pod>("test", "first", &DeleteOptions::now()).await.unwrap();
    // Removes the reservations, as the ResourceClaim controller would; the claim keeps its allocation.
    let free = Patch::Merge(json!({"status": {"reservedFor": null}}));
    cluster.admin.patch::<ResourceClaim>("test", "c", &free, Some("status")).await.unwrap();
    // The node with the device has no room for the next pod.
    cluster.pod("large", "4", json!({"nodeSelector": {"kubernetes.io/hostname": "b"}})).await;
    cluster.is_on("large", "b").await;
    cluster.pod("second", "1", using("c")).await;
    let given_up = || async { devices_of(&cluster, "c").await.is_empty() };
    cluster.eventually("the allocation is given up", given_up).await;
}
