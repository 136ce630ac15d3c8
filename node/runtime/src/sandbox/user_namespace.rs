//! The namespaces of a pod whose users are not the node's (`hostUsers: false`).
//!
//! A process with threads cannot make a user namespace, so this binary is started again as `namespaces`: it makes the
//! user namespace, waits until its ids are mapped, makes the pod's other namespaces inside of it, so that the pod's root
//! has power over them and over nothing else, and holds them until they are pinned.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Stdio};

use corten_cri::v1;
use nix::sched::{CloneFlags, unshare};
use serde::{Deserialize, Serialize};

use super::namespaces::{self, Plan};
use crate::Error;
use crate::program::Program;

/// Which ids of the node the pod's ids are: its `0` is `uid` and `gid`, and so on for `length` ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Mapping {
    pub uid: u32,
    pub gid: u32,
    pub length: u32,
}

impl Mapping {
    /// What the request says; `None` for a pod with the node's users.
    pub fn of(options: &v1::NamespaceOption) -> Result<Option<Self>, Error> {
        let Some(user) = options.userns_options.as_ref() else { return Ok(None) };
        match user.mode() {
            v1::NamespaceMode::Node => return Ok(None),
            v1::NamespaceMode::Pod => {}
            other => return Err(Error::Invalid(format!("user namespace mode {} is unknown", other.as_str_name()))),
        }
        match (user.uids.as_slice(), user.gids.as_slice()) {
            ([uids], [gids]) if uids.container_id == 0 && gids.container_id == 0 && uids.length == gids.length => {
                Ok(Some(Self { uid: uids.host_id, gid: gids.host_id, length: uids.length }))
            }
            _ => Err(Error::Invalid("a user namespace has exactly one mapping of ids, and it begins at 0".into())),
        }
    }

    fn write(&self, pid: u32) -> Result<(), Error> {
        for (file, host) in [("uid_map", self.uid), ("gid_map", self.gid)] {
            let path = format!("/proc/{pid}/{file}");
            std::fs::write(&path, format!("0 {host} {}", self.length)).map_err(Error::file("write", path))?;
        }
        Ok(())
    }
}

/// Makes the pod's namespaces and pins them in `folder`.
pub(crate) fn create(plan: &Plan, mapping: &Mapping, program: &Program, folder: &Path) -> Result<(), Error> {
    let mut holder = Holder::start(plan, program)?;
    holder.hear("user")?;
    let pid = holder.child.id();
    mapping.write(pid)?;
    holder.tell()?;
    holder.hear("rest")?;
    let mut kinds = vec!["user"];
    kinds.extend(["net", "uts"].iter().filter(|_| plan.network));
    kinds.extend(["ipc"].iter().filter(|_| plan.ipc));
    for kind in kinds {
        namespaces::pin_from(&format!("/proc/{pid}/ns/{kind}"), &folder.join(kind))?;
    }
    Ok(())
}

/// A user namespace that nobody is in, to try what the kernel can do with one.
pub(crate) fn probe(program: &Program) -> Result<OwnedFd, Error> {
    let plan = Plan { network: false, ipc: false, hostname: String::new(), sysctls: Vec::new(), users: None };
    let mut holder = Holder::start(&plan, program)?;
    holder.hear("user")?;
    let pid = holder.child.id();
    Mapping { uid: 65536, gid: 65536, length: 65536 }.write(pid)?;
    let path = format!("/proc/{pid}/ns/user");
    std::fs::File::open(&path).map(OwnedFd::from).map_err(Error::file("open", path))
}

/// The process that holds the namespaces; dropping it ends it.
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

    /// Waits for the word, or says what came instead.
    fn hear(&mut self, word: &str) -> Result<(), Error> {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        match read {
            Ok(_) if line.trim() == word => Ok(()),
            _ => Err(Error::State(format!("make a user namespace: {}", line.trim()))),
        }
    }

    fn tell(&mut self) -> Result<(), Error> {
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

/// The program `namespaces`: what the other side of `create` does.
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
    say("user")?;
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
    say("rest")?;
    // Held until the other side has pinned them and ends this process.
    input.read_line(&mut line)?;
    Ok(())
}

fn say(word: &str) -> std::io::Result<()> {
    let mut output = std::io::stdout().lock();
    output.write_all(word.as_bytes())?;
    output.write_all(b"\n")?;
    output.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(mode: v1::NamespaceMode, uids: &[(u32, u32, u32)], gids: &[(u32, u32, u32)]) -> v1::NamespaceOption {
        let list = |ids: &[(u32, u32, u32)]| {
            let mapping = |(container_id, host_id, length): &(u32, u32, u32)| v1::IdMapping {
                container_id: *container_id,
                host_id: *host_id,
                length: *length,
            };
            ids.iter().map(mapping).collect()
        };
        let user = v1::UserNamespace { mode: mode as i32, uids: list(uids), gids: list(gids) };
        v1::NamespaceOption { userns_options: Some(user), ..v1::NamespaceOption::default() }
    }

    #[test]
    fn one_mapping_from_zero_is_taken_and_nothing_else() {
        use v1::NamespaceMode::{Node, Pod, Target};
        assert_eq!(Mapping::of(&v1::NamespaceOption::default()).expect("none"), None);
        assert_eq!(Mapping::of(&options(Node, &[], &[])).expect("none"), None);
        let one = Mapping::of(&options(Pod, &[(0, 65536, 65536)], &[(0, 131072, 65536)])).expect("a mapping");
        assert_eq!(one, Some(Mapping { uid: 65536, gid: 131_072, length: 65536 }));
        assert!(Mapping::of(&options(Pod, &[(1, 65536, 65536)], &[(0, 65536, 65536)])).is_err());
        assert!(Mapping::of(&options(Pod, &[], &[])).is_err());
        assert!(Mapping::of(&options(Target, &[(0, 1, 1)], &[(0, 1, 1)])).is_err());
    }
}
