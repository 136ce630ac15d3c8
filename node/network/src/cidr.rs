//! An address range, in the notation 10.244.0.0/24.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use crate::error::Error;

/// A range of addresses with a common prefix. The bits after the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

impl Cidr {
    /// The range of this prefix length that holds the address.
    pub fn new(address: IpAddr, length: u8) -> Option<Cidr> {
        let address = match address {
            IpAddr::V4(address) if length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) if length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                std::net::Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
            _ => return None,
        };
        Some(Cidr { address, length })
    }

    /// The first address of the range.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// The length of the common prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        Cidr::new(address, self.length) == Some(*self)
    }

    /// Hosts of an IPv4 range that can hold pods: without network, gateway and broadcast address.
    pub(crate) fn hosts(&self) -> Result<Hosts, Error> {
        match self.address {
            IpAddr::V4(address) if self.length <= 30 => {
                let first = address.to_bits();
                let last = first | (u32::MAX >> self.length);
                Ok(Hosts { gateway: Ipv4Addr::from_bits(first + 1), first: first + 2, last: last - 1 })
            }
            _ => Err(Error::UnusableCidr(*self)),
        }
    }
}

/// The addresses of a pod range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    pub gateway: Ipv4Addr,
    first: u32,
    last: u32,
}

impl Hosts {
    /// Every address for pods once, beginning after `previous`, so that a freed one rests a while.
    pub fn after(self, previous: Option<Ipv4Addr>) -> impl Iterator<Item = Ipv4Addr> {
        let start = match previous.map(Ipv4Addr::to_bits) {
            Some(previous) if (self.first..self.last).contains(&previous) => previous + 1,
            _ => self.first,
        };
        (start..=self.last).chain(self.first..start).map(Ipv4Addr::from_bits)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(text: &str) -> Result<Cidr, Error> {
        let parse = || {
            let (address, length) = text.split_once('/')?;
            Cidr::new(address.parse().ok()?, length.parse().ok()?)
        };
        parse().ok_or_else(|| Error::InvalidCidr(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_normalised() {
        for (text, expected) in [
            ("10.244.3.7/24", Some("10.244.3.0/24")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("fd00::5/64", Some("fd00::/64")),
            ("10.0.0.0/33", None),
            ("10.0.0.0", None),
            ("ten/8", None),
        ] {
            let parsed = text.parse::<Cidr>().ok().map(|cidr| cidr.to_string());
            assert_eq!(parsed.as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn membership() {
        let cidr: Cidr = "10.96.0.0/12".parse().unwrap();
        assert!(cidr.contains("10.111.255.255".parse().unwrap()));
        assert!(!cidr.contains("10.112.0.0".parse().unwrap()));
        assert!(!cidr.contains("::1".parse().unwrap()));
    }

    #[test]
    fn hosts_leave_out_network_gateway_and_broadcast_and_go_round() {
        let hosts = "10.244.0.0/29".parse::<Cidr>().unwrap().hosts().unwrap();
        let last = |previous: Option<&str>| {
            let previous = previous.map(|address| address.parse().unwrap());
            hosts.after(previous).map(|address| address.octets()[3]).collect::<Vec<_>>()
        };
        assert_eq!(hosts.gateway, Ipv4Addr::new(10, 244, 0, 1));
        assert_eq!(last(None), [2, 3, 4, 5, 6]);
        assert_eq!(last(Some("10.244.0.4")), [5, 6, 2, 3, 4]);
        assert_eq!(last(Some("10.244.0.6")), [2, 3, 4, 5, 6]);
        assert!("10.0.0.0/31".parse::<Cidr>().unwrap().hosts().is_err());
        assert!("fd00::/64".parse::<Cidr>().unwrap().hosts().is_err());
    }
}
