//! The source of an expression, offsets in it, and errors, printed as cel-go prints them.

use std::fmt;

/// The limit of a source's length; a longer one is refused before parsing.
pub const MAX_CODE_POINTS: usize = 100_000;
/// The number of errors that are printed; more are only counted.
const MAX_ERRORS: usize = 100;
/// The length of a line beyond which it is not shown below an error.
const MAX_SNIPPET: usize = 16_384;

/// An error: its offset (in code points from the start, `None` if it has none) and its message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issue {
    pub offset: Option<u32>,
    pub message: String,
}

/// The errors of an expression that does not compile.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Issues {
    text: String,
    issues: Vec<Issue>,
}

impl Issues {
    pub fn new(text: &str, mut issues: Vec<Issue>) -> Issues {
        issues.sort_by_key(|issue| issue.offset);
        Issues { text: text.to_owned(), issues }
    }

    pub fn messages(&self) -> impl Iterator<Item = &str> {
        self.issues.iter().map(|issue| issue.message.as_str())
    }
}

impl fmt::Display for Issues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, issue) in self.issues.iter().take(MAX_ERRORS).enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            show(f, &self.text, issue)?;
        }
        match self.issues.len().checked_sub(MAX_ERRORS) {
            Some(more) if more > 0 => write!(f, "\n{more} more errors were truncated"),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for Issues {}

/// Prints an error, its line, and a mark below its column.
fn show(f: &mut fmt::Formatter<'_>, text: &str, issue: &Issue) -> fmt::Result {
    let Some(offset) = issue.offset else { return write!(f, "ERROR: <input>:-1:0: {}", issue.message) };
    if text.is_empty() {
        // An empty source has no first column and no line to show.
        return write!(f, "ERROR: <input>:1:0: {}", issue.message);
    }
    let mut line_number = 1;
    let mut column = 0;
    for c in text.chars().take(offset as usize) {
        (line_number, column) = if c == '\n' { (line_number + 1, 0) } else { (line_number, column + 1) };
    }
    write!(f, "ERROR: <input>:{line_number}:{}: {}", column + 1, issue.message)?;
    let line = text.split('\n').nth(line_number - 1).unwrap_or_default();
    if line.len() > MAX_SNIPPET {
        return Ok(());
    }
    write!(f, "\n | {}\n | ", line.replace('\t', " "))?;
    let mut characters = line.chars();
    for c in characters.by_ref().take(column) {
        f.write_str(if c.is_ascii() { "." } else { "\u{ff0e}" })?;
    }
    f.write_str(if characters.next().is_none_or(|c| c.is_ascii()) { "^" } else { "\u{ff3e}" })
}
