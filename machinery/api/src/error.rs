//! What can go wrong with the API's own data: one enum for the package.

/// A failure of decoding or patching an object.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Error {
    /// The bytes are not an object of the wanted kind.
    #[error("cannot decode {kind}: {reason}")]
    Decode {
        /// The kind that was wanted.
        kind: &'static str,
        /// What serde said.
        reason: String,
    },
    /// No such type in the schema table.
    #[error("unknown type {0}")]
    UnknownType(String),
    /// A strategic merge patch that cannot be applied; the text is shown to the client.
    #[error("{0}")]
    Patch(String),
    /// A strategic merge patch whose directives are malformed.
    #[error("{0}")]
    PatchFormat(&'static str),
    /// A strategic merge patch of a list whose items are lists.
    #[error("lists of lists are not supported")]
    ListOfLists,
}
