//! Work on directory trees that pods and images made: their names, links and depth are an attacker's choice.
//!
//! Used by every component of a node that removes such a tree. Never follows a link, never enters a mount, and needs
//! the same stack and the same open files for a tree of any depth.

mod removal;

pub use removal::{remove_at, remove_tree};
