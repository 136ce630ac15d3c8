//! The parts of an object that requests write.

/// The part of an object that a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but status.
    Main,
    Status,
    /// Everything that the transformation changes: subresources that restrict the change themselves.
    Transformed,
}
