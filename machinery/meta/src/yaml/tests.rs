//! Tests of reading and writing YAML: values, errors and their messages, and properties of all documents.

use super::{read, read_all, write};
use proptest::prelude::*;
use serde_json::{Value, json};

fn value(yaml: &str) -> Value {
    read(yaml.as_bytes()).unwrap_or_else(|failed| panic!("{yaml:?}: {failed}")).value
}

#[test]
fn plain_scalars_are_resolved() {
    for (yaml, wanted) in [
        ("1", json!(1)),
        ("010", json!(8)),
        ("0o10", json!(8)),
        ("-0x1F", json!(-31)),
        ("0b101", json!(5)),
        ("09", json!(9)),
        ("1_000", json!(1000)),
        ("1_", json!(1)),
        ("_1", json!("_1")),
        ("1e3", json!(1000)),
        ("1.5", json!(1.5)),
        (".5", json!(0.5)),
        ("5.", json!(5)),
        ("1e400", json!("1e400")),
        ("18446744073709551615", json!(18446744073709551615u64)),
        ("18446744073709551616", json!(18446744073709551616.0)),
        ("1:30", json!("1:30")),
        ("y", json!(true)),
        ("Off", json!(false)),
        ("tRUE", json!("tRUE")),
        ("~", json!(null)),
        ("2001-01-01", json!("2001-01-01")),
        ("!!str 1", json!("1")),
        ("! 1", json!("1")),
        ("!!float 1", json!(1)),
        ("!!binary YWJj", json!("abc")),
        ("!!timestamp 2001-01-01", json!("2001-01-01")),
        ("'1'", json!("1")),
        (r#""\x41\u00e9\t\_""#, json!("Aé\t\u{a0}")),
        ("a #b", json!("a")),
        ("a#b", json!("a#b")),
    ] {
        assert_eq!(value(yaml), wanted, "{yaml}");
    }
}

#[test]
fn documents_are_read() {
    for (yaml, wanted) in [
        ("", json!(null)),
        ("# c\n", json!(null)),
        ("a: 1\nb:\n- c\n- d: e\n  f:\n", json!({"a": 1, "b": ["c", {"d": "e", "f": null}]})),
        ("a: b\n  c\n\n  d\n", json!({"a": "b c\nd"})),
        ("a: \"b\n  c\\\n  d\"\n", json!({"a": "b cd"})),
        ("a: |\n  b\n   c\n\nd: >-\n  e\n  f\n\n  g\n", json!({"a": "b\n c\n", "d": "e f\ng"})),
        ("a: |+\n  b\n\n", json!({"a": "b\n\n"})),
        ("a: |2\n   b\n", json!({"a": " b\n"})),
        ("{a: [1, {b: 2}], c, d: e:f}", json!({"a": [1, {"b": 2}], "c": null, "d": "e:f"})),
        ("[a: 1, b]", json!([{"a": 1}, "b"])),
        ("? a\n: b\n? c\n", json!({"a": "b", "c": null})),
        (
            "1: a\ntrue: b\n1.5: c\n010: d\n1e30: e\n",
            json!({"1": "a", "true": "b", "1.5": "c", "8": "d", "1e+30": "e"}),
        ),
        ("a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\n", json!({"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}})),
        ("a: &x 1\nb: &x 2\nc: *x\n", json!({"a": 1, "b": 2, "c": 2})),
        ("d:\n  <<: [{a: 1}, {a: 2, b: 3}]\n", json!({"d": {"a": 1, "b": 3}})),
        ("%YAML 1.1\n%TAG !y! tag:yaml.org,2002:\n---\na: !y!str 1\n", json!({"a": "1"})),
        ("a: 1\n---\nb: 2\n", json!({"a": 1})),
        ("{\"a\": 1} x", json!({"a": 1})),
        ("a: 1\r\nb:\t2\r\n", json!({"a": 1, "b": 2})),
        ("\u{feff}a: 1", json!({"a": 1})),
    ] {
        assert_eq!(value(yaml), wanted, "{yaml:?}");
    }
    assert_eq!(read_all(b"---\n---\na: 1\n...\n---\nb").unwrap().len(), 3);
    let wide: Vec<u8> = "\u{feff}a: é".encode_utf16().flat_map(u16::to_le_bytes).collect();
    assert_eq!(read(&wide).unwrap().value, json!({"a": "é"}));
}

#[test]
fn the_last_of_equal_keys_wins_and_each_is_reported() {
    let read = read(b"a: 1\na: 2\nb: {c: 1,\n c: 3}\n<<: {a: 4}\n").unwrap();
    assert_eq!(read.value, json!({"a": 4, "b": {"c": 3}}));
    let complaints = [
        "line 2: key \"a\" already set in map",
        "line 4: key \"c\" already set in map",
        "line 5: key \"a\" already set in map",
    ];
    assert_eq!(read.complaints, complaints);
}

#[test]
fn mistakes_are_named_as_upstream_names_them() {
    for (yaml, wanted) in [
        ("a: b: c", "yaml: mapping values are not allowed in this context"),
        ("a:\n  b: c: d", "yaml: line 2: mapping values are not allowed in this context"),
        ("x: &a [*a]", "yaml: anchor 'a' value contains itself"),
        ("k: *nope", "yaml: unknown anchor 'nope' referenced"),
        ("x: [", "yaml: line 1: did not find expected node content"),
        ("x: [1, 2\ny: 3", "yaml: line 1: did not find expected ',' or ']'"),
        ("x: {a: 1", "yaml: line 1: did not find expected ',' or '}'"),
        ("x: {a: 1\ny: 2", "yaml: line 1: did not find expected ',' or '}'"),
        ("a: {b: c: d}", "yaml: did not find expected ',' or '}'"),
        ("a: \"b", "yaml: found unexpected end of stream"),
        ("a: 1\n\tb: 2", "yaml: line 2: found a tab character that violates indentation"),
        ("\tx: 1", "yaml: found character that cannot start any token"),
        ("a:\n\t- b", "yaml: line 2: found character that cannot start any token"),
        ("a:\n  b: 1\n c: 2", "yaml: line 2: did not find expected key"),
        ("- a\nb: c", "yaml: line 1: did not find expected '-' indicator"),
        ("a: @x", "yaml: found character that cannot start any token"),
        ("a: [1,,2]", "yaml: did not find expected node content"),
        ("a: |\nb", "yaml: line 3: could not find expected ':'"),
        ("a: b\nmissing\nc: d", "yaml: line 3: could not find expected ':'"),
        ("a: \"\\q\"", "yaml: found unknown escape character"),
        ("a: \"\\/\"", "yaml: found unknown escape character"),
        ("a: \"b\" c", "yaml: did not find expected key"),
        ("a: - b", "yaml: block sequence entries are not allowed in this context"),
        ("a: \u{7}", "yaml: control characters are not allowed"),
        ("%YAML 1.2\n---\na: 1", "yaml: found incompatible YAML document"),
        ("%FOO\n---\na: 1", "yaml: found unknown directive name"),
        ("<<: 1", "yaml: map merge requires map or sequence of maps as the value"),
        ("a: >x\n b", "yaml: did not find expected comment or line break"),
        ("a: |0\n b", "yaml: found an indentation indicator equal to 0"),
        ("a: !u!x 1", "yaml: found undefined tag handle"),
        ("!!int x", "yaml: cannot decode !!str `x` as a !!int"),
        ("? [a, null]\n: b", "yaml: invalid map key: []interface {}{\"a\", interface {}(nil)}"),
        ("a: .inf", "json: unsupported value: +Inf"),
        ("~: a", "unsupported map key of type: %!s(<nil>), key: <nil>, value: \"a\""),
        ("18446744073709551615: a", "unsupported map key of type: uint64, key: 0xffffffffffffffff, value: \"a\""),
    ] {
        assert_eq!(read(yaml.as_bytes()).unwrap_err().to_string(), wanted, "{yaml:?}");
    }
    assert_eq!(read(b"a: \xff").unwrap_err().to_string(), "yaml: invalid leading UTF-8 octet");
}

#[test]
fn depth_and_aliases_are_limited() {
    for depth in [64, 65, 20_000] {
        let deep = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let lines: String = (0..depth.min(200)).map(|at| format!("{}a:\n", " ".repeat(at))).collect();
        assert_eq!(read(deep.as_bytes()).is_ok(), depth == 64);
        assert_eq!(read(lines.as_bytes()).is_ok(), depth == 64);
    }
    let mut bomb = String::from("a: &a [1,1,1,1,1,1,1,1,1,1]\n");
    for (name, of) in ["b", "c", "d", "e", "f", "g", "h"].iter().zip(["a", "b", "c", "d", "e", "f", "g"]) {
        bomb.push_str(&format!("{name}: &{name} [{}]\n", vec![format!("*{of}"); 10].join(",")));
    }
    assert_eq!(read(bomb.as_bytes()).unwrap_err().to_string(), "yaml: document contains excessive aliasing");
}

/// A string that looks like another type is written in quotes.
#[test]
fn strings_stay_strings() {
    let words = "y n yes No on OFF true null ~ 1 010 0o10 0x1f 0b1 1_000 1e3 .5 5. .inf -.INF .nan 1:30 2001-01-01 << = - ? : \
                 # & * ! | > % @ ` [ ] { } , --- ... a: :a a#b +1 -1 _1 1_ 09 0.1e1";
    for word in words.split_ascii_whitespace().chain([
        "", " ", " a", "a ", "a: b", "a #b", "- a", "a\nb", "\ta", "a\t", "\u{7}", "\u{85}", "é", "\u{feff}", "a\n",
        "\n", "'", "\"", "\\", "a'b\"c",
    ]) {
        let value = json!({ word: [word, { "k": word }], "z": word });
        let yaml = crate::codec::encode_yaml(&value);
        assert_eq!(
            read(yaml.as_bytes()).map(|read| read.value).map_err(|failed| failed.to_string()),
            Ok(value),
            "{yaml}"
        );
    }
}

proptest! {
    /// Every document is read or refused.
    #[test]
    fn any_document_is_read_or_refused(text in "[a-c0-2:,\\[\\]{}?&*!|>'\"%#<. \\\\\n\t-]{0,60}") {
        let _ = read_all(text.as_bytes());
    }

    /// A written value reads back the same.
    #[test]
    fn json_is_yaml(words in proptest::collection::vec("[ -~]{0,12}", 0..6)) {
        let value = json!({ "a": words, "b": { "c": words.len() } });
        prop_assert_eq!(read(value.to_string().as_bytes()).unwrap().value, value.clone());
        let yaml = crate::codec::encode_yaml(&value);
        prop_assert_eq!(read(yaml.as_bytes()).unwrap().value, value);
    }
}

/// The expected values are the answers of upstream's server.
#[test]
fn values_are_written_as_upstream_writes_them() {
    let long = "word ".repeat(20);
    let long = long.trim_end();
    let deep = "k".repeat(129);
    for (value, yaml) in [
        (json!({ "a": {}, "b": [], "c": null, "d": "" }), "a: {}\nb: []\nc: null\nd: \"\"\n"),
        (json!({ "f:data": { ".": {}, "f:a": {} } }), "f:data:\n  .: {}\n  f:a: {}\n"),
        (json!({ "a": [{ "b": 1, "c": [2] }, [3, [4]], "d"] }), "a:\n- b: 1\n  c:\n  - 2\n- - 3\n  - - 4\n- d\n"),
        (
            json!(["true", "1", "1.5", "0x1f", "1:30", "2001-01-01", "~", "y", "1e3"]),
            "- \"true\"\n- \"1\"\n- \"1.5\"\n- \"0x1f\"\n- \"1:30\"\n- \"2001-01-01\"\n- \"~\"\n- \"y\"\n- \"1e3\"\n",
        ),
        (json!([1, -1, 1.5, 1e21, 1234567.5, 1e-7]), "- 1\n- -1\n- 1.5\n- 1e+21\n- 1.2345675e+06\n- 1e-07\n"),
        (
            json!(["a: b", "a:b", "a:", "#a", "a #b", "- a", "-a", "'", "a'b", "*", "@a", " a", "a ", ","]),
            "- 'a: b'\n- a:b\n- 'a:'\n- '#a'\n- 'a #b'\n- '- a'\n- -a\n- ''''\n- a'b\n- '*'\n- '@a'\n- ' a'\n- 'a '\n- ','\n",
        ),
        (
            json!(["\"", "\\", "a\tb", "\u{7f}", "é", "\u{1f600}", "\u{feff}a", "a\"b"]),
            "- '\"'\n- \\\n- \"a\\tb\"\n- \"\\x7F\"\n- é\n- \"\\U0001F600\"\n- \"\\uFEFF\\x61\"\n- a\"b\n",
        ),
        (
            json!({ "a": "x\ny", "b": "x\n", "c": "x\n\n", "d": " x\n", "e": "x \ny", "f": "x\ty\n", "g": "x\n " }),
            "a: |-\n  x\n  y\nb: |\n  x\nc: |+\n  x\n\nd: |2\n   x\ne: \"x \\ny\"\nf: \"x\\ty\\n\"\ng: \"x\\n \"\n",
        ),
        (
            json!({ "ax": 1, "a10": 2, "a9": 3, "A": 4, "b-c": 5, "b": 6, "b/c": 7, "1": 8, "_": 9 }),
            "_: 9\n\"1\": 8\nA: 4\na9: 3\na10: 2\nax: 1\nb: 6\nb-c: 5\nb/c: 7\n",
        ),
        (json!({ "a": long }), &format!("a: {}\n  {}\n", "word ".repeat(16).trim_end(), "word ".repeat(4).trim_end())),
        (json!({ deep.as_str(): [1], "a\nb": { "c": "d" } }), &format!("? |-\n  a\n  b\n: c: d\n? {deep}\n: - 1\n")),
        (json!("a"), "a\n"),
        (json!({ "<<": "<<" }), "\"<<\": <<\n"),
    ] {
        assert_eq!(write(&value), yaml, "{value}");
        assert_eq!(read(yaml.as_bytes()).unwrap().value, value, "{yaml}");
    }
}
