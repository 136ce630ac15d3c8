//! A tree of Debian's packages: each unpacked over the others, without its scripts.
//!
//! The effects of those scripts (users, alternatives, the link of `/bin/sh`) are listed in `conformance/images.toml`.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::archive::Archive;

/// Debian's directories that are links into /usr. Packages may still use the old paths.
const MERGED: [&str; 4] = ["bin", "sbin", "lib", "lib64"];
/// The files that no spec reads; they are a third of the size.
const UNREAD: [&str; 4] = ["usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/info"];

/// Fills a tree with packages and their dependencies, without those of layers below.
pub fn fill(tree: &Path, archive: &Archive, packages: &[String], below: &[String]) -> Result<()> {
    std::fs::create_dir_all(tree)?;
    if packages.is_empty() {
        return Ok(());
    }
    for name in MERGED {
        std::fs::create_dir_all(tree.join("usr").join(name))?;
        std::os::unix::fs::symlink(format!("usr/{name}"), tree.join(name))?;
    }
    let wanted = wanted(archive, packages, below)?;
    let wanted: Vec<&str> = wanted.iter().map(String::as_str).collect();
    for package in archive.download_all(&wanted)? {
        unpack(&package, tree)?;
    }
    for path in UNREAD {
        let _ = std::fs::remove_dir_all(tree.join(path));
    }
    Ok(())
}

fn wanted(archive: &Archive, packages: &[String], below: &[String]) -> Result<Vec<String>> {
    let below: Vec<&str> = below.iter().map(String::as_str).collect();
    let own: Vec<&str> = packages.iter().map(String::as_str).collect();
    let all = archive.closure(&[below.as_slice(), &own].concat())?;
    if below.is_empty() {
        return Ok(all);
    }
    let there = archive.closure(&below)?;
    Ok(all.into_iter().filter(|package| !there.contains(package)).collect())
}

/// Unpacks a package through links of directories, which `dpkg-deb --extract` would replace.
pub fn unpack(package: &Path, tree: &Path) -> Result<()> {
    let mut content = Command::new("dpkg-deb")
        .arg("--fsys-tarfile")
        .arg(package)
        .stdout(Stdio::piped())
        .spawn()
        .context("dpkg-deb cannot be run")?;
    let output = content.stdout.take().context("dpkg-deb has no output")?;
    let tar = Command::new("tar").args(["-x", "--keep-directory-symlink", "-C"]).arg(tree).stdin(output).status();
    let is_done = tar.context("tar cannot be run")?.success() && content.wait()?.success();
    ensure!(is_done, "{} cannot be unpacked", package.display());
    Ok(())
}
