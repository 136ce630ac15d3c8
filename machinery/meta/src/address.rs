//! The addresses that can belong to a machine on the network. Nodes, pods and Services choose the addresses that they
//! report. Code that connects to such an address, signs it or routes to it checks it here first.

use std::net::IpAddr;

/// Reports whether an address is one machine's on the network: not loopback, link-local, multicast, broadcast or
/// unspecified. An IPv4-mapped IPv6 address counts as its IPv4 address.
pub fn is_global_unicast(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_local = match address {
        IpAddr::V4(address) => address.is_link_local() || address.is_broadcast(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    !(is_local || address.is_loopback() || address.is_multicast() || address.is_unspecified())
}

/// Reports whether an address is one machine's on the network and not an IPv4-mapped IPv6 address.
pub fn is_canonical_global_unicast(address: IpAddr) -> bool {
    address.to_canonical() == address && is_global_unicast(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_one_machine_are_global_unicast() {
        for (text, expected) in [
            ("10.0.0.1", true),
            ("8.8.8.8", true),
            ("fd00::1", true),
            ("2001:db8::1", true),
            ("::ffff:10.0.0.1", true),
            ("0.0.0.0", false),
            ("::", false),
            ("127.0.0.1", false),
            ("::1", false),
            ("::ffff:127.0.0.1", false),
            ("169.254.169.254", false),
            ("fe80::1", false),
            ("224.0.0.1", false),
            ("ff02::1", false),
            ("255.255.255.255", false),
        ] {
            let address = text.parse().unwrap();
            assert_eq!(is_global_unicast(address), expected, "{text}");
            let is_canonical = !text.starts_with("::ffff:");
            assert_eq!(is_canonical_global_unicast(address), expected && is_canonical, "{text}");
        }
    }
}
