//! The namespaces of a pod with a user namespace (`hostUsers: false`).
//!
//! A process with threads cannot make a user namespace, so this binary is started again as `namespaces`: it makes the
//! user namespace, waits until its ids are mapped, makes the pod's other namespaces inside of it, so that the pod's
//! root has privileges in them and nowhere else, and holds them until they are pinned.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sched::{CloneFlags, unshare};

use super::namespaces::{self, Plan};
use crate::Error;
use crate::executor;
use crate::id_mapping::Mapping;
use crate::program::Program;

/// Makes the pod's namespaces and pins them in `folder`.
pub(crate) fn create(plan: &Plan, mapping: &Mapping, program: &Program, folder: &Path) -> Result<(), Error> {
    let mut holder = Holder::start(plan, program)?;
    holder.expect_word("user")?;
    let pid = holder.child.id();
    mapping.write(pid)?;
    holder.send_go()?;
    holder.expect_word("rest")?;
    let mut kinds = vec!["user"];
    kinds.extend(["net", "uts"].iter().filter(|_| plan.network));
    kinds.extend(["ipc"].iter().filter(|_| plan.ipc));
    for kind in kinds {
        namespaces::pin_from(&format!("/proc/{pid}/ns/{kind}"), &folder.join(kind))?;
    }
    Ok(())
}

/// Makes a user namespace without processes, to probe the kernel's support.
pub(crate) fn probe(program: &Program) -> Result<OwnedFd, Error> {
    let plan = Plan { network: false, ipc: false, hostname: String::new(), sysctls: Vec::new(), users: None };
    let mut holder = Holder::start(&plan, program)?;
    holder.expect_word("user")?;
    let pid = holder.child.id();
    Mapping { uid: 65536, gid: 65536, length: 65536 }.write(pid)?;
    let path = format!("/proc/{pid}/ns/user");
    std::fs::File::open(&path).map(OwnedFd::from).map_err(Error::file("open", path))
}

/// The process that holds the namespaces; dropping it kills it.
struct Holder {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Holder {
    fn start(plan: &Plan, program: &Program) -> Result<Self, Error> {
        let flag = |on: bool| if on { "1" } else { "0" };
        let mut child = program
            .command()
            .args(["namespaces", flag(plan.network), flag(plan.ipc), &plan.hostname])
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(Error::file("start", program.path()))?;
        let output = child.stdout.take().ok_or_else(|| Error::State("a process without its output".into()))?;
        Ok(Self { child, output: BufReader::new(output) })
    }

    /// Waits for the word; any other line is the error.
    fn expect_word(&mut self, word: &str) -> Result<(), Error> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        match read {
            Ok(_) if line.trim() == word => Ok(()),
            _ => Err(Error::State(format!("make a user namespace: {}", line.trim()))),
        }
    }

    fn send_go(&mut self) -> Result<(), Error> {
        let input = self.child.stdin.as_mut().ok_or_else(|| Error::State("a process without its input".into()))?;
        input.write_all(b"go\n").map_err(Error::system("speak to the namespaces' process"))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the program `namespaces`: the other side of `create`.
pub fn namespaces_main(args: &[String]) -> i32 {
    let [network, ipc, hostname] = args else { return 1 };
    match hold(network == "1", ipc == "1", hostname) {
        Ok(()) => 0,
        Err(error) => {
            println!("{error}");
            1
        }
    }
}

fn hold(network: bool, ipc: bool, hostname: &str) -> std::io::Result<()> {
    let mut input = std::io::stdin().lock();
    let mut line = String::new();
    unshare(CloneFlags::CLONE_NEWUSER)?;
    print_word("user")?;
    input.read_line(&mut line)?;
    let mut flags = CloneFlags::empty();
    if network {
        flags |= CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWUTS;
    }
    if ipc {
        flags |= CloneFlags::CLONE_NEWIPC;
    }
    unshare(flags)?;
    if network {
        nix::unistd::sethostname(hostname)?;
        namespaces::bring_loopback_up()?;
    }
    print_word("rest")?;
    // Held until the other side has pinned them and kills this process.
    input.read_line(&mut line)?;
    Ok(())
}

fn print_word(word: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(word.as_bytes())?;
    output.write_all(b"\n")?;
    output.flush()
}

/// Reports whether pods may have user namespaces: the kernel has them, and the file system of the images can map ids.
pub(crate) fn can_map_ids(program: &Program, layers: &Path) -> bool {
    let probe = || -> Result<(), String> {
        let users = probe(program).map_err(|error| format!("cannot make a user namespace: {error}"))?;
        let folder = std::fs::File::open(layers).map_err(|error| format!("cannot open the layers: {error}"))?.into();
        executor::try_mapping_ids(&folder, &users)
    };
    probe().inspect_err(|why| tracing::info!(why, "pods cannot have user namespaces")).is_ok()
}
