//! Reads and writes YAML 1.1 as go-yaml v2, the library of upstream's server, does: with its rules for numbers,
//! booleans and keys, its refusals and its messages.
//!
//! Characters (`text`) become tokens (`scanner`, `scalars`), tokens become a tree (`parser`), and the tree becomes
//! values (`values`). `writer` writes values in one step. The package is pure and bounded: nodes nest up to
//! [`parser::MAX_DEPTH`] levels, and aliases cannot expand a small document into a huge one.

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

/// A value and its strict decoding errors.
#[derive(Debug, PartialEq)]
pub struct Read {
    pub value: Value,
    /// The duplicate keys: `line 2: key "a" already set in map`.
    pub complaints: Vec<String>,
}

/// The error about a document that is not YAML, or that JSON cannot express.
#[derive(Debug, PartialEq)]
pub struct Failed(String);

impl Failed {
    fn of(problem: String) -> Failed {
        Failed(format!("yaml: {problem}"))
    }

    /// Makes an error of the scanner, which names the line it is in.
    fn scanning(at: Mark, context: Mark, problem: &str) -> Failed {
        Failed::at(if at.line > 0 { at.line + 1 } else { context.line }, problem)
    }

    /// Makes an error of the parser, which counts lines from 0, as upstream's does.
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

/// Reads the first document; an empty one is null.
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
    let mut parser = Parser::new(&text);
    let mut out = Vec::new();
    while let Some(node) = parser.document()? {
        out.push(values::read(&node)?);
    }
    Ok(out)
}

#[cfg(test)]
mod tests;
