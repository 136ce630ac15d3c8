//! The emulator and the kernel: Debian's packages, unpacked into `target/tools/vm`, each compared with its digest first
//! (`archive`).
//!
//! The tree has all libraries of the emulator, which runs with the tree as its root directory: the host's own libraries
//! do not matter.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::archive::Archive;
use crate::images::userland;

const EMULATOR: &str = "qemu-system-x86";
/// The package that depends on the release's current kernel for virtual machines.
const KERNEL: &str = "linux-image-cloud-amd64";

/// The directory with the emulator and the kernel.
pub struct Tree {
    root: PathBuf,
    /// The kernel's version, as its files are named.
    version: String,
}

pub enum Found {
    Tree(Tree),
    /// The reason why this host has no such tree.
    Absent(String),
}

impl Tree {
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the host's path of a file of the tree.
    pub fn path(&self, inside: &str) -> PathBuf {
        self.root.join(inside)
    }

    /// Returns the kernel's path in the tree.
    pub fn kernel(&self) -> String {
        format!("/boot/vmlinuz-{}", self.version)
    }

    /// Returns the kernel's modules: the host's path, and the path where the kernel looks for them.
    pub fn modules(&self) -> (PathBuf, String) {
        (self.root.join("usr/lib/modules").join(&self.version), format!("/lib/modules/{}", self.version))
    }
}

/// Fetches the emulator and the kernel, unless an earlier run did.
pub fn ensure(root: &Path) -> Result<Found> {
    let dir = root.join("target/tools/vm");
    let tree = dir.join("tree");
    if !tree.exists() {
        std::fs::create_dir_all(&dir)?;
        if let Some(reason) = fetch(root, &dir, &tree)? {
            return Ok(Found::Absent(reason));
        }
    }
    let version = kernel_version(&tree)?;
    Ok(Found::Tree(Tree { root: tree, version }))
}

/// Makes the tree; returns a reason if this host's archive cannot give one. Anything wrong with a package is an error.
fn fetch(root: &Path, dir: &Path, tree: &Path) -> Result<Option<String>> {
    println!("fetching {EMULATOR} and {KERNEL} with their dependencies, about 70 MB");
    let archive = match Archive::of_host(dir) {
        Ok(archive) => archive,
        Err(error) => return Ok(Some(format!("Debian's package archive cannot be reached: {error:#}"))),
    };
    let packages = match archive.closure(&[EMULATOR]).and_then(|_| archive.closure(&[KERNEL])) {
        Ok(packages) => packages,
        Err(error) => return Ok(Some(format!("this host's archive lacks {EMULATOR} or {KERNEL}: {error:#}"))),
    };
    let kernel = kernel_package(&packages).with_context(|| format!("{KERNEL} names no kernel"))?;
    let partial = dir.join("partial");
    let _ = std::fs::remove_dir_all(&partial);
    userland::fill(&partial, &archive, &[EMULATOR.to_owned()], &[])?;
    userland::unpack(&archive.download(kernel)?, &partial)?;
    list_modules(root, &partial)?;
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "deb") {
            std::fs::remove_file(path)?;
        }
    }
    std::fs::rename(partial, tree)?;
    Ok(None)
}

/// Returns the name of the kernel itself among the packages that its metapackage needs.
fn kernel_package(packages: &[String]) -> Option<&str> {
    let is_kernel =
        |name: &&String| name.starts_with("linux-image-") && *name != KERNEL && name.ends_with("-cloud-amd64");
    packages.iter().find(is_kernel).map(String::as_str)
}

/// Writes the lists that modprobe reads.
fn list_modules(root: &Path, tree: &Path) -> Result<()> {
    let version = kernel_version(tree)?;
    let mut depmod = Command::new(root.join("target/tools/busybox"));
    depmod.arg("depmod").arg("-b").arg(tree).arg(version);
    ensure!(depmod.status().context("busybox cannot be run")?.success(), "the kernel's modules cannot be listed");
    Ok(())
}

fn kernel_version(tree: &Path) -> Result<String> {
    let modules = tree.join("usr/lib/modules");
    let names = std::fs::read_dir(&modules).with_context(|| format!("cannot read {}", modules.display()))?;
    let names: Vec<_> = names.collect::<Result<_, _>>()?;
    ensure!(
        names.len() == 1,
        "{} has {} kernels, and not one; remove {}",
        modules.display(),
        names.len(),
        tree.display()
    );
    Ok(names[0].file_name().to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_the_package_that_the_metapackage_names() {
        let packages = ["libc6", "linux-base", "linux-image-6.1.0-55-cloud-amd64", KERNEL].map(str::to_owned);
        assert_eq!(kernel_package(&packages), Some("linux-image-6.1.0-55-cloud-amd64"));
        assert_eq!(kernel_package(&packages[3..]), None);
    }
}
