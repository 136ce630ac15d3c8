//! The rules on small objects, and their laws on arbitrary ones.

use corten_meta::{Status, Value};
use proptest::prelude::*;
use serde_json::json;

use super::conflict::Conflict;
use super::merge::merge;
use super::remove::remove;
use super::set::show;
use super::*;

const V1: &str = "apps/v1";
const POD: &str = "io.k8s.api.core.v1.Pod";
const DEPLOYMENT: &str = "io.k8s.api.apps.v1.Deployment";

/// A resource with one version.
struct One(Type<'static>, Filter);

impl Versions for One {
    fn type_of(&self, api_version: &str) -> Option<Type<'_>> {
        (api_version == V1).then_some(self.0)
    }
    fn convert(&self, _: &Value, _: &str, _: &str) -> Result<Option<Value>, Status> {
        Ok(None)
    }
    fn filter(&self, _: &str) -> &Filter {
        &self.1
    }
}

fn deployment() -> One {
    One(Type::table(DEPLOYMENT).unwrap(), Filter::Without(Set::of_fields(&[&["status"]])))
}

fn identity(manager: &str, operation: Operation) -> Identity {
    Identity { manager: manager.to_owned(), operation, api_version: V1.to_owned(), subresource: String::new() }
}

/// Applies and returns object and managers; the object is the live one if nothing changed.
fn apply_as(
    one: &One,
    live: &Value,
    managers: &Managers,
    manager: &str,
    config: &Value,
    force: bool,
) -> Result<(Value, Managers), Vec<Conflict>> {
    let by = identity(manager, Operation::Apply);
    let first = json!({});
    let application = Application { config, live, first: &first, by: &by, time: "2026-01-01T00:00:00Z", force };
    let applied = apply(one, managers, &application);
    let applied = applied.map_err(|refusal| match refusal {
        Refusal::Conflicts(conflicts) => conflicts,
        Refusal::Failed(status) => panic!("{}", status.message),
    })?;
    Ok((applied.object.unwrap_or_else(|| live.clone()), applied.managers))
}

fn errors(of: Type<'_>, value: &Value) -> Vec<String> {
    check(of, value).iter().map(ToString::to_string).collect()
}

fn owned(managers: &Managers, manager: &str) -> Value {
    managers.entries.iter().find(|e| e.identity.manager == manager).map_or(Value::Null, |e| e.fields.encode())
}

#[test]
fn a_created_object_is_owned_as_upstream_writes_it() {
    let of = Type::table(POD).unwrap();
    let pod = json!({ "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "generateName": "web-", "labels": { "app": "web" }, "uid": "u",
                      "ownerReferences": [{ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "x" }] },
        "spec": { "containers": [{ "name": "c", "image": "i", "resources": {}, "ports": [{ "containerPort": 80, "protocol": "TCP" }] }],
                  "dnsPolicy": "ClusterFirst", "securityContext": {} },
        "status": {} });
    let Type::Struct(table) = of else { panic!("a struct") };
    let one = One(of, Filter::Without(Set::of_fields(&[&["status"]])));
    let by = identity("kubelet", Operation::Update);
    let managers = update(&one, &zero(table), &pod, Managers::default(), &by, "2026-01-01T00:00:00Z");
    assert_eq!(
        owned(&managers, "kubelet"),
        json!({ "f:metadata": { "f:generateName": {}, "f:labels": { ".": {}, "f:app": {} },
                                "f:ownerReferences": { ".": {}, "k:{\"uid\":\"x\"}": {} } },
                "f:spec": { "f:containers": { "k:{\"name\":\"c\"}": { ".": {}, "f:image": {}, "f:name": {}, "f:resources": {},
                                "f:ports": { ".": {}, "k:{\"containerPort\":80,\"protocol\":\"TCP\"}":
                                             { ".": {}, "f:containerPort": {}, "f:protocol": {} } } } },
                            "f:dnsPolicy": {}, "f:securityContext": {} } })
    );
}

