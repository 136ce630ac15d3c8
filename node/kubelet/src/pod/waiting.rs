//! The reason why a container waits.

/// The reason why a container waits, such as `ErrImagePull`, and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub reason: String,
    pub message: String,
}
