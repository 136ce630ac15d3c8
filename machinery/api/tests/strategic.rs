//! Tests of strategic merge patch: each directive by example, and properties of any object.

use corten_api::strategic_merge;
use proptest::prelude::*;
use serde_json::{Value, json};

const POD: &str = "io.k8s.api.core.v1.Pod";
const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";
const SERVICE: &str = "io.k8s.api.core.v1.Service";

fn merged(type_name: &str, mut original: Value, patch: Value) -> Value {
    strategic_merge(type_name, &mut original, &patch).unwrap_or_else(|e| panic!("{patch}: {e}"));
    original
}

fn containers(items: Value) -> Value {
    json!({"spec": {"containers": items}})
}

#[test]
fn lists_with_a_merge_key_merge_item_by_item() {
    let original = containers(json!([{"name": "a", "image": "1", "tty": true}, {"name": "b", "image": "1"}]));
    let patch = containers(json!([{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]));
    assert_eq!(
        merged(POD, original, patch),
        containers(
            json!([{"name": "a", "image": "1", "tty": true}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}])
        )
    );
}

#[test]
fn lists_without_one_are_replaced() {
    let original = containers(json!([{"name": "a", "command": ["x", "y"], "args": ["1"]}]));
    let patch = containers(json!([{"name": "a", "command": ["z"]}]));
    assert_eq!(merged(POD, original, patch), containers(json!([{"name": "a", "command": ["z"], "args": ["1"]}])));
}

#[test]
fn scalars_merge_into_a_set() {
    let original = json!({"metadata": {"finalizers": ["a", "b"]}});
    let patch = json!({"metadata": {"finalizers": ["b", "c"]}});
    assert_eq!(merged(POD, original, patch), json!({"metadata": {"finalizers": ["a", "b", "c"]}}));
    let original = json!({"metadata": {"finalizers": ["a", "b", "c"]}});
    let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["b"]}});
    assert_eq!(merged(POD, original, patch), json!({"metadata": {"finalizers": ["a", "c"]}}));
}

#[test]
fn null_deletes_and_new_values_lose_their_nulls() {
    let original = json!({"metadata": {"labels": {"a": "1", "b": "2"}}, "spec": {"nodeName": "n"}});
    let patch =
        json!({"metadata": {"labels": {"a": null}}, "spec": {"nodeName": null, "affinity": {"nodeAffinity": null}}});
    assert_eq!(merged(POD, original, patch), json!({"metadata": {"labels": {"b": "2"}}, "spec": {"affinity": {}}}));
}

#[test]
fn patch_directives() {
    let original = || containers(json!([{"name": "a", "image": "1"}, {"name": "b", "image": "1"}]));
    assert_eq!(
        merged(POD, original(), containers(json!([{"name": "a", "$patch": "delete"}]))),
        containers(json!([{"name": "b", "image": "1"}]))
    );
    assert_eq!(
        merged(POD, original(), containers(json!([{"name": "c"}, {"$patch": "replace"}]))),
        containers(json!([{"name": "c"}]))
    );
    let map = json!({"metadata": {"labels": {"a": "1"}}});
    assert_eq!(
        merged(POD, map.clone(), json!({"metadata": {"labels": {"b": "2", "$patch": "replace"}}})),
        json!({"metadata": {"labels": {"b": "2"}}})
    );
    assert_eq!(
        merged(POD, map.clone(), json!({"metadata": {"labels": {"$patch": "delete"}}})),
        json!({"metadata": {"labels": {}}})
    );
    assert_eq!(
        merged(POD, map, json!({"spec": {"affinity": {"$patch": "delete"}}})),
        json!({"metadata": {"labels": {"a": "1"}}, "spec": {}})
    );
}

#[test]
fn retain_keys_drops_the_rest() {
    let original = json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}});
    let patch = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
    assert_eq!(merged(DEPLOYMENT, original.clone(), patch), json!({"spec": {"strategy": {"type": "Recreate"}}}));
    let bad = json!({"spec": {"strategy": {"$retainKeys": ["rollingUpdate"], "type": "Recreate"}}});
    let mut object = original.clone();
    let error = strategic_merge(DEPLOYMENT, &mut object, &bad).unwrap_err();
    assert_eq!(error.to_string(), "invalid patch format of retainKeys");
    assert_eq!(object, original, "a failed patch changes nothing");
}

#[test]
fn set_element_order_reorders() {
    let original = containers(json!([{"name": "a"}, {"name": "b"}, {"name": "server"}]));
    let patch = json!({"spec": {
        "$setElementOrder/containers": [{"name": "b"}, {"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c", "image": "3"}],
    }});
    assert_eq!(
        merged(POD, original, patch),
        containers(json!([{"name": "b"}, {"name": "c", "image": "3"}, {"name": "a"}, {"name": "server"}]))
    );
    let mismatch = json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "c"}]}});
    let error = strategic_merge(POD, &mut containers(json!([])), &mismatch).unwrap_err().to_string();
    assert!(error.starts_with("The order in patch list:"), "{error}");
}

