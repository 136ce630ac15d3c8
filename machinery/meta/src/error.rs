//! The error type of this package. The API server turns it into a `Status`. The messages are upstream's where upstream
//! has one.

/// An error about metadata, encodings, selectors, quantities or patches.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not JSON, or not of the expected shape.
    #[error("{0}")]
    Json(String),
    /// The bytes are not YAML.
    #[error("{0}")]
    Yaml(String),
    /// The object's metadata has an invalid shape.
    #[error("{0}")]
    Metadata(String),
    /// A label or field selector is invalid.
    #[error("{0}")]
    Selector(String),
    /// A quantity is invalid.
    #[error("{0}")]
    Quantity(&'static str),
    /// A JSON patch is malformed: the request is bad.
    #[error("{0}")]
    BadPatch(String),
    /// A JSON patch is well formed and does not apply to the object.
    #[error("{0}")]
    PatchFailed(String),
    /// The `test` operation of a JSON patch fails.
    #[error("{0}")]
    PatchTestFailed(String),
    /// A group, version, kind or resource name cannot be split.
    #[error("{0}")]
    Name(String),
    /// A time is not RFC 3339.
    #[error("{0}")]
    Time(String),
}
