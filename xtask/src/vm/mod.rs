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
use tree::Tree;

/// The longest run, unless the command says otherwise.
const DEADLINE: Duration = Duration::from_secs(25 * 60);
/// The test programs that the machine runs.
static PROGRAMS: [Program; 2] = [
    Program { package: "corten-network", test: "nodes", filter: &["wireguard"] },
    Program { package: "corten", test: "kernel", filter: &[] },
];
/// The programs of util-linux that machines made of namespaces need.
const HOST_PROGRAMS: [&str; 2] = ["unshare", "nsenter"];

/// A test program, and the tests of it that need the machine, if not all do.
struct Program {
    package: &'static str,
    test: &'static str,
    filter: &'static [&'static str],
}

/// A program that was built, and its words.
struct Built<'a> {
    path: PathBuf,
    words: &'a [&'a str],
}

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
    let built = build(filter)?;
    let initramfs = initramfs(root, &tree, &built)?;
    let written = tree.path("boot/initramfs");
    initramfs.write(&written)?;
    let ending = machine::run(&tree, "/boot/initramfs", &root.join("target/vm.log"), deadline);
    std::fs::remove_file(&written)?;
    match ending? {
        Ending::Code(0) => Ok(Outcome::Passed),
        Ending::Code(code) => bail!("the tests in the virtual machine failed, with the code {code}"),
        Ending::Silent => bail!("the virtual machine ended without a result; its console is in target/vm.log"),
        Ending::Deadline(limit) => {
            bail!(
                "the virtual machine was not done after {} minutes; its console is in target/vm.log",
                limit.as_secs() / 60
            )
        }
    }
}

/// Builds the test programs. The whole workspace is named, so that what `cargo xtask test` has built is built already.
fn build<'a>(filter: &'a [&'a str]) -> Result<Vec<Built<'a>>> {
    let mut arguments = vec!["test", "--no-run", "--workspace", "--message-format", "json"];
    arguments.extend(PROGRAMS.iter().flat_map(|program| ["--test", program.test]));
    println!("$ cargo {}", arguments.join(" "));
    let output = cargo_command(&arguments)?.stderr(Stdio::inherit()).output().context("cargo cannot be run")?;
    ensure!(output.status.success(), "the test programs cannot be built");
    let text = String::from_utf8_lossy(&output.stdout);
    let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of_program = |program: &'static Program| {
        let found = messages.iter().find_map(|message| executable(message, program));
        let path = found.with_context(|| format!("cargo named no program of the test {}", program.test))?;
        Ok(Built { path, words: if filter.is_empty() { program.filter } else { filter } })
    };
    PROGRAMS.iter().map(of_program).collect()
}

/// Returns the path that a message of cargo names for a test program.
fn executable(message: &Value, program: &Program) -> Option<PathBuf> {
    let package = message["package_id"].as_str()?;
    let is_program = package.contains(&format!("#{}@", program.package))
        && message["target"]["name"] == program.test
        && message["profile"]["test"] == true;
    is_program.then(|| message["executable"].as_str().map(PathBuf::from))?
}

/// Lists the files of the machine. Programs are at the paths that they have on the host: tests know them by those.
fn initramfs(root: &Path, tree: &Tree, tests: &[Built]) -> Result<Initramfs> {
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
    let mut programs: Vec<PathBuf> = tests.iter().map(|test| test.path.clone()).collect();
    let directory = programs.first().and_then(|path| path.ancestors().nth(2)).context("cargo's directories")?;
    programs.push(directory.join("corten"));
    programs.push(root.join("target/tools/kubectl"));
    programs.push(busybox);
    for name in HOST_PROGRAMS {
        programs.push(tools::on_path(name).with_context(|| format!("{name} of util-linux is not on PATH"))?);
    }
    for program in &programs {
        files.program(program)?;
        for library in libraries(program)? {
            files.file(&library, &library)?;
        }
    }
    let lines = tests.iter().map(|test| format!("{} {} || failed=1\n", test.path.display(), test.words.join(" ")));
    files.text("/tests", 0o755, &format!("#!/bin/sh\nfailed=0\n{}exit $failed\n", lines.collect::<String>()));
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_test_program_is_found_in_cargos_messages() {
        let message = |package: &str, name: &str, test: bool| {
            json!({
                "package_id": format!("path+file:///x/{package}#{package}@0.2.0"),
                "target": {"name": name},
                "profile": {"test": test},
                "executable": format!("/x/{name}-1"),
            })
        };
        let [nodes, _] = &PROGRAMS;
        assert_eq!(executable(&message("corten-network", "nodes", true), nodes), Some("/x/nodes-1".into()));
        assert_eq!(executable(&message("corten", "nodes", true), nodes), None);
        assert_eq!(executable(&message("corten-network", "walk", true), nodes), None);
        assert_eq!(executable(&message("corten-network", "nodes", false), nodes), None);
        assert_eq!(executable(&json!({"reason": "build-finished"}), nodes), None);
    }
}
