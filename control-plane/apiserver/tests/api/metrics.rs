//! `/metrics` as a strict reader of the text format sees it, and the counting of requests.

use std::collections::{BTreeMap, BTreeSet};

use crate::server::{TestServer, call};
use serde_json::{Value, json};

/// A sample: its name, its labels in order, its value.
type Sample = (String, Vec<(String, String)>, f64);

/// The families of an exposition: kind and samples, by name.
type Families = BTreeMap<String, (String, Vec<Sample>)>;

fn is_name(text: &str) -> bool {
    let first = |c: char| c.is_ascii_alphabetic() || c == '_' || c == ':';
    text.starts_with(first) && text.chars().all(|c| first(c) || c.is_ascii_digit())
}

/// Parses the labels between braces, with their escapes.
fn labels(mut text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").expect("a label has a value");
        assert!(is_name(name), "label {name:?}");
        let mut value = String::new();
        let mut characters = rest.char_indices();
        let end = loop {
            match characters.next().expect("a value ends with a quote") {
                (at, '"') => break at,
                (_, '\\') => value.push(match characters.next().unwrap().1 {
                    'n' => '\n',
                    other @ ('\\' | '"') => other,
                    other => panic!("escape {other:?}"),
                }),
                (_, '\n') => panic!("a line break in a value"),
                (_, other) => value.push(other),
            }
        };
        labels.push((name.to_owned(), value));
        text = &rest[end + 1..];
        text = text.strip_prefix(',').unwrap_or(text);
    }
    labels
}

fn sample(line: &str) -> Sample {
    let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
    let value = value.parse().expect("a value is a number");
    match series.split_once('{') {
        None => (series.to_owned(), Vec::new(), value),
        Some((name, rest)) => (name.to_owned(), labels(rest.strip_suffix('}').expect("braces close")), value),
    }
}

/// Parses an exposition, and refuses what Prometheus would.
fn parse(text: &str) -> Families {
    assert!(text.ends_with('\n'));
    let mut families = Families::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            current = help.split(' ').next().unwrap().to_owned();
            assert!(is_name(&current), "{line}");
            let new = families.insert(current.clone(), (String::new(), Vec::new())).is_none();
            assert!(new, "{current} begins twice");
        } else if let Some(kind) = line.strip_prefix("# TYPE ") {
            let (name, kind) = kind.split_once(' ').unwrap();
            assert_eq!(name, current, "TYPE follows HELP");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
            families.get_mut(name).unwrap().0 = kind.to_owned();
        } else {
            let (name, labels, value) = sample(line);
            let (kind, samples) = families.get_mut(&current).expect("a sample belongs to a family");
            let suffixes: &[&str] = if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
            assert!(suffixes.iter().any(|suffix| name == format!("{current}{suffix}")), "{line} is not of {current}");
            samples.push((name, labels, value));
        }
    }
    families
}

/// Checks that no series and no label comes twice, that labels are in order, and that histograms rise to their count.
fn check(families: &Families) {
    for (family, (kind, samples)) in families {
        let mut seen = BTreeSet::new();
        for (name, labels, value) in samples {
            assert!(seen.insert((name, labels)), "{name} {labels:?} comes twice");
            assert!(labels.iter().map(|(name, _)| name).is_sorted_by(|a, b| a < b || *b == "le"), "{name} {labels:?}");
            assert!(value.is_finite() && (kind == "gauge" || *value >= 0.0), "{name} {value}");
        }
        if kind == "histogram" {
            check_histograms(family, samples);
        }
    }
}

fn check_histograms(family: &str, samples: &[Sample]) {
    let mut last: BTreeMap<Vec<(String, String)>, (f64, f64)> = BTreeMap::new();
    for (name, labels, value) in samples {
        if *name == format!("{family}_bucket") {
            let mut labels = labels.clone();
            let bound: f64 = labels.pop().filter(|(name, _)| name == "le").unwrap().1.parse().unwrap();
            let (before, count) = last.insert(labels, (bound, *value)).unwrap_or((f64::NEG_INFINITY, 0.0));
            assert!(bound > before && *value >= count, "{family} does not rise");
        } else if *name == format!("{family}_count") {
            assert_eq!(last[labels], (f64::INFINITY, *value), "{family} {labels:?}");
        }
    }
}

