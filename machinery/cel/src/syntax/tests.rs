//! Tests of syntax errors against cel-go: column and message, observed at upstream's API server.

use crate::parser::parse;

/// The tokens that an expression may begin with.
const BEGINNING: &str =
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

fn errors_of(text: &str) -> Vec<String> {
    let issues = parse(text, false).expect_err(text).to_string();
    let lines = issues.lines().filter_map(|line| line.strip_prefix("ERROR: <input>:1:"));
    lines.map(|line| line.replacen(": Syntax error:", "", 1).replace(BEGINNING, "BEGINNING")).collect()
}

#[test]
fn syntax_errors_are_reported_in_upstream_words() {
    let rows: &[(&str, &[&str])] = &[
        ("", &["0 mismatched input '<EOF>' expecting BEGINNING"]),
        (")", &["1 mismatched input ')' expecting BEGINNING"]),
        ("a.", &["3 no viable alternative at input '.'"]),
        ("a..b", &["3 no viable alternative at input '..'"]),
        ("a b", &["3 extraneous input 'b' expecting <EOF>"]),
        ("a &&", &["5 mismatched input '<EOF>' expecting BEGINNING"]),
        ("a ? b", &["6 mismatched input '<EOF>' expecting ':'"]),
        ("a ?", &["4 mismatched input '<EOF>' expecting BEGINNING"]),
        (
            "f(",
            &[
                "3 mismatched input '<EOF>' expecting {'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ],
        ),
        ("f(a,", &["5 mismatched input '<EOF>' expecting BEGINNING"]),
        (
            "f(,)",
            &[
                "3 extraneous input ',' expecting {'[', '{', '(', ')', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ],
        ),
        ("[1,", &["4 missing ']' at '<EOF>'"]),
        ("{a:1", &["5 mismatched input '<EOF>' expecting {'}', ','}"]),
        (
            "{:1}",
            &[
                "2 extraneous input ':' expecting {'[', '{', '}', '(', '.', ',', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
                "4 mismatched input '}' expecting ':'",
            ],
        ),
        (
            "a[]",
            &[
                "3 mismatched input ']' expecting {'[', '{', '(', '.', '-', '!', '?', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}",
            ],
        ),
        ("A{b", &["4 mismatched input '<EOF>' expecting ':'"]),
        ("a ==", &["5 mismatched input '<EOF>' expecting BEGINNING"]),
        ("== a", &["1 extraneous input '==' expecting BEGINNING"]),
        ("::1", &["1 mismatched input ':' expecting BEGINNING"]),
        ("../x", &["2 no viable alternative at input '..'"]),
        ("/", &["1 mismatched input '/' expecting BEGINNING", "2 mismatched input '<EOF>' expecting BEGINNING"]),
        ("a.true", &["3 mismatched input 'true' expecting IDENTIFIER"]),
        ("in a", &["1 extraneous input 'in' expecting BEGINNING"]),
        ("-", &["2 no viable alternative at input '-'", "2 mismatched input '<EOF>' expecting BEGINNING"]),
        ("--", &["3 no viable alternative at input '-'", "3 mismatched input '<EOF>' expecting BEGINNING"]),
        ("a++", &["3 mismatched input '+' expecting BEGINNING", "4 mismatched input '<EOF>' expecting BEGINNING"]),
        ("a ? b : c ? d", &["14 mismatched input '<EOF>' expecting ':'"]),
        ("a,b", &["2 mismatched input ',' expecting <EOF>"]),
        ("(a))", &["4 extraneous input ')' expecting <EOF>"]),
        ("[1,,2]", &["4 mismatched input ',' expecting ']'"]),
        ("a in in b", &["6 extraneous input 'in' expecting BEGINNING"]),
        ("f(a b)", &["5 extraneous input 'b' expecting ')'"]),
        ("{a b}", &["4 missing ':' at 'b'"]),
        ("A{1:2}", &["3 mismatched input '1' expecting {'}', ',', '?', IDENTIFIER, ESC_IDENTIFIER}"]),
        ("-1.", &["4 no viable alternative at input '.'"]),
        ("a % % b", &["5 extraneous input '%' expecting BEGINNING"]),
        ("(]", &["2 mismatched input ']' expecting BEGINNING"]),
        ("((((", &["5 mismatched input '<EOF>' expecting BEGINNING"]),
        ("a[1:2]", &["4 mismatched input ':' expecting ']'"]),
        ("x.all(a,", &["9 mismatched input '<EOF>' expecting BEGINNING"]),
        ("{1:2,,}", &["6 extraneous input ',' expecting '}'"]),
    ];
    for (text, wanted) in rows {
        assert_eq!(errors_of(text), *wanted, "{text}");
    }
}

#[test]
fn any_source_is_reported_soon() {
    for part in ["(", "[", "{", "-", "a.", "f(", "a ? ", "!", ")", "a[", "{a:", "&&", "A{b:", ", "] {
        for times in [1, 50, 900, 20_000] {
            assert!(parse(&part.repeat(times), false).is_err(), "{part}");
        }
    }
}
