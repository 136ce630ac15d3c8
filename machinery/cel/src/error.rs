//! The errors of evaluation. The messages are those of cel-go: rules and people match on them.

/// An error of evaluation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("no such key: {0}")]
    NoSuchKey(String),
    #[error("no such attribute(s): {0}")]
    NoSuchAttribute(String),
    #[error("no such overload{0}")]
    NoSuchOverload(String),
    #[error("index out of bounds: {0}")]
    IndexOutOfBounds(i64),
    #[error("{0}")]
    Failed(String),
    /// The expression exceeded its cost limit.
    #[error("operation cancelled: actual cost limit exceeded")]
    CostLimit,
}

impl Error {
    pub fn failed(message: impl Into<String>) -> Error {
        Error::Failed(message.into())
    }
}
