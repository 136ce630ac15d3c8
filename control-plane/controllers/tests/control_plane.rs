//! The control plane in one process: the controllers against the real API server.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod in_process;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use corten_api::Typed;
use corten_api::k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet};
use corten_api::k8s_openapi::api::authentication::v1::TokenReview;
use corten_api::k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use corten_api::k8s_openapi::api::batch::v1::Job;
use corten_api::k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use corten_api::k8s_openapi::api::coordination::v1::Lease;
use corten_api::k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Event, Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod, ReplicationController,
    ResourceQuota, Secret, Service, ServiceAccount,
};
use corten_api::k8s_openapi::api::discovery::v1::EndpointSlice;
use corten_api::k8s_openapi::api::networking::v1::ServiceCIDR;
use corten_api::k8s_openapi::api::policy::v1::PodDisruptionBudget;
use corten_api::k8s_openapi::api::rbac::v1::ClusterRole;
use corten_client::{DeleteOptions, ListOptions, Patch, Propagation, Resource};
use in_process::{Cluster, add_node};
use serde_json::{Value, json};
use testkit::prometheus::{Prometheus, Series};
use tokio_util::sync::CancellationToken;

fn deployment(name: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "default", "name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "one", "ports": [{"name": "web", "containerPort": 8080}]}]}},
        },
    })
}

