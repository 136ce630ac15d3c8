//! The programs that tests use beyond our own; `cargo xtask test` puts them into `target/tools`.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The loader of dynamically linked programs.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Returns the path of the real kubectl.
pub fn kubectl() -> PathBuf {
    tool("kubectl")
}

/// Returns the path of Debian's static busybox, from which test images are made.
pub fn busybox() -> PathBuf {
    tool("busybox")
}

/// Returns the path of the `mkfs.xfs` that was fetched, or the name of the host's.
pub fn mkfs_xfs() -> PathBuf {
    let fetched = place("xfsprogs/mkfs.xfs");
    if fetched.exists() { fetched } else { "mkfs.xfs".into() }
}

fn place(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("the package lies in the workspace");
    root.join("target/tools").join(name)
}

fn tool(name: &str) -> PathBuf {
    let path = place(name);
    assert!(path.exists(), "{} is missing: `cargo xtask test` fetches what the tests need", path.display());
    path
}

/// Returns the files that a program of this host needs beside it: its loader and its libraries. A static program needs none.
pub fn libraries(program: &Path) -> io::Result<Vec<PathBuf>> {
    let loader = |option: &str| Command::new(LOADER).arg(option).arg(program).output();
    if !loader("--verify")?.status.success() {
        return Ok(Vec::new());
    }
    Ok(listed(&String::from_utf8_lossy(&loader("--list")?.stdout)))
}

/// Reads the loader's list: `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader itself.
fn listed(text: &str) -> Vec<PathBuf> {
    let paths = text.lines().filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    paths.map(PathBuf::from).collect()
}

/// Reports whether this process may make namespaces and mounts; otherwise it prints that and the test stops.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_the_loaders_list() {
        let text = "\tlinux-vdso.so.1 (0x7f)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f)\n\t/lib64/ld.so (0x7f)\n";
        assert_eq!(listed(text), ["/lib/libc.so.6", "/lib64/ld.so"].map(PathBuf::from));
        assert!(listed("\tstatically linked\n").is_empty());
    }
}
