//! Values in strings: JSON, YAML, selectors, quantities, times, names, paths, schedules and expressions.

use std::collections::{BTreeMap, BTreeSet};

use corten_cel::{Env, Type};
use corten_meta::{
    FieldSelector, GroupVersion, Object, Quantity, Selector, Status, codec, go, names, parse_wire, time,
};
use serde_json::json;

use super::{joined, json, parts, text, texts};
use crate::Target;

pub const TARGETS: &[Target] = &[
    Target { name: "json", seeds: json_seeds, run: json_body },
    Target { name: "yaml", seeds: yaml_seeds, run: yaml },
    Target { name: "object", seeds: json_seeds, run: object },
    Target { name: "label-selector", seeds: label_seeds, run: label_selector },
    Target { name: "field-selector", seeds: field_seeds, run: field_selector },
    Target { name: "quantity", seeds: quantity_seeds, run: quantity },
    Target { name: "time", seeds: time_seeds, run: time_of },
    Target { name: "name", seeds: name_seeds, run: name },
    Target { name: "json-path", seeds: json_path_seeds, run: json_path },
    Target { name: "schedule", seeds: schedule_seeds, run: schedule },
    Target { name: "expression", seeds: expression_seeds, run: expression },
];

fn json_seeds() -> Vec<Vec<u8>> {
    texts(&[
        r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"b","labels":{"x":"y"},"ownerReferences":
            [{"apiVersion":"v1","kind":"Node","name":"n","uid":"u","controller":true}],"resourceVersion":"7"}}"#,
        r#"[1,-2.5e3,1e400,true,false,null,"\u00e9\ud83d\ude00\n",{"a":{"a":1},"a":2}]"#,
        r#"{"kind":"Status","apiVersion":"v1","status":"Failure","message":"m","reason":"NotFound","code":404,
            "details":{"name":"a","causes":[{"reason":"r","message":"m","field":"f"}],"retryAfterSeconds":1}}"#,
        "\"\u{2028}<&>\"",
    ])
}

fn json_body(input: &[u8]) {
    let _ = codec::characters(input);
    let _ = codec::numbers(input);
    let _ = codec::strict_complaints(input, &["spec.a".to_owned()]);
    let Ok(decoded) = codec::decode_json(input, true) else {
        let _ = go::json_error(input);
        return;
    };
    let value = decoded.value;
    let _ = go::printed(&value);
    let _ = Status::from_value(&value).map(|status| status.to_value());
    let mut settled = value;
    codec::settle_numbers(&mut settled);
    let mut written = Vec::new();
    codec::write_value(&mut written, &settled);
    let again = codec::decode_json(&written, true).expect("what was written is read").value;
    let mut twice = Vec::new();
    codec::write_value(&mut twice, &again);
    assert_eq!(written, twice, "JSON is written the same again");
}

fn yaml_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, labels: {x: \"y\"}}\ndata:\n  a: |\n    b\n    c\n  d: >-\n    e\n",
        "a: &x [1, 0x1f, 0o17, 1e3, .inf, ~, yes, 2001-01-01]\nb: *x\nc: {<<: {d: 1}, ? e : 'f''g'}\n",
        "--- !!str a\n...\n%YAML 1.2\n---\n- - -1\n- \"\\u00e9\\x41\\n\"\n# comment\n",
        "- a: b\n  c:\n  - d\n- e\n",
    ])
}

fn yaml(input: &[u8]) {
    let _ = codec::decode_yaml_leniently(input);
    let _ = codec::decode_yaml_documents(input);
    let Ok(value) = codec::decode_yaml(input) else { return };
    let written = codec::encode_yaml(&value);
    let again = codec::decode_yaml(written.as_bytes()).expect("what was written is read");
    assert_eq!(again, value, "YAML is read as it was written: {written}");
}