/// The patch that kubectl sends when an applied Deployment changes its strategy and one image.
#[test]
fn the_patch_of_kubectl_apply() {
    let original = json!({"spec": {"replicas": 1,
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}},
        "template": {"spec": {"containers": [{"name": "x", "image": "i:1"}, {"name": "y", "image": "j:1", "tty": true}]}}}});
    let patch = json!({"spec": {
        "strategy": {"$retainKeys": ["type"], "rollingUpdate": null, "type": "Recreate"},
        "template": {"spec": {
            "$setElementOrder/containers": [{"name": "x"}, {"name": "y"}],
            "containers": [{"image": "j:2", "name": "y"}],
        }},
    }});
    assert_eq!(
        merged(DEPLOYMENT, original, patch),
        json!({"spec": {"replicas": 1, "strategy": {"type": "Recreate"},
            "template": {"spec": {"containers": [{"name": "x", "image": "i:1"}, {"name": "y", "image": "j:2", "tty": true}]}}}})
    );
}

#[test]
fn service_ports_merge_by_port() {
    let original = json!({"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b"}]}});
    let patch = json!({"spec": {"ports": [{"port": 81, "targetPort": 8081}]}});
    assert_eq!(
        merged(SERVICE, original, patch),
        json!({"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "b", "targetPort": 8081}]}})
    );
}

#[test]
fn errors_read_as_upstreams() {
    let labels = |patch: Value| json!({"metadata": {"labels": patch}});
    let spec = |patch: Value| json!({ "spec": patch });
    let cases = [
        (containers(json!([{"image": "x"}])), "map: map[image:x] does not contain declared merge key: name"),
        (labels(json!({"$patch": "odd"})), "unknown patch type: odd in map: map[$patch:odd]"),
        (labels(json!({"$patch": 5})), "unknown patch type: %!s(int64=5) in map: map[$patch:5]"),
        (labels(json!({"$patch": "merge"})), "unknown patch type: merge in map: map[$patch:merge]"),
        (containers(json!([{"name": "a", "$patch": "merge"}])), "merging lists cannot yet be specified in the patch"),
        (spec(json!({"$retainKeys": "x"})), "invalid patch format of retainKeys"),
        (spec(json!({"$deleteFromPrimitiveListx": []})), "invalid patch format of primitive list"),
        (spec(json!({"$setElementOrder/containers": "x"})), "expected a []interface {}, but received a string"),
        (
            spec(json!({"$setElementOrder/nope": []})),
            "unable to find api field in struct PodSpec for the json field \"nope\"",
        ),
        (spec(json!({"$setElementOrder/affinity": [1]})), "no elements in any of the given slices"),
        (
            containers(json!(["x"])),
            "list element types are not identical: [[map[name:a ports:[map[containerPort:1]]]] [x]]",
        ),
        (
            spec(json!({"$deleteFromPrimitiveList/tolerations": [{"key": "k"}]})),
            "cannot merge lists without merge key for struct",
        ),
        (
            json!({"spec": {"bogus": {"a": 1}}}),
            "unable to find api field in struct PodSpec for the json field \"bogus\"",
        ),
    ];
    for (patch, wanted) in cases {
        let mut original = json!({"metadata": {"labels": {"a": "b"}}, "spec": {
            "containers": [{"name": "a", "ports": [{"containerPort": 1}]}], "tolerations": [{"key": "k"}],
            "bogus": {"a": 2}}});
        if patch["spec"].get("$setElementOrder/affinity").is_some() {
            original["spec"]["affinity"] = json!([]);
        }
        assert_eq!(strategic_merge(POD, &mut original, &patch).unwrap_err().to_string(), wanted, "{patch}");
    }
    assert!(strategic_merge("no.such.Type", &mut json!({}), &json!({})).is_err());
}

/// Upstream's results for unusual patches.
#[test]
fn unusual_patches_act_as_upstream() {
    let original =
        json!({"metadata": {"finalizers": ["a", "b"], "name": "n"}, "spec": {"containers": [{"name": "a"}]}});
    for (patch, wanted) in [
        // A null list of deletions removes the list.
        (json!({"metadata": {"$deleteFromPrimitiveList/finalizers": null}}), json!({"metadata": {"name": "n"}})),
        // One for a scalar sets it, one of another kind does nothing.
        (
            json!({"metadata": {"$deleteFromPrimitiveList/name": "m", "$deleteFromPrimitiveList/finalizers": "a"}}),
            json!({"metadata": {"finalizers": ["a", "b"], "name": "m"}}),
        ),
        // New items of a list of objects come first.
        (
            json!({"spec": {"containers": [{"name": "b"}]}}),
            json!({"spec": {"containers": [{"name": "b"}, {"name": "a"}]}}),
        ),
        // Directives in a new value are plain fields, except `$patch`.
        (
            json!({"spec": {"affinity": {"$retainKeys": ["x"], "nodeAffinity": {"$patch": "replace"}}}}),
            json!({"spec": {"affinity": {"$retainKeys": ["x"]}, "containers": [{"name": "a"}]}}),
        ),
        (json!({"$patch": "delete"}), json!({})),
    ] {
        let merged = merged(POD, original.clone(), patch.clone());
        for (field, wanted) in wanted.as_object().unwrap() {
            assert_eq!(&merged[field], wanted, "{patch}");
        }
        assert!(!wanted.as_object().unwrap().is_empty() || merged == json!({}), "{patch}");
    }
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
