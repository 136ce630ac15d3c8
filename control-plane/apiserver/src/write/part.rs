//! The parts of an object that requests write.

/// Which part of an object a request may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// All but status.
    Main,
    Status,
    /// Whatever the transformation changed: subresources that check on their own what they touch.
    Whole,
}
