//! Tests of queries, answers and documents, without a server.

#![allow(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::sync::Arc;

use corten_meta::labels::Selector;
use corten_meta::{Object, Value};
use serde_json::json;

use crate::prometheus::samples;
use crate::template::{Variables, expand};
use crate::{Address, Answered, CUSTOM_METRICS, Cluster, EXTERNAL_METRICS, Error, Listed, Request, answer, served};

/// A cluster of pods and MetricSources.
#[derive(Default)]
struct World {
    sources: Vec<Value>,
    pods: Vec<Value>,
}

impl Cluster for World {
    fn list(&self, group: &str, plural: &str, _: &str) -> Option<Listed> {
        let (kind, singular, namespaced, objects) = match (group, plural) {
            ("metrics.corten.dev", "metricsources") => ("MetricSource", "metricsource", false, &self.sources),
            ("", "pods") => ("Pod", "pod", true, &self.pods),
            _ => return None,
        };
        Some(Listed {
            kind: kind.to_owned(),
            version: "v1".to_owned(),
            singular: singular.to_owned(),
            namespaced,
            objects: objects.iter().map(|object| Arc::new(Object::from_value(object, 1).unwrap())).collect(),
        })
    }

    fn get(&self, _: &str, _: &str, _: &str) -> Option<Value> {
        None
    }

    fn resolve(&self, _: &str, service: &str, _: u16) -> Result<Address, String> {
        Err(format!("no endpoints available for service {service:?}"))
    }

    fn roots(&self) -> &str {
        ""
    }
}

fn source(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "metrics.corten.dev/v1alpha1", "kind": "MetricSource", "metadata": {"name": name, "uid": name},
        "spec": spec,
    })
}

fn prometheus(metrics: Value) -> Value {
    let service = json!({"namespace": "monitoring", "name": "prometheus", "port": 9090});
    source("prometheus", json!({"prometheus": {"service": service}, "metrics": metrics}))
}

fn request(group: &str, version: &str, namespace: &str, path: &str) -> Request {
    Request {
        group: group.to_owned(),
        version: version.to_owned(),
        namespace: namespace.to_owned(),
        parts: path.split('/').filter(|part| !part.is_empty()).map(str::to_owned).collect(),
        ..Request::default()
    }
}

