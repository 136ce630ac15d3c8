//! Operations on directory trees that pods and images made: an attacker chooses their names, links and depth.
//!
//! Used by every component of a node that removes such a tree, counts it or changes its owner. Never follows a link,
//! never enters a mount, and needs the same stack and the same open files for a tree of any depth.

mod removal;
mod size;
mod walk;

pub use removal::{remove_at, remove_tree};
pub use size::{Size, size_of};
pub use walk::{Entry, walk};

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rustix::fs::{Mode, OFlags};

    /// Nests directories beyond the length of any path, each with a file beside the next.
    pub fn nest(root: &Path, depth: usize) {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let mut directory = rustix::fs::open(root, flags, Mode::empty()).expect("the root");
        for _ in 0..depth {
            rustix::fs::mkdirat(&directory, "d", Mode::from_raw_mode(0o755)).expect("a directory");
            let file = OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::openat(&directory, "file", file, Mode::from_raw_mode(0o600)).expect("a file");
            directory = rustix::fs::openat(&directory, "d", flags, Mode::empty()).expect("open");
        }
    }
}
