//! The Container Network Interface, from both sides.
//!
//! - [`Chain`] runs the plugins that an administrator put into a directory, as containerd and CRI-O do.
//! - [`plugin`] is our own pod network as such a plugin, for those runtimes.
//!
//! Reading order: `list` is the configuration; `exec` runs one plugin; `chain` is the protocol (ADD, DEL, CHECK,
//! STATUS, GC) with its cache of results. Versions up to 1.1.0 of the specification are supported.

pub(crate) mod chain;
pub(crate) mod exec;
pub(crate) mod list;
pub mod plugin;

pub use chain::{Chain, Config};

use std::net::IpAddr;

use serde_json::Value;

/// Versions of the specification, oldest first.
pub(crate) const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Reports whether a version is at least another; an unknown one is not.
pub(crate) fn at_least(version: &str, least: &str) -> bool {
    let position = |wanted: &str| VERSIONS.iter().position(|known| *known == wanted);
    position(version).is_some_and(|found| Some(found) >= position(least))
}

/// Returns the addresses of a result, in its order.
pub(crate) fn addresses(result: &Value) -> Vec<IpAddr> {
    let address = |value: &Value| value.as_str()?.split('/').next()?.parse::<IpAddr>().ok();
    let ips = result["ips"].as_array().into_iter().flatten();
    let mut found: Vec<IpAddr> = ips.filter_map(|ip| address(&ip["address"])).collect();
    // Before version 0.3.0 each family had a field of its own.
    found.extend(["ip4", "ip6"].into_iter().filter_map(|family| address(&result[family]["ip"])));
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn versions_are_ordered() {
        assert!(at_least("1.1.0", "0.4.0") && at_least("0.4.0", "0.4.0"));
        assert!(!at_least("0.3.1", "0.4.0") && !at_least("9.9.9", "0.4.0"));
    }

    #[test]
    fn results_of_every_version_have_addresses() {
        let strings = |value: Value| addresses(&value).iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(
            strings(json!({"ips": [{"address": "10.1.0.2/24"}, {"address": "fd00::2/64"}]})),
            ["10.1.0.2", "fd00::2"]
        );
        assert_eq!(strings(json!({"ip4": {"ip": "10.1.0.2/24"}})), ["10.1.0.2"]);
    }
}
