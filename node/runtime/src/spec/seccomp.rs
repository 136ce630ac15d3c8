//! Seccomp profiles, from a pod's request to programs that the kernel takes.
//!
//! A profile is data: a default action and rules. `RuntimeDefault` is our own list; `Localhost` profiles are JSON in
//! the format that every runtime reads. The daemon compiles them, so that the process between fork and exec only
//! installs bytes.
//!
//! Profile files lie below one folder of the node, the kubelet's `seccomp` folder. A pod names them, so a name must
//! never lead out of the folder, and the file must be a regular one of a bounded size.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use rustix::fs::ResolveFlags;
use seccompiler::{SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule};
use serde::{Deserialize, Serialize};

use super::{capabilities, syscalls};
use crate::Error;

/// A compiled filter: each instruction packed into a number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program(pub Vec<u64>);

/// The content of a `Localhost` profile file.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Profile {
    default_action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    default_errno_ret: Option<u32>,
    #[serde(default)]
    syscalls: Vec<Rule>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Rule {
    names: Vec<String>,
    action: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    errno_ret: Option<u32>,
    args: Vec<Argument>,
}

#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", default)]
struct Argument {
    index: u8,
    value: u64,
    value_two: u64,
    op: String,
}

/// Flags of `clone` that make namespaces.
const NAMESPACE_FLAGS: u64 = 0x7E02_0000;
/// Personalities that only change the address layout or the result of `uname`.
const PERSONALITIES: [u64; 5] = [0x0, 0x0008, 0x2_0000, 0x2_0008, 0xffff_ffff];

/// Returns the profile of `RuntimeDefault` for a container with these capabilities.
pub(crate) fn runtime_default(capabilities: u64) -> Profile {
    let has = |name: &str| capabilities::number(name).is_some_and(|number| capabilities & 1 << number != 0);
    let allow = |names: &[&str]| Rule {
        names: names.iter().map(|name| (*name).to_string()).collect(),
        action: "SCMP_ACT_ALLOW".into(),
        ..Rule::default()
    };
    let mut rules = vec![allow(ALWAYS)];
    rules.extend(PERSONALITIES.iter().map(|value| conditional("personality", 0, "SCMP_CMP_EQ", *value, 0)));
    rules.extend(every_family_but(libc::AF_VSOCK as u64));
    rules.extend(BY_CAPABILITY.iter().filter(|(name, _)| has(name)).map(|(_, names)| allow(names)));
    if !has("SYS_ADMIN") {
        rules.push(conditional("clone", 0, "SCMP_CMP_MASKED_EQ", NAMESPACE_FLAGS, 0));
        // The flags of clone3 are behind a pointer that a filter cannot follow. ENOSYS makes the C
        // libraries fall back to clone.
        let errno_ret = Some(libc::ENOSYS as u32);
        let names = vec!["clone3".to_string()];
        rules.push(Rule { names, action: "SCMP_ACT_ERRNO".into(), errno_ret, ..Rule::default() });
    }
    Profile { default_action: "SCMP_ACT_ERRNO".into(), default_errno_ret: None, syscalls: rules }
}

/// Returns rules that allow `socket` for every address family but one. The family is an `int`: the kernel ignores the
/// upper half of the register, so it must not decide. A family that differs differs in one of its six bits, and each
/// bit is a rule.
fn every_family_but(family: u64) -> impl Iterator<Item = Rule> {
    (0..6).map(move |bit| {
        let other = !family & (1 << bit);
        conditional("socket", 0, "SCMP_CMP_MASKED_EQ", 1 << bit, other)
    })
}

/// The largest profile.
const MAX_PROFILE: u64 = 1 << 20;

/// Reads a `Localhost` profile: a file below the root, which the request names by its absolute path.
pub(crate) fn read(root: &Path, reference: &str) -> Result<Profile, Error> {
    let path = Path::new(reference);
    let outside = || Error::Invalid(format!("seccomp profile {reference:?} is not below {}", root.display()));
    let name = path.strip_prefix(root).map_err(|_| outside())?;
    if !name.components().all(|part| matches!(part, Component::Normal(_))) {
        return Err(outside());
    }
    let folder = std::fs::File::open(root).map_err(Error::file("open the folder of seccomp profiles", root))?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
    let bytes =
        crate::regular::read(&folder, name, resolve, MAX_PROFILE).map_err(Error::file("read seccomp profile", path))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Invalid(format!("seccomp profile {reference:?}: {error}")))
}

