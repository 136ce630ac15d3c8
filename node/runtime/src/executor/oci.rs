//! Containers of another OCI runtime: a program that is called for every step of a container's life.
//!
//! The shim stays the container's parent: it adopts the orphans of its children, and such a runtime exits as soon as it
//! has started a process. So the shim reaps that process and holds its streams as it does with our own. The root file
//! system is mounted on the node, because the program looks for it there; `delete` unmounts it.

use std::io::{IoSliceMut, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::mount::{MntFlags, umount2};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::unistd::Pid;
use serde_json::Value;

use super::{Failure, Running, Started, Stdio, Step, mount, rootfs, target, user};
use crate::rooted::Rooted;
use crate::spec::oci::{self, Runtime};
use crate::spec::{MountSource, Process, Spec};

const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The most bytes that are read of a runtime's error messages.
const MAX_ERROR_LOG: u64 = 64 << 10;

/// Starts the container's first process.
pub(super) fn start(spec: &Spec, runtime: &Runtime, stdio: Stdio) -> Result<Started, Failure> {
    let root = rootfs::mount_overlay(&spec.rootfs)?;
    stack_image_volumes(spec, runtime)?;
    let spec = &Spec { writable_paths: writable_paths(&root, &spec.writable_paths)?, ..spec.clone() };
    std::env::set_current_dir("/").step("enter /")?;
    let identity = user::resolve(&root, &spec.process.user)?;
    let mut config = oci::config(spec, runtime, &identity, &user::environment(&spec.process, &identity));
    possible_score(&mut config["process"]);
    write(&runtime.bundle.join("config.json"), &config)?;
    let console = Console::new(spec, spec.process.terminal)?;
    let mut create = command(runtime, "create");
    create.arg("--bundle").arg(&runtime.bundle);
    let (pid, terminal) = birth(runtime, create, &spec.id, stdio, console)?;
    finish(runtime, command(runtime, "start").arg(&spec.id))?;
    Ok(Started { pid, terminal, identity })
}

/// Starts another process in a running container.
pub(super) fn exec(
    running: &Running<'_>,
    runtime: &Runtime,
    process: &Process,
    stdio: Stdio,
) -> Result<Started, Failure> {
    let spec = running.spec;
    let identity = running.identity.clone();
    let file = runtime.bundle.join("exec.json");
    let mut value = oci::process(process, &identity, &user::environment(process, &identity));
    possible_score(&mut value);
    write(&file, &value)?;
    let console = Console::new(spec, process.terminal)?;
    let mut exec = command(runtime, "exec");
    exec.arg("--detach").arg("--process").arg(&file);
    let (pid, terminal) = birth(runtime, exec, &spec.id, stdio, console)?;
    Ok(Started { pid, terminal, identity })
}

/// Makes the image's volumes and returns their paths without links. The program binds them by their paths on the node,
/// where a link of the image would lead to a folder of the node.
fn writable_paths(root: &Rooted, declared: &[String]) -> Result<Vec<String>, Failure> {
    let mut paths = Vec::new();
    for path in declared {
        let place = root.directory_place(Path::new(path)).step(format!("make the volume {path:?}"))?;
        let found = target::in_root(root, &place)?;
        if !target::is_kernels(&found) {
            paths.push(found.display().to_string());
        }
    }
    Ok(paths)
}

/// Sends a signal to the container's first process.
pub(crate) fn kill(runtime: &Runtime, id: &str, signal: i32) -> Result<(), Failure> {
    finish(runtime, command(runtime, "kill").arg(id).arg(signal.to_string()))
}

/// Deletes a container, also in the runtime's own state. May be repeated, and works without a shim.
pub(crate) fn delete(runtime: &Runtime, id: &str) -> Result<(), Failure> {
    let known = runtime.state.join(id).exists();
    let deleted = if known { finish(runtime, command(runtime, "delete").arg("--force").arg(id)) } else { Ok(()) };
    let volumes = std::fs::read_dir(runtime.bundle.join("image-volumes")).into_iter().flatten().flatten();
    for place in volumes.map(|volume| volume.path()).chain([runtime.bundle.join("rootfs")]) {
        // A sub path of an image is mounted over the whole image.
        while umount2(&place, MntFlags::MNT_DETACH).is_ok() {}
    }
    deleted
}

/// Runs the step that starts a process with our ends of its streams; returns its pid and its terminal.
fn birth(
    runtime: &Runtime,
    mut command: Command,
    id: &str,
    stdio: Stdio,
    console: Option<Console>,
) -> Result<(Pid, Option<OwnedFd>), Failure> {
    let number = runtime.bundle.join("pid");
    if let Some(console) = &console {
        command.arg("--console-socket").arg(&console.path);
    }
    for (stream, set) in [
        (stdio.stdin, Command::stdin as fn(&mut Command, std::process::Stdio) -> &mut Command),
        (stdio.stdout, Command::stdout),
        (stdio.stderr, Command::stderr),
    ] {
        set(&mut command, stream.map_or_else(std::process::Stdio::null, std::process::Stdio::from));
    }
    finish(runtime, command.arg("--pid-file").arg(&number).arg(id))?;
    let content = std::fs::read_to_string(&number).step("read the number of the process")?;
    let pid = content.trim().parse().step("read the number of the process")?;
    Ok((Pid::from_raw(pid), console.map(|console| console.receive()).transpose()?))
}

fn command(runtime: &Runtime, verb: &str) -> Command {
    let (name, path) = PATH.split_once('=').unwrap_or_default();
    let mut command = Command::new(&runtime.program);
    command.env_clear().env(name, path).arg("--root").arg(&runtime.state).arg("--log").arg(log(runtime));
    command.arg("--log-format").arg("json").arg(verb);
    // SAFETY: one system call, between fork and exec.
    unsafe {
        command.pre_exec(|| {
            super::allow_huge_pages(true);
            Ok(())
        })
    };
    command
}

fn log(runtime: &Runtime) -> PathBuf {
    runtime.bundle.join("oci-runtime.log")
}

/// Waits for a step of the runtime; returns the runtime's own error message.
fn finish(runtime: &Runtime, command: &mut Command) -> Result<(), Failure> {
    let _ = std::fs::remove_file(log(runtime));
    let name = runtime.program.file_name().unwrap_or_default().to_string_lossy();
    let ended = command.status().step(format!("run {}", runtime.program.display()))?;
    if ended.success() {
        return Ok(());
    }
    let mut log_content = String::new();
    if let Ok(file) = std::fs::File::open(log(runtime)) {
        let _ = file.take(MAX_ERROR_LOG).read_to_string(&mut log_content);
    }
    Err(last_error(&log_content).unwrap_or_else(|| format!("{name} ended with {ended}")))
}

/// Raises the OOM score to one that is allowed: a runtime that may not lower the score refuses the container, where
/// ours comes as near to it as it can.
fn possible_score(process: &mut Value) {
    if let Some(score) = process["oomScoreAdj"].as_i64() {
        process["oomScoreAdj"] = super::credentials::possible_oom_score(score).into();
    }
}

/// Returns the last error of a runtime's log with its cause.
fn last_error(log: &str) -> Option<String> {
    let lines: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let last =
        |level: &str| lines.iter().rev().find(|line| line["level"] == level).and_then(|line| line["msg"].as_str());
    match (last("error"), last("fatal")) {
        (Some(error), Some(cause)) => Some(format!("{error}: {cause}")),
        (error, cause) => error.or(cause).map(str::to_owned),
    }
}

fn write(path: &Path, value: &Value) -> Result<(), Failure> {
    let bytes = serde_json::to_vec(value).step("encode the configuration")?;
    std::fs::write(path, bytes).step(format!("write {}", path.display()))
}

/// Mounts image volumes beside the root; they are bound into it.
fn stack_image_volumes(spec: &Spec, runtime: &Runtime) -> Result<(), Failure> {
    for (index, wanted) in spec.mounts.iter().enumerate() {
        let MountSource::Image { layers_folder, lower, sub_path } = &wanted.source else { continue };
        let place = runtime.image_volume(index);
        std::fs::create_dir_all(&place).step("make a place for an image")?;
        let place = Rooted::open(&place).and_then(|place| place.place(Path::new(""))).step("open it")?;
        mount::mount_image(&place, layers_folder, lower, sub_path, wanted)?;
    }
    Ok(())
}

/// The socket where the runtime hands over the near end of a terminal.
struct Console {
    listener: UnixListener,
    path: PathBuf,
}

impl Console {
    fn new(spec: &Spec, wanted: bool) -> Result<Option<Self>, Failure> {
        if !wanted {
            return Ok(None);
        }
        let path = spec.socket_path.with_extension("tty");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).step("bind the socket of the terminal")?;
        Ok(Some(Self { listener, path }))
    }

    /// Receives the terminal. The runtime has exited, so the terminal has been sent, or never will be.
    fn receive(&self) -> Result<OwnedFd, Failure> {
        self.listener.set_nonblocking(true).step("receive the terminal")?;
        let (connection, _) = self.listener.accept().step("the runtime sent no terminal")?;
        let mut name = [0; 4096];
        let mut buffers = [IoSliceMut::new(&mut name)];
        let mut control = nix::cmsg_space!([RawFd; 1]);
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
        let received = recvmsg::<()>(connection.as_raw_fd(), &mut buffers, Some(&mut control), flags);
        for message in received.step("receive the terminal")?.cmsgs().step("receive the terminal")? {
            if let ControlMessageOwned::ScmRights(fds) = message
                && let Some(fd) = fds.first()
            {
                // SAFETY: the kernel has just put this descriptor into our table for us.
                return Ok(unsafe { OwnedFd::from_raw_fd(*fd) });
            }
        }
        Err("the runtime sent no terminal".into())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_the_runtimes_own_message() {
        let log = "{\"level\":\"warning\",\"msg\":\"hm\"}\n{\"level\":\"error\",\"msg\":\"runc create failed: no\"}\nnot json\n";
        assert_eq!(last_error(log).as_deref(), Some("runc create failed: no"));
        let with_cause = "{\"level\":\"fatal\",\"msg\":\"nsexec: denied\"}\n{\"level\":\"error\",\"msg\":\"EOF\"}\n";
        assert_eq!(last_error(with_cause).as_deref(), Some("EOF: nsexec: denied"));
        assert_eq!(last_error("{\"level\":\"info\",\"msg\":\"x\"}"), None);
    }
}
