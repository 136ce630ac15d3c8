//! Drops privileges, in the only order that works: bounding set, seccomp if it needs privilege, groups, ids,
//! capabilities, no new privileges, seccomp.

use std::io::Write;
use std::path::Path;

use nix::unistd::{Gid, Uid};

use super::{Failure, Step};
use crate::spec::Identity;
use crate::spec::{Process, seccomp::Program};

const LAST_CAPABILITY: u64 = 40;

/// Becomes the user, with the capabilities and filters of the process.
pub(super) fn apply(process: &Process, identity: &Identity) -> Result<(), Failure> {
    let capabilities = &process.capabilities;
    for capability in (0..=LAST_CAPABILITY).filter(|number| capabilities.bounding & 1 << number == 0) {
        // A kernel without this capability refuses, and has nothing to drop.
        let _ = control(libc::PR_CAPBSET_DROP, capability, 0);
    }
    if !process.no_new_privileges {
        install_filters(&process.seccomp)?;
    }
    control(libc::PR_SET_KEEPCAPS, 1, 0).step("keep capabilities")?;
    become_user(identity)?;
    set_capabilities(capabilities.permitted, capabilities.inheritable).step("set capabilities")?;
    for capability in (0..=LAST_CAPABILITY).filter(|number| capabilities.ambient & 1 << number != 0) {
        control(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_RAISE as u64, capability).step("raise a capability")?;
    }
    control(libc::PR_SET_KEEPCAPS, 0, 0).step("stop keeping capabilities")?;
    if process.no_new_privileges {
        control(libc::PR_SET_NO_NEW_PRIVS, 1, 0).step("set no new privileges")?;
        install_filters(&process.seccomp)?;
    }
    Ok(())
}

fn become_user(identity: &Identity) -> Result<(), Failure> {
    let groups: Vec<Gid> = identity.groups.iter().map(|group| Gid::from_raw(*group)).collect();
    nix::unistd::setgroups(&groups).step("set groups")?;
    let uid = Uid::from_raw(identity.uid);
    let gid = Gid::from_raw(identity.gid);
    nix::unistd::setresgid(gid, gid, gid).step("set group id")?;
    nix::unistd::setresuid(uid, uid, uid).step("set user id")
}

fn control(option: libc::c_int, first: u64, second: u64) -> std::io::Result<()> {
    // SAFETY: the options used here take numbers and change only this process.
    let result = unsafe { libc::prctl(option, first, second, 0, 0) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

#[repr(C)]
struct CapabilityHeader {
    version: u32,
    pid: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct CapabilityData {
    effective: u32,
    permitted: u32,
    inheritable: u32,
}

const CAPABILITY_VERSION_3: u32 = 0x2008_0522;

fn set_capabilities(permitted: u64, inheritable: u64) -> std::io::Result<()> {
    let header = CapabilityHeader { version: CAPABILITY_VERSION_3, pid: 0 };
    let half = |shift: u32| CapabilityData {
        effective: (permitted >> shift) as u32,
        permitted: (permitted >> shift) as u32,
        inheritable: (inheritable >> shift) as u32,
    };
    let data = [half(0), half(32)];
    // SAFETY: version 3 takes exactly two halves, which live across the call.
    let result = unsafe { libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr()) };
    if result < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}

fn install_filters(programs: &[Program]) -> Result<(), Failure> {
    for program in programs {
        let mut instructions = program.instructions();
        let length = u16::try_from(instructions.len()).step("seccomp filter")?;
        let filter = libc::sock_fprog { len: length, filter: instructions.as_mut_ptr() };
        // SAFETY: the filter and its instructions live across the call; the kernel copies them.
        let result = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter) };
        if result < 0 {
            return Err(format!("install seccomp filter: {}", std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// Makes the kernel confine the program by an AppArmor profile from its first instruction on.
pub(super) fn confine(profile: Option<&str>) -> Result<(), Failure> {
    let Some(profile) = profile else { return Ok(()) };
    let own = crate::procfs::open(Path::new("thread-self/attr/apparmor/exec"));
    let mut attribute =
        own.or_else(|_| crate::procfs::open(Path::new("thread-self/attr/exec"))).step("open the label")?;
    attribute.write_all(format!("exec {profile}").as_bytes()).step(format!("AppArmor profile {profile:?}"))
}

/// Closes this process, its memory and its descriptors to every process that sees its pid, until it becomes the
/// program.
pub(crate) fn close_to_others() {
    // SAFETY: the option takes a number and changes only this process.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
}

/// Joins a new session keyring: the daemon's would be shared by all containers.
pub(super) fn leave_session_keyring() -> Result<(), Failure> {
    let anonymous = std::ptr::null::<libc::c_char>();
    // SAFETY: without a name, the kernel makes a new keyring and reads no memory.
    let joined = unsafe { libc::syscall(libc::SYS_keyctl, libc::KEYCTL_JOIN_SESSION_KEYRING, anonymous) };
    let error = std::io::Error::last_os_error();
    // A kernel without keyrings has none to share.
    match joined < 0 && error.raw_os_error() != Some(libc::ENOSYS) {
        true => Err(format!("make a session keyring: {error}")),
        false => Ok(()),
    }
}

/// Drops all privileges on the node for good: no capability, no group, an id that owns nothing.
pub(crate) fn become_unprivileged(id: u32) -> Result<(), Failure> {
    for capability in 0..=LAST_CAPABILITY {
        // A kernel without this capability refuses, and has nothing to drop.
        let _ = control(libc::PR_CAPBSET_DROP, capability, 0);
    }
    become_user(&Identity { uid: id, gid: id, ..Identity::default() })?;
    set_capabilities(0, 0).step("drop capabilities")?;
    control(libc::PR_SET_NO_NEW_PRIVS, 1, 0).step("set no new privileges")
}

/// Sets the OOM score of this process. Lowering it needs a capability that root may lack: then the value is as near as
/// it can be.
pub(super) fn set_oom_score(score: Option<i32>) {
    let Some(score) = score else { return };
    if std::fs::write("/proc/self/oom_score_adj", score.to_string()).is_err() {
        let current = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let current: i32 = current.trim().parse().unwrap_or(0);
        let _ = std::fs::write("/proc/self/oom_score_adj", score.max(current).to_string());
    }
}

/// Returns the OOM score that this process could give a child: lowering it needs a capability.
pub(super) fn possible_oom_score(score: i64) -> i64 {
    const SYS_RESOURCE: u64 = 1 << 24;
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let status = read("/proc/self/status");
    let held = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    match held.unwrap_or(0) & SYS_RESOURCE {
        0 => score.max(read("/proc/self/oom_score_adj").trim().parse().unwrap_or(0)),
        _ => score,
    }
}

/// Resets signals: the shim blocks signals that it reads from a descriptor, and Rust ignores broken pipes. A program
/// must inherit neither.
pub(super) fn reset_signals() {
    // SAFETY: sets default handlers and an empty mask in a process with one thread.
    unsafe {
        for signal in 1..=64 {
            libc::signal(signal, libc::SIG_DFL);
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}
