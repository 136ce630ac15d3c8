//! Starts processes in containers: the first one of a container, and those of exec.
//!
//! Runs in a shim, which has one thread: the child may allocate and call anything between fork and exec. The main path
//! of each kind of child is one function of named steps (`container_process`, `exec_process`). Never call this from a
//! process with threads.

mod channel;
mod credentials;
mod device;
mod mount;
mod namespace;
pub(crate) mod oci;
mod rootfs;
mod target;
mod terminal;
pub(crate) mod user;

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::rooted::Rooted;
use crate::spec::{Identity, PidNamespace, Process, Spec};
use channel::{Channel, Message};
pub(crate) use credentials::{become_unprivileged, close_to_others};

/// The time that a container may take until its program runs: less than a kubelet waits for the answer.
const START_TIMEOUT: Duration = Duration::from_secs(110);
/// The time that a program of exec may take to start; the shim does nothing else until then.
const EXEC_TIMEOUT: Duration = Duration::from_secs(30);

/// An error for the user: it becomes the container's message.
pub(crate) type Failure = String;

/// A result whose error can name the failed step.
pub(crate) trait Step<T> {
    fn step(self, action: impl std::fmt::Display) -> Result<T, Failure>;
}

impl<T, E: std::fmt::Display> Step<T> for Result<T, E> {
    fn step(self, action: impl std::fmt::Display) -> Result<T, Failure> {
        self.map_err(|error| format!("{action}: {error}"))
    }
}

/// The standard streams of a process. Unused with a terminal; a missing one is `/dev/null`.
#[derive(Debug, Default)]
pub(crate) struct Stdio {
    pub stdin: Option<OwnedFd>,
    pub stdout: Option<OwnedFd>,
    pub stderr: Option<OwnedFd>,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Started {
    pub pid: Pid,
    /// The near end of its terminal, if it has one.
    pub terminal: Option<OwnedFd>,
    pub identity: Identity,
}

/// Starts the container's first process.
pub(crate) fn start(spec: &Spec, stdio: Stdio) -> Result<Started, Failure> {
    if let Some(runtime) = &spec.oci {
        return oci::start(spec, runtime, stdio);
    }
    let pid_namespace = match &spec.namespaces.pid {
        PidNamespace::Own => namespace::Numbering::New,
        PidNamespace::Node => namespace::Numbering::Same,
        PidNamespace::Join(path) => namespace::Numbering::Join(path.clone()),
    };
    launch(spec, &pid_namespace, START_TIMEOUT, |channel| container_process(spec, stdio, channel))
}

/// A running container: its first process, and the user that its files named when it started. The files may have been
/// changed by the container since then and are not read again.
pub(crate) struct Running<'a> {
    pub spec: &'a Spec,
    pub init: Pid,
    pub identity: &'a Identity,
}

/// Starts another process in a running container.
pub(crate) fn exec(running: &Running<'_>, process: &Process, stdio: Stdio) -> Result<Started, Failure> {
    if let Some(runtime) = &running.spec.oci {
        return oci::exec(running, runtime, process, stdio);
    }
    let same = namespace::Numbering::Same;
    launch(running.spec, &same, EXEC_TIMEOUT, |channel| exec_process(running, process, stdio, channel))
}

/// Tries to map the ids of a folder by a user namespace.
pub(crate) fn try_mapping_ids(folder: &OwnedFd, users: &OwnedFd) -> Result<(), String> {
    mount::map_ids(&mount::copy(folder)?, users).step("map the ids of the image layers")
}

/// Sets whether this process and its children get huge pages without asking. Shims do not; containers do.
pub(crate) fn allow_huge_pages(allowed: bool) {
    // SAFETY: the option takes a number and changes only this process. A kernel without huge pages refuses.
    unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, libc::c_ulong::from(!allowed), 0, 0, 0) };
}

/// Runs a container's first process until it becomes the user's program.
fn container_process(spec: &Spec, stdio: Stdio, channel: &Channel) -> Result<(), Failure> {
    credentials::set_oom_score(spec.process.oom_score_adj);
    let users = namespace::open_users(spec.namespaces.users.as_ref().map(|(path, _)| path.as_path()))?;
    namespace::join_sandbox(&spec.namespaces)?;
    namespace::new_mount_namespace(spec.private_cgroup_namespace)?;
    let binds = mount::take_sources(&spec.mounts)?;
    namespace::detach_propagation()?;
    rootfs::map_layers(&spec.rootfs, users.as_ref())?;
    let root = rootfs::mount_overlay(&spec.rootfs)?;
    mount::mount_all(&root, &spec.mounts, binds, users.as_ref())?;
    device::populate(&root, &spec.devices)?;
    rootfs::make_working_directory(&root, &spec.process.cwd, spec.namespaces.users.as_ref().map(|(_, ids)| *ids))?;
    rootfs::keep_writable(&root, &spec.writable_paths)?;
    rootfs::hide(&root, &spec.masked_paths, &spec.readonly_paths)?;
    let identity = user::resolve(&root, &spec.process.user)?;
    rootfs::pivot(&root)?;
    terminal::set_up(spec.process.terminal, true, stdio, on_node(spec, &identity), channel)?;
    rootfs::seal(&spec.rootfs)?;
    become_program(&spec.process, &identity, users, channel)
}

