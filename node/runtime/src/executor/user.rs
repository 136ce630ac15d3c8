//! The user of a process, looked up in the container's own files, and the search for its program.
//!
//! The files are parsed here and not by the C library, which would load the node's name services.

use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::ResolveFlags;

use super::Failure;
use crate::rooted::Rooted;
use crate::spec::{Identity, Process, User};

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The largest `/etc/passwd` or `/etc/group`.
const MAX_ACCOUNTS: u64 = 4 << 20;

/// Looks the user up in the container's files. The image wrote them, or any writer of a volume that is mounted there.
pub(super) fn resolve(root: &Rooted, user: &User) -> Result<Identity, Failure> {
    look_up(user, &accounts(root, "etc/passwd")?, &accounts(root, "etc/group")?)
}

/// Reads `/etc/passwd` or `/etc/group`; empty if the file is missing.
fn accounts(root: &Rooted, path: &str) -> Result<String, Failure> {
    match crate::regular::read(root.descriptor(), Path::new(path), ResolveFlags::IN_ROOT, MAX_ACCOUNTS) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(format!("read /{path}: {error}")),
    }
}

/// Looks the user up; the pure part of `resolve`.
pub(crate) fn look_up(user: &User, passwd: &str, group: &str) -> Result<Identity, Failure> {
    let (name, group_name) = match user.name.split_once(':') {
        Some((name, group)) => (name, Some(group)),
        None => (user.name.as_str(), None),
    };
    let wanted = Wanted::of(if name.is_empty() { "0" } else { name })?;
    let entry = passwd.lines().filter_map(Account::parse).find(|account| wanted.is(account.name, account.uid));
    let (uid, gid, home, login) = match (entry, wanted) {
        (Some(account), _) => (account.uid, account.gid, account.home.to_string(), Some(account.name)),
        (None, Wanted::Number(uid)) => (uid, 0, "/".to_string(), None),
        (None, Wanted::Name(name)) => {
            return Err(format!("unable to find user {name}: no matching entries in passwd file"));
        }
    };
    let named_group = group_name.map(|name| find_group(name, group)).transpose()?;
    let gid = user.gid.or(named_group).unwrap_or(gid);
    let mut groups = user.supplemental_groups.clone();
    if !user.strict_groups
        && let Some(login) = login
    {
        groups.extend(memberships(login, group));
    }
    groups.push(gid);
    groups.sort_unstable();
    groups.dedup();
    Ok(Identity { uid, gid, groups, home })
}

/// A user or a group, as the pod or the image names it.
#[derive(Clone, Copy)]
enum Wanted<'a> {
    Name(&'a str),
    Number(u32),
}

impl<'a> Wanted<'a> {
    /// Parses a name or an id. Digits are always an id, also where an account has them for its name: otherwise the
    /// image would decide which user a pod's `runAsUser` is. A plus sign is allowed, as in upstream; a minus sign makes
    /// a name: `-0` is not root.
    fn of(value: &'a str) -> Result<Self, Failure> {
        let digits = value.strip_prefix('+').unwrap_or(value);
        match digits.bytes().all(|byte| byte.is_ascii_digit()) {
            true => digits.parse().map(Self::Number).map_err(|_| format!("{value} is no id")),
            false => Ok(Self::Name(value)),
        }
    }

    fn is(&self, name: &str, id: u32) -> bool {
        match self {
            Self::Name(wanted) => *wanted == name,
            Self::Number(wanted) => *wanted == id,
        }
    }
}

/// A line of `/etc/passwd`.
struct Account<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

impl<'a> Account<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, uid, gid, _, home, ..] = fields.as_slice() else { return None };
        Some(Self { name, uid: uid.parse().ok()?, gid: gid.parse().ok()?, home })
    }
}

/// Finds a group's id. A number is always an id, whatever the image calls its groups.
fn find_group(wanted: &str, group: &str) -> Result<u32, Failure> {
    let name = match Wanted::of(wanted)? {
        Wanted::Number(gid) => return Ok(gid),
        Wanted::Name(name) => name,
    };
    let by_name = group.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.first() == Some(&name)).then(|| fields.get(2)?.parse().ok()).flatten()
    });
    by_name.ok_or_else(|| format!("unable to find group {wanted}: no matching entries in group file"))
}

fn memberships(login: &str, group: &str) -> Vec<u32> {
    let member = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [_, _, gid, members, ..] = fields.as_slice() else { return None };
        members.split(',').any(|member| member == login).then(|| gid.parse().ok()).flatten()
    };
    group.lines().filter_map(member).collect()
}

/// Returns the environment, with a home and a path if the image and the pod set none.
pub(super) fn environment(process: &Process, identity: &Identity) -> Vec<String> {
    let mut env = process.env.clone();
    let has = |env: &[String], name: &str| env.iter().any(|entry| entry.starts_with(&format!("{name}=")));
    if !has(&env, "PATH") {
        env.push(format!("PATH={DEFAULT_PATH}"));
    }
    if !has(&env, "HOME") {
        env.push(format!("HOME={}", if identity.home.is_empty() { "/" } else { &identity.home }));
    }
    if process.terminal && !has(&env, "TERM") {
        env.push("TERM=xterm".into());
    }
    env
}

