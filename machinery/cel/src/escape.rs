//! The names of JSON fields in expressions: characters that an expression cannot have are escaped.

use corten_meta::names::CEL_WORDS;

/// Returns the name of a field in expressions; `None` if they cannot have it.
pub fn escape(name: &str) -> Option<String> {
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    if CEL_WORDS.contains(&name) {
        return Some(format!("__{name}__"));
    }
    let mut escaped = String::with_capacity(name.len());
    let mut rest = name;
    while let Some(c) = rest.chars().next() {
        let step = match c {
            '_' if rest.starts_with("__") => {
                escaped.push_str("__underscores__");
                2
            }
            '.' => {
                escaped.push_str("__dot__");
                1
            }
            '-' => {
                escaped.push_str("__dash__");
                1
            }
            '/' => {
                escaped.push_str("__slash__");
                1
            }
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' => {
                escaped.push(c);
                1
            }
            _ => return None,
        };
        rest = &rest[step..];
    }
    Some(escaped)
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn names_are_escaped_as_upstream_does() {
        for (name, expected) in [
            ("plain", Some("plain")),
            ("my_field", Some("my_field")),
            ("a__b", Some("a__underscores__b")),
            ("a.b-c/d", Some("a__dot__b__dash__c__slash__d")),
            ("namespace", Some("__namespace__")),
            ("int", Some("int")),
            ("9lives", None),
            ("", None),
            ("é", None),
        ] {
            assert_eq!(escape(name).as_deref(), expected, "{name}");
        }
    }
}
