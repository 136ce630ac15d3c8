//! Reads and writes YAML 1.1 as upstream's server does, which is to say as go-yaml v2: what is a number, a truth or a
//! key, which documents are refused, and in which words.
//!
//! Characters (`text`) become tokens (`scanner`, `scalars`), tokens a tree (`parser`), and the tree values (`values`);
//! `writer` goes the other way at once.
//! Pure, and bounded: nodes nest [`parser::MAX_DEPTH`] deep, and aliases may not make much out of little.

mod parser;
mod scalars;
mod scanner;
mod text;
mod values;
mod writer;

use crate::Value;
use parser::Parser;
use text::Mark;
pub use writer::write;

/// A value, and what a strict reader has against it.
#[derive(Debug, PartialEq)]
pub struct Read {
    pub value: Value,
    /// The keys that were given before: `line 2: key "a" already set in map`.
    pub complaints: Vec<String>,
}

/// Why a text is not YAML, or no YAML that JSON can say.
#[derive(Debug, PartialEq)]
pub struct Failed(String);

impl Failed {
    fn of(problem: String) -> Failed {
        Failed(format!("yaml: {problem}"))
    }

    /// The scanner tells the line that it is in.
    fn scanning(at: Mark, context: Mark, problem: &str) -> Failed {
        Failed::at(if at.line > 0 { at.line + 1 } else { context.line }, problem)
    }

    /// The parser counts lines from nought, as upstream's does.
    fn parsing(at: Mark, context: Mark, problem: &str) -> Failed {
        Failed::at(if at.line > 0 { at.line } else { context.line }, problem)
    }

    fn at(line: usize, problem: &str) -> Failed {
        Failed::of(if line > 0 { format!("line {line}: {problem}") } else { problem.to_owned() })
    }
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// Reads the first document; one that is empty is null.
pub fn read(bytes: &[u8]) -> Result<Read, Failed> {
    let text = text::decode(bytes).map_err(|problem| Failed::of(problem.to_owned()))?;
    match Parser::new(&text).document()? {
        Some(node) => values::read(&node),
        None => Ok(Read { value: Value::Null, complaints: Vec::new() }),
    }
}

/// Reads every document.
pub fn read_all(bytes: &[u8]) -> Result<Vec<Read>, Failed> {
    let text = text::decode(bytes).map_err(|problem| Failed::of(problem.to_owned()))?;
    let (mut parser, mut out) = (Parser::new(&text), Vec::new());
    while let Some(node) = parser.document()? {
        out.push(values::read(&node)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
