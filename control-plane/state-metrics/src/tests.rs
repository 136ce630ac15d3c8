//! Tests of the table and of the series that it makes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeSet;
use std::sync::Arc;

use corten_meta::Object;
use expect_test::{Expect, expect};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::{AllowList, Cached, State, table};

fn noon(_: &str, _: Option<&str>, _: Timestamp) -> Option<Timestamp> {
    Some("2026-01-01T12:00:00Z".parse().unwrap())
}

fn object(value: &Value, revision: u64) -> Arc<Object> {
    Arc::new(Object::from_value(value, revision).unwrap())
}

fn cached(plural: &str) -> Cached {
    let labels = AllowList::parse("namespaces=[team],leases=[*]").unwrap();
    let annotations = AllowList::parse("namespaces=[*]").unwrap();
    State::new(&labels, &annotations).unwrap().kinds.into_iter().find(|cached| cached.kind.plural == plural).unwrap()
}

/// Returns the series of objects, without HELP and TYPE.
fn series(plural: &str, objects: &[Value]) -> String {
    let mut cached = cached(plural);
    let objects: Vec<Arc<Object>> = objects.iter().map(|value| object(value, 7)).collect();
    cached.refresh(&objects, noon);
    let mut page = String::new();
    cached.print(&mut page);
    page.lines().filter(|line| !line.starts_with('#')).map(|line| format!("{line}\n")).collect()
}

fn check(plural: &str, objects: &[Value], expected: &Expect) {
    expected.assert_eq(&series(plural, objects));
}

#[test]
fn the_table_is_whole() {
    let kinds = table::kinds().unwrap();
    let mut names = BTreeSet::new();
    for kind in &kinds {
        assert!(!kind.labels.is_empty(), "{kind:?}");
        for family in &kind.families {
            assert!(names.insert(family.name.clone()), "{} is there twice", family.name);
            assert!(family.name.starts_with("kube_"), "{}", family.name);
            assert!(!family.rules.is_empty(), "{} has no series", family.name);
            assert!(["gauge", "counter"].contains(&family.kind.as_str()), "{}", family.name);
        }
    }
    assert!(names.contains("kube_pod_status_phase"));
}

#[test]
fn malformed_lines_are_refused() {
    for line in ["number(a", "unknown(a)", "1 each a[b", "1 label", "1 x={a"] {
        assert!(super::Rule::parse(line).is_err(), "{line}");
    }
}

