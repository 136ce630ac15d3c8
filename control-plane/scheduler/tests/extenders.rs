//! Extenders as real HTTP servers that answer by upstream's protocol, with Go's field names.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

mod cluster;

use std::sync::{Arc, Mutex};

use bytes::Bytes;
use cluster::Cluster;
use corten_api::k8s_openapi::api::core::v1::Pod;
use corten_api::k8s_openapi::api::scheduling::v1::PriorityClass;
use corten_client::{Client, DeleteOptions};
use corten_scheduler::Config;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::TcpListener;

type Answer = dyn Fn(&str, &Value) -> (u16, Value) + Send + Sync;

/// An extender, and the requests it received.
struct Extender {
    url: String,
    requests: Arc<Mutex<Vec<(String, Value)>>>,
}

impl Extender {
    async fn start(answer: impl Fn(&str, &Value) -> (u16, Value) + Send + Sync + 'static) -> Extender {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/scheduler", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, log): (Arc<Answer>, _) = (Arc::new(answer), requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (answer, log) = (answer.clone(), log.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (answer, log) = (answer.clone(), log.clone());
                    async move {
                        let verb = request.uri().path().trim_start_matches("/scheduler/").to_owned();
                        let body = request.into_body().collect().await?.to_bytes();
                        let body: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
                        let (status, response_body) = answer(&verb, &body);
                        log.lock().unwrap().push((verb, body));
                        let response =
                            Response::builder().status(status).body(Full::<Bytes>::from(response_body.to_string()));
                        Ok::<_, hyper::Error>(response.unwrap())
                    }
                });
                let http = hyper::server::conn::http1::Builder::new();
                tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
            }
        });
        Extender { url, requests }
    }

    fn requests(&self, verb: &str) -> Vec<Value> {
        let requests = self.requests.lock().unwrap();
        requests.iter().filter(|(requested, _)| requested == verb).map(|(_, body)| body.clone()).collect()
    }
}

fn config(url: &str, extra: Value) -> Config {
    let mut extender = json!({"urlPrefix": url, "httpTimeout": "5s"});
    corten_meta::patch::merge_patch(&mut extender, &extra);
    let document = json!({"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": false}, "extenders": [extender]});
    Config::from_document(document).unwrap()
}

