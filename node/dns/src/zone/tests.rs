//! The DNS specification as a table of queries.

use corten_api::Typed;
use expect_test::{Expect, expect};
use hickory_proto::rr::RecordType;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::api::discovery::v1 as discovery;

use super::*;

fn zone() -> Zone {
    let mut zone = Zone::new("cluster.local", 5, vec![("10.96.0.0".parse().unwrap(), 12)]).unwrap();
    zone.set_namespace("default", true);
    let service = |zone: &mut Zone, name: &str, spec: &str| {
        let json = format!(r#"{{"metadata":{{"name":"{name}"}},"spec":{spec}}}"#);
        let object = core::Service::decode(json.as_bytes()).unwrap();
        zone.set_service("default", name, Service::from_object(&object));
    };
    let ports = r#"[{"name":"http","port":80},{"name":"dns","protocol":"UDP","port":53}]"#;
    service(
        &mut zone,
        "web",
        &format!(r#"{{"clusterIP":"10.96.0.7","clusterIPs":["10.96.0.7","fd00::7"],"ports":{ports}}}"#),
    );
    service(&mut zone, "db", r#"{"clusterIP":"None"}"#);
    service(&mut zone, "empty", r#"{"clusterIP":"None"}"#);
    service(&mut zone, "out", r#"{"type":"ExternalName","externalName":"example.com"}"#);
    service(&mut zone, "in", r#"{"type":"ExternalName","externalName":"web.default.svc.cluster.local"}"#);
    let slice = |zone: &mut Zone, name: &str, service: &str, endpoints: &str| {
        let json = format!(
            r#"{{"metadata":{{"labels":{{"kubernetes.io/service-name":"{service}"}}}},"addressType":"IPv4",
                "ports":[{{"name":"sql","port":5432}}],"endpoints":{endpoints}}}"#
        );
        let object = discovery::EndpointSlice::decode(json.as_bytes()).unwrap();
        zone.set_endpoints("default", name, Endpoints::from_object(&object));
    };
    slice(
        &mut zone,
        "db-1",
        "db",
        r#"[{"addresses":["10.244.0.2"],"hostname":"db-0"},{"addresses":["10.244.0.3"]},
            {"addresses":["10.244.0.4"],"conditions":{"ready":false}}]"#,
    );
    slice(&mut zone, "empty-1", "empty", r#"[{"addresses":["10.244.0.9"],"conditions":{"ready":false}}]"#);
    zone.set_synced();
    zone
}

fn ask(zone: &Zone, name: &str, record_type: RecordType) -> String {
    let strings = |records: Vec<Record>| -> Vec<String> {
        records.iter().map(|record| format!("{} {} {}", record.name, record.record_type(), record.data)).collect()
    };
    match zone.lookup(&Name::from_ascii(name).unwrap(), record_type) {
        Answer::Records { answers, additionals } => {
            let mut lines = strings(answers);
            lines.extend(strings(additionals).into_iter().map(|line| format!("+ {line}")));
            lines.join("\n")
        }
        other => format!("{other:?}"),
    }
}

fn check(name: &str, record_type: RecordType, expected: Expect) {
    expected.assert_eq(&ask(&zone(), name, record_type));
}

#[test]
fn services_with_an_address() {
    check("web.default.svc.cluster.local.", RecordType::A, expect!["web.default.svc.cluster.local. A 10.96.0.7"]);
    check("Web.Default.SVC.cluster.LOCAL.", RecordType::AAAA, expect!["Web.Default.SVC.cluster.LOCAL. AAAA fd00::7"]);
    check("web.default.svc.cluster.local.", RecordType::TXT, expect!["NoData"]);
    check("nobody.default.svc.cluster.local.", RecordType::A, expect!["NoSuchName"]);
    check("web.other.svc.cluster.local.", RecordType::A, expect!["NoSuchName"]);
}

#[test]
fn named_ports() {
    check(
        "_http._tcp.web.default.svc.cluster.local.",
        RecordType::SRV,
        expect![[r#"
        _http._tcp.web.default.svc.cluster.local. SRV 0 100 80 web.default.svc.cluster.local.
        + web.default.svc.cluster.local. A 10.96.0.7
        + web.default.svc.cluster.local. AAAA fd00::7"#]],
    );
    check(
        "web.default.svc.cluster.local.",
        RecordType::SRV,
        expect![[r#"
        web.default.svc.cluster.local. SRV 0 50 53 web.default.svc.cluster.local.
        web.default.svc.cluster.local. SRV 0 50 80 web.default.svc.cluster.local.
        + web.default.svc.cluster.local. A 10.96.0.7
        + web.default.svc.cluster.local. AAAA fd00::7"#]],
    );
    check("_http._tcp.web.default.svc.cluster.local.", RecordType::A, expect!["NoData"]);
    check("_tcp.web.default.svc.cluster.local.", RecordType::SRV, expect!["NoData"]);
    check("_http._udp.web.default.svc.cluster.local.", RecordType::SRV, expect!["NoSuchName"]);
    check(
        "_sql._tcp.db.default.svc.cluster.local.",
        RecordType::SRV,
        expect![[r#"
        _sql._tcp.db.default.svc.cluster.local. SRV 0 50 5432 10-244-0-3.db.default.svc.cluster.local.
        _sql._tcp.db.default.svc.cluster.local. SRV 0 50 5432 db-0.db.default.svc.cluster.local.
        + 10-244-0-3.db.default.svc.cluster.local. A 10.244.0.3
        + db-0.db.default.svc.cluster.local. A 10.244.0.2"#]],
    );
}

#[test]
fn headless_services() {
    check(
        "db.default.svc.cluster.local.",
        RecordType::A,
        expect![[r#"
        db.default.svc.cluster.local. A 10.244.0.2
        db.default.svc.cluster.local. A 10.244.0.3"#]],
    );
    check("db.default.svc.cluster.local.", RecordType::AAAA, expect!["NoData"]);
    check(
        "db-0.db.default.svc.cluster.local.",
        RecordType::A,
        expect!["db-0.db.default.svc.cluster.local. A 10.244.0.2"],
    );
    check(
        "10-244-0-3.db.default.svc.cluster.local.",
        RecordType::A,
        expect!["10-244-0-3.db.default.svc.cluster.local. A 10.244.0.3"],
    );
    check("10-244-0-4.db.default.svc.cluster.local.", RecordType::A, expect!["NoSuchName"]);
    check("x.db-0.db.default.svc.cluster.local.", RecordType::A, expect!["NoSuchName"]);
    check("empty.default.svc.cluster.local.", RecordType::A, expect!["NoSuchName"]);
}

#[test]
fn external_names() {
    check("out.default.svc.cluster.local.", RecordType::A, expect![[r#"Alias(Name("example.com."))"#]]);
    check(
        "in.default.svc.cluster.local.",
        RecordType::CNAME,
        expect![[r#"Alias(Name("web.default.svc.cluster.local."))"#]],
    );
}

#[test]
fn pods() {
    check(
        "10-244-0-2.default.pod.cluster.local.",
        RecordType::A,
        expect!["10-244-0-2.default.pod.cluster.local. A 10.244.0.2"],
    );
    check(
        "fd00--5.default.pod.cluster.local.",
        RecordType::AAAA,
        expect!["fd00--5.default.pod.cluster.local. AAAA fd00::5"],
    );
    check("10-244-0-2.default.pod.cluster.local.", RecordType::AAAA, expect!["NoData"]);
    check("10-244-0-2.nowhere.pod.cluster.local.", RecordType::A, expect!["NoSuchName"]);
    check("web.default.pod.cluster.local.", RecordType::A, expect!["NoSuchName"]);
}

#[test]
fn reverse_names() {
    check(
        "7.0.96.10.in-addr.arpa.",
        RecordType::PTR,
        expect!["7.0.96.10.in-addr.arpa. PTR web.default.svc.cluster.local."],
    );
    check(
        "2.0.244.10.in-addr.arpa.",
        RecordType::PTR,
        expect!["2.0.244.10.in-addr.arpa. PTR db-0.db.default.svc.cluster.local."],
    );
    check("3.0.244.10.in-addr.arpa.", RecordType::PTR, expect!["Foreign"]);
    check("9.0.96.10.in-addr.arpa.", RecordType::PTR, expect!["NoSuchName"]);
    check("0.96.10.in-addr.arpa.", RecordType::PTR, expect!["NoData"]);
    check("8.8.8.8.in-addr.arpa.", RecordType::PTR, expect!["Foreign"]);
}

#[test]
fn the_domain_itself_and_names_between() {
    check("cluster.local.", RecordType::NS, expect!["cluster.local. NS ns.dns.cluster.local."]);
    check("cluster.local.", RecordType::A, expect!["NoData"]);
    check("dns-version.cluster.local.", RecordType::TXT, expect!["dns-version.cluster.local. TXT 1.1.0"]);
    check("svc.cluster.local.", RecordType::A, expect!["NoData"]);
    check("default.svc.cluster.local.", RecordType::A, expect!["NoData"]);
    check("nowhere.svc.cluster.local.", RecordType::A, expect!["NoSuchName"]);
    check("other.cluster.local.", RecordType::A, expect!["NoSuchName"]);
    check("example.com.", RecordType::A, expect!["Foreign"]);
    check("local.", RecordType::A, expect!["Foreign"]);
}

#[test]
fn names_are_deleted_with_their_objects() {
    let mut zone = zone();
    zone.set_service("default", "web", None);
    zone.set_endpoints("default", "db-1", None);
    zone.set_namespace("default", false);
    for (name, record_type) in [
        ("web.default.svc.cluster.local.", RecordType::A),
        ("7.0.96.10.in-addr.arpa.", RecordType::PTR),
        ("db.default.svc.cluster.local.", RecordType::A),
        ("default.svc.cluster.local.", RecordType::A),
    ] {
        assert_eq!(ask(&zone, name, record_type), "NoSuchName", "{name}");
    }
    assert_eq!(ask(&zone, "2.0.244.10.in-addr.arpa.", RecordType::PTR), "Foreign");
}

#[test]
fn before_the_first_lists_are_complete_no_name_is_denied() {
    let zone = Zone::new("cluster.local", 5, Vec::new()).unwrap();
    assert_eq!(ask(&zone, "web.default.svc.cluster.local.", RecordType::A), "NotReady");
    assert_eq!(ask(&zone, "example.com.", RecordType::A), "Foreign");
}