async fn scrape(server: &TestServer) -> Families {
    let Value::String(text) = server.get("/metrics").await.expect(200) else { panic!("not a text") };
    let families = parse(&text);
    check(&families);
    families
}

/// Returns the value of the series that has these labels among its own.
fn value(families: &Families, name: &str, wanted: &[(&str, &str)]) -> Option<f64> {
    let family = name.strip_suffix("_count").filter(|family| families.contains_key(*family)).unwrap_or(name);
    let has = |labels: &[(String, String)]| wanted.iter().all(|(n, v)| labels.iter().any(|(a, b)| a == n && b == v));
    let mut found = families.get(family)?.1.iter().filter(|(sample, labels, _)| sample == name && has(labels));
    let first = found.next().map(|(_, _, value)| *value);
    assert!(found.next().is_none(), "{name} {wanted:?} is not one series");
    first
}

#[tokio::test]
async fn the_exposition_is_well_formed_and_counts() {
    let server = TestServer::start().await;
    let maps = "/api/v1/namespaces/default/configmaps";
    for name in ["a", "b"] {
        server.post(maps, json!({ "metadata": { "name": name } })).await.expect(201);
    }
    server.post(&format!("{maps}?dryRun=All"), json!({ "metadata": { "name": "c" } })).await.expect(201);
    server.get(&format!("{maps}/a")).await.expect(200);
    server.get(maps).await.expect(200);
    let events = server.watch(&format!("{maps}?watch=1&resourceVersion=0")).await;
    let families = scrape(&server).await;
    let maps_of = |verb: &'static str, scope: &'static str| {
        [("group", ""), ("version", "v1"), ("resource", "configmaps"), ("verb", verb), ("scope", scope)]
    };
    let with = |labels: &[(&'static str, &'static str)], more: &[(&'static str, &'static str)]| {
        let all: Vec<(&str, &str)> = labels.iter().chain(more).copied().collect();
        all
    };
    let posted = maps_of("POST", "resource");
    let total = "apiserver_request_total";
    assert_eq!(value(&families, total, &with(&posted, &[("code", "201"), ("dry_run", "")])), Some(2.0));
    assert_eq!(value(&families, total, &with(&posted, &[("code", "201"), ("dry_run", "All")])), Some(1.0));
    let listed = maps_of("LIST", "namespace");
    assert_eq!(value(&families, total, &with(&listed, &[("code", "200")])), Some(1.0));
    assert_eq!(value(&families, "apiserver_request_duration_seconds_count", &listed), Some(1.0));
    assert_eq!(value(&families, "apiserver_response_sizes_count", &listed), Some(1.0));
    let watched = maps_of("WATCH", "namespace");
    assert_eq!(value(&families, "apiserver_longrunning_requests", &watched), Some(1.0));
    let stored = [("group", ""), ("resource", "configmaps")];
    assert!(value(&families, "apiserver_resource_objects", &stored).unwrap() >= 2.0);
    let created = [("group", ""), ("operation", "create"), ("resource", "configmaps")];
    assert!(value(&families, "etcd_request_duration_seconds_count", &created).unwrap() >= 2.0);
    for name in ["process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"] {
        assert!(value(&families, name, &[]).is_some(), "{name}");
    }
    drop(events);
    let families = scrape(&server).await;
    assert_eq!(value(&families, "apiserver_longrunning_requests", &watched), Some(0.0));
}

#[tokio::test]
async fn clients_cannot_create_labels() {
    let server = TestServer::start().await;
    let user = server.user("nobody", &[]);
    for number in 0..50 {
        for path in [format!("/apis/g{number}/v1/things"), format!("/api/v1/things{number}"), format!("/x{number}")] {
            call(&user, "GET", &path, None, "").await;
            server.get(&path).await;
        }
        call(&user, &format!("X{number}"), "/api/v1/pods", None, "").await;
        server.get(&format!("/api/v1/namespaces/default/pods/a/made{number}")).await;
    }
    let families = scrape(&server).await;
    let series = families["apiserver_request_total"].1.len();
    assert!(series < 40, "{series} series");
}

