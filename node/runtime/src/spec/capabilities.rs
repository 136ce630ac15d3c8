//! Capabilities by name, and the sets of a container. Pure.

use crate::Error;
use crate::spec::Capabilities;

/// Every capability in the order of its number.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The default capabilities of a container.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FSETID",
    "FOWNER",
    "MKNOD",
    "NET_RAW",
    "SETGID",
    "SETUID",
    "SETFCAP",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "SYS_CHROOT",
    "KILL",
    "AUDIT_WRITE",
];

/// The capabilities of a request.
#[derive(Debug, Default)]
pub(crate) struct Request<'a> {
    pub add: &'a [String],
    pub drop: &'a [String],
    pub ambient: &'a [String],
    pub privileged: bool,
    /// Whether the node cannot keep a container from opening the devices that it makes.
    pub devices_open: bool,
}

/// Returns the sets of a container. Capabilities that the runtime itself lacks (not in `available`) are left out,
/// because it cannot grant them.
pub(crate) fn decide(request: &Request<'_>, available: u64) -> Result<Capabilities, Error> {
    if request.privileged {
        return Ok(Capabilities { bounding: available, permitted: available, inheritable: 0, ambient: 0 });
    }
    let available = if request.devices_open { without_mknod(request, available)? } else { available };
    let mut set = mask(&DEFAULT.map(str::to_string))?;
    // Upstream's order: "ALL" first, so that a pod may add all and drop some, or drop all and add some.
    if has_all(request.add) {
        set = available;
    }
    if has_all(request.drop) {
        set = 0;
    }
    set |= mask(request.add)?;
    set &= !mask(request.drop)?;
    let ambient = mask(request.ambient)? & available;
    set = (set | ambient) & available;
    Ok(Capabilities { bounding: set, permitted: set, inheritable: ambient, ambient })
}

/// Removes CAP_MKNOD where devices are not filtered: a container that may make device nodes could read every disk of
/// the node.
fn without_mknod(request: &Request<'_>, available: u64) -> Result<u64, Error> {
    let mknod = mask(&["MKNOD".to_string()])?;
    let requested = has_all(request.add) || (mask(request.add)? | mask(request.ambient)?) & mknod != 0;
    let dropped = has_all(request.drop) && mask(request.add)? & mknod == 0 || mask(request.drop)? & mknod != 0;
    match requested && !dropped {
        true => Err(Error::Invalid("CAP_MKNOD is refused: this node cannot filter the devices of containers".into())),
        false => Ok(available & !mknod),
    }
}

/// Returns the number of a capability, with or without its prefix.
pub(crate) fn number(name: &str) -> Option<u32> {
    let name = name.to_ascii_uppercase();
    let name = name.strip_prefix("CAP_").unwrap_or(&name);
    NAMES.iter().position(|known| *known == name).and_then(|position| u32::try_from(position).ok())
}

/// Returns the full names of a set.
pub(crate) fn names(set: u64) -> Vec<String> {
    let held = NAMES.iter().enumerate().filter(|(number, _)| set & 1 << number != 0);
    held.map(|(_, name)| format!("CAP_{name}")).collect()
}

fn has_all(names: &[String]) -> bool {
    names.iter().any(|name| name.eq_ignore_ascii_case("ALL"))
}

fn mask(names: &[String]) -> Result<u64, Error> {
    names.iter().filter(|name| !name.eq_ignore_ascii_case("ALL")).try_fold(0, |mask, name| {
        let number = number(name).ok_or_else(|| Error::Invalid(format!("unknown capability {name:?}")))?;
        Ok(mask | 1 << number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_follow_add_and_drop() {
        let everything = (1_u64 << 41) - 1;
        let bit = |name: &str| 1_u64 << number(name).expect(name);
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
        let default = decide(&Request::default(), everything).expect("default");
        assert_eq!(default.bounding.count_ones(), 14);
        assert_eq!(default.bounding & bit("SYS_ADMIN"), 0);
        for (add, drop, expected) in [
            (names(&["NET_ADMIN"]), names(&["ALL"]), bit("NET_ADMIN")),
            (names(&["ALL"]), names(&["SYS_ADMIN"]), everything & !bit("SYS_ADMIN")),
            (names(&["cap_sys_time"]), names(&[]), default.bounding | bit("SYS_TIME")),
            (names(&[]), names(&["KILL"]), default.bounding & !bit("KILL")),
        ] {
            let request = Request { add: &add, drop: &drop, ..Request::default() };
            assert_eq!(decide(&request, everything).expect("valid").bounding, expected, "{add:?} {drop:?}");
        }
    }

    #[test]
    fn no_container_makes_devices_where_they_are_not_filtered() {
        let names = |list: &[&str]| list.iter().map(|name| (*name).to_string()).collect::<Vec<_>>();
        let mknod = 1_u64 << number("MKNOD").expect("a number");
        for (add, drop, allowed) in [
            (names(&[]), names(&[]), true),
            (names(&["MKNOD"]), names(&[]), false),
            (names(&["ALL"]), names(&[]), false),
            (names(&["ALL"]), names(&["MKNOD"]), true),
            (names(&["CAP_MKNOD"]), names(&["ALL"]), false),
            (names(&["CHOWN"]), names(&["ALL"]), true),
        ] {
            let request = Request { add: &add, drop: &drop, devices_open: true, ..Request::default() };
            let decided = decide(&request, u64::MAX);
            assert_eq!(decided.is_ok(), allowed, "{add:?} {drop:?}");
            assert_eq!(decided.map_or(0, |sets| sets.bounding & mknod), 0, "{add:?} {drop:?}");
        }
    }

    #[test]
    fn no_capability_is_granted_that_the_runtime_lacks() {
        let request = Request { privileged: true, ..Request::default() };
        assert_eq!(decide(&request, 0b101).expect("valid").bounding, 0b101);
        let unknown = vec!["NOT_A_CAPABILITY".to_string()];
        assert!(decide(&Request { add: &unknown, ..Request::default() }, u64::MAX).is_err());
    }
}
