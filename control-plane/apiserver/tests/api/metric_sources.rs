//! Custom and external metrics from MetricSources: the values, discovery, and who serves the groups.

use corten_metric_sources::definition;
use serde_json::{Value, json};
use testkit::prometheus::{Prometheus, Series};

use crate::server::TestServer;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const SOURCES: &str = "/apis/metrics.corten.dev/v1alpha1/metricsources";
const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
const CUSTOM: &str = "/apis/custom.metrics.k8s.io";
const EXTERNAL: &str = "/apis/external.metrics.k8s.io/v1beta1";

async fn server() -> TestServer {
    let s = TestServer::start().await;
    s.post(DEFINITIONS, definition()).await.expect(201);
    s.until(SOURCES, 200).await;
    s
}

fn source(url: &str) -> Value {
    json!({
        "apiVersion": "metrics.corten.dev/v1alpha1", "kind": "MetricSource", "metadata": {"name": "prometheus"},
        "spec": {
            "prometheus": {"url": url, "secretName": "prometheus"},
            "metrics": [
                {"name": "requests_per_second", "resource": "pods",
                 "query": "rate(requests{namespace=\"$(namespace)\",pod=~\"$(names)\",$(selector)}[1m])"},
                {"name": "hits", "resource": "ingresses.networking.k8s.io",
                 "query": "sum(hits{ingress=~\"$(names)\"})"},
                {"name": "queue", "query": "queue{$(selector)}"},
            ],
        },
    })
}

