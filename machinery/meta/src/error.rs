//! The one error type of this package. The API server turns it into a `Status`; the texts are upstream's where
//! upstream has one.

/// What can go wrong with the words of the API.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The bytes are not JSON, or not the JSON shape that was asked for.
    #[error("{0}")]
    Json(String),
    /// The text is not YAML.
    #[error("{0}")]
    Yaml(String),
    /// The object's metadata does not have the shape of metadata.
    #[error("{0}")]
    Metadata(String),
    /// A label or field selector cannot be understood.
    #[error("{0}")]
    Selector(String),
    /// A quantity cannot be understood.
    #[error("{0}")]
    Quantity(&'static str),
    /// An int-or-string is neither an integer nor a percentage.
    #[error("{0}")]
    IntOrString(String),
    /// A JSON patch is malformed: the request is bad.
    #[error("{0}")]
    BadPatch(String),
    /// A JSON patch is well formed and does not apply to the object.
    #[error("{0}")]
    PatchFailed(String),
    /// What a JSON patch tests is otherwise, so that it does not apply.
    #[error("{0}")]
    PatchTestFailed(String),
    /// A group, version, kind or resource name cannot be split.
    #[error("{0}")]
    Name(String),
    /// A time is not RFC 3339.
    #[error("{0}")]
    Time(String),
}