#[test]
fn variables_cannot_leave_their_strings() {
    let names = ["web-1.a".to_owned(), "x\"} or vector(1) #".to_owned()];
    for (query, selector, expected) in [
        ("up{namespace=\"$(namespace)\"}", "", Ok(r#"up{namespace="a\"b\\c"}"#)),
        ("up{pod=~\"$(names)\"}", "", Ok(r#"up{pod=~"web-1\\.a|x\"\\} or vector\\(1\\) #"}"#)),
        ("q{$(selector)}", "", Ok("q{}")),
        ("q{$(selector)}", "queue=a,env!=b", Ok(r#"q{env!="b",queue="a"}"#)),
        ("q{$(selector)}", "queue in (a,b.c),!dead,alive", Ok(r#"q{alive!="",dead="",queue=~"a|b\\.c"}"#)),
        ("q{$(selector)}", "queue notin (a)", Ok(r#"q{queue!~"a"}"#)),
        ("q{$(selector)}", "app.io/x=a", Err("app.io/x is no name of a label of Prometheus")),
        ("q{$(selector)}", "size>3", Err("a metric's selector compares size, which Prometheus cannot")),
        ("q{$(name)}", "", Err("the query has an unknown variable $(name)")),
        ("q{$(names", "", Err("the query has no ) after \"q{\"$(")),
    ] {
        let selector = Selector::parse(selector).unwrap();
        let variables = Variables { namespace: "a\"b\\c", names: &names, selector: &selector };
        let expanded = expand(query, &variables);
        assert_eq!(expanded.as_deref().map_err(String::as_str), expected, "{query}");
    }
}

#[test]
fn many_names_are_not_listed() {
    let names: Vec<String> = (0..501).map(|number| format!("p{number}")).collect();
    let selector = Selector::everything();
    let variables = Variables { namespace: "", names: &names, selector: &selector };
    assert_eq!(expand("up{pod=~\"$(names)\"}", &variables).unwrap(), "up{pod=~\".+\"}");
}

#[test]
fn answers_of_prometheus_are_read() {
    let vector = |value: Value| json!({"status": "success", "data": {"resultType": "vector", "result": value}});
    let read = samples(&vector(json!([{"metric": {"pod": "a"}, "value": [1.5, "2.5"]}]))).unwrap();
    assert_eq!((read[0].labels["pod"].as_str(), read[0].value), ("a", 2.5));
    let read = samples(&json!({"status": "success", "data": {"resultType": "scalar", "result": [1, "+Inf"]}})).unwrap();
    assert_eq!(read[0].value, f64::INFINITY);
    for (document, error) in [
        (json!({"status": "error", "error": "parse error"}), "it refuses the query: parse error"),
        (
            json!({"status": "success", "data": {"resultType": "matrix", "result": []}}),
            "the query returns a matrix, and not a vector",
        ),
        (json!({"status": "success"}), "its answer has no result"),
        (vector(json!([{"metric": {}, "value": [1e300, "1"]}])), "a sample of its answer is malformed"),
        (vector(json!([{"metric": {}, "value": [1, "one"]}])), "a sample of its answer is malformed"),
        (vector(json!([{"metric": {}}])), "a sample of its answer is malformed"),
        (json!([]), "it refuses the query: no error is named"),
    ] {
        assert_eq!(samples(&document).unwrap_err(), error, "{document}");
    }
}

#[test]
fn only_groups_with_a_source_are_served() {
    let of = |sources: Vec<Value>| {
        let served = served(&World { sources, ..World::default() });
        served.iter().map(|one| format!("{}/{}", one.group, one.version)).collect::<Vec<_>>()
    };
    let custom = json!([{"name": "rate", "resource": "pods", "query": "up"}]);
    let external = json!([{"name": "queue", "query": "up"}]);
    let v1beta1 = format!("{EXTERNAL_METRICS}/v1beta1");
    let both = [format!("{CUSTOM_METRICS}/v1beta2"), format!("{CUSTOM_METRICS}/v1beta1")];
    assert_eq!(of(Vec::new()), Vec::<String>::new());
    assert_eq!(of(vec![prometheus(json!([]))]), Vec::<String>::new());
    assert_eq!(of(vec![prometheus(custom)]), both);
    assert_eq!(of(vec![prometheus(external)]), std::slice::from_ref(&v1beta1));
    let adapter = json!({"adapter": {"service": {"namespace": "keda", "name": "k"}, "groups": [EXTERNAL_METRICS]}});
    assert_eq!(of(vec![source("keda", adapter)]), [v1beta1]);
    let mut deleted = prometheus(json!([{"name": "queue", "query": "up"}]));
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(of(vec![deleted]), Vec::<String>::new());
}

#[tokio::test]
async fn a_metric_without_a_source_is_not_found() {
    let world = World {
        sources: vec![prometheus(json!([
            {"name": "rate", "resource": "pods", "query": "up"},
            {"name": "things", "resource": "widgets.example.com", "query": "up"},
            {"name": "broken", "query": "up{$(name)}"},
            {"name": "queue", "query": "up"},
        ]))],
        pods: vec![json!({"metadata": {"name": "a", "namespace": "n", "uid": "1"}})],
    };
    let not_found = |text: &str| Err(Error::NotFound(text.to_owned()));
    for (group, namespace, path, expected) in [
        (CUSTOM_METRICS, "n", "pods/*/none", not_found("the server could not find the metric none for pods")),
        (CUSTOM_METRICS, "n", "pods/a/none", not_found("the server could not find the metric none for pods a")),
        (
            CUSTOM_METRICS,
            "n",
            "widgets.example.com/a/things",
            not_found("the server could not find the metric things for widgets.example.com a"),
        ),
        (CUSTOM_METRICS, "n", "metrics/rate", not_found("the server could not find the metric rate for namespaces n")),
        (CUSTOM_METRICS, "n", "pods", not_found("the server could not find the requested resource")),
        (EXTERNAL_METRICS, "n", "none", not_found("the server could not find the metric none")),
        (EXTERNAL_METRICS, "n", "a/b", not_found("the server could not find the requested resource")),
        (
            EXTERNAL_METRICS,
            "n",
            "broken",
            Err(Error::BadRequest("the query has an unknown variable $(name)".to_owned())),
        ),
        (
            EXTERNAL_METRICS,
            "n",
            "queue",
            Err(Error::Unavailable(
                "metric queue of MetricSource prometheus: no endpoints available for service \"prometheus\"".to_owned(),
            )),
        ),
    ] {
        assert_eq!(answer(&world, &request(group, "v1beta1", namespace, path)).await, expected, "{group} {path}");
    }
}

#[tokio::test]
async fn adapters_are_asked_for_metrics_that_no_query_has() {
    let adapter = |name: &str, groups: Value| {
        let service = json!({"namespace": "x", "name": name, "port": 6443});
        source(name, json!({"adapter": {"service": service, "groups": groups, "insecureSkipTLSVerify": true}}))
    };
    let world = World {
        sources: vec![adapter("b", json!([])), adapter("a", json!([EXTERNAL_METRICS])), prometheus(json!([]))],
        ..World::default()
    };
    let asked = async |group: &str, path: &str| match answer(&world, &request(group, "v1beta1", "n", path)).await {
        Ok(Answered::Adapters(specs)) => specs,
        other => panic!("{other:?}"),
    };
    let specs = asked(EXTERNAL_METRICS, "queue").await;
    let names: Vec<&Value> = specs.iter().map(|spec| &spec["service"]["name"]).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(specs[0]["insecureSkipTLSVerify"], true);
    assert_eq!(asked(CUSTOM_METRICS, "pods/*/rate").await.len(), 1);
}