fn pod(name: &str, app: &str) -> Value {
    json!({
        "metadata": {"name": name, "labels": {"app": app}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    })
}

#[tokio::test]
async fn metrics_of_a_source_are_served_as_long_as_it_exists() {
    let s = server().await;
    assert_eq!(s.get(&format!("{CUSTOM}/v1beta2")).await.code, 404, "no source, no group");
    let prometheus = Prometheus::start(|query| match query.split(['(', '{']).next() {
        Some("rate") => {
            ["a", "b", "other"].iter().map(|pod| Series { labels: json!({"pod": pod}), value: 0.1251 }).collect()
        }
        Some("sum") => vec![Series { labels: json!({}), value: f64::NAN }],
        _ => vec![Series { labels: json!({"queue": "mail"}), value: 50.0 }],
    })
    .await;
    let secret = json!({"metadata": {"name": "prometheus"}, "stringData": {"token": "s3cret"}});
    s.post("/api/v1/namespaces/kube-system/secrets", secret).await.expect(201);
    let account = json!({"metadata": {"name": "default"}});
    s.post("/api/v1/namespaces/default/serviceaccounts", account).await.expect(201);
    for (name, app) in [("a", "web"), ("b", "web"), ("c", "db")] {
        s.post("/api/v1/namespaces/default/pods", pod(name, app)).await.expect(201);
    }
    s.post(SOURCES, source(&prometheus.url())).await.expect(201);

    let list = s.until(&format!("{CUSTOM}/v1beta2"), 200).await;
    let names: Vec<&Value> = list["resources"].as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["ingresses.networking.k8s.io/hits", "pods/requests_per_second"]);
    assert_eq!(list["resources"][1]["kind"], "MetricValueList");
    let group = s.get(CUSTOM).await.expect(200);
    assert_eq!(group["preferredVersion"]["version"], "v1beta2");
    s.until(&format!("{SERVICES}/v1beta1.external.metrics.k8s.io"), 200).await;

    let pods = "namespaces/default/pods/*/requests_per_second?labelSelector=app%3Dweb&metricLabelSelector=code%3D200";
    let values = s.get(&format!("{CUSTOM}/v1beta2/{pods}")).await.expect(200);
    let item = |name: &str| {
        json!({
            "describedObject": {"kind": "Pod", "namespace": "default", "name": name, "apiVersion": "/v1"},
            "metric": {"name": "requests_per_second", "selector": {"matchLabels": {"code": "200"}}},
            "timestamp": "2026-01-01T00:00:00Z", "value": "125m",
        })
    };
    assert_eq!(
        values,
        json!({
            "kind": "MetricValueList", "apiVersion": "custom.metrics.k8s.io/v1beta2", "metadata": {},
            "items": [item("a"), item("b")],
        })
    );
    let asked = prometheus.asked().pop().unwrap();
    assert_eq!(asked.query, r#"rate(requests{namespace="default",pod=~"a|b",code="200"}[1m])"#);
    assert_eq!((asked.path.as_str(), asked.authorization.as_str()), ("/api/v1/query", "Bearer s3cret"));

    let path = format!("{CUSTOM}/v1beta1/namespaces/default/ingresses.networking.k8s.io/web/hits");
    let values = s.get(&path).await.expect(200);
    let item = &values["items"][0];
    assert_eq!((&item["metricName"], &item["value"]), (&json!("hits"), &json!("0")), "{values}");
    assert_eq!(item["describedObject"]["apiVersion"], "networking.k8s.io/v1");
    let values = s.get(&format!("{EXTERNAL}/namespaces/default/queue?labelSelector=queue%3Dmail")).await.expect(200);
    assert_eq!(values["kind"], "ExternalMetricValueList");
    assert_eq!(values["items"][0]["metricLabels"], json!({"queue": "mail"}));
    assert_eq!(values["items"][0]["value"], "50");
    let message = s.get(&format!("{CUSTOM}/v1beta2/namespaces/default/pods/*/none")).await.message(404);
    assert_eq!(message, "the server could not find the metric none for pods");
    assert_eq!(s.post(&format!("{EXTERNAL}/namespaces/default/queue"), json!({})).await.code, 405);
    let nobody = s.user("nobody", &[]);
    let refused = crate::server::call(&nobody, "GET", &format!("{EXTERNAL}/namespaces/default/queue"), None, "").await;
    assert_eq!(refused.code, 403, "metrics are authorized as every resource");

    s.delete(&format!("{SOURCES}/prometheus"), None).await.expect(200);
    s.until(&format!("{CUSTOM}/v1beta2"), 404).await;
    for name in ["v1beta1.custom", "v1beta2.custom", "v1beta1.external"] {
        s.until(&format!("{SERVICES}/{name}.metrics.k8s.io"), 404).await;
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    let s = server().await;
    let port = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.local_addr().unwrap().port()
    };
    let mut source = source(&format!("http://127.0.0.1:{port}"));
    s.post(SOURCES, source.clone()).await.expect(201);
    s.until(EXTERNAL, 200).await;
    let path = format!("{EXTERNAL}/namespaces/default/queue");
    let message = s.get(&path).await.message(503);
    let expected = "metric queue of MetricSource prometheus: there is no Secret prometheus in namespace kube-system";
    assert_eq!(message, expected);
    source["spec"]["prometheus"] = json!({"url": format!("http://127.0.0.1:{port}")});
    source["metadata"]["resourceVersion"] =
        s.get(&format!("{SOURCES}/prometheus")).await.body["metadata"]["resourceVersion"].clone();
    s.put(&format!("{SOURCES}/prometheus"), source).await.expect(200);
    let message = s.get(&path).await.message(503);
    assert!(message.contains("Connection refused"), "{message}");
}

#[tokio::test]
async fn an_api_service_of_the_user_has_the_whole_group() {
    let s = server().await;
    let prometheus = Prometheus::start(|_| Vec::new()).await;
    s.post(SOURCES, source(&prometheus.url())).await.expect(201);
    s.until(&format!("{SERVICES}/v1beta2.custom.metrics.k8s.io"), 200).await;
    let service = json!({"spec": {
        "service": {"namespace": "monitoring", "name": "adapter"}, "insecureSkipTLSVerify": true,
    }});
    s.patch(&format!("{SERVICES}/v1beta1.custom.metrics.k8s.io"), "merge", service).await.expect(200);
    s.until(&format!("{SERVICES}/v1beta2.custom.metrics.k8s.io"), 404).await;
    s.until(&format!("{CUSTOM}/v1beta1"), 503).await;
    s.get(EXTERNAL).await.expect(200);
    s.delete(&format!("{SOURCES}/prometheus"), None).await.expect(200);
    s.until(EXTERNAL, 404).await;
    s.get(&format!("{SERVICES}/v1beta1.custom.metrics.k8s.io")).await.expect(200);
}

#[tokio::test]
async fn a_source_without_a_server_is_refused() {
    let s = server().await;
    for (spec, message) in [
        (json!({}), "name either prometheus or an adapter"),
        (json!({"prometheus": {}}), "name either a url or a service"),
        (
            json!({"adapter": {"service": {"namespace": "a", "name": "b"}}, "metrics": []}),
            "an adapter has metrics of its own",
        ),
        (json!({"prometheus": {"url": "file:///etc/passwd"}}), "spec.prometheus.url"),
    ] {
        let object = json!({
            "apiVersion": "metrics.corten.dev/v1alpha1", "kind": "MetricSource", "metadata": {"name": "x"},
            "spec": spec,
        });
        let refused = s.post(SOURCES, object).await.message(422);
        assert!(refused.contains(message), "{refused}");
    }
}
