//! Tests that no expression panics, runs long or takes much memory.

use corten_cel::{Env, Type, Value};
use proptest::prelude::*;
use serde_json::json;

fn env() -> Env {
    Env::new().variable("object", Type::Dyn).variable("s", Type::String)
}

fn run(text: &str) {
    let object = json!({ "a": [1, "x", { "b": null }], "m": { "k": 1.5 } });
    if let Ok(program) = env().compile(text, &[]) {
        let variables = [("object", Value::json(&object)), ("s", Value::borrowed("text"))];
        let _ = program.eval(&variables);
        let _ = env().estimate(&program);
    }
}

#[test]
fn expensive_expressions_are_stopped() {
    let nested = |open: &str, close: &str| format!("{}1{}", open.repeat(5000), close.repeat(5000));
    let chained = |link: &str| format!("optional.of([1]){}", link.repeat(60));
    for text in [
        nested("(", ")"),
        nested("[", "]"),
        nested("-", ""),
        nested("!", ""),
        format!("object{}", ".a".repeat(5000)),
        format!("1{}", " + 1".repeat(5000)),
        format!("true{}", " && true".repeat(5000)),
        format!("{}x", "a ? b : ".repeat(3000)),
        chained(".optMap(x, x + x)"),
        chained(".optMap(x, [x, x].flatten())"),
        chained(".optMap(x, {x: x})"),
        format!("optional.of('aaaaaaaaaa'){}.hasValue()", ".optMap(x, x.replace('', x))".repeat(20)),
        format!("optional.of([]){}.hasValue()", ".optMap(x, x + [x])".repeat(60)),
        "lists.range(9223372036854775807)".to_owned(),
        "'%.999999999f'.format([1.0])".to_owned(),
        "[1,2,3,4,5,6,7,8,9].map(a, [1,2,3,4,5,6,7,8,9].map(b, lists.range(1000).map(c, lists.range(1000))))"
            .to_owned(),
        "s.matches('((a*)*)*$')".to_owned(),
        "'a'.repeat".to_owned(),
        "x".repeat(200_000),
        format!("'{}'", "é".repeat(90_000)),
    ] {
        run(&text);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_source_is_survived(text in "\\PC{0,60}") {
        run(&text);
    }

    #[test]
    fn any_mix_of_words_is_survived(words in prop::collection::vec(prop::sample::select(vec![
        "object", "s", ".a", ".m", "[", "]", "(", ")", "{", "}", "'x'", "1", "2u", "1.5", "null", "true", "+", "-", "*", "/",
        "%", "==", "!=", "<", ">", "in", "&&", "||", "!", "?", ":", ",", ".", "?.", "[?", ".all(x, ", ".map(x, ", "x",
        ".filter(x, ", ".size()", "has(", "quantity(", "ip(", ".optMap(x, ", "optional.of(", "lists.range(", ".sort()",
        ".flatten()", "type(", "int", "b'z'", "duration('1s')", ".format(", "sets.contains(", ".sortBy(x, ",
    ]), 0..25)) {
        run(&words.concat());
        run(&words.join(" "));
    }
}
