//! The programs that tests use beyond our own; `cargo xtask test` puts them into `target/tools`.

use std::path::{Path, PathBuf};

/// Returns the path of the real kubectl.
pub fn kubectl() -> PathBuf {
    tool("kubectl")
}

/// Returns the path of Debian's static busybox, from which test images are made.
pub fn busybox() -> PathBuf {
    tool("busybox")
}

fn tool(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package lies in the workspace");
    let path = root.join("target/tools").join(name);
    assert!(path.exists(), "{} is missing: `cargo xtask test` fetches what the tests need", path.display());
    path
}

/// Reports whether this process may make namespaces and mounts; otherwise it prints that and the test stops.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}
