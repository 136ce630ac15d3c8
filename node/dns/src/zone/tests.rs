//! The DNS specification as a table of queries, in `tests.txt`.

use corten_meta::Value;
use expect_test::expect_file;
use hickory_proto::rr::RecordType;
use testkit_fixture as fixture;

use super::*;

fn zone() -> Zone {
    Zone::new("cluster.local", 5, vec![("10.96.0.0".parse().unwrap(), 12)]).unwrap()
}

/// Puts an object into the zone, or deletes it.
fn set(zone: &mut Zone, object: &Value, present: bool) {
    let line = || object.clone();
    let name = corten_meta::name(object);
    match object["kind"].as_str() {
        Some("Namespace") => zone.set_namespace(name, present),
        Some("Service") => {
            let service = present.then(|| corten_api::Typed::from_value(line()).unwrap());
            zone.set_service("default", name, service.and_then(|service| Service::from_object(&service)));
        }
        Some("EndpointSlice") => {
            let slice = present.then(|| corten_api::Typed::from_value(line()).unwrap());
            zone.set_endpoints("default", name, slice.and_then(|slice| Endpoints::from_object(&slice)));
        }
        other => panic!("a zone has no {other:?}"),
    }
}

fn run(zone: &mut Zone, command: &str) -> String {
    if let Some((record_type, name)) = command.split_once(' ')
        && let Ok(record_type) = record_type.parse::<RecordType>()
    {
        return ask(zone, name, record_type);
    }
    match command.strip_prefix("delete ") {
        Some(object) => set(zone, &fixture::object(&object.replace('/', " ")), false),
        None if command == "synced" => zone.set_synced(),
        None => set(zone, &fixture::object(command), true),
    }
    String::new()
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

#[test]
fn every_query_has_its_answer() {
    fixture::script::check(expect_file!["tests.txt"], zone, run);
}

#[test]
fn before_the_first_lists_are_complete_no_name_is_denied() {
    let zone = Zone::new("cluster.local", 5, Vec::new()).unwrap();
    assert_eq!(ask(&zone, "web.default.svc.cluster.local.", RecordType::A), "NotReady");
    assert_eq!(ask(&zone, "example.com.", RecordType::A), "Foreign");
}