#[test]
fn an_update_owns_the_fields_it_writes() {
    let one = deployment();
    let old = json!({ "spec": { "replicas": 1, "paused": true } });
    let new = json!({ "spec": { "replicas": 2 }, "status": { "replicas": 2 } });
    let before =
        update(&one, &json!({ "spec": {} }), &old, Managers::default(), &identity("a", Operation::Update), "t1");
    let after = update(&one, &old, &new, before.clone(), &identity("b", Operation::Update), "t2");
    assert_eq!(owned(&before, "a"), json!({ "f:spec": { "f:paused": {}, "f:replicas": {} } }));
    assert_eq!(owned(&after, "b"), json!({ "f:spec": { "f:replicas": {} } }));
    assert_eq!(after.entries.len(), 1, "{after:?}");
    assert_eq!(update(&one, &new, &new, after.clone(), &identity("b", Operation::Update), "t3"), after);
}

#[test]
fn an_object_with_items_without_a_key_has_no_owners() {
    let account = One(Type::table("io.k8s.api.core.v1.ServiceAccount").unwrap(), Filter::All);
    let by = identity("a", Operation::Update);
    for (secrets, expected) in
        [(json!([{"name": "s"}]), 1), (json!([{}]), 0), (json!([{"name": "s"}, {"namespace": "n"}]), 0)]
    {
        let new = json!({"secrets": secrets});
        let managers = update(&account, &json!({}), &new, Managers::default(), &by, "2026-01-01T00:00:00Z");
        assert_eq!(managers.entries.len(), expected, "{new}");
    }
}

#[test]
fn the_oldest_updaters_are_joined() {
    let one = deployment();
    let mut managers = Managers::default();
    let mut live = json!({ "metadata": { "labels": {} } });
    for n in 10..22 {
        let mut new = live.clone();
        new["metadata"]["labels"][format!("l{n}")] = "v".into();
        managers =
            update(&one, &live, &new, managers, &identity(&format!("m{n}"), Operation::Update), &format!("t{n}"));
        live = new;
    }
    assert_eq!(managers.entries.len(), 10);
    let labels: Vec<String> = (10..13).map(|n| format!("f:l{n}")).collect();
    let expected: serde_json::Map<String, Value> = labels.into_iter().map(|l| (l, json!({}))).collect();
    assert_eq!(owned(&managers, "ancient-changes"), json!({ "f:metadata": { "f:labels": expected } }));
}

#[test]
fn an_apply_conflicts_shares_and_forces() {
    let one = deployment();
    let live = json!({ "apiVersion": V1, "kind": "Deployment", "metadata": {} });
    let config = |replicas: i64| json!({ "apiVersion": V1, "kind": "Deployment", "spec": { "replicas": replicas } });
    let (live, managers) = apply_as(&one, &live, &Managers::default(), "a", &config(1), false).unwrap();
    // The same value is shared.
    let (live, managers) = apply_as(&one, &live, &managers, "b", &config(1), false).unwrap();
    assert_eq!((owned(&managers, "a"), owned(&managers, "b")), {
        let both = json!({ "f:spec": { "f:replicas": {} } });
        (both.clone(), both)
    });
    let conflicts = apply_as(&one, &live, &managers, "b", &config(2), false).unwrap_err();
    assert_eq!(conflicts.len(), 1);
    let status = conflict_status(&conflicts);
    assert_eq!(status.message, "Apply failed with 1 conflict: conflict with \"a\": .spec.replicas");
    let (live, managers) = apply_as(&one, &live, &managers, "b", &config(2), true).unwrap();
    assert_eq!((live["spec"]["replicas"].clone(), owned(&managers, "a")), (json!(2), Value::Null));
    // A sole owner that no longer applies a field removes it.
    let nothing = json!({ "apiVersion": V1, "kind": "Deployment" });
    let (live, _) = apply_as(&one, &live, &managers, "b", &nothing, false).unwrap();
    assert_eq!(live, json!({ "apiVersion": V1, "kind": "Deployment", "metadata": {} }));
}

