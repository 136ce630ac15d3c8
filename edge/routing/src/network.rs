//! Networks of addresses.

use std::net::IpAddr;
use std::str::FromStr;

/// A range of addresses, as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

/// The error of a string that is no network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidNetwork(String);

impl std::fmt::Display for InvalidNetwork {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} is neither an address nor a network", self.0)
    }
}

impl std::error::Error for InvalidNetwork {}

impl std::fmt::Display for Network {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}/{}", self.address, self.bits)
    }
}

impl FromStr for Network {
    type Err = InvalidNetwork;

    fn from_str(text: &str) -> Result<Network, InvalidNetwork> {
        let invalid = || InvalidNetwork(text.to_owned());
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.trim().parse().map_err(|_| invalid())?;
        let widest = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            Some(bits) => bits.trim().parse().map_err(|_| invalid())?,
            None => widest,
        };
        if bits > widest {
            return Err(invalid());
        }
        Ok(Network { address, bits })
    }
}

impl Network {
    /// Reports whether an address is in the network. An IPv4 address inside IPv6 is an IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address.to_canonical(), address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let host = 32u32.saturating_sub(u32::from(self.bits.min(32)));
                (u64::from(network.to_bits()) >> host) == (u64::from(address.to_bits()) >> host)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let host = 128 - u32::from(self.bits);
                let difference = network.to_bits() ^ address.to_bits();
                difference.checked_shr(host).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_contain_their_addresses() {
        for (network, address, expected) in [
            ("10.0.0.0/8", "10.1.2.3", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("10.0.0.0/8", "::ffff:10.1.2.3", true),
            ("0.0.0.0/0", "192.0.2.1", true),
            ("0.0.0.0/0", "2001:db8::1", false),
            ("192.0.2.1", "192.0.2.1", true),
            ("192.0.2.1", "192.0.2.2", false),
            ("::/0", "2001:db8::1", true),
            ("2001:db8::/32", "2001:db8:1::1", true),
            ("2001:db8::/32", "2001:db9::1", false),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert_eq!(parsed.contains(address.parse().unwrap()), expected, "{network} {address}");
        }
        for invalid in ["", "10.0.0.0/33", "a/8", "10.0.0.0/x", "::/129"] {
            assert!(invalid.parse::<Network>().is_err(), "{invalid}");
        }
    }
}
