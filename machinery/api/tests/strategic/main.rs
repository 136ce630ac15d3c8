//! Tests of strategic merge patch: each directive by example, and properties of any object.

use corten_api::strategic_merge;
use expect_test::expect_file;
use proptest::prelude::*;
use serde_json::{Value, json};
use testkit_fixture::{flow, script};

const POD: &str = "io.k8s.api.core.v1.Pod";

fn merged(type_name: &str, mut original: Value, patch: Value) -> Value {
    strategic_merge(type_name, &mut original, &patch).unwrap_or_else(|e| panic!("{patch}: {e}"));
    original
}

fn containers(items: Value) -> Value {
    json!({"spec": {"containers": items}})
}

/// The type and the object of a case.
type Subject = (&'static str, Value);

/// Sets the object, or applies a patch to it and prints the result or the error.
fn run(subject: &mut Subject, command: &str) -> String {
    let yaml = |text: &str| corten_meta::codec::decode_yaml(text.as_bytes()).unwrap_or_else(|error| panic!("{error}"));
    if command.starts_with('{') {
        let mut object = subject.1.clone();
        return match strategic_merge(subject.0, &mut object, &yaml(command)) {
            Ok(()) => flow(&object),
            Err(error) => {
                assert_eq!(object, subject.1, "a failed patch changes nothing");
                format!("error: {error}")
            }
        };
    }
    let (kind, original) = command.split_once(' ').expect("KIND OBJECT");
    let kind = match kind {
        "deployment" => "io.k8s.api.apps.v1.Deployment",
        "service" => "io.k8s.api.core.v1.Service",
        "pod" => POD,
        other => panic!("no type is named {other}"),
    };
    *subject = (kind, yaml(original));
    String::new()
}

#[test]
fn each_directive_by_example() {
    script::check(expect_file!["examples.txt"], Subject::default, run);
    assert!(strategic_merge("no.such.Type", &mut json!({}), &json!({})).is_err());
}

fn pod() -> impl Strategy<Value = Value> {
    let name = prop::sample::select(vec!["a", "b", "c", "d"]);
    let container = (name, "[x-z]{1,3}", prop::option::of(any::<bool>())).prop_map(|(name, image, tty)| {
        let mut container = json!({"name": name, "image": image});
        if let Some(tty) = tty {
            container["tty"] = tty.into();
        }
        container
    });
    let unique = prop::collection::vec(container, 0..4).prop_map(|mut list| {
        let mut seen = std::collections::BTreeSet::new();
        list.retain(|c| seen.insert(c["name"].to_string()));
        list
    });
    let labels = prop::collection::btree_map("[a-c]", "[a-c]", 0..3);
    (unique, labels)
        .prop_map(|(containers, labels)| json!({"metadata": {"labels": labels}, "spec": {"containers": containers}}))
}

proptest! {
    #[test]
    fn an_empty_patch_changes_nothing(original in pod()) {
        prop_assert_eq!(merged(POD, original.clone(), json!({})), original);
    }

    #[test]
    fn patching_twice_is_patching_once(original in pod(), patch in pod()) {
        let once = merged(POD, original, patch.clone());
        prop_assert_eq!(merged(POD, once.clone(), patch), once);
    }

    #[test]
    fn everything_in_the_patch_is_in_the_result(original in pod(), patch in pod()) {
        let result = merged(POD, original.clone(), patch.clone());
        for wanted in patch["spec"]["containers"].as_array().unwrap() {
            let found = result["spec"]["containers"].as_array().unwrap().iter().find(|c| c["name"] == wanted["name"]);
            prop_assert_eq!(&found.unwrap()["image"], &wanted["image"]);
        }
        let names = |v: &Value| v["spec"]["containers"].as_array().unwrap().iter().map(|c| c["name"].to_string()).collect::<std::collections::BTreeSet<_>>();
        let union: std::collections::BTreeSet<_> = names(&original).union(&names(&patch)).cloned().collect();
        prop_assert_eq!(names(&result), union);
    }

    #[test]
    fn unusual_patches_never_panic(patch in arbitrary_json()) {
        let mut original = containers(json!([{"name": "a", "ports": [{"containerPort": 1}]}]));
        let _ = strategic_merge(POD, &mut original, &patch);
    }
}

/// Generates JSON with the directives and field names that matter.
fn arbitrary_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i8>().prop_map(Value::from),
        prop::sample::select(vec!["delete", "replace", "merge", "a"]).prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let key = prop::sample::select(vec![
            "spec",
            "containers",
            "name",
            "ports",
            "containerPort",
            "$patch",
            "$retainKeys",
            "$setElementOrder/containers",
            "$deleteFromPrimitiveList/finalizers",
            "metadata",
            "finalizers",
        ]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map(key, inner, 0..4)
                .prop_map(|m| { Value::Object(m.into_iter().map(|(k, v)| (k.to_string(), v)).collect()) }),
        ]
    })
}