fn object(input: &[u8]) {
    if let Ok(object) = parse_wire(input) {
        let wire = object.wire();
        let again = parse_wire(&wire).expect("what was written is read");
        assert_eq!(again.key(), object.key());
        let _ = (object.value(), object.controller());
    }
    let _ = Object::parse(bytes::Bytes::copy_from_slice(input), 7).map(|object| object.wire());
}

fn label_seeds() -> Vec<Vec<u8>> {
    texts(&["a=b,c!=d,e in (f,g),h notin (i),j,!k,l>1,m<2,n==o", "x.io/y in (),z", ""])
}

fn label_selector(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let labels = BTreeMap::from([("a".to_owned(), "b".to_owned()), ("l".to_owned(), "5".to_owned())]);
    if let Ok(selector) = Selector::parse(text) {
        let again = Selector::parse(&selector.to_string()).expect("what was written is read");
        assert_eq!(again.to_string(), selector.to_string());
        assert_eq!(again.matches(&labels), selector.matches(&labels));
    }
    if let Some(value) = json(input) {
        let _ = Selector::from_label_selector(&value).map(|selector| selector.matches(&labels));
    }
}

fn field_seeds() -> Vec<Vec<u8>> {
    texts(&["metadata.name=a,spec.nodeName!=b", "a=\\,\\=\\\\,b==c", ""])
}

fn field_selector(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let Ok(selector) = FieldSelector::parse(text) else { return };
    let again = FieldSelector::parse(&selector.to_string()).expect("what was written is read");
    let written = |selector: &FieldSelector| -> BTreeSet<String> {
        selector.requirements().iter().map(|requirement| format!("{requirement:?}")).collect()
    };
    assert_eq!(written(&again), written(&selector));
    let _ = selector.matches(|_| Some("a".to_owned()));
}

fn quantity_seeds() -> Vec<Vec<u8>> {
    texts(&["100m", "1.5Gi", "-3e6", "0.000000001n", "9223372036854775807E", "1E", "+.5Ki", "12345678901234567890"])
}

fn quantity(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let Ok(quantity) = Quantity::parse(text) else { return };
    let shown = quantity.to_string();
    let again = Quantity::parse(&shown).expect("what was written is read");
    // Beyond the largest suffix upstream writes none, and a number of a thousand digits is rounded.
    if quantity.as_f64().abs() < 1e18 && text.len() < 300 {
        assert!(again == quantity, "{text} is written as {shown}");
        assert_eq!(again.to_string(), shown, "a canonical quantity stays as it is");
    }
    let _ = (quantity.value(), quantity.milli_value(), quantity.as_f64(), quantity.as_i64(), quantity.exact());
    let _ = (quantity.rounded_to_milli().to_string(), quantity.is_beyond_milli(), quantity.as_milli());
}

fn time_seeds() -> Vec<Vec<u8>> {
    texts(&["2026-01-02T03:04:05Z", "2026-01-02T3:04:05,123456789+14:00", "-0001-12-31T23:59:60Z", "1h2m3.5s", "-1us"])
}

fn time_of(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let _ = go::parse_time(text, true);
    let _ = (go::duration_error(text), go::parse_uint(text));
    let _ = corten_kubelet::configuration::parse_duration(text);
    for parsed in [time::parse(text).ok(), go::parse_time(text, false).ok()].into_iter().flatten() {
        let shown = time::rfc3339_micro(parsed);
        let again = time::parse(&shown).expect("what was written is read");
        assert_eq!(time::rfc3339_micro(again), shown);
    }
}

fn name_seeds() -> Vec<Vec<u8>> {
    texts(&[
        "apps/v1",
        "a-b.example.com",
        "10.0.0.1/8",
        "fe80::1%eth0",
        "::ffff:1.2.3.4/96",
        "*.example.com",
        "50%",
        "http-1",
    ])
}

