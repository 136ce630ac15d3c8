//! Regular expressions of Ingress paths, which match the beginning of paths in any case.

use regex::{Regex, RegexBuilder};

/// The longest regular expression, in bytes.
const MAX_PATTERN: usize = 1024;
/// The biggest compiled form, in bytes.
const MAX_COMPILED: usize = 256 * 1024;

/// Compiles a regular expression; None if it is not supported.
pub fn compile(text: &str) -> Option<Regex> {
    if text.len() > MAX_PATTERN {
        return None;
    }
    let mut builder = RegexBuilder::new(&format!("^(?:{text})"));
    builder.case_insensitive(true).size_limit(MAX_COMPILED).build().ok()
}
