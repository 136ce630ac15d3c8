//! Tests of the codec: canonical bytes, the splice of the resource version, strict decoding, YAML by go-yaml's rules.

use bytes::Bytes;
use corten_meta::codec::{decode_yaml_documents, encode_yaml};
use corten_meta::{Object, Value, decode_json, decode_yaml, encode_object, parse_wire};
use proptest::prelude::*;
use serde_json::json;

#[test]
fn canonical_order() {
    let object = json!({"spec": {"z": 1, "a": [true, null]}, "kind": "Pod", "apiVersion": "v1", "a": 1.0,
        "metadata": {"resourceVersion": "5", "selfLink": "/x", "name": "web", "annotations": {"b": "2", "a": "1"}}});
    let expected = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"annotations":{"a":"1","b":"2"},"name":"web"},"a":1,"spec":{"a":[true,null],"z":1}}"#;
    assert_eq!(encode_object(&object), expected.as_bytes());
}

#[test]
fn strings_are_written_as_go_writes_them() {
    for (text, written) in [
        ("sh -c 'a && b <c >d'", r#""sh -c 'a \u0026\u0026 b \u003cc \u003ed'""#),
        ("\u{2027}\u{2028}\u{2029}\u{202a} é \u{7f}/", "\"\u{2027}\\u2028\\u2029\u{202a} é \u{7f}/\""),
        ("\u{8}\u{c}\n\r\t\u{1}\"\\", r#""\b\f\n\r\t\u0001\"\\""#),
    ] {
        assert_eq!(encode_object(&text.into()), written.as_bytes());
        let object = json!({ "metadata": { "annotations": { text: text } } });
        let bytes = encode_object(&object);
        assert_eq!(bytes, format!(r#"{{"metadata":{{"annotations":{{{written}:{written}}}}}}}"#));
        assert_eq!(decode_json(&bytes, true).unwrap().value, object);
    }
}

#[test]
fn header_without_decoding_the_rest() {
    let bytes = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"creationTimestamp":null,"deletionTimestamp":"2026-01-02T03:04:05Z","finalizers":["a/b"],"generation":4,"labels":{"app":"w\u0065b"},"name":"web","namespace":"prod","ownerReferences":[{"apiVersion":"apps/v1","controller":true,"kind":"ReplicaSet","name":"r","uid":"o"},{"apiVersion":"v1","kind":"Node","name":"n","uid":"p"}],"uid":"u"},"spec":{"odd":[{}]}}"#;
    let object = Object::parse(Bytes::from_static(bytes), 9).unwrap();
    assert_eq!(object.key().to_string(), "prod/web");
    assert_eq!(object.header.labels["app"], "web");
    assert_eq!(object.controller().unwrap().name, "r");
    assert_eq!(object.header.owners.len(), 2);
    assert_eq!(object.header.generation, 4);
    assert_eq!(object.header.finalizers, ["a/b"]);
    assert_eq!(object.header.deletion_timestamp.unwrap().to_string(), "2026-01-02T03:04:05Z");
    assert_eq!(object.header.creation_timestamp, None);
    assert_eq!(object.value()["metadata"]["resourceVersion"], "9");
    assert!(Object::parse(Bytes::from_static(b"{\"metadata\":[]}"), 1).is_err());
}

#[test]
fn splice() {
    for (stored, wire) in [
        (
            r#"{"apiVersion":"v1","kind":"A","metadata":{}}"#,
            r#"{"apiVersion":"v1","kind":"A","metadata":{"resourceVersion":"7"}}"#,
        ),
        (
            r#"{"apiVersion":"\"metadata\":{","kind":"A","metadata":{"name":"x"},"b":{"metadata":{}}}"#,
            r#"{"apiVersion":"\"metadata\":{","kind":"A","metadata":{"resourceVersion":"7","name":"x"},"b":{"metadata":{}}}"#,
        ),
        (r#"{"kind":"A"}"#, r#"{"kind":"A"}"#),
    ] {
        let object = Object::parse(Bytes::from_static(stored.as_bytes()), 7).unwrap();
        assert_eq!(object.wire(), wire.as_bytes());
    }
    let unstored = Object::from_value(&json!({"apiVersion": "v1", "metadata": {"name": "x"}}), 0).unwrap();
    assert_eq!(unstored.wire(), unstored.bytes);
}

#[test]
fn wire_of_other_servers() {
    let text = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"x","resourceVersion":"12","selfLink":"/y"}}"#;
    let object = parse_wire(text).unwrap();
    assert_eq!(object.revision, 12);
    assert_eq!(object.bytes, br#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x"}}"#.as_slice());
    assert_eq!(parse_wire(br#"{"metadata":{"name":"x"}}"#).unwrap().revision, 0);
    assert!(parse_wire(br#"{"metadata":{"resourceVersion":"x"}}"#).is_err());
    assert!(parse_wire(b"{").is_err());
    let ours = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"12","name":"x"}}"#;
    assert_eq!(parse_wire(ours).unwrap(), object);
    let line = [ours.as_slice(), b"\n"].concat();
    assert_eq!(parse_wire(&line).unwrap(), object);
}

#[test]
fn duplicate_keys_of_yaml_are_reported_by_their_line() {
    let decoded = corten_meta::decode_yaml_leniently(b"\na:\n  b: 1\n  b: 2\n").unwrap();
    assert_eq!(decoded.value, json!({"a": {"b": 2}}));
    assert_eq!(decoded.duplicates, ["yaml: unmarshal errors:\n  line 4: key \"b\" already set in map"]);
    assert!(corten_meta::decode_yaml_leniently(b"a: 1\n").unwrap().duplicates.is_empty());
    assert!(corten_meta::decode_yaml_leniently(b"a: [").is_err());
}

/// Go writes no exponent in a wide range, and an integer beyond 64 bits as a float.
#[test]
fn numbers_are_written_as_go_does() {
    for (text, written) in [
        ("-0.0", "0"),
        ("1e3", "1000"),
        ("1.5e16", "15000000000000000"),
        ("18446744073709551615", "18446744073709552000"),
        ("123456789012345678901234", "1.2345678901234569e+23"),
        ("0.000001", "0.000001"),
        ("1e-7", "1e-7"),
        ("1e21", "1e+21"),
        ("9223372036854775807", "9223372036854775807"),
    ] {
        let value = decode_json(text.as_bytes(), false).unwrap().value;
        let mut out = Vec::new();
        corten_meta::codec::write_value(&mut out, &value);
        assert_eq!(String::from_utf8(out).unwrap(), written, "{text}");
    }
}

/// An object that is sent again in the same spelling is unchanged.
#[test]
fn numbers_are_normalized_to_their_decoded_form() {
    let mut value = json!({"a": [1.0, 1.5, -0.0, 1e21, 1e300], "b": 5});
    corten_meta::codec::settle_numbers(&mut value);
    assert_eq!(value, json!({"a": [1, 1.5, 0, 1e21, 1e300], "b": 5}));
    assert_eq!(serde_json::from_slice::<Value>(&encode_object(&value)).unwrap(), value);
}

/// Upstream reads numbers by their spelling where it needs it.
#[test]
fn the_spellings_of_numbers_are_known() {
    let text = br#"{"a":[1,1e3],"b":{"c":-0,"c":-0.0},"d":1E400,"e":18446744073709551616}"#;
    for strict in [true, false] {
        let read = decode_json(text, strict).unwrap();
        assert!(read.has_floats);
        assert_eq!(read.value["d"], f64::MAX);
        assert_eq!(decode_json(b"[-0]", strict).unwrap().value, json!([0]));
    }
    let numbers = corten_meta::codec::numbers(text);
    let spellings: Vec<(&str, &str)> = numbers.iter().collect();
    assert_eq!(spellings, [("a[1]", "1e3"), ("b.c", "-0.0"), ("d", "1E400"), ("e", "18446744073709551616")]);
    assert_eq!(numbers.beyond().collect::<Vec<_>>(), [("d", "1E400")]);
    assert!(!decode_json(br#"{"a":1}"#, true).unwrap().has_floats);
    // In YAML a number without a fraction is an integer in any spelling.
    assert_eq!(decode_yaml(br#"{"a":1e3}"#).unwrap(), json!({"a": 1000}));
}

/// JSON that is no YAML is refused as YAML.
#[test]
fn json_that_differs_in_yaml_is_read_as_yaml() {
    for text in [r#"{"a":"\/"}"#, r#"{"a":"\ud83d\ude00"}"#, "{\"a\":\"\u{7f}\"}"] {
        assert!(decode_json(text.as_bytes(), true).is_ok() && decode_yaml(text.as_bytes()).is_err(), "{text}");
    }
    assert_eq!(decode_yaml("{\"a\":\"b\u{2028}c é\"}".as_bytes()).unwrap(), json!({"a": "b\u{2028}c é"}));
}

#[test]
fn duplicates_are_reported_and_the_last_wins() {
    let text = br#"{"a":1,"a":2,"b":{"c":1,"c":2,"c":3},"l":[{},{"x":1,"x":2}]}"#;
    let strict = decode_json(text, true).unwrap();
    assert_eq!(strict.duplicates, ["a", "b.c", "l[1].x"]);
    assert_eq!(strict.value, json!({"a": 2, "b": {"c": 3}, "l": [{}, {"x": 2}]}));
    let loose = decode_json(text, false).unwrap();
    assert_eq!((loose.value, loose.duplicates), (strict.value, vec![]));
    for broken in [&b"{"[..], b"{} x", b"[1,]", b"nul", b""] {
        assert!(decode_json(broken, true).is_err() && decode_json(broken, false).is_err());
    }
    let deep = [b"[".repeat(5000), b"]".repeat(5000)].concat();
    assert!(decode_json(&deep, true).is_err() && decode_json(&deep, false).is_err());
}

/// Go replaces invalid characters.
#[test]
fn invalid_characters_are_replaced() {
    for (text, read) in [
        (&br#""\ud800""#[..], "\u{fffd}"),
        (br#""\udc00x\ud83d\ude00\uD83D\u0041""#, "\u{fffd}x\u{1f600}\u{fffd}A"),
        (br#""\\ud800 \u00e9""#, "\\ud800 \u{e9}"),
        (b"\"\xff\xe2\x82a\"", "\u{fffd}\u{fffd}\u{fffd}a"),
    ] {
        for strict in [true, false] {
            assert_eq!(decode_json(text, strict).unwrap().value, read, "{}", text.escape_ascii());
        }
    }
    for broken in [&br#""\u12"#[..], b"\"\\", br#""\ud8""#] {
        assert!(decode_json(broken, true).is_err(), "{}", broken.escape_ascii());
    }
}

#[test]
fn yaml_is_read_as_go_yaml_does() {
    let text = b"mode: 0644\nflag: on\nyes_too: yes\nbig: 1_000\ntext: '0644'\nbase: &b {x: 1}\nmerged: {<<: *b, z: 2}\nempty:\nport: 80\n";
    let value = decode_yaml(text).unwrap();
    assert_eq!(value["mode"], 420);
    assert_eq!((&value["flag"], &value["yes_too"]), (&json!(true), &json!(true)));
    assert_eq!(value["big"], 1000);
    assert_eq!(value["text"], "0644");
    assert_eq!(value["merged"], json!({"x": 1, "z": 2}));
    assert_eq!(value["empty"], Value::Null);
    assert_eq!(value["port"], 80);
    assert!(decode_yaml(b"a: 1\na: 2\n").is_err(), "duplicate keys");
    assert!(decode_yaml(b"a: [").is_err());
    assert_eq!(decode_yaml(br#"{"json": [1, true]}"#).unwrap(), json!({"json": [1, true]}));
    let documents = decode_yaml_documents(b"a: 1\n---\n---\nb: 2\n").unwrap();
    assert_eq!(documents, [json!({"a": 1}), json!({"b": 2})]);
}

/// Generates metadata whose fields have a valid or an invalid shape.
fn metadata() -> impl Strategy<Value = Value> {
    let time = prop_oneof![Just(json!("2026-01-02T03:04:05Z")), Just(json!("soon")), Just(Value::Null)];
    let text = prop_oneof![3 => "[a-z]{0,6}".prop_map(Value::from), 1 => value()];
    let owner = prop_oneof![
        3 => ("[a-z]{0,4}", any::<Option<bool>>()).prop_map(|(name, flag)| json!({"name": name, "controller": flag})),
        1 => value(),
    ];
    let list = prop_oneof![3 => prop::collection::vec(text.clone(), 0..3).prop_map(Value::from), 1 => value()];
    let owners = prop_oneof![3 => prop::collection::vec(owner, 0..3).prop_map(Value::from), 1 => value()];
    let labels = prop::collection::btree_map("[a-z]{1,4}", text.clone(), 0..3)
        .prop_map(|map| Value::Object(map.into_iter().collect()));
    let number = prop_oneof![Just(json!(3)), Just(json!(3.0)), Just(json!(u64::MAX)), Just(Value::Null)];
    (text, list, owners, labels, time, number).prop_map(|(text, list, owners, labels, time, number)| {
        json!({
            "name": text, "labels": labels, "ownerReferences": owners, "finalizers": list,
            "creationTimestamp": time, "generation": number,
        })
    })
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[ -~é\\n\"]{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("[a-z\"{:]{1,10}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    let fields = prop::collection::btree_map("[a-z\"{:]{1,10}", value(), 0..5);
    let annotations = prop::collection::btree_map("[a-z/]{1,8}", "[ -~]{0,12}", 0..3);
    (fields, annotations, "[a-z]{1,8}").prop_map(|(fields, annotations, name)| {
        let mut object = Value::Object(fields.into_iter().collect());
        object["apiVersion"] = json!("v1");
        object["kind"] = json!("Thing");
        object["metadata"] = json!({"name": name, "annotations": annotations});
        object
    })
}

proptest! {
    #[test]
    fn wire_round_trips(object in object(), revision in 1..u64::MAX) {
        let stored = Object::from_value(&object, revision).unwrap();
        let back = parse_wire(&stored.wire()).unwrap();
        prop_assert_eq!(&back, &stored);
        let mut expected = object;
        expected["metadata"]["resourceVersion"] = json!(revision.to_string());
        prop_assert_eq!(stored.value(), expected.clone());
        prop_assert_eq!(serde_json::from_slice::<Value>(&stored.wire()).unwrap(), expected.clone());
        prop_assert_eq!(parse_wire(expected.to_string().as_bytes()).unwrap(), stored);
    }

    #[test]
    fn encoding_keeps_the_value_and_strict_decoding_finds_nothing(value in value()) {
        let bytes = encode_object(&value);
        let decoded = decode_json(&bytes, true).unwrap();
        prop_assert!(decoded.duplicates.is_empty());
        let mut expected = value;
        if let Some(metadata) = expected.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        prop_assert_eq!(decoded.value, expected);
    }

    #[test]
    fn a_header_is_the_same_from_a_value_as_from_its_bytes(metadata in prop_oneof![3 => metadata(), 1 => value()]) {
        let object = json!({"apiVersion": "v1", "kind": "Thing", "metadata": metadata});
        let read = Object::from_value(&object, 7);
        let parsed = Object::parse(encode_object(&object), 7);
        prop_assert_eq!(read.map_err(|e| e.to_string()), parsed.map_err(|e| e.to_string()));
    }

    #[test]
    fn duplicates_are_found_wherever_they_are(at in 0usize..4) {
        let spellings = [
            (r#"{"a":1,"a":2}"#, "a"),
            (r#"{"a":[{"b":1},{"b":1,"b":2}]}"#, "a[1].b"),
            (r#"{"a":{"b":{},"c":1,"b":{"d":1}}}"#, "a.b"),
            (r#"{"a":{"b":{"d":1,"d":2}},"z":1}"#, "a.b.d"),
        ];
        let (text, path) = spellings[at];
        let decoded = decode_json(text.as_bytes(), true).unwrap();
        prop_assert_eq!(decoded.duplicates, [path]);
        prop_assert_eq!(decoded.value, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn yaml_round_trips(value in object()) {
        prop_assert_eq!(decode_yaml(encode_yaml(&value).as_bytes()).unwrap(), value);
    }

    #[test]
    fn parse_wire_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), cut in 0usize..80) {
        let _ = parse_wire(&bytes);
        let complete = br#"{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"12","name":"x"}}"#;
        let _ = parse_wire(&complete[..cut.min(complete.len())]);
    }
}
