//! The error type of this package.

/// The error of a simulation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The settings contradict each other.
    #[error("{0}")]
    Config(String),
    /// The API server refused a request that the simulation cannot do without.
    #[error("{doing}: {source}")]
    Api { doing: String, source: corten_client::Error },
    /// The cluster did not reach a state in time.
    #[error("{0}")]
    Late(String),
}

impl Error {
    /// Makes an error of a request from the words that name it.
    pub(crate) fn api(doing: impl Into<String>) -> impl FnOnce(corten_client::Error) -> Error {
        let doing = doing.into();
        move |source| Error::Api { doing, source }
    }
}