/// Becomes the program. Returns only if it cannot.
pub(super) fn execute(
    program: &CString,
    args: &[CString],
    env_strings: &[CString],
    env: &[String],
) -> Result<(), Failure> {
    let shown = program.to_string_lossy().into_owned();
    if shown.is_empty() {
        return Err("no command specified".into());
    }
    if program.as_bytes().contains(&b'/') {
        let errno = nix::unistd::execve(program, args, env_strings).unwrap_err_or_exit();
        return Err(match errno {
            nix::errno::Errno::ENOENT => format!("exec: {shown:?}: stat {shown}: no such file or directory"),
            nix::errno::Errno::EACCES => format!("exec: {shown:?}: permission denied"),
            errno => format!("exec {shown}: {}", errno.desc().to_lowercase()),
        });
    }
    let path = env.iter().rev().find_map(|entry| entry.strip_prefix("PATH=")).unwrap_or(DEFAULT_PATH);
    let mut denied = false;
    for folder in path.split(':').map(|folder| if folder.is_empty() { "." } else { folder }) {
        let candidate = std::path::Path::new(folder).join(OsStr::from_bytes(program.as_bytes()));
        if !candidate.is_file() {
            continue;
        }
        let Ok(candidate) = CString::new(candidate.as_os_str().as_bytes()) else { continue };
        match nix::unistd::execve(&candidate, args, env_strings).unwrap_err_or_exit() {
            nix::errno::Errno::EACCES => denied = true,
            errno => return Err(format!("exec {}: {}", candidate.to_string_lossy(), errno.desc().to_lowercase())),
        }
    }
    let reason = if denied { "permission denied" } else { "executable file not found in $PATH" };
    Err(format!("exec: {shown:?}: {reason}"))
}

/// An `execve` that has no success to return.
trait OnlyError {
    fn unwrap_err_or_exit(self) -> nix::errno::Errno;
}

impl OnlyError for nix::Result<std::convert::Infallible> {
    fn unwrap_err_or_exit(self) -> nix::errno::Errno {
        match self {
            Err(errno) => errno,
            Ok(never) => match never {},
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/false\n";
    const GROUP: &str = "root:x:0:\nwww:x:34:\nlogs:x:50:web,other\ntape:x:60:other\n";

    fn check(name: &str, gid: Option<u32>, expected: (u32, u32, &[u32], &str)) {
        let user = User { name: name.into(), gid, supplemental_groups: vec![7], strict_groups: false };
        let found = look_up(&user, PASSWD, GROUP).expect(name);
        let (uid, gid, groups, home) = expected;
        assert_eq!(found, Identity { uid, gid, groups: groups.to_vec(), home: home.into() }, "{name}");
    }

    #[test]
    fn users_are_found_by_name_and_number() {
        check("", None, (0, 0, &[0, 7], "/root"));
        check("web", None, (33, 34, &[7, 34, 50], "/srv"));
        check("33", None, (33, 34, &[7, 34, 50], "/srv"));
        check("web:tape", None, (33, 60, &[7, 50, 60], "/srv"));
        check("1000", None, (1000, 0, &[0, 7], "/"));
        check("1000", Some(2000), (1000, 2000, &[7, 2000], "/"));
        check("1000:3000", None, (1000, 3000, &[7, 3000], "/"));
    }

    #[test]
    fn a_number_is_never_a_group_name() {
        let passwd = "1000:x:0:0:trap:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/false\n";
        let group = "2000:x:0:\n";
        let user = User { name: "1000:2000".into(), ..User::default() };
        let found = look_up(&user, passwd, group).expect("a user that the image does not know");
        assert_eq!((found.uid, found.gid), (1000, 2000));
    }

    #[test]
    fn strict_groups_ignore_the_groups_of_the_image() {
        let user = User { name: "web".into(), strict_groups: true, ..User::default() };
        assert_eq!(look_up(&user, PASSWD, GROUP).expect("web").groups, [34]);
    }

    #[test]
    fn a_number_is_an_id_whatever_an_account_is_named() {
        let passwd = "1000:x:0:0:root:/root:/bin/sh\nweb:x:33:34:web:/srv:/bin/false\n";
        let group = "2000:x:0:\nroot:x:0:1000\n";
        for (name, uid, gid) in [("1000", 1000, 0), ("1000:2000", 1000, 2000), ("web:2000", 33, 2000), ("+33", 33, 34)]
        {
            let user = User { name: name.into(), ..User::default() };
            let found = look_up(&user, passwd, group).expect(name);
            assert_eq!((found.uid, found.gid), (uid, gid), "{name}");
        }
        for name in ["-1", "-0", "+", "1000:-0", "4294967296", "99999999999999999999", "1000:-1"] {
            let user = User { name: name.into(), ..User::default() };
            assert!(look_up(&user, passwd, group).is_err(), "{name}");
        }
    }

    #[test]
    fn account_files_never_block_and_have_a_limit() {
        let folder = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(folder.path().join("etc")).expect("etc");
        let root = Rooted::open(folder.path()).expect("the root");
        let user = User { name: "7".into(), ..User::default() };
        assert_eq!(resolve(&root, &user).expect("without files").uid, 7);
        let passwd = folder.path().join("etc/passwd");
        nix::unistd::mkfifo(&passwd, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
        assert!(resolve(&root, &user).is_err(), "a pipe");
        std::fs::remove_file(&passwd).expect("remove");
        std::os::unix::fs::symlink("/proc/self/fd/0", &passwd).expect("a link");
        std::fs::File::create(folder.path().join("etc/group")).and_then(|file| file.set_len(1 << 40)).expect("a file");
        assert!(resolve(&root, &user).is_err(), "a file without end");
    }

    #[test]
    fn unknown_names_are_refused() {
        for name in ["nobody", "web:nothing"] {
            assert!(look_up(&User { name: name.into(), ..User::default() }, PASSWD, GROUP).is_err(), "{name}");
        }
    }
}
