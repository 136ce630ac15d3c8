//! Kernel settings of the calling thread's network namespace.

use std::fs;

use crate::error::Error;

/// Sets `net/ipv4/ip_forward` and its like. Does not write a setting that has the value already, because writing
/// `ip_forward` resets others.
pub(crate) fn set(name: &str, value: &str) -> Result<(), Error> {
    let path = format!("/proc/sys/{name}");
    if fs::read_to_string(&path).is_ok_and(|current| current.trim() == value) {
        return Ok(());
    }
    fs::write(&path, value).map_err(|source| Error::Sysctl {
        name: name.replace('/', "."),
        value: value.to_owned(),
        source,
    })
}

/// Makes a link that we made use its IPv6 addresses at once, including its link-local one: during duplicate address
/// detection, for a second or two, the kernel looks for no neighbours on it. A link without IPv6 has none.
pub(crate) fn trust_addresses(link: &str) -> Result<(), Error> {
    let name = format!("net/ipv6/conf/{link}/accept_dad");
    if fs::exists(format!("/proc/sys/{name}")).unwrap_or(false) { set(&name, "0") } else { Ok(()) }
}

/// Turns forwarding of IPv6 on. Links that took their routes from router advertisements keep doing so, which the kernel
/// otherwise ends with forwarding: a node would lose its default route.
pub(crate) fn forward_ipv6() -> Result<(), Error> {
    const ALL: &str = "net/ipv6/conf/all/forwarding";
    if fs::read_to_string(format!("/proc/sys/{ALL}")).is_ok_and(|current| current.trim() == "1") {
        return Ok(());
    }
    for entry in fs::read_dir("/proc/sys/net/ipv6/conf").into_iter().flatten().flatten() {
        let setting = entry.path().join("accept_ra");
        if fs::read_to_string(&setting).is_ok_and(|value| value.trim() == "1") {
            let name = entry.file_name();
            set(&format!("net/ipv6/conf/{}/accept_ra", name.to_string_lossy()), "2")?;
        }
    }
    set(ALL, "1")
}