#[tokio::test]
async fn access_is_counted() {
    let server = TestServer::start().await;
    let user = server.user("nobody", &[]);
    call(&user, "GET", "/api/v1/pods", None, "").await.expect(403);
    let strict =
        json!({ "metadata": { "name": "strict", "labels": { "pod-security.kubernetes.io/enforce": "baseline" } } });
    server.post("/api/v1/namespaces", strict).await.expect(201);
    let namespace = "/api/v1/namespaces/strict";
    server
        .post(&format!("{namespace}/serviceaccounts"), json!({ "metadata": { "name": "default" } }))
        .await
        .expect(201);
    let pod = |privileged: bool| {
        let container = json!({ "name": "c", "image": "i", "securityContext": { "privileged": privileged } });
        json!({ "metadata": { "name": "p" }, "spec": { "containers": [container] } })
    };
    server.post(&format!("{namespace}/pods"), pod(true)).await.expect(403);
    server.post(&format!("{namespace}/pods"), pod(false)).await.expect(201);
    let families = scrape(&server).await;
    assert_eq!(value(&families, "authorization_attempts_total", &[("result", "no-opinion")]), Some(1.0));
    assert!(value(&families, "authentication_duration_seconds_count", &[("result", "success")]).unwrap() > 3.0);
    let refused = [("operation", "CREATE"), ("rejected", "true"), ("type", "validate")];
    assert_eq!(value(&families, "apiserver_admission_step_admission_duration_seconds_count", &refused), Some(1.0));
    let plugin = "apiserver_admission_controller_admission_duration_seconds_count";
    let of = |name: &'static str, rejected: &'static str, step: &'static str| {
        [("name", name), ("operation", "CREATE"), ("rejected", rejected), ("type", step)]
    };
    assert_eq!(value(&families, plugin, &of("PodSecurity", "true", "validate")), Some(1.0));
    assert!(value(&families, plugin, &of("NamespaceLifecycle", "false", "admit")).unwrap() >= 4.0);
    assert_eq!(value(&families, plugin, &of("NamespaceLifecycle", "false", "validate")), None);
    let denied = [("decision", "deny"), ("mode", "enforce"), ("policy_level", "baseline"), ("resource", "pod")];
    assert_eq!(value(&families, "pod_security_evaluations_total", &denied), Some(1.0));
}

#[tokio::test]
async fn rare_events_and_health_are_counted() {
    let server = TestServer::start().await;
    server.get("/api/v1/endpoints").await.expect(200);
    let watched = "/api/v1/namespaces/default/secrets?watch=1&allowWatchBookmarks=true&timeoutSeconds=1";
    drop(server.watch(watched).await);
    let rule = json!({ "rule": "self.size() < 9" });
    let text = json!({ "type": "string", "x-kubernetes-validations": [rule] });
    let schema = json!({ "type": "object", "properties": { "spec": {
        "type": "object", "properties": { "size": text } } } });
    let version = json!({ "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema } });
    let names = json!({ "plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList" });
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "widgets.example.com" },
        "spec": { "group": "example.com", "scope": "Namespaced", "names": names, "versions": [version] },
    });
    server.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await.expect(201);
    let families = scrape(&server).await;
    let deprecated = [("group", ""), ("resource", "endpoints"), ("version", "v1"), ("removed_release", "")];
    assert_eq!(value(&families, "apiserver_requested_deprecated_apis", &deprecated), Some(1.0));
    let secrets = [("group", ""), ("resource", "secrets"), ("scope", "namespace"), ("version", "v1")];
    assert_eq!(value(&families, "apiserver_watch_list_duration_seconds_count", &secrets), Some(1.0));
    assert!(value(&families, "apiserver_storage_size_bytes", &[("storage_cluster_id", "etcd-0")]).unwrap() > 0.0);
    assert!(value(&families, "apiserver_cel_compilation_duration_seconds_count", &[]).unwrap() >= 1.0);

    let Value::String(text) = server.get("/metrics/slis").await.expect(200) else { panic!("not a text") };
    assert!(value(&parse(&text), "process_start_time_seconds", &[]).unwrap() > 0.0, "there is a page before any check");
    server.get("/livez").await.expect(200);
    server.get("/livez").await.expect(200);
    server.get("/livez/ping").await.expect(200);
    let Value::String(text) = server.get("/metrics/slis").await.expect(200) else { panic!("not a text") };
    let families = parse(&text);
    check(&families);
    let ping = [("name", "ping"), ("type", "livez")];
    assert_eq!(value(&families, "kubernetes_healthcheck", &ping), Some(1.0));
    let ended = [("name", "ping"), ("status", "success"), ("type", "livez")];
    assert_eq!(value(&families, "kubernetes_healthchecks_total", &ended), Some(2.0));
}