#[test]
fn a_pod() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web-1", "namespace": "shop", "uid": "u1", "creationTimestamp": "2026-01-01T00:00:00Z",
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "r", "controller": true}],
        },
        "spec": {
            "nodeName": "n1", "restartPolicy": "Always", "serviceAccountName": "default", "schedulerName": "default-scheduler",
            "containers": [{"name": "c", "image": "web:2", "resources": {
                "requests": {"cpu": "250m", "memory": "64Mi"}, "limits": {"example.com/gpu": "1"}}}],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}],
        },
        "status": {
            "phase": "Running", "qosClass": "Burstable", "hostIP": "10.0.0.1", "podIP": "10.1.0.2",
            "podIPs": [{"ip": "10.1.0.2"}, {"ip": "fd00::2"}], "startTime": "2026-01-01T00:00:01Z",
            "conditions": [
                {"type": "Ready", "status": "False"},
                {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-01-01T00:00:02Z"},
            ],
            "containerStatuses": [{"name": "c", "image": "web", "imageID": "web@sha256:1", "ready": false, "restartCount": 3,
                "containerID": "corten://1",
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"reason": "Error", "exitCode": 2, "finishedAt": "2026-01-01T00:01:00Z"}}}],
        },
    });
    check(
        "pods",
        &[pod],
        &expect![[r#"
        kube_pod_info{namespace="shop",pod="web-1",uid="u1",host_ip="10.0.0.1",pod_ip="10.1.0.2",node="n1",created_by_kind="ReplicaSet",created_by_name="web",priority_class="",host_network="false"} 1
        kube_pod_ips{namespace="shop",pod="web-1",uid="u1",ip="10.1.0.2",ip_family="4"} 1
        kube_pod_ips{namespace="shop",pod="web-1",uid="u1",ip="fd00::2",ip_family="6"} 1
        kube_pod_start_time{namespace="shop",pod="web-1",uid="u1"} 1767225601
        kube_pod_owner{namespace="shop",pod="web-1",uid="u1",owner_kind="ReplicaSet",owner_name="web",owner_is_controller="true"} 1
        kube_pod_status_phase{namespace="shop",pod="web-1",uid="u1",phase="Pending"} 0
        kube_pod_status_phase{namespace="shop",pod="web-1",uid="u1",phase="Succeeded"} 0
        kube_pod_status_phase{namespace="shop",pod="web-1",uid="u1",phase="Failed"} 0
        kube_pod_status_phase{namespace="shop",pod="web-1",uid="u1",phase="Unknown"} 0
        kube_pod_status_phase{namespace="shop",pod="web-1",uid="u1",phase="Running"} 1
        kube_pod_status_qos_class{namespace="shop",pod="web-1",uid="u1",qos_class="BestEffort"} 0
        kube_pod_status_qos_class{namespace="shop",pod="web-1",uid="u1",qos_class="Burstable"} 1
        kube_pod_status_qos_class{namespace="shop",pod="web-1",uid="u1",qos_class="Guaranteed"} 0
        kube_pod_status_ready{namespace="shop",pod="web-1",uid="u1",condition="true"} 0
        kube_pod_status_ready{namespace="shop",pod="web-1",uid="u1",condition="false"} 1
        kube_pod_status_ready{namespace="shop",pod="web-1",uid="u1",condition="unknown"} 0
        kube_pod_status_scheduled{namespace="shop",pod="web-1",uid="u1",condition="true"} 1
        kube_pod_status_scheduled{namespace="shop",pod="web-1",uid="u1",condition="false"} 0
        kube_pod_status_scheduled{namespace="shop",pod="web-1",uid="u1",condition="unknown"} 0
        kube_pod_status_scheduled_time{namespace="shop",pod="web-1",uid="u1"} 1767225602
        kube_pod_status_reason{namespace="shop",pod="web-1",uid="u1",reason="Evicted"} 0
        kube_pod_status_reason{namespace="shop",pod="web-1",uid="u1",reason="NodeAffinity"} 0
        kube_pod_status_reason{namespace="shop",pod="web-1",uid="u1",reason="NodeLost"} 0
        kube_pod_status_reason{namespace="shop",pod="web-1",uid="u1",reason="Shutdown"} 0
        kube_pod_status_reason{namespace="shop",pod="web-1",uid="u1",reason="UnexpectedAdmissionError"} 0
        kube_pod_container_info{namespace="shop",pod="web-1",uid="u1",container="c",image="web",image_id="web@sha256:1",image_spec="web:2",container_id="corten://1"} 1
        kube_pod_container_status_waiting{namespace="shop",pod="web-1",uid="u1",container="c"} 1
        kube_pod_container_status_waiting_reason{namespace="shop",pod="web-1",uid="u1",container="c",reason="CrashLoopBackOff"} 1
        kube_pod_container_status_running{namespace="shop",pod="web-1",uid="u1",container="c"} 0
        kube_pod_container_status_terminated{namespace="shop",pod="web-1",uid="u1",container="c"} 0
        kube_pod_container_status_last_terminated_reason{namespace="shop",pod="web-1",uid="u1",container="c",reason="Error"} 1
        kube_pod_container_status_last_terminated_exitcode{namespace="shop",pod="web-1",uid="u1",container="c"} 2
        kube_pod_container_status_last_terminated_timestamp{namespace="shop",pod="web-1",uid="u1",container="c"} 1767225660
        kube_pod_container_status_ready{namespace="shop",pod="web-1",uid="u1",container="c"} 0
        kube_pod_container_status_restarts_total{namespace="shop",pod="web-1",uid="u1",container="c"} 3
        kube_pod_container_resource_requests{namespace="shop",pod="web-1",uid="u1",container="c",node="n1",resource="cpu",unit="core"} 0.25
        kube_pod_container_resource_requests{namespace="shop",pod="web-1",uid="u1",container="c",node="n1",resource="memory",unit="byte"} 67108864
        kube_pod_container_resource_limits{namespace="shop",pod="web-1",uid="u1",container="c",node="n1",resource="example_com_gpu",unit="integer"} 1
        kube_pod_created{namespace="shop",pod="web-1",uid="u1"} 1767225600
        kube_pod_restart_policy{namespace="shop",pod="web-1",uid="u1",type="Always"} 1
        kube_pod_spec_volumes_persistentvolumeclaims_info{namespace="shop",pod="web-1",uid="u1",volume="data",persistentvolumeclaim="data"} 1
        kube_pod_spec_volumes_persistentvolumeclaims_readonly{namespace="shop",pod="web-1",uid="u1",volume="data",persistentvolumeclaim="data"} 0
        kube_pod_service_account{namespace="shop",pod="web-1",uid="u1",service_account="default"} 1
        kube_pod_scheduler{namespace="shop",pod="web-1",uid="u1",name="default-scheduler"} 1
    "#]],
    );
}

#[test]
fn pods_without_owners_and_with_hostile_labels() {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "namespace": "b", "uid": "u"},
        "spec": {"priorityClassName": "a\"} 1\nkube_pod_info{x=\"\\"},
    });
    let written = series("pods", &[pod]);
    let lines: Vec<&str> = written.lines().filter(|line| line.contains("_owner") || line.contains("_info")).collect();
    expect![[r#"
        kube_pod_info{namespace="b",pod="a",uid="u",host_ip="",pod_ip="",node="",created_by_kind="",created_by_name="",priority_class="a\"} 1\nkube_pod_info{x=\"\\",host_network="false"} 1
        kube_pod_owner{namespace="b",pod="a",uid="u",owner_kind="",owner_name="",owner_is_controller=""} 1"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn a_node() {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/control-plane": "", "other": "x"}},
        "spec": {"podCIDRs": ["10.1.0.0/24"], "unschedulable": true, "taints": [{"key": "k", "effect": "NoSchedule"}]},
        "status": {
            "capacity": {"cpu": "2", "memory": "1Gi", "pods": "110", "hugepages-2Mi": "0"},
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "conditions": [{"type": "Ready", "status": "Unknown"}],
        },
    });
    check(
        "nodes",
        &[node],
        &expect![[r#"
        kube_node_info{node="n1",kernel_version="",os_image="",container_runtime_version="",kubelet_version="",kubeproxy_version="deprecated",provider_id="",pod_cidr="",system_uuid="",internal_ip="10.0.0.1"} 1
        kube_node_role{node="n1",role="control-plane"} 1
        kube_node_spec_pod_cidrs{node="n1",pod_cidr="10.1.0.0/24"} 1
        kube_node_spec_taint{node="n1",key="k",value="",effect="NoSchedule"} 1
        kube_node_spec_unschedulable{node="n1"} 1
        kube_node_status_addresses{node="n1",type="Hostname",address="n1"} 1
        kube_node_status_addresses{node="n1",type="InternalIP",address="10.0.0.1"} 1
        kube_node_status_capacity{node="n1",resource="cpu",unit="core"} 2
        kube_node_status_capacity{node="n1",resource="hugepages_2Mi",unit="byte"} 0
        kube_node_status_capacity{node="n1",resource="memory",unit="byte"} 1073741824
        kube_node_status_capacity{node="n1",resource="pods",unit="integer"} 110
        kube_node_status_condition{node="n1",condition="Ready",status="true"} 0
        kube_node_status_condition{node="n1",condition="Ready",status="false"} 0
        kube_node_status_condition{node="n1",condition="Ready",status="unknown"} 1
    "#]],
    );
}

#[test]
fn workloads() {
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop", "generation": 4},
        "spec": {"replicas": 5, "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}},
        "status": {"replicas": 5, "conditions": [{"type": "Available", "status": "True", "reason": "Enough"}]},
    });
    check(
        "deployments",
        &[deployment],
        &expect![[r#"
        kube_deployment_metadata_generation{namespace="shop",deployment="web"} 4
        kube_deployment_owner{namespace="shop",deployment="web",owner_kind="",owner_name="",owner_is_controller=""} 1
        kube_deployment_spec_paused{namespace="shop",deployment="web"} 0
        kube_deployment_spec_replicas{namespace="shop",deployment="web"} 5
        kube_deployment_spec_strategy_rollingupdate_max_surge{namespace="shop",deployment="web"} 2
        kube_deployment_spec_strategy_rollingupdate_max_unavailable{namespace="shop",deployment="web"} 1
        kube_deployment_status_condition{namespace="shop",deployment="web",reason="Enough",condition="Available",status="true"} 1
        kube_deployment_status_condition{namespace="shop",deployment="web",reason="Enough",condition="Available",status="false"} 0
        kube_deployment_status_condition{namespace="shop",deployment="web",reason="Enough",condition="Available",status="unknown"} 0
        kube_deployment_status_observed_generation{namespace="shop",deployment="web"} 0
        kube_deployment_status_replicas{namespace="shop",deployment="web"} 5
        kube_deployment_status_replicas_available{namespace="shop",deployment="web"} 0
        kube_deployment_status_replicas_ready{namespace="shop",deployment="web"} 0
        kube_deployment_status_replicas_unavailable{namespace="shop",deployment="web"} 0
        kube_deployment_status_replicas_updated{namespace="shop",deployment="web"} 0
    "#]],
    );
    let job = |name: &str, status: Value| {
        json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "shop"}, "spec": {}, "status": status,
        })
    };
    let failed =
        json!({"failed": 2, "conditions": [{"type": "Failed", "status": "True", "reason": "DeadlineExceeded"}]});
    let jobs = series("jobs", &[job("good", json!({"succeeded": 1})), job("bad", failed)]);
    let lines: Vec<&str> = jobs.lines().filter(|line| line.contains("failed")).collect();
    expect![[r#"
        kube_job_failed{namespace="shop",job_name="bad",condition="true"} 1
        kube_job_failed{namespace="shop",job_name="bad",condition="false"} 0
        kube_job_failed{namespace="shop",job_name="bad",condition="unknown"} 0
        kube_job_status_failed{namespace="shop",job_name="good"} 0
        kube_job_status_failed{namespace="shop",job_name="bad",reason="BackoffLimitExceeded"} 0
        kube_job_status_failed{namespace="shop",job_name="bad",reason="DeadlineExceeded"} 2
        kube_job_status_failed{namespace="shop",job_name="bad",reason="Evicted"} 0"#]]
    .assert_eq(&lines.join("\n"));
    let cronjob = |suspend: bool| {
        json!({
            "apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c", "namespace": "shop"},
            "spec": {"schedule": "0 12 * * *", "suspend": suspend},
        })
    };
    assert!(
        series("cronjobs", &[cronjob(false)])
            .contains("next_schedule_time{namespace=\"shop\",cronjob=\"c\"} 1767268800")
    );
    assert!(!series("cronjobs", &[cronjob(true)]).contains("next_schedule_time"));
}

