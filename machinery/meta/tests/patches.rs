//! Tests of patches: RFC 7396's own table, RFC 6902 with the corner cases of upstream's library.

use corten_meta::patch::{json_patch, merge_diff, merge_patch};
use corten_meta::{Error, Value};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn merge_patch_table_of_the_rfc() {
    for (original, patch, result) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        let mut target = original.clone();
        merge_patch(&mut target, &patch);
        assert_eq!(target, result, "{original} + {patch}");
    }
}

#[test]
fn json_patch_operations() {
    let document = json!({"a": {"b": 1}, "l": [1, 2, 3], "x/y": {"~": 0}});
    for (patch, result) in [
        (
            json!([{"op": "add", "path": "/a/c", "value": 2}]),
            json!({"a": {"b": 1, "c": 2}, "l": [1, 2, 3], "x/y": {"~": 0}}),
        ),
        (
            json!([{"op": "add", "path": "/l/1", "value": 9}]),
            json!({"a": {"b": 1}, "l": [1, 9, 2, 3], "x/y": {"~": 0}}),
        ),
        (
            json!([{"op": "add", "path": "/l/-", "value": 9}]),
            json!({"a": {"b": 1}, "l": [1, 2, 3, 9], "x/y": {"~": 0}}),
        ),
        (
            json!([{"op": "add", "path": "/l/-1", "value": 9}]),
            json!({"a": {"b": 1}, "l": [1, 2, 3, 9], "x/y": {"~": 0}}),
        ),
        (json!([{"op": "remove", "path": "/l/-1"}]), json!({"a": {"b": 1}, "l": [1, 2], "x/y": {"~": 0}})),
        (
            json!([{"op": "replace", "path": "/l/0", "value": 9}]),
            json!({"a": {"b": 1}, "l": [9, 2, 3], "x/y": {"~": 0}}),
        ),
        (
            json!([{"op": "replace", "path": "/a/new", "value": 9}]),
            json!({"a": {"b": 1, "new": 9}, "l": [1, 2, 3], "x/y": {"~": 0}}),
        ),
        (json!([{"op": "replace", "path": "", "value": {"z": 1}}]), json!({"z": 1})),
        (json!([{"op": "move", "from": "/a/b", "path": "/l/0"}]), json!({"a": {}, "l": [1, 1, 2, 3], "x/y": {"~": 0}})),
        (
            json!([{"op": "copy", "from": "/a", "path": "/c"}]),
            json!({"a": {"b": 1}, "c": {"b": 1}, "l": [1, 2, 3], "x/y": {"~": 0}}),
        ),
        (
            json!([{"op": "replace", "path": "/x~1y/~0", "value": 1}]),
            json!({"a": {"b": 1}, "l": [1, 2, 3], "x/y": {"~": 1}}),
        ),
        (
            json!([{"op": "test", "path": "/l/2", "value": 3}, {"op": "test", "path": "/no", "value": null}]),
            document.clone(),
        ),
        (json!([]), document.clone()),
    ] {
        let mut target = document.clone();
        json_patch(&mut target, &patch).unwrap_or_else(|e| panic!("{patch}: {e}"));
        assert_eq!(target, result, "{patch}");
    }
}

#[test]
fn a_failing_patch_changes_nothing() {
    let document = json!({"a": {"b": 1}, "l": [1]});
    for (operation, message) in [
        (
            json!({"op": "remove", "path": "/no"}),
            "error in remove for path: '/no': Unable to remove nonexistent key: no: missing value",
        ),
        (
            json!({"op": "remove", "path": "/l/1"}),
            "error in remove for path: '/l/1': Unable to access invalid index: 1: invalid index referenced",
        ),
        (
            json!({"op": "add", "path": "/no/x", "value": 1}),
            "add operation does not apply: doc is missing path: \"/no/x\": missing value",
        ),
        (
            json!({"op": "add", "path": "/l/5", "value": 1}),
            "error in add for path: '/l/5': Unable to access invalid index: 5: invalid index referenced",
        ),
        (
            json!({"op": "add", "path": "", "value": 1}),
            "add operation does not apply: doc is missing path: \"\": missing value",
        ),
        (
            json!({"op": "replace", "path": "/no/x", "value": 1}),
            "replace operation does not apply: doc is missing path: /no/x: missing value",
        ),
        (
            json!({"op": "replace", "path": "/l/3", "value": 1}),
            "replace operation does not apply: doc is missing key: /l/3: missing value",
        ),
        (json!({"op": "test", "path": "/a/b", "value": 2}), "testing value /a/b failed: test failed"),
        (json!({"op": "test", "path": "", "value": 2}), "testing value  failed: test failed"),
        (json!({"op": "odd", "path": "/a"}), "Unexpected kind: odd"),
    ] {
        let mut target = document.clone();
        let patch = json!([{"op": "add", "path": "/new", "value": 1}, operation]);
        let error = json_patch(&mut target, &patch).expect_err(&patch.to_string());
        match &error {
            Error::PatchTestFailed(_) => assert!(message.ends_with("test failed"), "{message}"),
            error => assert!(matches!(error, Error::PatchFailed(_)) && !message.ends_with("test failed"), "{message}"),
        }
        assert_eq!(error.to_string(), message);
        assert_eq!(target, document);
    }
    for malformed in [json!({}), json!([1])] {
        assert!(matches!(json_patch(&mut json!({}), &malformed), Err(Error::BadPatch(_))), "{malformed}");
    }
}

/// Generates values without null: a merge patch cannot set one.
fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![any::<bool>().prop_map(Value::from), (0..5i64).prop_map(Value::from)];
    leaf.prop_recursive(3, 20, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::btree_map("[a-d]", inner, 0..4).prop_map(|m| Value::Object(m.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn a_diff_leads_from_one_to_the_other(from in value(), to in value()) {
        let mut target = from.clone();
        merge_patch(&mut target, &merge_diff(&from, &to));
        prop_assert_eq!(target, to);
    }

    #[test]
    fn merging_twice_is_merging_once(target in value(), patch in value()) {
        let mut once = target;
        merge_patch(&mut once, &patch);
        let mut twice = once.clone();
        merge_patch(&mut twice, &patch);
        prop_assert_eq!(twice, once);
    }

    #[test]
    fn json_patch_never_panics(target in value(), path in "(/[a-d0-3-]{0,2}){0,3}", from in "(/[a-d0-3-]{0,2}){0,3}") {
        for op in ["add", "remove", "replace", "move", "copy", "test"] {
            let patch = json!([{"op": op, "path": path, "from": from, "value": 1}]);
            let _ = json_patch(&mut target.clone(), &patch);
        }
    }
}