#[test]
fn fields_before_the_first_apply_keep_their_manager() {
    let one = deployment();
    let live = json!({ "spec": { "replicas": 1, "paused": true } });
    let config = json!({ "spec": { "replicas": 1 } });
    let (_, managers) = apply_as(&one, &live, &Managers::default(), "a", &config, false).unwrap();
    assert_eq!(owned(&managers, "before-first-apply")["f:spec"]["f:paused"], json!({}));
    let config = json!({ "spec": { "replicas": 3 } });
    let conflicts = apply_as(&one, &live, &Managers::default(), "a", &config, false).unwrap_err();
    assert_eq!(
        conflict_status(&conflicts).message,
        "Apply failed with 1 conflict: conflict with \"before-first-apply\" using apps/v1: .spec.replicas"
    );
}

#[test]
fn several_conflicts_are_listed_by_manager() {
    let path = |names: &[&str]| names.iter().map(|n| Element::Field((*n).to_owned())).collect();
    let scale = Identity { subresource: "scale".to_owned(), ..identity("kubectl", Operation::Update) };
    let image = vec![
        Element::Field("containers".to_owned()),
        Element::key(vec![("name", &json!("c"))]),
        Element::Field("image".to_owned()),
    ];
    let conflicts = [
        Conflict { with: scale.clone(), path: path(&["spec", "replicas"]) },
        Conflict { with: scale, path: path(&["spec", "paused"]) },
        Conflict { with: identity("z", Operation::Apply), path: image },
    ];
    let status = conflict_status(&conflicts);
    assert_eq!(
        status.message,
        "Apply failed with 3 conflicts: conflicts with \"kubectl\" with subresource \"scale\" using apps/v1:\n- .spec.replicas\n- .spec.paused\nconflicts with \"z\":\n- .containers[name=\"c\"].image"
    );
    let causes = &status.details.as_ref().unwrap().causes;
    assert_eq!((causes[0].reason.as_str(), causes.len()), ("FieldManagerConflict", 3));
}

#[test]
fn lists_are_merged_in_the_order_of_the_configuration() {
    let of = Type::table(POD).unwrap();
    let names = |list: &str| {
        let items: Vec<Value> = list.chars().map(|c| json!({ "name": c.to_string() })).collect();
        json!({ "spec": { "containers": items } })
    };
    for (live, config, expected) in [
        ("abc", "xb", "axbc"),
        ("abc", "ca", "bca"),
        ("a", "x", "ax"),
        ("ba", "bx", "bax"),
        ("", "ab", "ab"),
        ("ab", "", "ab"),
        ("abcd", "dcba", "dcba"),
    ] {
        assert_eq!(merge(of, &names(live), &names(config)), names(expected), "{live} {config}");
    }
}

#[test]
fn the_form_of_a_configuration_is_checked() {
    let of = Type::table(POD).unwrap();
    let config = json!({ "spec": { "containers": [{ "name": "a", "imag": "x" }, { "name": "a" }], "volumes": {} },
                         "metadata": { "finalizers": ["a", "a"], "labels": { "any": "thing" } } });
    assert_eq!(
        errors(of, &config),
        [
            ".metadata.finalizers: duplicate entries for key [=\"a\"]",
            ".spec.containers[name=\"a\"].imag: field not declared in schema",
            ".spec.containers: duplicate entries for key [name=\"a\"]",
            ".spec.volumes: expected list, got &{map[]}"
        ]
    );
    for (spec, expected) in [
        (json!({"hostNetwork": "x"}), ".spec.hostNetwork: expected boolean, got &{x}"),
        (json!({"a": 1, "b": 1, "hostNetwork": "x"}), ".spec.a: field not declared in schema"),
        (json!({"nodeSelector": []}), ".spec.nodeSelector: expected map, got &{[]}"),
        (json!({"nodeName": true}), ".spec.nodeName: expected string, got &value.valueUnstructured{Value:true}"),
        (
            json!({"nodeName": ["a"]}),
            ".spec.nodeName: expected string, got &value.valueUnstructured{Value:[]interface {}{\"a\"}}",
        ),
        (json!({"priority": {}}), ".spec.priority: expected numeric (int or float), got map[string]interface {}"),
    ] {
        assert_eq!(errors(of, &json!({"spec": spec})), [expected]);
    }
}

