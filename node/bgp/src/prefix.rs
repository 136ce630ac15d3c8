//! A prefix: an address whose bits after the length are zero, as routes name it and as messages encode it.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::reader::Reader;

/// The address family of a route: unicast IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Family {
    Ipv4,
    Ipv6,
}

impl Family {
    pub const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];

    pub fn of(address: IpAddr) -> Family {
        if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 }
    }

    /// Returns the family by its AFI and SAFI; `None` for one that is not unicast IP.
    pub(crate) fn by_number(afi: u16, safi: u8) -> Option<Family> {
        match (afi, safi) {
            (1, 1) => Some(Family::Ipv4),
            (2, 1) => Some(Family::Ipv6),
            _ => None,
        }
    }

    pub(crate) fn afi(self) -> u16 {
        match self {
            Family::Ipv4 => 1,
            Family::Ipv6 => 2,
        }
    }

    /// Returns the number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            Family::Ipv4 => 32,
            Family::Ipv6 => 128,
        }
    }
}

/// A prefix of either family. Invariant: no bit after the length is set, and the length fits the family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// Returns the prefix of this length that contains the address. A length beyond the family's is the whole address.
    pub fn containing(address: IpAddr, length: u8) -> Prefix {
        let length = length.min(Family::of(address).bits());
        let address = match address {
            IpAddr::V4(address) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
        };
        Prefix { address, length }
    }

    /// Returns the prefix that is one address.
    pub fn host(address: IpAddr) -> Prefix {
        Prefix::containing(address, u8::MAX)
    }

    pub fn family(&self) -> Family {
        Family::of(self.address)
    }

    /// Appends the length and as many bytes of the address as it needs.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.push(self.length);
        let bytes = usize::from(self.length.div_ceil(8));
        match self.address {
            IpAddr::V4(address) => out.extend_from_slice(&address.octets()[..bytes]),
            IpAddr::V6(address) => out.extend_from_slice(&address.octets()[..bytes]),
        }
    }

    /// Reads prefixes until the input ends; `None` if one is cut or longer than an address.
    pub(crate) fn decode_all(input: &[u8], family: Family) -> Option<Vec<Prefix>> {
        let mut reader = Reader(input);
        let mut all = Vec::new();
        while !reader.0.is_empty() {
            let length = reader.u8()?;
            if length > family.bits() {
                return None;
            }
            let bytes = reader.take(usize::from(length.div_ceil(8)))?;
            let mut octets = [0; 16];
            octets[..bytes.len()].copy_from_slice(bytes);
            let address = match family {
                Family::Ipv4 => Ipv4Addr::new(octets[0], octets[1], octets[2], octets[3]).into(),
                Family::Ipv6 => Ipv6Addr::from(octets).into(),
            };
            all.push(Prefix::containing(address, length));
        }
        Some(all)
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_after_the_length_are_cleared() {
        let shown = |address: &str, length: u8| Prefix::containing(address.parse().unwrap(), length).to_string();
        assert_eq!(shown("192.0.2.77", 32), "192.0.2.77/32");
        assert_eq!(shown("192.0.2.77", 24), "192.0.2.0/24");
        assert_eq!(shown("192.0.2.77", 0), "0.0.0.0/0");
        assert_eq!(shown("192.0.2.77", 200), "192.0.2.77/32");
        assert_eq!(shown("2001:db8::ff", 124), "2001:db8::f0/124");
        assert_eq!(shown("2001:db8::ff", 0), "::/0");
    }

    #[test]
    fn a_cut_or_overlong_prefix_is_refused() {
        assert_eq!(Prefix::decode_all(&[32, 192, 0, 2], Family::Ipv4), None);
        assert_eq!(Prefix::decode_all(&[33, 192, 0, 2, 1, 0], Family::Ipv4), None);
        assert_eq!(Prefix::decode_all(&[], Family::Ipv6), Some(Vec::new()));
    }
}
