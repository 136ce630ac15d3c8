//! The errors of the speaker.

/// An error of the speaker.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the connection's {option} cannot be set: {source}")]
    SocketOption { option: &'static str, source: std::io::Error },
    #[error("no connection: {0}")]
    Connect(std::io::Error),
    #[error("no answer within {0} s")]
    NoAnswer(u64),
}
