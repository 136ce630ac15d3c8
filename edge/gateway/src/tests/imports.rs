//! Tests of the import: requests take the same way through the Ingresses and through the objects made of them.

use corten_meta::{Key, Value};
use serde_json::json;

use super::{Scene, certificate, print};
use crate::import::{Config, import};
use crate::trace::{self, Outcome, Question};

fn path(path: &str, service: &str) -> Value {
    let backend = json!({"service": {"name": service, "port": {"name": "http"}}});
    json!({"path": path, "pathType": "Prefix", "backend": backend})
}

fn ingress(name: &str, host: &str, paths: &[Value], annotations: &[(&str, &str)]) -> Value {
    let annotations: serde_json::Map<String, Value> =
        annotations.iter().map(|(name, value)| (format!("nginx.ingress.kubernetes.io/{name}"), json!(value))).collect();
    let tls = if host == "tls.test" { json!([{"hosts": [host], "secretName": "tls"}]) } else { json!([]) };
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "ingressClassName": "corten", "tls": tls,
            "rules": [{"host": host, "http": {"paths": paths}}],
        },
    })
}

fn sources() -> Vec<Value> {
    vec![
        ingress("plain", "a.test", &[path("/", "web"), path("/api", "api")], &[]),
        ingress(
            "limits",
            "b.test",
            &[path("/", "web")],
            &[
                ("limit-rps", "5"),
                ("whitelist-source-range", "10.0.0.0/8"),
                ("proxy-body-size", "1m"),
                ("affinity", "cookie"),
                ("enable-cors", "true"),
                ("upstream-vhost", "x.test"),
                ("server-alias", "bb.test"),
                ("proxy-read-timeout", "7"),
            ],
        ),
        ingress("rewrite", "c.test", &[path("/x(/|$)(.*)", "web")], &[("rewrite-target", "/$2")]),
        ingress("main", "d.test", &[path("/", "web")], &[]),
        ingress(
            "canary",
            "d.test",
            &[path("/", "api")],
            &[("canary", "true"), ("canary-weight", "10"), ("canary-by-header", "x-canary")],
        ),
        ingress("moved", "e.test", &[path("/", "web")], &[("permanent-redirect", "https://new.test/a")]),
        ingress("tls", "tls.test", &[path("/", "web")], &[("ssl-redirect", "true")]),
        ingress(
            "auth",
            "f.test",
            &[path("/", "web"), path("/oauth2", "api")],
            &[("auth-url", "https://$host/oauth2/auth"), ("auth-signin", "https://$host/oauth2/start")],
        ),
        ingress("root", "g.test", &[path("/", "web")], &[("app-root", "/app"), ("from-to-www-redirect", "true")]),
    ]
}

fn scene(objects: Vec<Value>) -> Scene {
    let mut scene = Scene::default();
    for line in [
        "node n1 192.0.2.1",
        "ingressclass corten controller=corten.dev/ingress",
        "gatewayclass corten controllerName=corten.dev/gateway",
        "svc web ports=[{name: http, port: 80}]",
        "svc api ports=[{name: http, port: 8080}]",
    ] {
        assert_eq!(super::run(&mut scene, line), "");
    }
    scene.put(certificate("tls").expect("a certificate"));
    objects.into_iter().for_each(|object| scene.put(object));
    assert_eq!(super::run(&mut scene, "settle"), "");
    scene
}

/// Prints the way of a request: the first redirect, or the filters and backends, without the names of limits.
fn way(scene: &Scene, url: &str, header: Option<(&str, &str)>) -> String {
    let mut headers = http::HeaderMap::new();
    if let Some((name, value)) = header {
        let name = http::HeaderName::from_bytes(name.as_bytes()).expect("a name");
        headers.insert(name, http::HeaderValue::from_str(value).expect("a value"));
    }
    let question = Question::new(url, "GET", headers).expect("a URL");
    let resolved = scene.resolved();
    let hits = trace::follow(&resolved.configuration, &question);
    let hit = hits.first().map(|hit| &hit.outcome);
    let Some(Outcome::Rule { rule, .. }) = hit else { return "404".to_owned() };
    let printed = print::consequences(rule);
    if let Some(at) = printed.find("redirect ") {
        return printed.get(at..at + 12).unwrap_or_default().to_owned();
    }
    let words = printed.split(' ').filter(|word| !word.starts_with("policy/") && !word.starts_with("ingress/"));
    let session = rule.session.as_ref().map(|session| session.name.to_string());
    format!("{} {session:?} {:?}", words.collect::<Vec<_>>().join(" "), rule.timeouts)
}

#[test]
fn an_imported_ingress_serves_requests_as_before() {
    let services = [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "default"},
               "spec": {"ports": [{"name": "http", "port": 80}]}}),
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "namespace": "default"},
               "spec": {"ports": [{"name": "http", "port": 8080}]}}),
    ];
    let given: Vec<Value> = services.into_iter().chain(sources()).collect();
    let config = Config { gateway: Key::new("edge", "ingress"), ingress_class: None };
    let imported = import(&given, &config);
    assert!(imported.notes.is_empty(), "{:?}", imported.notes);
    let before = scene(sources());
    let after = scene(imported.objects);
    for (url, header) in [
        ("http://a.test/", None),
        ("http://a.test/api/x", None),
        ("http://b.test/x", None),
        ("http://bb.test/x", None),
        ("http://c.test/x/y", None),
        ("http://c.test/X/y", None),
        ("http://c.test/z", None),
        ("http://d.test/", None),
        ("http://d.test/", Some(("x-canary", "always"))),
        ("http://d.test/", Some(("x-canary", "never"))),
        ("http://e.test/", None),
        ("http://tls.test/", None),
        ("https://tls.test/", None),
        ("http://f.test/", None),
        ("http://f.test/oauth2/start", None),
        ("http://g.test/", None),
        ("http://g.test/app", None),
        ("http://www.g.test/app", None),
        ("http://none.test/", None),
    ] {
        assert_eq!(way(&before, url, header), way(&after, url, header), "{url} {header:?}");
    }
}

#[test]
fn parts_without_an_equivalent_are_noted() {
    let given = [ingress(
        "odd",
        "a.test",
        &[path("/", "web")],
        &[("configuration-snippet", "x"), ("backend-protocol", "HTTPS"), ("auth-tls-secret", "ca"), ("no-such", "1")],
    )];
    let config = Config { gateway: Key::new("edge", "ingress"), ingress_class: None };
    let notes: Vec<String> = import(&given, &config).notes.iter().map(ToString::to_string).collect();
    let expected = [
        "Ingress default/odd: annotation nginx.ingress.kubernetes.io/configuration-snippet: text of a configuration is \
         never used",
        "Ingress default/odd: annotation nginx.ingress.kubernetes.io/no-such: is not known",
        "Ingress default/odd: the number of port Some(\"http\") of Service default/web is not known",
        "Ingress default/odd: backend-protocol: write a BackendTLSPolicy with the authority of the backends",
        "Ingress default/odd: auth-tls-secret: set spec.tls.frontend of the Gateway, for all hosts of the port",
    ];
    assert_eq!(notes, expected);
    let other = Config { ingress_class: Some("nginx".to_owned()), ..config };
    assert!(import(&given, &other).objects.is_empty(), "a class that was not asked for");
}
