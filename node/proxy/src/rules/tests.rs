//! The elements of Services, in `tests.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use corten_nftables::{Data, IpFamily};
use expect_test::expect_file;
use testkit_fixture as fixture;

use super::*;

/// A Service and its slices by their names.
#[derive(Default)]
struct Scene {
    service: Option<Service>,
    slices: BTreeMap<String, Slice>,
}

fn run(scene: &mut Scene, command: &str) -> String {
    if command == "rules" {
        let service = scene.service.as_ref().expect("a Service");
        return written(&desired(
            service,
            scene.slices.values(),
            &NodeTopology { node: "self".to_owned(), zone: None },
        ));
    }
    let object = fixture::object(command);
    match object["kind"] == "Service" {
        true => scene.service = Service::from_object(&fixture::typed(command), IpFamily::V4),
        false => {
            let slice = Slice::from_object(&fixture::typed(command), IpFamily::V4).expect("a slice");
            scene.slices.insert(object["metadata"]["name"].to_string(), slice);
        }
    }
    String::new()
}

/// Formats a value as dotted groups of four bytes.
fn dotted(value: &Value) -> String {
    let group = |bytes: &[u8]| bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(".");
    value.as_bytes().chunks(4).map(group).collect::<Vec<_>>().join(" ")
}

fn written(rules: &Rules) -> String {
    let mut out = String::new();
    for (name, element) in &rules.elements {
        let end = element.end.as_ref().map(|end| format!(" - {}", dotted(end))).unwrap_or_default();
        let data = match &element.data {
            Some(Data::Value(value)) => format!(" : {}", dotted(value)),
            other => other.as_ref().map(|data| format!(" : {data:?}")).unwrap_or_default(),
        };
        writeln!(out, "{} {}{end}{data}", name.as_str(), dotted(&element.key)).unwrap();
    }
    for shape in &rules.shapes {
        writeln!(out, "chain {}", shape.name()).unwrap();
    }
    out
}

#[test]
fn every_service_has_its_elements() {
    fixture::script::check(expect_file!["tests.txt"], Scene::default, run);
}
