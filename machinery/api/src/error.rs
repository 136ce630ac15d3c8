//! The errors of this package.

/// A failure of decoding or patching an object.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The bytes are not an object of the wanted kind.
    #[error("cannot decode {kind}: {reason}")]
    Decode {
        /// The expected kind.
        kind: &'static str,
        /// The message of serde.
        reason: String,
    },
    /// The schema table has no such type.
    #[error("unknown type {0}")]
    UnknownType(String),
    /// A strategic merge patch cannot be applied; clients see the message.
    #[error("{0}")]
    Patch(String),
    /// A strategic merge patch whose directives are malformed.
    #[error("{0}")]
    PatchFormat(&'static str),
    /// A strategic merge patch of a list whose items are lists.
    #[error("lists of lists are not supported")]
    ListOfLists,
}
