//! `cargo xtask vm`: the tests of modes that the host's kernel may lack, in a virtual machine with Debian's kernel.
//!
//! The kernel of a developer's machine or of a CI runner often has no WireGuard, IPVS or SCTP, and mixes both versions of
//! cgroups. Debian's kernel has all of them, so the same test program (`cluster/tests/kernel`) runs there, against real
//! clusters of the same binary. Nothing is installed into the system, and KVM is not needed.
//!
//! Invariants: a run that cannot take place is *skipped*, with one sentence, and never counts as passed. In the machine
//! no test may be skipped. The machine has no network, and a hard deadline.
//!
//! Reading order: `tree` fetches the emulator and the kernel, `initramfs` writes the machine's file system, `machine` runs it.

mod initramfs;
mod machine;
mod tree;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use testkit_machine::tools::libraries;

use crate::{cargo_command, tools};
use initramfs::Initramfs;
use machine::Ending;

/// The longest run, unless the command says otherwise.
const DEADLINE: Duration = Duration::from_secs(25 * 60);
/// The program that the machine runs.
const TEST: &str = "kernel";
/// The programs of util-linux that machines made of namespaces need.
const HOST_PROGRAMS: [&str; 2] = ["unshare", "nsenter"];

/// The outcome of a run.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// The reason why the run cannot take place here.
    Skipped(String),
}

/// Runs the command, and prints its outcome: `[--minutes N] [NAME…]`.
pub fn run(root: &Path, words: &[&str]) -> Result<()> {
    let (deadline, filter) = match words {
        ["--minutes", minutes, filter @ ..] => (Duration::from_secs(60 * minutes.parse::<u64>()?), filter),
        filter => (DEADLINE, filter),
    };
    match outcome(root, filter, deadline)? {
        Outcome::Passed => println!("vm: passed"),
        Outcome::Skipped(reason) => println!("vm: skipped: {reason}"),
    }
    Ok(())
}

/// Runs the tests in a virtual machine. A failed test is an error.
fn outcome(root: &Path, filter: &[&str], deadline: Duration) -> Result<Outcome> {
    ensure!(tools::is_root(), "the emulator runs in a root directory of its own: run it as root");
    if std::env::consts::ARCH != "x86_64" {
        return Ok(Outcome::Skipped("Corten's kernels for virtual machines are those of x86-64".to_owned()));
    }
    let is_name = |word: &str| word.chars().all(|character| character.is_ascii_alphanumeric() || character == '_');
    ensure!(filter.iter().all(|word| is_name(word)), "a filter is a part of a test's name");
    tools::ensure_busybox(root)?;
    tools::ensure_kubectl(root)?;
    let tree = match tree::ensure(root)? {
        tree::Found::Tree(tree) => tree,
        tree::Found::Absent(reason) => return Ok(Outcome::Skipped(reason)),
    };
    let program = build_test(root)?;
    let initramfs = initramfs(root, &tree, &program, filter)?;
    let written = tree.path("boot/initramfs");
    initramfs.write(&written)?;
    let ending = machine::run(&tree, "/boot/initramfs", &root.join("target/vm.log"), deadline);
    std::fs::remove_file(&written)?;
    match ending? {
        Ending::Code(0) => Ok(Outcome::Passed),
        Ending::Code(code) => bail!("the tests in the virtual machine failed: their program ended with {code}"),
        Ending::Silent => bail!("the virtual machine ended without a result; its console is in target/vm.log"),
        Ending::Deadline(limit) => {
            bail!(
                "the virtual machine was not done after {} minutes; its console is in target/vm.log",
                limit.as_secs() / 60
            )
        }
    }
}

/// Builds the test program, and returns its path.
fn build_test(root: &Path) -> Result<PathBuf> {
    let arguments = ["test", "--no-run", "--package", "corten", "--test", TEST, "--message-format", "json"];
    println!("$ cargo {}", arguments.join(" "));
    let output = cargo_command(&arguments)?.stderr(Stdio::inherit()).output().context("cargo cannot be run")?;
    ensure!(output.status.success(), "the test program cannot be built");
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().filter_map(|line| executable(line, TEST)).next_back();
    found.with_context(|| format!("cargo named no program of the test {TEST} below {}", root.display()))
}

/// Returns the program that a message of cargo names for a test.
fn executable(line: &str, test: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(line).ok()?;
    let is_test = message["target"]["name"] == test && message["profile"]["test"] == true;
    is_test.then(|| message["executable"].as_str().map(PathBuf::from))?
}

/// Lists the files of the machine. Programs are at the paths that they have on the host: tests know them by those.
fn initramfs(root: &Path, tree: &tree::Tree, program: &Path, filter: &[&str]) -> Result<Initramfs> {
    let mut files = Initramfs::default();
    let busybox = root.join("target/tools/busybox");
    files.text("/init", 0o755, include_str!("init.sh"));
    files.file("/bin/busybox", &busybox)?;
    for link in ["/bin/sh", "/sbin/modprobe"] {
        files.link(link, "/bin/busybox");
    }
    files.directory(tree.modules().1, tree.modules().0)?;
    for directory in ["/proc", "/sys", "/dev", "/run", "/tmp", "/etc", "/root", "/var", "/mnt", "/new"] {
        files.empty_directory(directory);
    }
    let corten = program.ancestors().nth(2).map(|directory| directory.join("corten")).context("cargo's directories")?;
    let kubectl = root.join("target/tools/kubectl");
    let mut programs = vec![corten, program.to_owned(), kubectl, busybox];
    for name in HOST_PROGRAMS {
        programs.push(tools::on_path(name).with_context(|| format!("{name} of util-linux is not on PATH"))?);
    }
    for program in &programs {
        files.program(program)?;
        for library in libraries(program)? {
            files.file(&library, &library)?;
        }
    }
    let words: Vec<String> = filter.iter().map(|word| format!(" {word}")).collect();
    files.text("/tests", 0o755, &format!("#!/bin/sh\nexec {}{}\n", program.display(), words.concat()));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_test_program_is_found_in_cargos_messages() {
        let message = |name: &str, test: bool| {
            format!(r#"{{"target":{{"name":"{name}"}},"profile":{{"test":{test}}},"executable":"/x/{name}-1"}}"#)
        };
        assert_eq!(executable(&message("kernel", true), "kernel"), Some("/x/kernel-1".into()));
        assert_eq!(executable(&message("walk", true), "kernel"), None);
        assert_eq!(executable(&message("kernel", false), "kernel"), None);
        assert_eq!(executable("not json", "kernel"), None);
    }
}