#[test]
fn custom_schemas_decide_how_their_lists_are_owned() {
    let schema = json!({ "type": "object", "properties": { "spec": { "type": "object", "properties": {
        "atomic": { "type": "array", "items": { "type": "object" } },
        "set": { "type": "array", "x-kubernetes-list-type": "set", "items": { "type": "string" } },
        "map": { "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                 "items": { "type": "object", "properties": { "k": { "type": "string", "default": "d" }, "v": { "type": "integer" } } } },
        "whole": { "type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": { "type": "string" } },
        "text": { "type": "string" }, "mac": { "type": "string", "format": "mac" },
        "free": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } } } });
    let of = Type::CustomResource(&schema);
    let object = json!({ "apiVersion": "a/v1", "kind": "K", "metadata": { "labels": { "l": "1" } },
        "spec": { "atomic": [{ "a": 1 }], "set": ["x"], "map": [{ "v": 1 }], "whole": { "w": "1" }, "free": { "deep": { "er": [1] } } } });
    assert_eq!(
        extract(of, &object).encode(),
        json!({ "f:apiVersion": {}, "f:kind": {}, "f:metadata": { "f:labels": { "f:l": {} } },
            "f:spec": { "f:atomic": {}, "f:set": { "v:\"x\"": {} }, "f:map": { "k:{\"k\":\"d\"}": { ".": {}, "f:v": {} } },
                        "f:whole": {}, "f:free": { "f:deep": { ".": {}, "f:er": {} } } } })
    );
    assert_eq!(errors(of, &json!({ "spec": { "odd": 1 } })), [".spec.odd: field not declared in schema"]);
    assert_eq!(errors(of, &object), Vec::<String>::new());
    let odd = errors(of, &json!({ "spec": { "text": 1.5, "mac": 1.5 } }));
    assert_eq!(odd, [".spec.text: expected string, got &value.valueUnstructured{Value:1.5}"]);
    let odd = errors(of, &json!({ "spec": { "mac": {} } }));
    assert_eq!(odd, [".spec.mac: expected any scalar, got &{map[]}"]);
}

#[test]
fn filters_keep_and_drop_whole_branches() {
    let mut set = Set::of_fields(&[&["spec", "a"], &["spec", "b", "c"], &["status"], &["metadata", "labels"]]);
    set.insert([Element::Field("spec".to_owned()), Element::Index(0), Element::Field("b".to_owned())]);
    let without = Filter::Without(Set::of_fields(&[&["spec"]])).apply(set.clone());
    assert_eq!(without, Set::of_fields(&[&["status"], &["metadata", "labels"]]));
    let only = Filter::Only(vec![vec![Some("spec"), None, Some("b")], vec![Some("status")]]).apply(set);
    assert_eq!(only.paths().iter().map(|p| show(p)).collect::<Vec<_>>(), [".status", ".spec[0].b"]);
}

#[test]
fn paths_in_messages_are_sorted_with_numbers_by_value() {
    let ports = json!({ "f:ports": {
        r#"k:{"port":443,"protocol":"TCP"}"#: {}, r#"k:{"port":80,"protocol":"UDP"}"#: {},
        r#"k:{"port":80,"protocol":"TCP"}"#: {}, "v:10": {}, "v:9": {}, "v:\"a\"": {},
    } });
    let paths: Vec<String> = Set::decode(&ports).unwrap().paths().iter().map(|path| show(path)).collect();
    let expected = [
        r#".ports[port=80,protocol="TCP"]"#,
        r#".ports[port=80,protocol="UDP"]"#,
        r#".ports[port=443,protocol="TCP"]"#,
        ".ports[=9]",
        ".ports[=10]",
        r#".ports[="a"]"#,
    ];
    assert_eq!(paths, expected);
}

/// Every element of FieldsV1 is decoded and encoded without loss, and other strings are refused.
#[test]
fn fields_v1_is_read_and_written() {
    let fields = json!({ "f:metadata": { "f:annotations": { ".": {}, "f:a/b": {} }, "f:finalizers": { "v:\"x\"": {}, "v:1": {} } },
        "f:spec": { "f:ports": { ".": {}, "k:{\"port\":80,\"protocol\":\"TCP\"}": { ".": {}, "f:name": {} } },
                    "f:list": { "i:0": { "f:a": {} } } } });
    assert_eq!(Set::decode(&fields).unwrap().encode(), fields);
    // HTML characters, and those without a short escape in Go, are escaped; messages quote them.
    let element = Element::value(&json!("<\u{8}>"));
    assert_eq!(element, Element::Value(r#""\u003c\u0008\u003e""#.to_owned()));
    assert_eq!(element.to_string(), r#"[="<\b>"]"#);
    // Keys are equal in any order of their fields.
    let unsorted = json!({ "k:{\"protocol\":\"TCP\", \"port\":80}": {} });
    assert_eq!(Set::decode(&unsorted).unwrap().encode(), json!({ "k:{\"port\":80,\"protocol\":\"TCP\"}": {} }));
    for wrong in
        [json!({ "spec": {} }), json!({ "xx:a": {} }), json!({ "k:[]": {} }), json!({ "v:{": {} }), json!({ "f:a": 1 })]
    {
        assert!(Set::decode(&wrong).is_err(), "{wrong}");
    }
    // Elements of unknown types are none.
    assert_eq!(Set::decode(&json!({ "x:a": 1, "f:b": null })).unwrap().encode(), json!({ "f:b": {} }));
}

fn element() -> impl Strategy<Value = Element> {
    prop_oneof![
        "[a-c]{1,2}".prop_map(Element::Field),
        ("[a-b]", 0..3i64).prop_map(|(name, n)| Element::key(vec![("k", &json!(name)), ("n", &json!(n))])),
        "[a-c]".prop_map(|text| Element::value(&json!(text))),
        (0..3i64).prop_map(Element::Index),
    ]
}

fn set() -> impl Strategy<Value = Set> {
    let path = proptest::collection::vec(element(), 1..4);
    proptest::collection::vec(path, 0..12).prop_map(|paths| {
        let mut set = Set::default();
        paths.into_iter().for_each(|path| set.insert(path));
        set
    })
}

/// Generates a part of a pod: labels, containers with images, ports and commands.
fn config() -> impl Strategy<Value = Value> {
    let labels = proptest::collection::btree_map("[a-c]", "[x-z]", 0..3);
    let container = (proptest::option::of("[i-k]"), proptest::collection::btree_map(80..83u16, "[p-r]", 0..3));
    let containers = proptest::collection::btree_map("[a-d]", container, 1..4);
    (labels, containers).prop_map(|(labels, containers)| {
        let containers = containers.into_iter().map(|(name, (image, ports))| {
            let ports: Vec<Value> =
                ports.into_iter().map(|(port, name)| json!({ "containerPort": port, "name": name })).collect();
            let mut container = json!({ "name": name });
            if let Some(image) = image {
                container["image"] = image.into();
            }
            if !ports.is_empty() {
                container["ports"] = ports.into();
            }
            container
        });
        let containers: Vec<Value> = containers.collect();
        let mut config = json!({ "spec": { "containers": containers } });
        if !labels.is_empty() {
            config["metadata"] = json!({ "labels": labels });
        }
        config
    })
}

fn pod() -> One {
    One(Type::table(POD).unwrap(), Filter::All)
}

proptest! {
    #[test]
    fn sets_obey_their_laws(a in set(), b in set()) {
        let union = a.union(&b);
        prop_assert_eq!(&union, &b.union(&a));
        prop_assert_eq!(union.difference(&b).union(&b), union.clone());
        prop_assert_eq!(a.difference(&b).union(&a.intersection(&b)), a.clone());
        prop_assert!(a.difference(&b).intersection(&b).is_empty());
        for path in a.paths() {
            prop_assert!(union.contains(&path));
            prop_assert_eq!(a.difference(&b).contains(&path), !b.contains(&path));
        }
        prop_assert_eq!(Set::decode(&a.encode()).unwrap(), a);
    }

    #[test]
    fn stored_paths_behave_as_decoded_ones(a in set(), b in set()) {
        let mut stored = Fields::Stored(a.encode());
        let mut decoded = Fields::Decoded(a.clone());
        prop_assert_eq!(stored.contains_all(&b), decoded.contains_all(&b));
        prop_assert!(stored.contains_all(&a));
        stored.subtract(&b);
        decoded.subtract(&b);
        prop_assert_eq!(&stored, &decoded);
        stored.extend(&b);
        prop_assert_eq!(stored.set().into_owned(), a.union(&b));
    }

    #[test]
    fn an_apply_again_changes_nothing(first in config(), second in config()) {
        let one = pod();
        let (live, managers) = apply_as(&one, &json!({}), &Managers::default(), "a", &first, false).unwrap();
        prop_assert_eq!(&live, &first);
        let (live, managers) = apply_as(&one, &live, &managers, "b", &second, true).unwrap();
        let again = apply_as(&one, &live, &managers, "b", &second, false).unwrap();
        prop_assert_eq!(&again.0, &live);
        prop_assert_eq!(&again.1, &managers);
    }

    #[test]
    fn only_fields_that_are_no_longer_applied_are_removed(first in config(), second in config()) {
        let one = pod();
        let (live, managers) = apply_as(&one, &json!({}), &Managers::default(), "a", &first, false).unwrap();
        // A sole manager gets exactly its configuration.
        let (live, managers) = apply_as(&one, &live, &managers, "a", &second, false).unwrap();
        prop_assert!(compare(one.0, &live, &second) == Default::default(), "{} {}", live, second);
        // Beside another manager it removes only its own fields.
        let (both, managers) = apply_as(&one, &live, &managers, "b", &first, true).unwrap();
        let (left, _) = apply_as(&one, &both, &managers, "a", &json!({}), false).unwrap();
        prop_assert!(compare(one.0, &left, &first) == Default::default(), "{} {}", left, first);
    }

    #[test]
    fn merging_and_comparing_agree(live in config(), config in config()) {
        let of = pod().0;
        let merged = merge(of, &live, &config);
        prop_assert!(compare(of, &merged, &merge(of, &merged, &config)) == Default::default());
        let changed = compare(of, &live, &merged);
        prop_assert!(changed.removed.is_empty());
        prop_assert_eq!(changed.written.difference(&with_containers(&extract(of, &config))), Set::default());
        // Without the paths of the configuration, nothing of it is left.
        let applied = extract(of, &config);
        let rest = remove(of, &merged, &applied).unwrap_or_default();
        prop_assert!(extract(of, &rest).intersection(&applied).is_empty());
    }
}

/// Returns a set and the containers of its members, which are added with them.
fn with_containers(set: &Set) -> Set {
    let mut all = set.clone();
    for path in set.paths() {
        (1..path.len()).for_each(|n| all.insert(path[..n].to_vec()));
    }
    all
}

/// An empty list in an item of an atomic list differs from none; elsewhere it does not.
#[test]
fn empty_lists_matter_in_atomic_lists() {
    const ROLE: &str = "io.k8s.api.rbac.v1.Role";
    let role = |rule: Value| json!({ "rules": [rule] });
    let old = role(json!({ "verbs": ["get"] }));
    let spread = json!({ "spec": { "tolerations": [{ "key": "a" }], "containers": [{ "name": "c", "image": "i" }] } });
    let given = json!({ "spec": { "tolerations": [{ "key": "a" }], "containers": [
        { "name": "c", "image": "i", "args": [] }] } });
    for (name, old, given, wanted) in [
        (ROLE, &old, role(json!({ "verbs": ["get"], "resourceNames": [] })), json!({ "f:rules": {} })),
        (ROLE, &old, old.clone(), json!({})),
        (POD, &spread, given, json!({})),
    ] {
        let of = Type::table(name).unwrap();
        let mut new = old.clone();
        take_lists(of, &mut new, &given);
        assert_eq!(compare(of, old, &new).written.encode(), wanted);
    }
}
