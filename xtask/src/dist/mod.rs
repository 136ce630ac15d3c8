//! `cargo xtask dist`: a release. The binary with its man pages, completions and systemd units as an archive and as a Debian
//! package, an OCI image of it, a bill of materials, and the SHA-256 sums of all. The same inputs give the same bytes.

mod deb;
mod image;
pub mod tree;

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use sha2::{Digest, Sha256};

use crate::images::layer::hex;
use crate::{cargo, sbom};
use tree::Tree;

const USAGE: &str = "usage: cargo xtask dist [--programs DIR] [--output DIR]

  --programs DIR   a directory with `corten` and `manual` that are built already, instead of the release build
  --output DIR     where the release is written; target/dist if absent";

/// The parts that a release is made of.
struct Inputs {
    version: String,
    /// The program, stripped.
    binary: PathBuf,
    /// `man1/` and `completions/`.
    pages: PathBuf,
    /// The root of the tree, with the units and the licence.
    root: PathBuf,
}

pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let (programs, output) = match words {
        [] => (None, root.join("target/dist")),
        ["--programs", programs] => (Some(PathBuf::from(programs)), root.join("target/dist")),
        ["--output", output] => (None, PathBuf::from(output)),
        ["--programs", programs, "--output", output] => (Some(PathBuf::from(programs)), PathBuf::from(output)),
        _ => bail!("{USAGE}"),
    };
    let programs = match programs {
        Some(programs) => programs,
        None => {
            // One after the other: together, what the pages need would be enabled in the program too.
            cargo(&["build", "--release", "--package", "corten"])?;
            cargo(&["build", "--release", "--package", "manual"])?;
            root.join("target/release")
        }
    };
    let work = tempfile::Builder::new().prefix("corten-dist").tempdir()?;
    let inputs = inputs(root, &programs.join("corten"), &programs.join("manual"), work.path())?;
    make(&inputs, &output)?;
    sbom::write(root, &output.join(format!("corten-{}.cdx.json", inputs.version)))?;
    for line in write_sums(&output)? {
        println!("{line}");
    }
    Ok(())
}

/// Strips the program and has its pages written, both below `work`.
fn inputs(root: &Path, built: &Path, manual: &Path, work: &Path) -> Result<Inputs> {
    let binary = work.join("corten");
    succeed(Command::new("strip").arg("--strip-all").arg("-o").arg(&binary).arg(built))?;
    let pages = work.join("pages");
    succeed(Command::new(manual).arg("pages").arg(&pages))?;
    let output = Command::new(&binary).arg("--version").output().context("the program cannot be run")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = text.trim().strip_prefix("corten ").with_context(|| format!("its version is {text:?}"))?.to_owned();
    Ok(Inputs { version, binary, pages, root: root.to_owned() })
}

fn succeed(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("{command:?} cannot be run"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(())
}

/// Writes the archives of a release.
fn make(inputs: &Inputs, output: &Path) -> Result<()> {
    std::fs::create_dir_all(output)?;
    let version = &inputs.version;
    let put = |name: String, bytes: Vec<u8>| {
        std::fs::write(output.join(&name), bytes).with_context(|| format!("cannot write {name}"))
    };
    put(format!("corten-{version}-linux-amd64.tar.gz"), archive(inputs)?.gzipped("")?)?;
    put(format!("corten_{version}_amd64.deb"), deb::package(inputs)?)?;
    put(format!("corten-{version}-image.tar"), image::archive(inputs)?)
}

/// The files of a release for a prefix such as `/usr/local`.
fn archive(inputs: &Inputs) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.add("bin/corten", 0o755, std::fs::read(&inputs.binary)?);
    let units = inputs.root.join("cluster/dist");
    for unit in ["corten.service", "corten-agent.service"] {
        let text = std::fs::read_to_string(units.join(unit))?.replace("/usr/bin/corten", "/usr/local/bin/corten");
        tree.add(&format!("lib/systemd/system/{unit}"), 0o644, text.into_bytes());
    }
    add_pages(&mut tree, inputs)?;
    tree.add("share/doc/corten/LICENSE", 0o644, std::fs::read(inputs.root.join("LICENSE"))?);
    Ok(tree)
}

/// Man pages and completions, where shells and `man` look for them below a prefix, and the files for monitoring.
fn add_pages(tree: &mut Tree, inputs: &Inputs) -> Result<()> {
    for name in ["corten.rules.yaml", "corten-dashboard.json"] {
        let content = std::fs::read(inputs.root.join("cluster/dist/monitoring").join(name))?;
        tree.add(&format!("share/corten/monitoring/{name}"), 0o644, content);
    }
    let manual = inputs.pages.join("man1");
    for entry in std::fs::read_dir(&manual)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        tree.add(&format!("share/man/man1/{name}.gz"), 0o644, tree::gzip(&std::fs::read(&path)?)?);
    }
    for (from, to) in [
        ("corten.bash", "share/bash-completion/completions/corten"),
        ("_corten", "share/zsh/site-functions/_corten"),
        ("corten.fish", "share/fish/vendor_completions.d/corten.fish"),
    ] {
        tree.add(to, 0o644, std::fs::read(inputs.pages.join("completions").join(from))?);
    }
    Ok(())
}

/// Writes the sums of everything in the directory, as `sha256sum --check` reads them.
fn write_sums(output: &Path) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    for entry in std::fs::read_dir(output)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name != "SHA256SUMS" && path.is_file() {
            lines.push(format!("{}  {name}", hex(&Sha256::digest(std::fs::read(&path)?))));
        }
    }
    lines.sort_by(|a, b| a.split_once("  ").map(|pair| pair.1).cmp(&b.split_once("  ").map(|pair| pair.1)));
    std::fs::write(output.join("SHA256SUMS"), lines.join("\n") + "\n")?;
    Ok(lines)
}

#[cfg(test)]
mod tests;