#[test]
fn items_in_items() {
    let ingress = json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i", "namespace": "shop"},
        "spec": {
            "rules": [{"host": "a.test", "http": {"paths": [
                {"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "s", "port": {"number": 80}}}}]}}],
            "tls": [{"hosts": ["a.test", "b.test"], "secretName": "t"}],
        },
    });
    check(
        "ingresses",
        &[ingress],
        &expect![[r#"
        kube_ingress_info{namespace="shop",ingress="i",ingressclass="_default"} 1
        kube_ingress_metadata_resource_version{namespace="shop",ingress="i"} 7
        kube_ingress_path{namespace="shop",ingress="i",host="a.test",path="/",path_type="Prefix",service_name="s",service_port="80"} 1
        kube_ingress_tls{namespace="shop",ingress="i",tls_host="a.test",secret="t"} 1
        kube_ingress_tls{namespace="shop",ingress="i",tls_host="b.test",secret="t"} 1
    "#]],
    );
    let limits = json!({
        "apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "l", "namespace": "shop"},
        "spec": {"limits": [{"type": "Container", "min": {"cpu": "100m"}, "default": {"cpu": "1"}}]},
    });
    check(
        "limitranges",
        &[limits],
        &expect![[r#"
        kube_limitrange{namespace="shop",limitrange="l",resource="cpu",type="Container",constraint="min"} 0.1
        kube_limitrange{namespace="shop",limitrange="l",resource="cpu",type="Container",constraint="default"} 1
    "#]],
    );
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h", "namespace": "shop"},
        "spec": {"metrics": [
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}}},
            {"type": "Pods", "pods": {"metric": {"name": "rps"}, "target": {"type": "AverageValue", "averageValue": "1500m"}}},
        ]},
    });
    let lines = series("horizontalpodautoscalers", &[autoscaler]);
    let lines: Vec<&str> = lines.lines().filter(|line| line.contains("target_metric")).collect();
    expect![[r#"
        kube_horizontalpodautoscaler_spec_target_metric{namespace="shop",horizontalpodautoscaler="h",metric_name="cpu",metric_target_type="utilization",container=""} 80
        kube_horizontalpodautoscaler_spec_target_metric{namespace="shop",horizontalpodautoscaler="h",metric_name="rps",metric_target_type="average",container=""} 1.5"#]].assert_eq(&lines.join("\n"));
}

#[test]
fn series_follow_the_objects() {
    let value = |phase: &str| {
        json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n", "uid": "u"}, "status": {"phase": phase},
        })
    };
    let mut cached = cached("namespaces");
    let mut printed = |objects: &[Arc<Object>]| {
        cached.refresh(objects, noon);
        let mut page = String::new();
        cached.print(&mut page);
        page.contains("phase=\"Active\"} 1")
    };
    assert!(printed(&[object(&value("Active"), 1)]));
    // The same version is not read again.
    assert!(printed(&[object(&value("Terminating"), 1)]));
    assert!(!printed(&[object(&value("Terminating"), 2)]));
    assert!(!printed(&[]));
}

#[test]
fn allowed_labels_and_annotations_are_families() {
    let namespace = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "n", "uid": "u", "labels": {"team": "a\"b", "other": "x"}, "annotations": {"Owner": "me"}},
    });
    let plain = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "p", "uid": "v"}});
    let page = series("namespaces", &[namespace, plain]);
    let lines: Vec<&str> =
        page.lines().filter(|line| line.contains("_labels") || line.contains("_annotations")).collect();
    assert_eq!(
        lines,
        [
            r#"kube_namespace_annotations{namespace="n",annotation_owner="me"} 1"#,
            r#"kube_namespace_annotations{namespace="p"} 1"#,
            r#"kube_namespace_labels{namespace="n",label_team="a\"b"} 1"#,
            r#"kube_namespace_labels{namespace="p"} 1"#,
        ]
    );
}
