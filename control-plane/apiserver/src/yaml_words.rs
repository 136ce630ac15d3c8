//! What is wrong with YAML that cannot be read, in the words clients know from upstream's reader.
//!
//! The reader used here finds the same mistakes, but names some of them otherwise and always says where. Upstream's
//! says a line only beyond the first, and counts it from nought when its parser and not its scanner is at a loss.
//! Only asked for when something has already failed; never decides whether it has.

/// Which line a mistake is told of.
#[derive(Clone, Copy)]
enum Line {
    /// The one where it was found.
    Here,
    /// The one before.
    Before,
    /// The one after: only there it shows.
    After,
    /// The number of all lines, because it is found at the end.
    Last,
    Nowhere,
}

/// The beginning of what this reader says, upstream's words for it, and the line. `None` keeps the words.
const WORDS: &[(&str, Option<&str>, Line)] = &[
    ("mapping values are not allowed in this context", None, Line::Here),
    ("block sequence entries are not allowed in this context", None, Line::Here),
    ("found unknown escape character", None, Line::Here),
    ("did not find expected comment or line break", None, Line::Here),
    ("did not find the expected '>'", None, Line::Here),
    ("did not find expected key", None, Line::Before),
    ("did not find expected '-' indicator", None, Line::Before),
    ("did not find expected ','", Some("did not find expected ',' or 'CLOSE'"), Line::Before),
    ("illegal placement of ':' indicator", Some("did not find expected ',' or 'CLOSE'"), Line::Before),
    ("invalid trailing content after", Some("did not find expected key"), Line::Before),
    ("misplaced bracket", Some("did not find expected node content"), Line::Before),
    ("unexpected EOF while parsing an implicit flow mapping", Some("did not find expected node content"), Line::Before),
    ("unclosed bracket", Some("OPEN"), Line::Last),
    ("unclosed quote", Some("found unexpected end of stream"), Line::Nowhere),
    ("found a tab", Some("found a tab character that violates indentation"), Line::After),
    ("tabs disallowed", Some("found character that cannot start any token"), Line::Here),
    ("unexpected character: `\\u", Some("control characters are not allowed"), Line::Nowhere),
    ("unexpected character", Some("found character that cannot start any token"), Line::Here),
    ("simple key expected ':'", Some("could not find expected ':'"), Line::After),
    ("alias references unknown anchor", Some("unknown anchor 'NAME' referenced"), Line::Nowhere),
    ("recursive references", Some("anchor 'NAME' value contains itself"), Line::Nowhere),
    ("unsupported YAML major version", Some("found incompatible YAML document"), Line::Nowhere),
    ("YAML merge value", Some("map merge requires map or sequence of maps as the value"), Line::Nowhere),
    ("alias expansion", Some("document contains excessive aliasing"), Line::Nowhere),
    ("budget breached: Nodes", Some("document contains excessive aliasing"), Line::Nowhere),
    ("budget breached: Depth", Some("exceeded max depth of 64"), Line::Nowhere),
    ("recursion limit exceeded", Some("exceeded max depth of 64"), Line::Nowhere),
    ("alias replay", Some("document contains excessive aliasing"), Line::Nowhere),
];

/// The mistake in a text, of which this reader said what it said.
pub fn words(bytes: &[u8], said: &str) -> String {
    let text = String::from_utf8_lossy(bytes);
    let first = said.lines().next().unwrap_or_default();
    let (line, column, what) = located(first).unwrap_or((1, 1, first));
    // Some say what they were about before they say what is wrong.
    let what = what.strip_prefix("while ").and_then(|rest| rest.split_once(", ")).map_or(what, |(_, what)| what);
    let Some((_, words, told)) = WORDS.iter().find(|(beginning, ..)| what.starts_with(beginning)) else {
        return format!("yaml: {}{what}", shown(line, 1));
    };
    let words = match words.unwrap_or(what) {
        "OPEN" => unclosed(&text),
        words if words.contains("CLOSE") => words.replace("CLOSE", closing(&before(&text, line, column))),
        words if words.contains("NAME") => words.replace("NAME", &alias(&text, line, column)),
        words => words.to_owned(),
    };
    let place = match told {
        Line::Here => shown(line, 1),
        Line::Before => shown(line - 1, 0),
        Line::After => shown(line + 1, 1),
        Line::Last => shown(text.lines().count(), 0),
        Line::Nowhere => String::new(),
    };
    format!("yaml: {place}{words}")
}