async fn three_nodes(config: Config) -> Cluster {
    let cluster = Cluster::start(config).await;
    for name in ["a", "b", "c"] {
        cluster.node(name, "2").await;
    }
    cluster
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_filters_and_prioritizes_whole_nodes() {
    let extender = Extender::start(|verb, request| match verb {
        "filter" => {
            let left: Vec<Value> = request["Nodes"]["items"].as_array().unwrap().clone();
            let left: Vec<Value> = left.into_iter().filter(|node| node["metadata"]["name"] != "a").collect();
            (
                200,
                json!({"Nodes": {"metadata": {}, "items": left}, "NodeNames": null, "FailedNodes": {"a": "not that"},
                "FailedAndUnresolvableNodes": null, "Error": ""}),
            )
        }
        _ => (200, json!([{"Host": "b", "Score": 1}, {"Host": "c", "Score": 10}])),
    })
    .await;
    let verbs = json!({"filterVerb": "filter", "prioritizeVerb": "prioritize", "weight": 5});
    let cluster = three_nodes(config(&extender.url, verbs)).await;
    cluster.pod("p", "1", json!({})).await;
    cluster.is_on("p", "c").await;
    let request = extender.requests("filter").pop().unwrap();
    assert_eq!(request["Pod"]["metadata"]["name"], "p");
    assert!(request["Pod"]["metadata"]["resourceVersion"].is_string(), "{request}");
    assert!(
        request["NodeNames"].is_null() && request["Nodes"]["items"][0]["status"]["allocatable"]["cpu"] == "2",
        "{request}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_event_has_the_words_of_the_extender_that_refuses() {
    let extender = Extender::start(|_, request| {
        assert!(request["Nodes"].is_null(), "it knows the nodes");
        let failed = json!({"a": "too red", "b": "too red"});
        (200, json!({"NodeNames": [], "FailedNodes": failed, "FailedAndUnresolvableNodes": {"c": "too blue"}}))
    })
    .await;
    let verbs = json!({"filterVerb": "filter", "nodeCacheCapable": true});
    let cluster = three_nodes(config(&extender.url, verbs)).await;
    cluster.pod("p", "1", json!({})).await;
    let why = "0/3 nodes are available: 1 too blue, 2 too red. no new claims to deallocate, preemption: 0/3 nodes are available: 1 Preemption is not \
               helpful for scheduling, 2 No preemption victims found for incoming pod.";
    cluster.says("p", why).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_extender_fails_pods_unless_it_may_be_ignored() {
    let extender = Extender::start(|_, _| (500, Value::Null)).await;
    let cluster = three_nodes(config(&extender.url, json!({"filterVerb": "filter"}))).await;
    cluster.pod("p", "1", json!({})).await;
    cluster.says("p", &format!("failed filter with extender at URL {}/filter, code 500", extender.url)).await;
    let cluster = three_nodes(config(&extender.url, json!({"filterVerb": "filter", "ignorable": true}))).await;
    cluster.pod("p", "1", json!({})).await;
    cluster.eventually("it is placed", || async { !cluster.get("p").await["spec"]["nodeName"].is_null() }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_is_asked_only_about_the_resources_it_manages() {
    let extender = Extender::start(|_, _| (200, json!({"NodeNames": ["b"]}))).await;
    let managed = json!([{"name": "example.com/foo", "ignoredByScheduler": true}]);
    let verbs = json!({"filterVerb": "filter", "nodeCacheCapable": true, "managedResources": managed});
    let cluster = three_nodes(config(&extender.url, verbs)).await;
    cluster.pod("plain", "1", json!({})).await;
    cluster.eventually("it is placed", || async { !cluster.get("plain").await["spec"]["nodeName"].is_null() }).await;
    assert!(extender.requests("filter").is_empty());
    // No node advertises the resource: the extender alone manages it.
    let foo = json!({"requests": {"cpu": "100m", "example.com/foo": "1"}, "limits": {"example.com/foo": "1"}});
    cluster.pod("foo", "1", json!({"containers": [{"name": "c", "image": "i", "resources": foo}]})).await;
    cluster.is_on("foo", "b").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_binds() {
    let admin: Arc<Mutex<Option<Client>>> = Arc::default();
    let client = admin.clone();
    let extender = Extender::start(move |_, request| {
        let client = client.lock().unwrap().clone().unwrap();
        let (name, node) = (request["PodName"].as_str().unwrap().to_owned(), request["Node"].clone());
        let body = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
        tokio::spawn(async move { client.of::<Pod>().create_subresource("test", &name, "binding", &body).await });
        (200, json!({"Error": ""}))
    })
    .await;
    let cluster = three_nodes(config(&extender.url, json!({"bindVerb": "bind"}))).await;
    *admin.lock().unwrap() = Some(cluster.admin.clone());
    cluster.pod("p", "1", json!({})).await;
    cluster.eventually("it is bound", || async { !cluster.get("p").await["spec"]["nodeName"].is_null() }).await;
    let request = extender.requests("bind").pop().unwrap();
    let pod = cluster.get("p").await;
    assert_eq!((&request["PodNamespace"], &request["PodUID"]), (&json!("test"), &pod["metadata"]["uid"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_extender_chooses_among_the_places_where_room_could_be_made() {
    let extender = Extender::start(|_, request| {
        let offered = request["NodeNameToMetaVictims"].as_object().unwrap();
        assert_eq!(offered.len(), 3, "all that would do are offered: {request}");
        (200, json!({"NodeNameToMetaVictims": {"c": offered["c"]}}))
    })
    .await;
    let cluster = three_nodes(config(&extender.url, json!({"preemptVerb": "preempt", "nodeCacheCapable": true}))).await;
    cluster.create::<PriorityClass>(json!({"metadata": {"name": "high"}, "value": 1000})).await;
    for name in ["a", "b", "c"] {
        cluster.pod(&format!("lesser-{name}"), "2", json!({"nodeSelector": {"kubernetes.io/hostname": name}})).await;
        cluster.is_on(&format!("lesser-{name}"), name).await;
    }
    cluster.pod("greater", "1", json!({"priorityClassName": "high"})).await;
    let nominated = || async { cluster.get("greater").await["status"]["nominatedNodeName"] == "c" };
    cluster.eventually("room is made where the extender says", nominated).await;
    // Deletes the pod as its kubelet would.
    let _ = cluster.admin.delete::<Pod>("test", "lesser-c", &DeleteOptions::now()).await;
    cluster.is_on("greater", "c").await;
}