/// Runs an exec'd process until it becomes the user's program. The container must not see a process that can still
/// reach the node's file system: the first process joins the container's namespaces, and forks the one that is born
/// there.
fn exec_process(running: &Running<'_>, process: &Process, stdio: Stdio, channel: &Channel) -> Result<(), Failure> {
    let spec = running.spec;
    let init = running.init;
    credentials::set_oom_score(process.oom_score_adj);
    let own = spec.namespaces.users.as_ref().map(|_| format!("/proc/{init}/ns/user"));
    let users = namespace::open_users(own.as_deref().map(Path::new))?;
    namespace::join_container(init, spec.private_cgroup_namespace)?;
    if let Some(child) = namespace::fork_sibling()? {
        return channel.send(&Message::Born(child.as_raw()), None).step("report the process");
    }
    terminal::set_up(process.terminal, false, stdio, on_node(spec, running.identity), channel)?;
    become_program(process, running.identity, users, channel)
}

/// Returns the user's id on the node: while the process is still the node's root, ids are the node's.
fn on_node(spec: &Spec, identity: &Identity) -> u32 {
    identity.uid + spec.namespaces.users.as_ref().map_or(0, |(_, users)| users.uid)
}

/// Runs the last steps of both: drop privileges, then exec.
fn become_program(
    process: &Process,
    identity: &Identity,
    users: Option<OwnedFd>,
    channel: &Channel,
) -> Result<(), Failure> {
    channel.send(&Message::Identity(identity.clone()), None).step("report the user")?;
    let env = user::environment(process, identity);
    let entered = enter(&process.cwd).is_ok();
    if entered {
        is_inside(&process.cwd)?;
    }
    let program = CString::new(process.args.first().cloned().unwrap_or_default()).step("program")?;
    let args = strings(&process.args)?;
    let env_strings = strings(&env)?;
    namespace::close_on_exec();
    credentials::confine(process.apparmor.as_deref())?;
    credentials::leave_session_keyring()?;
    namespace::join_users(users)?;
    credentials::apply(process, identity)?;
    if !entered {
        std::env::set_current_dir(&process.cwd).step(format!("chdir to cwd ({:?})", process.cwd))?;
        is_inside(&process.cwd)?;
    }
    user::execute(&program, &args, &env_strings, &env)
}

/// Enters the working directory; no magic link of the container's `/proc` leads to another.
fn enter(folder: &str) -> Result<(), Failure> {
    let root = Rooted::open(Path::new("/")).step("open the root")?;
    let place = root.place(Path::new(folder)).step("open the working directory")?;
    nix::unistd::fchdir(&place).step("enter the working directory")
}

/// Checks that a folder is below the container's root: any other has no path there.
fn is_inside(folder: &str) -> Result<(), Failure> {
    match std::env::current_dir() {
        Ok(path) if path.is_absolute() => Ok(()),
        _ => Err(format!("the working directory {folder:?} is outside of the container")),
    }
}

fn strings(values: &[String]) -> Result<Vec<CString>, Failure> {
    values.iter().map(|value| CString::new(value.as_str()).step(format!("{value:?}"))).collect()
}

/// Forks, moves the child into its control groups, lets it continue, and waits for its report.
fn launch(
    spec: &Spec,
    numbering: &namespace::Numbering,
    timeout: Duration,
    body: impl FnOnce(&Channel) -> Result<(), Failure>,
) -> Result<Started, Failure> {
    let deadline = Instant::now() + timeout;
    let (ours, theirs) = Channel::pair().step("make a channel")?;
    let Some(pid) = namespace::fork(numbering)? else {
        drop(ours);
        close_to_others();
        credentials::reset_signals();
        allow_huge_pages(true);
        let result = theirs.wait_for_go().step("wait for the parent").and_then(|()| body(&theirs));
        if let Err(failure) = result {
            let _ = theirs.send(&Message::Failure(failure), None);
        }
        // SAFETY: ends the child without running the parent's destructors and exit handlers.
        unsafe { libc::_exit(127) };
    };
    drop(theirs);
    let mut report = Report { pid, terminal: None, identity: None };
    let admitted = join_cgroups(spec, pid).and_then(|()| ours.go().step("release the child"));
    let started = admitted.and_then(|()| report.read(&ours, deadline));
    let started = started.and_then(|()| report.identity.ok_or("the process died while it was started".into()));
    match started {
        Ok(identity) => Ok(Started { pid: report.pid, terminal: report.terminal, identity }),
        Err(failure) => {
            // The shim reaps them when they have ended; a process that waits for a disk may take long.
            for pid in [pid, report.pid] {
                let _ = kill(pid, Signal::SIGKILL);
            }
            Err(failure)
        }
    }
}

fn join_cgroups(spec: &Spec, pid: Pid) -> Result<(), Failure> {
    for procs in &spec.cgroup_procs {
        std::fs::write(procs, pid.to_string()).step(format!("join {}", procs.display()))?;
    }
    Ok(())
}

/// The report of a child before it became the program.
struct Report {
    /// The process that becomes the program.
    pid: Pid,
    terminal: Option<OwnedFd>,
    identity: Option<Identity>,
}

impl Report {
    /// Reads messages until the channel closes: exec closes it when the program runs.
    fn read(&mut self, channel: &Channel, deadline: Instant) -> Result<(), Failure> {
        while let Some((message, fd)) = channel.receive(deadline).step("read from the child")? {
            match message {
                Message::Terminal => self.terminal = fd,
                Message::Identity(identity) => self.identity = Some(identity),
                Message::Born(pid) => self.pid = Pid::from_raw(pid),
                Message::Failure(failure) => return Err(failure),
            }
        }
        Ok(())
    }
}
