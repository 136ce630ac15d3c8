//! Tests of label selectors: upstream's syntax, matching and error messages, and a round trip.

use corten_meta::Selector;
use proptest::prelude::*;
use serde_json::json;
use std::collections::BTreeMap;

fn labels(text: &str) -> BTreeMap<String, String> {
    let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
    pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

#[test]
fn parses_and_prints() {
    for (text, printed) in [
        ("", ""),
        ("x=a", "x=a"),
        ("x==a", "x==a"),
        ("x!=a,y=b", "x!=a,y=b"),
        ("y=b , x = a", "x=a,y=b"),
        ("x", "x"),
        ("!x", "!x"),
        ("x in (b,a,b)", "x in (a,b)"),
        ("x notin ()", "x notin ()"),
        ("x in (a,,b)", "x in (,a,b)"),
        ("x in (,)", "x in ()"),
        ("x=,z= ", "x=,z="),
        ("in in (in,notin)", "in in (in,notin)"),
        ("x>1,y<10", "x>1,y<10"),
        ("example.com/x in (a)", "example.com/x in (a)"),
        ("x in(a)", "x in (a)"),
    ] {
        let selector = Selector::parse(text).unwrap_or_else(|e| panic!("{text:?}: {e}"));
        assert_eq!(selector.to_string(), printed, "{text:?}");
    }
}

#[test]
fn refuses_with_upstreams_messages() {
    for (text, message) in [
        ("x=a||y=b", "unable to parse requirement: values[0][x]: Invalid value: \"a||y\": a valid label must"),
        ("x,,y", "found ',', expected: identifier after ','"),
        ("x=a,", "found '', expected: identifier after ','"),
        ("x in a", "unable to parse requirement: found 'a' expected: '('"),
        ("x in (a", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("=a", "found '=', expected: !, identifier, or 'end of string'"),
        ("!", "unable to parse requirement: found '', expected: identifier"),
        ("x y", "unable to parse requirement: found 'y', expected: in, notin, =, ==, !=, gt, lt"),
        (
            "x>a",
            "unable to parse requirement: values[0]: Invalid value: \"a\": for 'Gt', 'Lt' operators, the value must be an integer",
        ),
        ("a/b/c=d", "unable to parse requirement: <nil>: Invalid value: \"a/b/c\": a valid label key must"),
        ("!x=a", "found '=', expected: ',' or 'end of string'"),
    ] {
        let error = Selector::parse(text).expect_err(text).to_string();
        assert!(error.starts_with(message), "{text:?}: {error}");
    }
}

#[test]
fn matches() {
    for (selector, set, expected) in [
        ("", "", true),
        ("x=a", "x=a,y=b", true),
        ("x=a", "x=b", false),
        ("x=a", "", false),
        ("x!=a", "", true),
        ("x!=a", "x=a", false),
        ("x in (a,b)", "x=b", true),
        ("x notin (a,b)", "", true),
        ("x notin (a,b)", "x=a", false),
        ("x", "x=", true),
        ("!x", "x=", false),
        ("x=", "x=", true),
        ("x>5", "x=6", true),
        ("x>5", "x=5", false),
        ("x<5", "x=4", true),
        ("x<5", "x=four", false),
        ("x<5", "", false),
        ("x=a,!y", "x=a,y=b", false),
    ] {
        assert_eq!(Selector::parse(selector).unwrap().matches(&labels(set)), expected, "{selector:?} on {set:?}");
    }
}

#[test]
fn from_objects() {
    let make = |value| Selector::from_label_selector(&value);
    assert!(make(json!(null)).unwrap().is_nothing());
    assert!(!Selector::nothing().matches(&labels("")) && !Selector::nothing().is_empty());
    assert!(make(json!({})).unwrap().is_empty());
    let both = make(json!({"matchLabels": {"a": "b"}, "matchExpressions": [
        {"key": "c", "operator": "In", "values": ["d", "e"]}, {"key": "f", "operator": "DoesNotExist"}]}));
    assert_eq!(both.unwrap().to_string(), "a=b,c in (d,e),!f");
    let odd = make(json!({"matchExpressions": [{"key": "c", "operator": "Like"}]}));
    assert_eq!(odd.unwrap_err().to_string(), "\"Like\" is not a valid label selector operator");
    let empty = make(json!({"matchExpressions": [{"key": "c", "operator": "In", "values": []}]}));
    let text = "values: Invalid value: []: for 'in', 'notin' operators, values set can't be empty";
    assert_eq!(empty.unwrap_err().to_string(), text);
    assert!(Selector::from_set(&labels("a=b")).matches(&labels("a=b,c=d")));
}

fn requirement() -> impl Strategy<Value = String> {
    let key = "[a-zA-Z0-9]([-_.a-zA-Z0-9]{0,5}[a-zA-Z0-9])?";
    let value = "([a-zA-Z0-9]([-_.a-zA-Z0-9]{0,3}[a-zA-Z0-9])?)?";
    prop_oneof![
        key.prop_map(|k| k.to_string()),
        key.prop_map(|k| format!("!{k}")),
        (key, prop_oneof![Just("="), Just("=="), Just("!=")], value).prop_map(|(k, o, v)| format!("{k} {o} {v}")),
        (key, prop_oneof![Just("in"), Just("notin")], prop::collection::vec(value, 1..4))
            .prop_map(|(k, o, v)| format!("{k} {o} ({})", v.join(", "))),
        (key, prop_oneof![Just(">"), Just("<")], 0..99i64).prop_map(|(k, o, v)| format!("{k}{o}{v}")),
    ]
}

proptest! {
    #[test]
    fn text_round_trips(requirements in prop::collection::vec(requirement(), 0..5)) {
        let selector = Selector::parse(&requirements.join(",")).unwrap();
        let again = Selector::parse(&selector.to_string()).unwrap();
        prop_assert_eq!(again.to_string(), selector.to_string());
        prop_assert_eq!(again, selector);
    }

    #[test]
    fn never_panics(text in "[ax/.=!<>(), notin-]{0,20}") {
        let _ = Selector::parse(&text);
    }

    #[test]
    fn not_equals_is_the_opposite_of_equals(key in "[a-c]", value in "[x-z]?", set in "([a-c]=[x-z],){0,3}") {
        let set = labels(&set);
        let equals = Selector::parse(&format!("{key}={value}")).unwrap();
        let differs = Selector::parse(&format!("{key}!={value}")).unwrap();
        prop_assert_ne!(equals.matches(&set), differs.matches(&set));
    }
}