/// Compiles a profile.
///
/// The kernel runs every installed filter and takes the strictest action, and a filter of the compiler has one action:
/// so each action other than "allow" becomes a filter of its own, and a last one allows the calls that the profile
/// names and gives the default action to the rest.
pub(crate) fn compile(profile: &Profile) -> Result<Vec<Program>, Error> {
    let default = action(&profile.default_action, profile.default_errno_ret)?;
    let mut groups: Vec<(SeccompAction, Vec<&Rule>)> = Vec::new();
    for rule in &profile.syscalls {
        let wanted = action(&rule.action, rule.errno_ret)?;
        match groups.iter_mut().find(|(known, _)| *known == wanted) {
            Some((_, rules)) => rules.push(rule),
            None => groups.push((wanted, vec![rule])),
        }
    }
    let mut programs = Vec::new();
    if default != SeccompAction::Allow {
        programs.push(filter(&profile.syscalls.iter().collect::<Vec<_>>(), SeccompAction::Allow, default)?);
    }
    for (wanted, rules) in groups {
        if wanted != SeccompAction::Allow {
            programs.push(filter(&rules, wanted, SeccompAction::Allow)?);
        }
    }
    Ok(programs)
}

fn filter(rules: &[&Rule], matched: SeccompAction, otherwise: SeccompAction) -> Result<Program, Error> {
    let mut chains: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();
    let mut unconditional = std::collections::BTreeSet::new();
    for rule in rules {
        for name in &rule.names {
            let Some(number) = syscalls::number(name) else { continue };
            let chain = chains.entry(number).or_default();
            if rule.args.is_empty() {
                unconditional.insert(number);
            } else {
                let conditions = rule.args.iter().map(|argument| condition(name, argument));
                let conditions = conditions.collect::<Result<Vec<_>, _>>()?;
                chain.push(SeccompRule::new(conditions).map_err(refused)?);
            }
        }
    }
    // An empty chain means "any arguments".
    for number in unconditional {
        chains.insert(number, Vec::new());
    }
    let architecture = std::env::consts::ARCH.try_into().map_err(refused)?;
    let filter = SeccompFilter::new(chains, otherwise, matched, architecture).map_err(refused)?;
    let program: seccompiler::BpfProgram = filter.try_into().map_err(refused)?;
    Ok(Program(x32_guard().into_iter().chain(program.iter().map(pack)).collect()))
}

/// The number of the first call of the x32 interface.
const X32_CALLS: u32 = 0x4000_0000;

/// Refuses the calls of x32, which have the same architecture and other numbers: a list of denied calls would not match
/// them. Answers as a kernel without x32 does.
fn x32_guard() -> Vec<u64> {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    let instruction = |code, jt, jf, k| seccompiler::sock_filter { code, jt, jf, k };
    let load_number = instruction(0x20, 0, 0, 0);
    let skip_if_below = instruction(0x35, 0, 1, X32_CALLS);
    let refuse = instruction(0x06, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32);
    [load_number, skip_if_below, refuse].iter().map(pack).collect()
}

fn pack(instruction: &seccompiler::sock_filter) -> u64 {
    u64::from(instruction.code) << 48
        | u64::from(instruction.jt) << 40
        | u64::from(instruction.jf) << 32
        | u64::from(instruction.k)
}

impl Program {
    /// Returns the instructions as the kernel wants them.
    pub fn instructions(&self) -> Vec<libc::sock_filter> {
        let unpack = |packed: &u64| libc::sock_filter {
            code: (packed >> 48) as u16,
            jt: (packed >> 40) as u8,
            jf: (packed >> 32) as u8,
            k: *packed as u32,
        };
        self.0.iter().map(unpack).collect()
    }
}

fn action(name: &str, errno: Option<u32>) -> Result<SeccompAction, Error> {
    Ok(match name {
        "SCMP_ACT_ALLOW" => SeccompAction::Allow,
        "SCMP_ACT_ERRNO" => SeccompAction::Errno(errno.unwrap_or(libc::EPERM as u32)),
        "SCMP_ACT_KILL" | "SCMP_ACT_KILL_THREAD" => SeccompAction::KillThread,
        "SCMP_ACT_KILL_PROCESS" => SeccompAction::KillProcess,
        "SCMP_ACT_LOG" => SeccompAction::Log,
        "SCMP_ACT_TRACE" => SeccompAction::Trace(errno.unwrap_or(libc::EPERM as u32)),
        "SCMP_ACT_TRAP" => SeccompAction::Trap,
        other => return Err(Error::Invalid(format!("unknown seccomp action {other:?}"))),
    })
}

