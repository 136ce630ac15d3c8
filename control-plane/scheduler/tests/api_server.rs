//! The scheduler against the real API server in process: its writes, and the events it waits for.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod cluster;

use cluster::Cluster;
use corten_api::Typed;
use corten_api::k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use corten_api::k8s_openapi::api::scheduling::v1::PriorityClass;
use corten_api::k8s_openapi::api::storage::v1::StorageClass;
use corten_client::{DeleteOptions, Patch};
use corten_scheduler::Config;
use serde_json::json;

#[tokio::test(flavor = "multi_thread")]
async fn pods_are_bound_or_get_a_condition_and_are_tried_again() {
    let cluster = Cluster::start(Config::default()).await;
    cluster.node("a", "2").await;
    cluster.pod("fits", "1", json!({})).await;
    cluster.is_on("fits", "a").await;
    cluster.pod("large", "4", json!({})).await;
    let why = "0/1 nodes are available: 1 Insufficient cpu. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not \
               helpful for scheduling.";
    cluster.says("large", why).await;
    cluster.node("b", "8").await;
    cluster.is_on("large", "b").await;
    cluster.pod("gated", "1", json!({"schedulingGates": [{"name": "example.com/wait"}]})).await;
    cluster.says("gated", "Scheduling is blocked due to non-empty scheduling gates").await;
    let open = Patch::Json(json!([{"op": "remove", "path": "/spec/schedulingGates"}]));
    cluster.admin.patch::<Pod>("test", "gated", &open, None).await.unwrap();
    cluster.eventually("the gate opens", || async { !cluster.get("gated").await["spec"]["nodeName"].is_null() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn room_is_made_for_more_important_pods() {
    let cluster = Cluster::start(Config::default()).await;
    cluster.create::<PriorityClass>(json!({"metadata": {"name": "high"}, "value": 1000})).await;
    cluster.node("a", "2").await;
    cluster.pod("lesser", "2", json!({})).await;
    cluster.is_on("lesser", "a").await;
    cluster.pod("greater", "1", json!({"priorityClassName": "high"})).await;
    let going = || async {
        cluster
            .admin
            .find::<Pod>("test", "lesser")
            .await
            .unwrap()
            .is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
    };
    cluster.eventually("the lesser pod is told to go", going).await;
    let nominated = || async {
        let pod = cluster.get("greater").await;
        pod["status"]["nominatedNodeName"] == "a" || pod["spec"]["nodeName"] == "a"
    };
    cluster.eventually("the place is kept", nominated).await;
    // Deletes the pod as its kubelet would.
    let _ = cluster.admin.delete::<Pod>("test", "lesser", &DeleteOptions::now()).await;
    cluster.is_on("greater", "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_is_bound_where_its_pod_goes_before_the_pod() {
    let cluster = Cluster::start(Config::default()).await;
    cluster.node("a", "2").await;
    cluster.node("b", "2").await;
    let class = json!({"metadata": {"name": "local"}, "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer"});
    cluster.create::<StorageClass>(class).await;
    let terms = json!([{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["b"]}]}]);
    let volume = json!({"metadata": {"name": "v"}, "spec": {"storageClassName": "local", "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"], "local": {"path": "/v"}, "nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}});
    cluster.create::<PersistentVolume>(volume).await;
    let available = Patch::Merge(json!({"status": {"phase": "Available"}}));
    cluster.admin.patch::<PersistentVolume>("", "v", &available, Some("status")).await.unwrap();
    let claim = json!({"metadata": {"namespace": "test", "name": "c"}, "spec": {"storageClassName": "local",
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    cluster.create::<PersistentVolumeClaim>(claim).await;
    let uses = json!({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]});
    cluster.pod("p", "1", uses).await;
    let promised = || async {
        let volume = cluster.admin.get::<PersistentVolume>("", "v").await.unwrap().to_value();
        volume["spec"]["claimRef"]["name"] == "c"
    };
    cluster.eventually("the volume is given to the claim", promised).await;
    assert!(cluster.get("p").await["spec"]["nodeName"].is_null(), "the pod waits for its claim");
    // Binds the claim as the volume controller would.
    let bound =
        json!({"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}, "spec": {"volumeName": "v"}});
    cluster.admin.patch::<PersistentVolumeClaim>("test", "c", &Patch::Merge(bound), None).await.unwrap();
    cluster.is_on("p", "b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_schedulers_care_each_for_their_own() {
    let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false},
        "profiles": [{"schedulerName": "one"}, {"schedulerName": "two",
            "plugins": {"filter": {"disabled": [{"name": "NodeUnschedulable"}]}}}]});
    let cluster = Cluster::start(Config::from_document(document).unwrap()).await;
    cluster.node("a", "2").await;
    let cordon = Patch::Merge(json!({"spec": {"unschedulable": true}}));
    cluster.admin.patch::<Node>("", "a", &cordon, None).await.unwrap();
    cluster.pod("default", "1", json!({})).await;
    cluster.pod("first", "1", json!({"schedulerName": "one"})).await;
    cluster.pod("second", "1", json!({"schedulerName": "two"})).await;
    cluster.is_on("second", "a").await;
    let why = "0/1 nodes are available: 1 node(s) were unschedulable. no new claims to deallocate, preemption: 0/1 nodes are available: 1 \
               Preemption is not helpful for scheduling.";
    cluster.says("first", why).await;
    let untouched = cluster.get("default").await;
    assert!(untouched["spec"]["nodeName"].is_null() && untouched["status"]["conditions"].is_null(), "{untouched}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_happens_is_counted_under_upstreams_names() {
    let config = Config::default();
    let metrics = config.metrics.clone();
    let cluster = Cluster::start(config).await;
    cluster.node("a", "2").await;
    cluster.pod("fits", "1", json!({})).await;
    cluster.pod("large", "4", json!({})).await;
    cluster.pod("gated", "1", json!({"schedulingGates": [{"name": "example.com/wait"}]})).await;
    cluster.is_on("fits", "a").await;
    let expected = [
        "scheduler_schedule_attempts_total{profile=\"default-scheduler\",result=\"scheduled\"} 1\n",
        "scheduler_scheduling_attempt_duration_seconds_count{profile=\"default-scheduler\",result=\"scheduled\"} 1\n",
        "scheduler_pod_scheduling_sli_duration_seconds_count{attempts=\"1\"} 1\n",
        "scheduler_pod_scheduling_attempts_bucket{le=\"1\"} 1\n",
        "scheduler_pending_pods{queue=\"active\"} 0\n",
        "scheduler_pending_pods{queue=\"unschedulable\"} 1\n",
        "scheduler_pending_pods{queue=\"gated\"} 1\n",
        "scheduler_queue_incoming_pods_total{event=\"UnschedulablePodAdd\",queue=\"active\"} 2\n",
        "scheduler_unschedulable_pods{plugin=\"NodeResourcesFit\",profile=\"default-scheduler\"} 1\n",
        "scheduler_unschedulable_pods{plugin=\"SchedulingGates\",profile=\"default-scheduler\"} 1\n",
        "scheduler_cache_size{type=\"nodes\"} 1\n",
        "scheduler_cache_size{type=\"pods\"} 1\n",
        "scheduler_framework_extension_point_duration_seconds_count{extension_point=\"Bind\",profile=\"default-scheduler\",status=\"Success\"} 1\n",
    ];
    let missing = || expected.iter().filter(|line| !metrics.render().contains(*line)).copied().collect::<Vec<_>>();
    let began = std::time::Instant::now();
    while !missing().is_empty() {
        assert!(began.elapsed() < cluster::BOUND, "{:?} in\n{}", missing(), metrics.render());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
