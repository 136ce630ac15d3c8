//! A range of addresses: one address, first and last, or a CIDR.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A range of addresses, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    first: IpAddr,
    last: IpAddr,
}

impl AddressRange {
    /// Parses `192.0.2.10-192.0.2.20`, a CIDR or a single address.
    pub fn parse(text: &str) -> Option<AddressRange> {
        if let Some((address, length)) = text.split_once('/') {
            return AddressRange::of_cidr(address.trim().parse().ok()?, length.trim().parse().ok()?);
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let first: IpAddr = first.trim().parse().ok()?;
        let last: IpAddr = last.trim().parse().ok()?;
        (first.is_ipv4() == last.is_ipv4() && first <= last).then_some(AddressRange { first, last })
    }

    fn of_cidr(address: IpAddr, length: u32) -> Option<AddressRange> {
        match address {
            IpAddr::V4(address) if length <= 32 => {
                let host = u32::MAX.checked_shr(length).unwrap_or(0);
                let first = address.to_bits() & !host;
                Some(AddressRange { first: Ipv4Addr::from(first).into(), last: Ipv4Addr::from(first | host).into() })
            }
            IpAddr::V6(address) if length <= 128 => {
                let host = u128::MAX.checked_shr(length).unwrap_or(0);
                let first = address.to_bits() & !host;
                Some(AddressRange { first: Ipv6Addr::from(first).into(), last: Ipv6Addr::from(first | host).into() })
            }
            _ => None,
        }
    }

    /// Returns the first and the last address.
    pub fn bounds(&self) -> (IpAddr, IpAddr) {
        (self.first, self.last)
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        self.first.is_ipv4() == address.is_ipv4() && self.first <= address && address <= self.last
    }

    /// Reports whether the ranges have an address in common.
    pub fn overlaps(&self, other: &AddressRange) -> bool {
        self.first.is_ipv4() == other.first.is_ipv4() && self.first <= other.last && other.first <= self.last
    }

    /// Returns the number of addresses.
    pub fn size(&self) -> u128 {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        (bits(self.last) - bits(self.first)).saturating_add(1)
    }

    pub fn addresses(self) -> impl Iterator<Item = IpAddr> {
        std::iter::successors(Some(self.first), |address| match address {
            IpAddr::V4(address) => address.to_bits().checked_add(1).map(|bits| Ipv4Addr::from(bits).into()),
            IpAddr::V6(address) => address.to_bits().checked_add(1).map(|bits| Ipv6Addr::from(bits).into()),
        })
        .take_while(move |address| *address <= self.last)
    }
}

impl std::fmt::Display for AddressRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.first == self.last {
            true => write!(f, "{}", self.first),
            false => write!(f, "{}-{}", self.first, self.last),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_an_address_two_ends_or_a_cidr() {
        let shown = |text: &str| AddressRange::parse(text).map(|range| format!("{range} {}", range.size()));
        assert_eq!(shown("192.0.2.7").as_deref(), Some("192.0.2.7 1"));
        assert_eq!(shown("192.0.2.7 - 192.0.2.9").as_deref(), Some("192.0.2.7-192.0.2.9 3"));
        assert_eq!(shown("192.0.2.9/30").as_deref(), Some("192.0.2.8-192.0.2.11 4"));
        assert_eq!(shown("2001:db8::/126").as_deref(), Some("2001:db8::-2001:db8::3 4"));
        assert_eq!(shown("0.0.0.0/0").as_deref(), Some("0.0.0.0-255.255.255.255 4294967296"));
        for bad in ["192.0.2.9-192.0.2.1", "192.0.2.1/33", "::/129", "192.0.2.1-::1", "x", "", "192.0.2.1/-1"] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }
}
