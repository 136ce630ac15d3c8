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