fn name(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let _ = GroupVersion::parse(text).map(|version| version.to_string());
    let rules = [
        names::dns1123_label,
        names::dns1123_subdomain,
        names::wildcard_dns1123_subdomain,
        names::dns1035_label,
        names::qualified_name,
        names::label_value,
        names::relaxed_env_var_name,
        names::config_map_key,
        names::port_name,
        names::percent,
        names::http_header_name,
        names::path_segment_name,
    ];
    for rule in rules {
        let _ = rule(text);
    }
    let _ = text.parse::<corten_network::Cidr>();
    let _ =
        corten_network::Limits::of(&BTreeMap::from([("kubernetes.io/egress-bandwidth".to_owned(), text.to_owned())]));
    let _ = corten_controllers::AddressRange::parse(text);
    let _ = corten_kubelet::parse_flag(text, '<');
}

fn json_path_seeds() -> Vec<Vec<u8>> {
    texts(&[
        ".spec.items[?(@.size>3)].name",
        "{.a[0:2:1]['b','c']..*}",
        "[-1:]",
        "{range .a[*]}{.b}{end}",
        ".metadata.labels.x\\.y",
    ])
}

fn json_path(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let object =
        json!({"spec": {"items": [{"name": "a", "size": 5}, {"name": "b"}]}, "a": [[1, 2], {"b": {"c": [3]}}]});
    if let Ok(path) = corten_api::JsonPath::parse(text) {
        let _ = path.first(&object);
    }
    let _ = corten_api::JsonPath::read(text).first(&object);
}

fn schedule_seeds() -> Vec<Vec<u8>> {
    texts(&["*/15 0-5 1,15 JAN-mar 1-5/2", "@every 1h30m", "@daily", "0 0 31 2 *", "1,3-5,7", "? ? ? ? 0-7"])
}

fn schedule(input: &[u8]) {
    let Some(text) = text(input) else { return };
    let _ = corten_controllers::fuzz::schedule(text);
    let written = corten_controllers::fuzz::indexes(text);
    assert_eq!(corten_controllers::fuzz::indexes(&written), written, "indexes are written the same again");
}

fn expression_seeds() -> Vec<Vec<u8>> {
    [
        ("object.spec.replicas > 3 && has(object.a) || s.startsWith('x')", r#"{"spec":{"replicas":5}}"#),
        ("object.items.all(i, i.name.matches('^[a-z]+$')) ? s.size() : {'a': [1u, 2.5, b'\\x00']}.size()", r#"{"items":[{"name":"a"}]}"#),
        ("quantity('1Gi').isGreaterThan(quantity('1M')) && duration('1h') < timestamp('2026-01-02T03:04:05Z') - timestamp('2026-01-01T00:00:00Z')", "{}"),
        ("ip('10.0.0.1').family() == 4 && cidr('10.0.0.0/8').containsIP('10.1.1.1') && url('https://a:8/b?c=d').getPort() == '8'", "{}"),
        ("object.l.map(x, x * 2).filter(x, x % 3 == 0).sum() + int(s) - object[?'k'].orValue(-9223372036854775808)", r#"{"l":[1,2,3]}"#),
        ("sets.contains([1,2],[1]) && semver('1.2.3-a').major() == 1 && s.split(',').join('-').format([1]) == 'a'.replace('b','c').lowerAscii()", "{}"),
        ("format.dns1123Label().validate(s).hasValue() || 'a' in object || type(object) == map", "[1]"),
    ]
    .iter()
    .map(|(expression, object)| joined(&[expression, object]))
    .collect()
}

fn expression(input: &[u8]) {
    let [expression, object] = parts::<2>(input);
    let Some(expression) = text(expression) else { return };
    let env = Env::new().variable("object", Type::Dyn).variable("s", Type::String).binding();
    let Ok(program) = env.compile(expression, &[]) else { return };
    let _ = env.estimate(&program);
    let object = json(object).unwrap_or_default();
    let variables = [("object", corten_cel::Value::json(&object)), ("s", corten_cel::Value::borrowed("a,b"))];
    let outcome = program.eval_within(&variables, 100_000);
    let _ = outcome.value.and_then(|value| corten_cel::value::to_json(&value));
}
