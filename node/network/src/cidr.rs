//! An address range, in the notation 10.244.0.0/24.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use crate::error::Error;

/// The most hosts of one range.
const MOST_HOSTS: u32 = (1 << 20) - 1;

/// A range of addresses with a common prefix. The bits after the prefix are zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    address: IpAddr,
    length: u8,
}

impl Cidr {
    /// Makes the range of this prefix length that holds the address.
    pub fn new(address: IpAddr, length: u8) -> Option<Cidr> {
        let address = match address {
            IpAddr::V4(address) if length <= 32 => {
                let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
                Ipv4Addr::from_bits(address.to_bits() & mask).into()
            }
            IpAddr::V6(address) if length <= 128 => {
                let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
                Ipv6Addr::from_bits(address.to_bits() & mask).into()
            }
            _ => return None,
        };
        Some(Cidr { address, length })
    }

    /// Returns the first address of the range.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the length of the common prefix in bits.
    pub fn length(&self) -> u8 {
        self.length
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        Cidr::new(address, self.length) == Some(*self)
    }

    pub fn is_ipv4(&self) -> bool {
        self.address.is_ipv4()
    }

    /// Returns the n-th address of the range, from zero; `None` beyond its end.
    pub fn nth(&self, n: u32) -> Option<IpAddr> {
        let address = match self.address {
            IpAddr::V4(first) => first.to_bits().checked_add(n).map(|bits| Ipv4Addr::from_bits(bits).into()),
            IpAddr::V6(first) => first.to_bits().checked_add(n.into()).map(|bits| Ipv6Addr::from_bits(bits).into()),
        };
        address.filter(|address| self.contains(*address))
    }

    /// Returns the index of an address in the range.
    fn number(&self, address: IpAddr) -> Option<u32> {
        match (self.address, address) {
            (IpAddr::V4(first), IpAddr::V4(address)) => address.to_bits().checked_sub(first.to_bits()),
            (IpAddr::V6(first), IpAddr::V6(address)) => {
                address.to_bits().checked_sub(first.to_bits()).and_then(|number| u32::try_from(number).ok())
            }
            _ => None,
        }
    }

    /// Returns the index of the last host: before the broadcast address of IPv4, and a sufficient number of IPv6.
    fn last_host(&self) -> Option<u32> {
        match self.address {
            IpAddr::V4(_) if self.length <= 30 => Some((u32::MAX >> self.length) - 1),
            IpAddr::V6(_) if self.length <= 126 => Some((u128::MAX >> self.length).min(MOST_HOSTS.into()) as u32),
            _ => None,
        }
    }
}

/// The hosts of ranges that belong together, one per IP family: host n has the n-th address of each. So one choice
/// gives a pod all its addresses, and one record holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    ranges: Vec<Cidr>,
    last: u32,
}

impl Hosts {
    /// The first host after the gateway.
    const FIRST: u32 = 2;

    pub fn of(ranges: &[Cidr]) -> Result<Hosts, Error> {
        let mut last = MOST_HOSTS;
        for range in ranges {
            last = last.min(range.last_host().ok_or(Error::UnusableCidr(range.to_string()))?);
        }
        let versions = ranges.iter().filter(|range| range.is_ipv4()).count();
        match ranges {
            [_] => Ok(Hosts { ranges: ranges.to_vec(), last }),
            [_, _] if versions == 1 => Ok(Hosts { ranges: ranges.to_vec(), last }),
            _ => Err(Error::UnusableCidrs(Hosts { ranges: ranges.to_vec(), last }.to_string())),
        }
    }

    /// Returns the addresses of a host, one per range, in their order.
    pub fn addresses(&self, number: u32) -> Vec<IpAddr> {
        self.ranges.iter().filter_map(|range| range.nth(number)).collect()
    }

    pub fn gateways(&self) -> Vec<IpAddr> {
        self.addresses(1)
    }

    /// Returns the index of the host that has an address.
    pub fn number(&self, address: IpAddr) -> Option<u32> {
        self.ranges.iter().find_map(|range| range.number(address).filter(|_| range.contains(address)))
    }

    /// Returns every host but the gateway once, beginning after `previous`, so that a freed address is not reused at
    /// once.
    pub fn after(&self, previous: Option<u32>) -> impl Iterator<Item = u32> + use<> {
        let first = Hosts::FIRST;
        let last = self.last;
        let start = previous.filter(|previous| (first..last).contains(previous)).map_or(first, |previous| previous + 1);
        (start..=last).chain(first..start)
    }
}

impl fmt::Display for Hosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.ranges.iter().map(Cidr::to_string).collect::<Vec<_>>().join(","))
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

impl FromStr for Cidr {
    type Err = Error;

    fn from_str(cidr: &str) -> Result<Cidr, Error> {
        let parse = || {
            let (address, length) = cidr.split_once('/')?;
            Cidr::new(address.parse().ok()?, length.parse().ok()?)
        };
        parse().ok_or_else(|| Error::InvalidCidr(cidr.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed_and_normalised() {
        for (input, expected) in [
            ("10.244.3.7/24", Some("10.244.3.0/24")),
            ("0.0.0.0/0", Some("0.0.0.0/0")),
            ("fd00::5/64", Some("fd00::/64")),
            ("10.0.0.0/33", None),
            ("10.0.0.0", None),
            ("ten/8", None),
        ] {
            let parsed = input.parse::<Cidr>().ok().map(|cidr| cidr.to_string());
            assert_eq!(parsed.as_deref(), expected, "{input}");
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
    fn hosts_exclude_network_gateway_and_broadcast_and_wrap_around() {
        let hosts = Hosts::of(&[cidr("10.244.0.0/29")]).unwrap();
        let numbers = |previous: Option<u32>| hosts.after(previous).collect::<Vec<_>>();
        assert_eq!(hosts.gateways(), ["10.244.0.1".parse::<IpAddr>().unwrap()]);
        assert_eq!(numbers(None), [2, 3, 4, 5, 6]);
        assert_eq!(numbers(Some(4)), [5, 6, 2, 3, 4]);
        assert_eq!(numbers(Some(6)), [2, 3, 4, 5, 6]);
        assert_eq!(hosts.number("10.244.0.4".parse().unwrap()), Some(4));
        assert_eq!(hosts.number("10.244.0.8".parse().unwrap()), None);
    }

    #[test]
    fn hosts_of_two_ranges_have_an_address_of_each() {
        let hosts = Hosts::of(&[cidr("fd00:1::/64"), cidr("10.244.0.0/29")]).unwrap();
        assert_eq!(hosts.addresses(5), ["fd00:1::5".parse::<IpAddr>().unwrap(), "10.244.0.5".parse().unwrap()]);
        assert_eq!(hosts.after(None).count(), 5, "the smaller range counts");
        assert_eq!(hosts.number("fd00:1::5".parse().unwrap()), Some(5));
    }

    #[test]
    fn ranges_without_hosts_or_of_one_version_are_refused() {
        for bad in [&["10.0.0.0/31"][..], &["fd00::/127"], &["10.0.0.0/24", "10.1.0.0/24"], &[]] {
            let ranges: Vec<Cidr> = bad.iter().map(|range| cidr(range)).collect();
            assert!(Hosts::of(&ranges).is_err(), "{bad:?}");
        }
    }

    fn cidr(cidr: &str) -> Cidr {
        cidr.parse().unwrap()
    }
}
