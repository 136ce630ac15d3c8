//! The error of the table.

/// A part of the table that cannot be read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("the table of state metrics: {0}")]
pub struct Malformed(pub String);