fn condition(call: &str, argument: &Argument) -> Result<SeccompCondition, Error> {
    let (operator, value) = match argument.op.as_str() {
        "SCMP_CMP_EQ" => (SeccompCmpOp::Eq, argument.value),
        "SCMP_CMP_NE" => (SeccompCmpOp::Ne, argument.value),
        "SCMP_CMP_LT" => (SeccompCmpOp::Lt, argument.value),
        "SCMP_CMP_LE" => (SeccompCmpOp::Le, argument.value),
        "SCMP_CMP_GT" => (SeccompCmpOp::Gt, argument.value),
        "SCMP_CMP_GE" => (SeccompCmpOp::Ge, argument.value),
        "SCMP_CMP_MASKED_EQ" => (SeccompCmpOp::MaskedEq(argument.value), argument.value_two),
        other => return Err(Error::Invalid(format!("unknown seccomp operator {other:?}"))),
    };
    let length = match syscalls::is_32_bits(call, argument.index) {
        true => SeccompCmpArgLen::Dword,
        false => SeccompCmpArgLen::Qword,
    };
    SeccompCondition::new(argument.index, length, operator, value).map_err(refused)
}

fn conditional(name: &str, index: u8, op: &str, value: u64, value_two: u64) -> Rule {
    Rule {
        names: vec![name.to_string()],
        action: "SCMP_ACT_ALLOW".into(),
        errno_ret: None,
        args: vec![Argument { index, value, value_two, op: op.to_string() }],
    }
}

fn refused(error: impl std::fmt::Display) -> Error {
    Error::Invalid(format!("seccomp profile: {error}"))
}

/// Calls that need a capability.
const BY_CAPABILITY: &[(&str, &[&str])] = &[
    ("BPF", &["bpf"]),
    ("DAC_READ_SEARCH", &["open_by_handle_at"]),
    ("PERFMON", &["perf_event_open"]),
    (
        "SYS_ADMIN",
        &[
            "bpf",
            "clone",
            "clone3",
            "fanotify_init",
            "fsconfig",
            "fsmount",
            "fsopen",
            "fspick",
            "lookup_dcookie",
            "mount",
            "mount_setattr",
            "move_mount",
            "open_tree",
            "perf_event_open",
            "pivot_root",
            "quotactl",
            "quotactl_fd",
            "setdomainname",
            "sethostname",
            "setns",
            "syslog",
            "umount2",
            "unshare",
        ],
    ),
    ("SYS_BOOT", &["reboot"]),
    ("SYS_CHROOT", &["chroot"]),
    ("SYS_MODULE", &["delete_module", "finit_module", "init_module"]),
    ("SYS_NICE", &["get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node"]),
    ("SYS_PACCT", &["acct"]),
    ("SYS_PTRACE", &["kcmp", "pidfd_getfd", "process_madvise", "process_vm_readv", "process_vm_writev"]),
    ("SYS_RAWIO", &["ioperm", "iopl"]),
    ("SYS_TIME", &["clock_settime", "settimeofday"]),
    ("SYS_TTY_CONFIG", &["vhangup"]),
    ("SYSLOG", &["syslog"]),
];

