//! `$(NAME)` references in env values, commands, arguments and subPathExpr. Pure.
//!
//! `$$` stands for one `$`, so `$$(NAME)` becomes `$(NAME)`; a reference to an unknown name is kept.

use std::collections::BTreeMap;

/// Replaces the references that `lookup` knows.
pub fn expand(input: &str, lookup: impl Fn(&str) -> Option<String>) -> String {
    let mut output = String::with_capacity(input.len());
    let mut rest = input;
    while let Some(at) = rest.find('$') {
        output.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        if let Some(after) = rest.strip_prefix('$') {
            output.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|inner| inner.split_once(')')) {
            match lookup(name) {
                Some(value) => output.push_str(&value),
                None => output.push_str(&format!("$({name})")),
            }
            rest = after;
        } else {
            output.push('$');
        }
    }
    output.push_str(rest);
    output
}

/// Replaces references by the container's environment.
pub fn expand_all(inputs: &[String], environment: &BTreeMap<String, String>) -> Vec<String> {
    inputs.iter().map(|input| expand(input, |name| environment.get(name).cloned())).collect()
}

/// Replaces references, all of which must be known: the first unknown name is the error.
pub fn expand_strict(input: &str, environment: &BTreeMap<String, String>) -> Result<String, String> {
    let missing = std::cell::RefCell::new(None);
    let output = expand(input, |name| {
        let value = environment.get(name).cloned();
        if value.is_none() {
            missing.borrow_mut().get_or_insert_with(|| name.to_owned());
        }
        value
    });
    match missing.into_inner() {
        None => Ok(output),
        Some(name) => Err(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_as_upstream_expands_them() {
        let environment: BTreeMap<String, String> =
            [("VAR_A", "A"), ("VAR_B", "B"), ("VAR_REF", "$(VAR_A)"), ("EMPTY", "")]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into();
        for (input, output) in [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("$(VAR_A)-$(VAR_B)", "A-B"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("$(EMPTY)x", "x"),
            ("$(UNKNOWN)", "$(UNKNOWN)"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$$$$(VAR_A)", "$$(VAR_A)"),
            ("$VAR_A", "$VAR_A"),
            ("$(VAR_A", "$(VAR_A"),
            ("foo$", "foo$"),
            ("$$", "$"),
            ("$()", "$()"),
            ("no reference", "no reference"),
        ] {
            assert_eq!(expand(input, |name| environment.get(name).cloned()), output, "{input}");
        }
        assert_eq!(expand_strict("a/$(VAR_A)", &environment), Ok("a/A".into()));
        assert_eq!(expand_strict("a/$(NOPE)", &environment), Err("NOPE".into()));
    }
}