fn shown(line: usize, hidden: usize) -> String {
    if line > hidden { format!("line {line}: ") } else { String::new() }
}

/// Line, column and what follows of `… line 1 column 5: words`.
fn located(said: &str) -> Option<(usize, usize, &str)> {
    let (_, rest) = said.split_once("line ")?;
    let (line, rest) = rest.split_once(" column ")?;
    let (column, what) = rest.split_once(": ")?;
    let number = |text: &str| text.parse().ok().filter(|number| *number > 0);
    Some((number(line)?, number(column)?, what))
}

/// What stands before a place.
fn before(text: &str, line: usize, column: usize) -> String {
    let earlier = text.lines().take(line - 1).flat_map(str::chars);
    earlier.chain(text.lines().nth(line - 1).unwrap_or_default().chars().take(column - 1)).collect()
}

/// What would close the innermost bracket that is open at the end of a text.
fn closing(text: &str) -> &'static str {
    let mut open = Vec::new();
    for letter in text.chars() {
        match letter {
            '[' => open.push("]"),
            '{' => open.push("}"),
            ']' | '}' => {
                open.pop();
            }
            _ => {}
        }
    }
    open.last().copied().unwrap_or("}")
}

/// A list or a map that the text ends in: either an item was to come, or the end of the list.
fn unclosed(text: &str) -> String {
    match text.trim_end().chars().last() {
        Some('[' | '{' | ',' | ':') => "did not find expected node content".to_owned(),
        _ => format!("did not find expected ',' or '{}'", closing(text)),
    }
}

/// The name of the alias at a place.
fn alias(text: &str, line: usize, column: usize) -> String {
    let line = text.lines().nth(line - 1).unwrap_or_default();
    let from = line.chars().skip(column - 1).skip_while(|c| *c == '*');
    from.take_while(|c| c.is_alphanumeric() || matches!(c, '_' | '-')).collect()
}

#[cfg(test)]
mod tests {
    use super::words;

    #[test]
    fn mistakes_are_named_as_upstream_names_them() {
        for (yaml, expected) in [
            ("a: b: c", "mapping values are not allowed in this context"),
            ("a:\n  b: c: d", "line 2: mapping values are not allowed in this context"),
            ("x: &a [*a]", "anchor 'a' value contains itself"),
            ("k: *nope", "unknown anchor 'nope' referenced"),
            ("x: [", "line 1: did not find expected node content"),
            ("x: [1, 2\ny: 3", "line 1: did not find expected ',' or ']'"),
            ("x: {a: 1", "line 1: did not find expected ',' or '}'"),
            ("x: {a: 1\ny: 2", "line 1: did not find expected ',' or '}'"),
            ("a: {b: c: d}", "did not find expected ',' or '}'"),
            ("a: [b: c: d]", "did not find expected ',' or ']'"),
            ("a: \"b", "found unexpected end of stream"),
            ("a: 1\n\tb: 2", "line 2: found a tab character that violates indentation"),
            ("a:\n\t- b", "line 2: found character that cannot start any token"),
            ("a:\n  b: 1\n c: 2", "line 2: did not find expected key"),
            ("- a\nb: c", "line 1: did not find expected '-' indicator"),
            ("a: @x", "found character that cannot start any token"),
            ("a: [1,,2]", "did not find expected node content"),
            ("a: ]", "did not find expected node content"),
            ("a: |\nb", "line 3: could not find expected ':'"),
            ("a: b\nmissing\nc: d", "line 3: could not find expected ':'"),
            ("a: \"\\q\"", "found unknown escape character"),
            ("a: \"b\" c", "did not find expected key"),
            ("a: - b", "block sequence entries are not allowed in this context"),
            ("a: \u{7}", "control characters are not allowed"),
            ("%YAML 2.0\n---\na: 1", "found incompatible YAML document"),
            ("<<: 1", "map merge requires map or sequence of maps as the value"),
            ("a: >x\n b", "did not find expected comment or line break"),
        ] {
            let said = corten_meta::decode_yaml(yaml.as_bytes()).unwrap_err().to_string();
            assert_eq!(words(yaml.as_bytes(), &said), format!("yaml: {expected}"), "{yaml:?}: {said}");
        }
    }
}
