//! Kernel settings of the calling thread's network namespace.

use std::fs;

use crate::error::Error;

/// Sets `net/ipv4/ip_forward` and its like. A setting that holds already is not written, because
/// writing `ip_forward` resets others.
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

/// Has a link that we make use its addresses of IPv6 at once, its own of the link among them: until it has asked for a
/// second or two whether somebody else has them, the kernel looks for no neighbours on it. One without IPv6 has none.
pub(crate) fn trust_addresses(link: &str) -> Result<(), Error> {
    let name = format!("net/ipv6/conf/{link}/accept_dad");
    if fs::exists(format!("/proc/sys/{name}")).unwrap_or(false) { set(&name, "0") } else { Ok(()) }
}

/// Turns forwarding of IPv6 on. Links that took their routes from router advertisements go on doing so, which the kernel
/// otherwise ends with forwarding: a node would lose its own way out.
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