/// Calls that every container may make.
#[rustfmt::skip]
const ALWAYS: &[&str] = &[
    "accept", "accept4", "access", "adjtimex", "alarm", "bind", "brk", "cachestat", "capget", "capset", "chdir",
    "chmod", "chown", "clock_adjtime", "clock_getres", "clock_gettime", "clock_nanosleep", "close", "close_range",
    "connect", "copy_file_range", "creat", "dup", "dup2", "dup3", "epoll_create", "epoll_create1", "epoll_ctl",
    "epoll_ctl_old", "epoll_pwait", "epoll_pwait2", "epoll_wait", "epoll_wait_old", "eventfd", "eventfd2", "execve",
    "execveat", "exit", "exit_group", "faccessat", "faccessat2", "fadvise64", "fallocate", "fanotify_mark", "fchdir",
    "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "fcntl", "fdatasync", "fgetxattr", "flistxattr",
    "flock", "fork", "fremovexattr", "fsetxattr", "fstat", "fstatfs", "fsync", "ftruncate", "futex", "futex_requeue",
    "futex_wait", "futex_waitv", "futex_wake", "futimesat", "getcpu", "getcwd", "getdents", "getdents64", "getegid",
    "geteuid", "getgid", "getgroups", "getitimer", "getpeername", "getpgid", "getpgrp", "getpid", "getppid",
    "getpriority", "getrandom", "getresgid", "getresuid", "getrlimit", "get_robust_list", "getrusage", "getsid",
    "getsockname", "getsockopt", "get_thread_area", "gettid", "gettimeofday", "getuid", "getxattr",
    "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "io_cancel", "ioctl", "io_destroy",
    "io_getevents", "io_pgetevents", "ioprio_get", "ioprio_set", "io_setup", "io_submit", "kill",
    "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "lchown", "lgetxattr", "link",
    "linkat", "listen", "listxattr", "llistxattr", "lremovexattr", "lseek", "lsetxattr", "lstat", "madvise",
    "map_shadow_stack", "membarrier", "memfd_create", "memfd_secret", "mincore", "mkdir", "mkdirat", "mknod",
    "mknodat", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mq_getsetattr", "mq_notify", "mq_open",
    "mq_timedreceive", "mq_timedsend", "mq_unlink", "mremap", "msgctl", "msgget", "msgrcv", "msgsnd", "msync",
    "munlock", "munlockall", "munmap", "name_to_handle_at", "nanosleep", "newfstatat", "open", "openat", "openat2",
    "pause", "pidfd_open", "pidfd_send_signal", "pipe", "pipe2", "pkey_alloc", "pkey_free", "pkey_mprotect", "poll",
    "ppoll", "prctl", "pread64", "preadv", "preadv2", "prlimit64", "process_mrelease", "pselect6", "ptrace",
    "pwrite64", "pwritev", "pwritev2", "read", "readahead", "readlink", "readlinkat", "readv", "recvfrom",
    "recvmmsg", "recvmsg", "remap_file_pages", "removexattr", "rename", "renameat", "renameat2", "restart_syscall",
    "rmdir", "rseq", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo", "rt_sigreturn",
    "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sched_getaffinity", "sched_getattr", "sched_getparam",
    "sched_get_priority_max", "sched_get_priority_min", "sched_getscheduler", "sched_rr_get_interval",
    "sched_setaffinity", "sched_setattr", "sched_setparam", "sched_setscheduler", "sched_yield", "seccomp", "select",
    "semctl", "semget", "semop", "semtimedop", "sendfile", "sendmmsg", "sendmsg", "sendto", "setfsgid", "setfsuid",
    "setgid", "setgroups", "setitimer", "setpgid", "setpriority", "setregid", "setresgid", "setresuid", "setreuid",
    "setrlimit", "set_robust_list", "setsid", "setsockopt", "set_thread_area", "set_tid_address", "setuid",
    "setxattr", "shmat", "shmctl", "shmdt", "shmget", "shutdown", "sigaltstack", "signalfd", "signalfd4",
    "socketpair", "splice", "stat", "statfs", "statx", "symlink", "symlinkat", "sync", "sync_file_range", "syncfs",
    "sysinfo", "tee", "tgkill", "time", "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime",
    "timer_settime", "timerfd_create", "timerfd_gettime", "timerfd_settime", "times", "tkill", "truncate", "umask",
    "uname", "unlink", "unlinkat", "utime", "utimensat", "utimes", "vfork", "vmsplice", "wait4", "waitid", "write",
    "writev", "arch_prctl", "modify_ldt",
];

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs one call under the filters in a process of its own; returns its error number, 0 if it was allowed.
    fn run(programs: &[Program], call: libc::c_long, arguments: [libc::c_ulong; 2]) -> i32 {
        let filters: Vec<Vec<libc::sock_filter>> = programs.iter().map(Program::instructions).collect();
        // SAFETY: the child only makes system calls and exits without running any code of its parent.
        match unsafe { libc::fork() } {
            // SAFETY: the calls take numbers and pointers to the filters, which live until the process ends here.
            0 => unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                for filter in &filters {
                    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_ptr().cast_mut() };
                    if libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) != 0 {
                        libc::_exit(255);
                    }
                }
                let answer = libc::syscall(call, arguments[0], arguments[1], 0);
                libc::_exit(if answer < 0 { *libc::__errno_location() } else { 0 })
            },
            child => {
                let pid = nix::unistd::Pid::from_raw(child);
                match nix::sys::wait::waitpid(pid, None).expect("the child") {
                    nix::sys::wait::WaitStatus::Exited(_, code) => code,
                    other => panic!("{other:?}"),
                }
            }
        }
    }

    fn compiled(json: &str) -> Vec<Program> {
        compile(&serde_json::from_str(json).expect("a profile")).expect("compile")
    }

    #[test]
    fn garbage_in_the_upper_half_of_an_int_opens_nothing() {
        let garbage = 1 << 32;
        let vsock = libc::AF_VSOCK as libc::c_ulong;
        let unix = libc::AF_UNIX as libc::c_ulong;
        let stream = libc::SOCK_STREAM as libc::c_ulong;
        let default = compile(&runtime_default(0)).expect("compile");
        for family in [vsock, vsock | garbage] {
            assert_eq!(run(&default, libc::SYS_socket, [family, stream]), libc::EPERM, "{family:x}");
        }
        for family in [unix, libc::AF_INET as libc::c_ulong, libc::AF_NETLINK as libc::c_ulong] {
            assert_ne!(run(&default, libc::SYS_socket, [family, stream]), libc::EPERM, "{family:x}");
        }
        let denied = compiled(
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["ioctl"],"action":"SCMP_ACT_ERRNO",
                "errnoRet":85,"args":[{"index":1,"value":21522,"op":"SCMP_CMP_EQ"}]}]}"#,
        );
        for request in [21522, 21522 | garbage] {
            assert_eq!(run(&denied, libc::SYS_ioctl, [0, request]), 85, "{request:x}");
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn calls_of_x32_are_refused_by_every_filter() {
        let denied = compiled(
            r#"{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["getpid"],"action":"SCMP_ACT_ERRNO","errnoRet":85}]}"#,
        );
        assert_eq!(run(&denied, libc::SYS_getpid, [0, 0]), 85);
        assert_eq!(run(&denied, libc::SYS_getppid, [0, 0]), 0);
        let x32 = libc::SYS_getppid | libc::c_long::from(X32_CALLS);
        assert_eq!(run(&denied, x32, [0, 0]), libc::ENOSYS);
        // A kernel without x32 answers the same: the filter itself must be the first to answer.
        assert_eq!(denied[0].0[..3], x32_guard()[..]);
    }

    #[test]
    fn profiles_are_files_below_their_folder() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let root = place.path().join("seccomp");
        std::fs::create_dir_all(root.join("inner")).expect("the folder");
        let json = r#"{"defaultAction":"SCMP_ACT_ALLOW"}"#;
        std::fs::write(root.join("inner/good.json"), json).expect("a profile");
        std::fs::write(place.path().join("outside.json"), json).expect("a profile");
        std::os::unix::fs::symlink("/dev/zero", root.join("endless")).expect("a link");
        std::os::unix::fs::symlink(place.path(), root.join("up")).expect("a link");
        let reads = |name: &str| read(&root, &format!("{}/{name}", root.display()));
        assert!(reads("inner/good.json").is_ok());
        for bad in ["endless", "up/outside.json", "../outside.json", "inner", "missing", ""] {
            assert!(reads(bad).is_err(), "{bad}");
        }
        for bad in ["/dev/zero", "inner/good.json", "proc/self/root/etc/passwd", ""] {
            assert!(read(&root, bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn every_name_of_the_default_is_known() {
        let names = ALWAYS.iter().chain(BY_CAPABILITY.iter().flat_map(|(_, names)| names.iter()));
        for name in names {
            assert!(syscalls::number(name).is_some() || cfg!(not(target_arch = "x86_64")), "{name}");
        }
    }

    #[test]
    fn the_default_compiles_and_depends_on_capabilities() {
        let plain = compile(&runtime_default(0)).expect("compile");
        assert_eq!(plain.len(), 2, "an allow list, and a filter for clone3");
        let everything = compile(&runtime_default(u64::MAX)).expect("compile");
        assert_eq!(everything.len(), 1, "clone3 is allowed with SYS_ADMIN");
    }

    #[test]
    fn a_profile_file_is_read_as_other_runtimes_read_it() {
        let json = r#"{"defaultAction":"SCMP_ACT_ALLOW","architectures":["SCMP_ARCH_X86_64"],
            "syscalls":[{"names":["mkdir","mkdirat","no_such_call"],"action":"SCMP_ACT_ERRNO","errnoRet":13}]}"#;
        let profile: Profile = serde_json::from_str(json).expect("a profile");
        assert_eq!(compile(&profile).expect("compile").len(), 1);
        let unknown = Profile { default_action: "SCMP_ACT_PLEASE".into(), default_errno_ret: None, syscalls: vec![] };
        assert!(compile(&unknown).is_err());
    }
}