async fn available(cluster: &Cluster, name: &str) -> i32 {
    let deployment = cluster.admin.get::<Deployment>("default", name).await.unwrap();
    deployment.status.and_then(|status| status.available_replicas).unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deployment_runs_is_served_rolls_and_goes() {
    let cluster = Cluster::start(2).await;
    let admin = &cluster.admin;
    cluster.create::<Deployment>(deployment("web", 3)).await;
    cluster.create::<Service>(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "web"}]}})).await;
    cluster.eventually("three replicas", || async { available(&cluster, "web").await == 3 }).await;
    let generation = || async { admin.get::<Deployment>("default", "web").await.unwrap().metadata.generation };
    assert_eq!(generation().await, Some(1), "only a change of what is asked for counts");
    let addresses = || async {
        let slices = cluster.list::<EndpointSlice>("default").await;
        let of_web = slices.into_iter().filter(|slice| {
            slice
                .metadata
                .labels
                .as_ref()
                .is_some_and(|labels| labels.get("kubernetes.io/service-name").is_some_and(|name| name == "web"))
        });
        of_web
            .flat_map(|slice| slice.endpoints.unwrap_or_default())
            .filter(|endpoint| endpoint.conditions.as_ref().is_some_and(|c| c.ready == Some(true)))
            .count()
    };
    cluster.eventually("three endpoints", || async { addresses().await == 3 }).await;
    cluster
        .eventually("Endpoints", || async { admin.find::<Endpoints>("default", "web").await.unwrap().is_some() })
        .await;

    let patch =
        Patch::Strategic(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}}));
    admin.patch::<Deployment>("default", "web", &patch, None).await.unwrap();
    let images = || async {
        cluster
            .list::<Pod>("default")
            .await
            .into_iter()
            .filter_map(|pod| pod.spec?.containers[0].image.clone())
            .collect::<Vec<_>>()
    };
    cluster
        .eventually("the second image", || async {
            images().await == ["two", "two", "two"] && available(&cluster, "web").await == 3
        })
        .await;
    assert_eq!(cluster.list::<ReplicaSet>("default").await.len(), 2);
    assert_eq!(generation().await, Some(2));
    let rolled = admin.get::<Deployment>("default", "web").await.unwrap();
    assert_eq!(rolled.metadata.annotations.unwrap()["deployment.kubernetes.io/revision"], "2");

    admin
        .delete::<Deployment>(
            "default",
            "web",
            &DeleteOptions { propagation: Some(Propagation::Foreground), ..DeleteOptions::default() },
        )
        .await
        .unwrap();
    cluster
        .eventually("nothing left", || async {
            cluster.list::<Pod>("default").await.is_empty() && cluster.list::<Deployment>("default").await.is_empty()
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_get_ranges_and_namespaces_what_every_one_has() {
    let cluster = Cluster::start(3).await;
    let ranges = || async {
        let mut ranges: Vec<String> =
            cluster.list::<Node>("").await.into_iter().filter_map(|node| node.spec?.pod_cidr).collect();
        ranges.sort();
        ranges
    };
    cluster
        .eventually("pod ranges", || async { ranges().await == ["10.244.0.0/24", "10.244.1.0/24", "10.244.2.0/24"] })
        .await;
    cluster.create::<Namespace>(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "team"}})).await;
    cluster
        .eventually("the authority", || async {
            cluster.admin.find::<ConfigMap>("team", "kube-root-ca.crt").await.unwrap().is_some()
        })
        .await;
    cluster
        .eventually("the account", || async {
            cluster.admin.find::<ServiceAccount>("team", "default").await.unwrap().is_some()
        })
        .await;
    let mut web = deployment("web", 2);
    web["metadata"]["namespace"] = json!("team");
    cluster.create::<Deployment>(web).await;
    cluster.eventually("two pods", || async { cluster.list::<Pod>("team").await.len() == 2 }).await;
    cluster.admin.delete::<Namespace>("", "team", &DeleteOptions::default()).await.unwrap();
    cluster
        .eventually("the namespace is gone", || async {
            cluster.admin.find::<Namespace>("", "team").await.unwrap().is_none()
        })
        .await;
    assert!(cluster.list::<Pod>("team").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_complete_and_daemons_are_everywhere() {
    let cluster = Cluster::start(2).await;
    cluster.create::<Job>(json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "default", "name": "work"},
        "spec": {"completions": 3, "parallelism": 2, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    })).await;
    let succeeded = || async { cluster.admin.get::<Job>("default", "work").await.unwrap().status.unwrap_or_default() };
    cluster
        .eventually("the Job is complete", || async {
            let status = succeeded().await;
            status.succeeded == Some(3)
                && status.conditions.unwrap_or_default().iter().any(|condition| condition.type_ == "Complete")
        })
        .await;
    cluster.create::<DaemonSet>(json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"namespace": "default", "name": "agent"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": {"metadata": {"labels": {"app": "agent"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    })).await;
    cluster
        .eventually("an agent on each node", || async {
            cluster
                .admin
                .get::<DaemonSet>("default", "agent")
                .await
                .unwrap()
                .status
                .unwrap_or_default()
                .number_available
                == Some(2)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_fits_nowhere_says_why_and_is_bound_when_it_fits() {
    let cluster = Cluster::start(1).await;
    // A new node is tainted until the node lifecycle controller has reconciled it, and an event keeps the message of
    // its first failure: a pod that fits shows that the scheduler has the final state of the node.
    cluster
        .create::<Pod>(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "plain"},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }))
        .await;
    let bound = |name: &'static str| {
        let admin = cluster.admin.clone();
        async move { admin.get::<Pod>("default", name).await.unwrap().spec.unwrap().node_name.as_deref() == Some("n0") }
    };
    cluster.eventually("a node that takes pods", || bound("plain")).await;
    cluster
        .create::<Pod>(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": "picky"},
            "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [{"name": "c", "image": "i"}]},
        }))
        .await;
    let message = "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling.";
    let picky = || async { cluster.admin.get::<Pod>("default", "picky").await.unwrap() };
    cluster
        .eventually("the condition", || async {
            let status = picky().await.status.unwrap_or_default();
            status.conditions.unwrap_or_default().iter().any(|c| {
                c.type_ == "PodScheduled"
                    && c.reason.as_deref() == Some("Unschedulable")
                    && c.message.as_deref() == Some(message)
            })
        })
        .await;
    cluster
        .eventually("the event", || async {
            cluster.list::<Event>("default").await.iter().any(|event| {
                event.reason.as_deref() == Some("FailedScheduling") && event.message.as_deref() == Some(message)
            })
        })
        .await;
    let label = Patch::Merge(json!({"metadata": {"labels": {"disk": "ssd"}}}));
    cluster.admin.patch::<Node>("", "n0", &label, None).await.unwrap();
    cluster.eventually("the binding", || bound("picky")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_get_their_volumes_and_roles_their_rules() {
    let cluster = Cluster::start(1).await;
    for number in 0..2 {
        cluster
            .create::<PersistentVolume>(json!({
                "apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": format!("disk-{number}")},
                "spec": {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/data"}},
            }))
            .await;
    }
    let claim = json!({"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    cluster
        .create::<StatefulSet>(json!({
            "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"namespace": "default", "name": "db"},
            "spec": {
                "replicas": 2, "serviceName": "db", "selector": {"matchLabels": {"app": "db"}}, "volumeClaimTemplates": [claim],
                "template": {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        }))
        .await;
    cluster
        .eventually("both members", || async {
            cluster.admin.get::<StatefulSet>("default", "db").await.unwrap().status.unwrap_or_default().ready_replicas
                == Some(2)
        })
        .await;
    cluster
        .eventually("bound claims", || async {
            let claims = cluster.list::<PersistentVolumeClaim>("default").await;
            let phase = |claim: &PersistentVolumeClaim| claim.status.clone().unwrap_or_default().phase;
            claims.len() == 2 && claims.iter().all(|claim| phase(claim).as_deref() == Some("Bound"))
        })
        .await;
    cluster
        .eventually("the rules of admin", || async {
            let role = cluster.admin.find::<ClusterRole>("", "admin").await.unwrap();
            role.is_some_and(|role| role.rules.is_some_and(|rules| rules.len() > 5))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quotas_are_enforced_and_reported_and_a_namespace_is_deleted_with_its_last_pod() {
    let cluster = Cluster::start(1).await;
    let admin = &cluster.admin;
    cluster.create::<Namespace>(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "small"}})).await;
    cluster.create::<ResourceQuota>(json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"namespace": "small", "name": "q"}, "spec": {"hard": {"pods": "2", "count/replicationcontrollers": "1", "services.nodeports": "1"}}})).await;
    let used = |name: &'static str| async move {
        let quota = admin.get::<ResourceQuota>("small", "q").await.unwrap().to_value();
        quota["status"]["used"][name].as_str().unwrap_or_default().to_owned()
    };
    cluster
        .eventually("the default account", || async {
            admin.find::<ServiceAccount>("small", "default").await.unwrap().is_some()
        })
        .await;
    let once = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "small", "name": "once"}, "spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}});
    cluster.create::<Pod>(once).await;
    // A terminated pod uses no quota. No client deletes it, so only the controller can update the status.
    cluster.eventually("an ended pod off the quota", || async { used("pods").await == "0" }).await;

    let controller = json!({
        "apiVersion": "v1", "kind": "ReplicationController", "metadata": {"namespace": "small", "name": "rc"},
        "spec": {"replicas": 3, "selector": {"app": "rc"}, "template": {"metadata": {"labels": {"app": "rc"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    });
    cluster.create::<ReplicationController>(controller).await;
    cluster.eventually("two pods and no more", || async { used("pods").await == "2" }).await;
    cluster
        .eventually("the refusal in a condition", || async {
            let status = admin.get::<ReplicationController>("small", "rc").await.unwrap().status.unwrap_or_default();
            let failure = status.conditions.unwrap_or_default().into_iter().find(|one| one.type_ == "ReplicaFailure");
            failure
                .and_then(|one| one.message)
                .is_some_and(|why| why.contains("exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"))
        })
        .await;
    let service = |kind: &str| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "small", "name": "s"}, "spec": {"type": kind, "ports": [{"name": "a", "port": 80}, {"name": "b", "port": 81}]}});
    cluster.create::<Service>(service("ClusterIP")).await;
    let change = Patch::Merge(json!({"spec": {"type": "NodePort"}}));
    let refused = admin.patch::<Service>("small", "s", &change, None).await.unwrap_err().to_string();
    assert!(refused.contains("requested: services.nodeports=2, used: services.nodeports=0"), "{refused}");

    admin.delete::<Namespace>("", "small", &DeleteOptions::default()).await.unwrap();
    cluster
        .eventually("no namespace", || async { admin.find::<Namespace>("", "small").await.unwrap().is_none() })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_says_what_it_waits_for_and_keeps_the_rest_until_its_pods_are_gone() {
    let cluster = Cluster::start(0).await;
    let admin = &cluster.admin;
    cluster.create::<Namespace>(json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "held"}})).await;
    cluster
        .eventually("the default account", || async {
            admin.find::<ServiceAccount>("held", "default").await.unwrap().is_some()
        })
        .await;
    let held = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "held", "name": "p", "finalizers": ["example.com/keep"]}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    cluster.create::<Pod>(held).await;
    let rest = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "held", "name": "c"}});
    cluster.create::<ConfigMap>(rest).await;
    admin.delete::<Namespace>("", "held", &DeleteOptions::default()).await.unwrap();
    cluster
        .eventually("the finalizer reported", || async {
            let status = admin.get::<Namespace>("", "held").await.unwrap().status.unwrap_or_default();
            let condition = status.conditions.unwrap_or_default().into_iter().find(|c| c.type_ == "NamespaceFinalizersRemaining");
            condition.and_then(|one| one.message).is_some_and(|message| {
                message == "Some content in the namespace has finalizers remaining: example.com/keep in 1 resource instances"
            })
        })
        .await;
    assert!(admin.get::<Pod>("held", "p").await.unwrap().metadata.deletion_timestamp.is_some());
    admin.get::<ConfigMap>("held", "c").await.unwrap();
    let lift = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    admin.patch::<Pod>("held", "p", &lift, None).await.unwrap();
    cluster.eventually("no namespace", || async { admin.find::<Namespace>("", "held").await.unwrap().is_none() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_hold_pods_and_endpoints_are_mirrored() {
    let cluster = Cluster::start(1).await;
    let admin = &cluster.admin;
    cluster.create::<PodDisruptionBudget>(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": "default", "name": "b"}, "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}})).await;
    cluster.create::<Deployment>(deployment("web", 3)).await;
    let allowed = || async {
        let status = admin.get::<PodDisruptionBudget>("default", "b").await.unwrap().status.unwrap_or_default();
        (status.expected_pods, status.disruptions_allowed)
    };
    cluster.eventually("one disruption allowed", || async { allowed().await == (Some(3), Some(1)) }).await;
    let pods = cluster.list::<Pod>("default").await;
    let evict = |name: String| async move {
        let body =
            json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": "default", "name": name}});
        admin.of::<Pod>().create_subresource("default", &name, "eviction", &body).await
    };
    evict(pods[0].name().to_owned()).await.unwrap();
    cluster.eventually("another pod in its place", || async { allowed().await == (Some(3), Some(1)) }).await;

    cluster.create::<Service>(json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "default", "name": "custom"}, "spec": {"ports": [{"port": 80}]}})).await;
    cluster.create::<Endpoints>(json!({"apiVersion": "v1", "kind": "Endpoints", "metadata": {"namespace": "default", "name": "custom"}, "subsets": [{"addresses": [{"ip": "10.1.2.3"}], "ports": [{"port": 80}]}]})).await;
    let mirrored = || async {
        let slices = cluster.list::<EndpointSlice>("default").await;
        let ours = slices.into_iter().filter(|slice| slice.name().starts_with("custom-"));
        ours.flat_map(|slice| slice.endpoints.unwrap_or_default()).flat_map(|one| one.addresses).collect::<Vec<_>>()
    };
    cluster.eventually("a mirrored address", || async { mirrored().await == ["10.1.2.3"] }).await;
    admin.delete::<Endpoints>("default", "custom", &DeleteOptions::default()).await.unwrap();
    cluster.eventually("no mirrored address", || async { mirrored().await.is_empty() }).await;

    let more = json!({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", "metadata": {"name": "more"}, "spec": {"cidrs": ["203.0.113.0/24"]}});
    cluster.create::<ServiceCIDR>(more).await;
    cluster
        .eventually("a ready range", || async {
            let range = admin.get::<ServiceCIDR>("", "more").await.unwrap();
            range.status.and_then(|status| status.conditions).is_some_and(|all| all[0].status == "True")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_budget_in_percent_counts_the_pods_of_a_custom_kind() {
    let cluster = Cluster::start(2).await;
    let definitions =
        cluster.admin.dynamic(&Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions", false));
    let scale = json!({"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"});
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (plural, kind, subresources) in [("webs", "Web", json!({"scale": scale})), ("plains", "Plain", json!({}))] {
        let version = json!({"name": "v1", "served": true, "storage": true, "subresources": subresources, "schema": {"openAPIV3Schema": schema}});
        let definition = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{plural}.example.com")},
            "spec": {"group": "example.com", "scope": "Namespaced", "names": {"plural": plural, "kind": kind}, "versions": [version]}});
        definitions.create("", &definition).await.unwrap();
        let custom = cluster.admin.dynamic(&Resource::new("example.com", "v1", plural, true));
        let object = json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"namespace": "default", "name": "one"}, "spec": {"replicas": 4}});
        cluster.eventually("a served kind", async || custom.create("default", &object).await.is_ok()).await;
        let uid = custom.get("default", "one").await.unwrap()["metadata"]["uid"].clone();
        let owner =
            json!([{"apiVersion": "example.com/v1", "kind": kind, "name": "one", "uid": uid, "controller": true}]);
        for number in 0..3 {
            let name = format!("{plural}-{number}");
            cluster.create::<Pod>(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name, "labels": {"of": plural}, "ownerReferences": owner}, "spec": {"containers": [{"name": "c", "image": "i"}]}})).await;
        }
        cluster.create::<PodDisruptionBudget>(json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"namespace": "default", "name": plural}, "spec": {"maxUnavailable": "50%", "selector": {"matchLabels": {"of": plural}}}})).await;
    }
    let status = async |name: &str| {
        let budget = cluster.admin.get::<PodDisruptionBudget>("default", name).await.unwrap();
        budget.to_value()["status"].take()
    };
    let counted = json!([4, 2, 3, 1]);
    cluster
        .eventually("a budget that counts", async || {
            let reported = status("webs").await;
            let fields = ["expectedPods", "desiredHealthy", "currentHealthy", "disruptionsAllowed"];
            Value::from_iter(fields.map(|field| reported[field].clone())) == counted
        })
        .await;
    let refused = "plains.example.com does not implement the scale subresource";
    cluster
        .eventually("a budget that cannot", async || status("plains").await["conditions"][0]["message"] == refused)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_and_certificates_are_issued() {
    let cluster = Cluster::start(0).await;
    let admin = &cluster.admin;
    cluster.create::<ServiceAccount>(json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": "default", "name": "robot"}})).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/service-account-token", "metadata": {"namespace": "default", "name": "robot", "annotations": {"kubernetes.io/service-account.name": "robot"}}});
    cluster.create::<Secret>(secret).await;
    let data = |key: &'static str| async move {
        let secret = admin.find::<Secret>("default", "robot").await.unwrap();
        secret.and_then(|secret| secret.data?.remove(key)).map(|bytes| bytes.0).unwrap_or_default()
    };
    cluster.eventually("a token", || async { data("token").await.starts_with(b"eyJ") }).await;
    assert_eq!(data("namespace").await, b"default");
    // A use of the token adds a label, by which the cleaner recognises used ones.
    let token = String::from_utf8(data("token").await).unwrap();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let review = admin.create(&TokenReview::from_value(review).unwrap()).await.unwrap().status.unwrap();
    assert_eq!((review.authenticated, review.error), (Some(true), None));
    let labels =
        || async { admin.get::<Secret>("default", "robot").await.unwrap().metadata.labels.unwrap_or_default() };
    assert!(labels().await.contains_key("kubernetes.io/legacy-token-last-used"));
    let tracking = "kube-apiserver-legacy-service-account-token-tracking";
    let since = admin.get::<ConfigMap>("kube-system", tracking).await.unwrap().data.unwrap();
    assert!(since["since"].parse::<jiff::civil::Date>().is_ok(), "{since:?}");
    let invalid = json!({"metadata": {"labels": {"kubernetes.io/legacy-token-invalid-since": "2026-01-01"}}});
    admin.patch::<Secret>("default", "robot", &Patch::Merge(invalid), None).await.unwrap();
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}});
    let review = admin.create(&TokenReview::from_value(review).unwrap()).await.unwrap().status.unwrap();
    assert_ne!(review.authenticated, Some(true), "a token that was marked invalid is good no longer");
    admin.delete::<ServiceAccount>("default", "robot", &DeleteOptions::default()).await.unwrap();
    cluster
        .eventually("no Secret", || async { admin.find::<Secret>("default", "robot").await.unwrap().is_none() })
        .await;

    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name.push(rcgen::DnType::CommonName, "jane");
    let request = params.serialize_request(&rcgen::KeyPair::generate().unwrap()).unwrap().pem().unwrap();
    let request = corten_api::k8s_openapi::ByteString(request.into_bytes());
    let mut signing = CertificateSigningRequest::from_value(json!({"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "jane"}, "spec": {"request": "", "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth"]}})).unwrap();
    signing.spec.request = request;
    let signing = admin.create(&signing).await.unwrap();
    let mut approved = signing.to_value();
    approved["status"]["conditions"] =
        json!([{"type": "Approved", "status": "True", "reason": "Test", "message": "by hand"}]);
    admin.of::<CertificateSigningRequest>().update_subresource("", "jane", "approval", &approved).await.unwrap();
    cluster
        .eventually("a certificate", || async {
            let signed = admin.get::<CertificateSigningRequest>("", "jane").await.unwrap().status;
            signed.and_then(|status| status.certificate).is_some_and(|pem| pem.0.starts_with(b"-----BEGIN CERTIFICATE"))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_two_managers_leads_and_the_other_takes_over() {
    let cluster = Cluster::start(0).await;
    let admin = &cluster.admin;
    // Only the fields that differ from the manager that every cluster of these tests has.
    let manager = |identity: &str, shutdown: &CancellationToken| {
        let config = corten_controllers::Config {
            identity: identity.to_owned(),
            leader_elect: true,
            controllers: vec!["ttl-after-finished-controller".to_owned()],
            lease_duration: Duration::from_secs(70),
            renew_deadline: Duration::from_secs(60),
            ..corten_controllers::Config::default()
        };
        tokio::spawn(corten_controllers::run(config, cluster.clients.clone(), shutdown.clone()))
    };
    let holder = || async {
        let lease = admin.find::<Lease>("kube-system", corten_controllers::MANAGER).await.unwrap();
        lease.and_then(|lease| lease.spec?.holder_identity).unwrap_or_default()
    };
    let (first, second) = (CancellationToken::new(), CancellationToken::new());
    let leading = manager("first", &first);
    cluster.eventually("a leader", || async { holder().await == "first" }).await;
    let waiting = manager("second", &second);
    let ended = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"namespace": "default", "name": "brief"},
        "spec": {"ttlSecondsAfterFinished": 0, "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}},
    });
    assert_eq!(holder().await, "first", "the second waits");
    first.cancel();
    assert!(leading.await.unwrap().is_ok(), "a leader that is asked to stop has not failed");
    cluster.eventually("the second to lead", || async { holder().await == "second" }).await;
    add_node(admin, "late").await;
    cluster.create::<Job>(ended).await;
    cluster
        .eventually("the job gone", || async { admin.find::<Job>("default", "brief").await.unwrap().is_none() })
        .await;
    second.cancel();
    assert!(waiting.await.unwrap().is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_autoscaler_without_metrics_keeps_to_its_bounds_and_says_what_is_missing() {
    let cluster = Cluster::start(1).await;
    cluster.create::<Deployment>(deployment("web", 1)).await;
    let autoscaler = json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"namespace": "default", "name": "web"},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"}, "minReplicas": 2, "maxReplicas": 5,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}],
        },
    });
    cluster.create::<HorizontalPodAutoscaler>(autoscaler).await;
    cluster.eventually("the least replicas", || async { available(&cluster, "web").await == 2 }).await;
    // A change of the autoscaler is reconciled before the period is over.
    let patch = Patch::Merge(json!({"spec": {"maxReplicas": 6}}));
    cluster.admin.patch::<HorizontalPodAutoscaler>("default", "web", &patch, None).await.unwrap();
    cluster
        .eventually("what is missing", || async {
            let found = cluster.admin.get::<HorizontalPodAutoscaler>("default", "web").await.unwrap();
            let conditions = found.status.and_then(|status| status.conditions).unwrap_or_default();
            conditions
                .iter()
                .any(|one| one.type_ == "ScalingActive" && one.reason.as_deref() == Some("FailedGetResourceMetric"))
        })
        .await;
}

/// Two managers use leader election; the first is lost in the middle of a rollout, by a crash or a clean stop.
async fn leader_lost_in_mid_rollout(clean: bool) {
    const REPLICAS: i32 = 200;
    let cluster = Cluster::without_manager(6).await;
    let (first, second) = (cluster.shutdown.child_token(), cluster.shutdown.child_token());
    let leader = tokio::spawn(cluster.manage("first", true, first.clone()));
    let leads = |who: &'static str| {
        let admin = cluster.admin.clone();
        move || {
            let admin = admin.clone();
            async move {
                let lease = admin.find::<Lease>("kube-system", "kube-controller-manager").await.unwrap();
                lease.is_some_and(|lease| lease.spec.unwrap().holder_identity.as_deref() == Some(who))
            }
        }
    };
    cluster.eventually("a leader", leads("first")).await;
    tokio::spawn(cluster.manage("second", true, second));
    cluster.create::<Deployment>(deployment("web", REPLICAS)).await;
    cluster.eventually("all replicas", || async { available(&cluster, "web").await == REPLICAS }).await;
    let patch =
        Patch::Strategic(json!({"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "two"}]}}}}));
    cluster.admin.patch::<Deployment>("default", "web", &patch, None).await.unwrap();
    let pods = |image: &'static str| {
        let admin = cluster.admin.clone();
        async move {
            let pods = admin.list::<Pod>("default", &ListOptions::default()).await.unwrap().items;
            let alive = pods.into_iter().filter(|pod| pod.metadata.deletion_timestamp.is_none());
            let images: Vec<String> = alive.filter_map(|pod| pod.spec?.containers[0].image.clone()).collect();
            (images.len(), images.iter().filter(|one| *one == image).count())
        }
    };
    cluster.eventually("the rollout", || async { pods("two").await.1 >= 50 }).await;
    if clean {
        let stopped = Instant::now();
        first.cancel();
        leader.await.unwrap().unwrap();
        cluster.eventually("the hand-over", leads("second")).await;
        eprintln!("handed over after {:?}", stopped.elapsed());
    } else {
        leader.abort();
    }
    let most = REPLICAS + REPLICAS / 4;
    cluster
        .eventually("the end of the rollout", || async {
            // Pods may lag behind the sizes of their ReplicaSets, which the rollout bounds apply to.
            let sets = cluster.list::<ReplicaSet>("default").await;
            let asked: i32 = sets.iter().filter_map(|set| set.spec.as_ref()?.replicas).sum();
            assert!(asked <= most, "{asked} pods are asked for, and no more than {most} may be");
            pods("two").await == (REPLICAS as usize, REPLICAS as usize) && available(&cluster, "web").await == REPLICAS
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_hands_a_rollout_over() {
    leader_lost_in_mid_rollout(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_crashes_is_followed_by_another() {
    leader_lost_in_mid_rollout(false).await;
}

/// A controller that has exhausted its concurrency share retries after the time that the server returns, and its writes
/// succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_the_server_refuses_for_now_is_sent_again() {
    let cluster = Cluster::without_manager(0).await;
    let user = "system:serviceaccount:kube-system:deployment-controller";
    let flow =
        |plural: &str| cluster.admin.dynamic(&Resource::new("flowcontrol.apiserver.k8s.io", "v1", plural, false));
    let level = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": {"name": "narrow"},
        "spec": {"type": "Limited", "limited": {"nominalConcurrencyShares": 1, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}}});
    flow("prioritylevelconfigurations").create("", &level).await.unwrap();
    let schema = json!({"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": {"name": "narrow"},
        "spec": {"priorityLevelConfiguration": {"name": "narrow"}, "matchingPrecedence": 2, "rules": [{"subjects": [{"kind": "User", "user": {"name": user}}],
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": true}]}]}});
    flow("flowschemas").create("", &schema).await.unwrap();
    let metrics = corten_client::Metrics::default();
    let client = (cluster.clients)("deployment-controller").with_metrics(&metrics, "here");
    let template = &deployment("late", 0)["spec"]["template"];
    let set = |name: String| {
        let spec = json!({"replicas": 0, "selector": {"matchLabels": {"app": "late"}}, "template": template});
        let metadata = json!({"namespace": "default", "name": name});
        ReplicaSet::from_value(
            json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": metadata, "spec": spec}),
        )
        .unwrap()
    };
    // The priority level has few seats: of more concurrent writes than those, some are rejected.
    let refused = "rest_client_requests_total{code=\"429\",host=\"here\",method=\"POST\"}";
    let (began, mut rounds) = (Instant::now(), 0..);
    while !metrics.render().contains(refused) {
        assert!(began.elapsed() < in_process::BOUND, "never a refusal");
        let round = rounds.next().unwrap();
        let sets: Vec<ReplicaSet> = (0..16).map(|number| set(format!("r{round}-{number}"))).collect();
        for created in futures::future::join_all(sets.iter().map(|set| client.create(set))).await {
            created.unwrap();
        }
    }
    assert!(metrics.render().contains("rest_client_request_retries_total{code=\"201\",host=\"here\",verb=\"POST\"}"));
}

/// An autoscaler follows a query of Prometheus up and down again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_autoscaler_follows_an_external_metric_of_prometheus() {
    let cluster = Cluster::start(1).await;
    let load = Arc::new(AtomicU32::new(50));
    let shown = Arc::clone(&load);
    let prometheus =
        Prometheus::start(move |_| vec![Series { labels: json!({}), value: f64::from(shown.load(Ordering::SeqCst)) }])
            .await;
    let crds = Resource::new("apiextensions.k8s.io", "v1", "customresourcedefinitions", false);
    cluster.admin.dynamic(&crds).create("", &corten_metric_sources::definition()).await.unwrap();
    let sources = Resource::new("metrics.corten.dev", "v1alpha1", "metricsources", false);
    let source = json!({
        "apiVersion": "metrics.corten.dev/v1alpha1", "kind": "MetricSource", "metadata": {"name": "prometheus"},
        "spec": {"prometheus": {"url": prometheus.url()},
                 "metrics": [{"name": "requests_per_second", "query": "sum(rate(http_requests_total[1m]))"}]},
    });
    cluster
        .eventually("the source", || async { cluster.admin.dynamic(&sources).create("", &source).await.is_ok() })
        .await;
    cluster.create::<Deployment>(deployment("web", 1)).await;
    cluster.eventually("one replica", || async { available(&cluster, "web").await == 1 }).await;
    cluster
        .create::<HorizontalPodAutoscaler>(json!({
            "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
            "metadata": {"namespace": "default", "name": "web"},
            "spec": {
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
                "minReplicas": 1, "maxReplicas": 8,
                "metrics": [{"type": "External", "external": {
                    "metric": {"name": "requests_per_second"}, "target": {"type": "AverageValue", "averageValue": "10"},
                }}],
                "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
            },
        }))
        .await;
    cluster.eventually("five replicas", || async { available(&cluster, "web").await == 5 }).await;
    load.store(7, Ordering::SeqCst);
    cluster.eventually("one replica again", || async { available(&cluster, "web").await == 1 }).await;
}
