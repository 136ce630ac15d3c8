//! The range of Service cluster IPs, and the choice of a free one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A CIDR of cluster IPs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressRange {
    base: u128,
    /// The number of addresses that can be allocated, the first being `base + 1`.
    size: u128,
    v4: bool,
}

impl AddressRange {
    pub fn parse(cidr: &str) -> Option<AddressRange> {
        let (address, bits) = cidr.split_once('/')?;
        let bits: u32 = bits.parse().ok()?;
        let (number, width): (u128, u32) = match address.parse().ok()? {
            IpAddr::V4(v4) => (u128::from(u32::from(v4)), 32),
            IpAddr::V6(v6) => (u128::from(v6), 128),
        };
        let free = width.checked_sub(bits)?;
        let last = u128::MAX.checked_shr(128 - free).unwrap_or(0);
        // The last address of IPv4 is the broadcast address; IPv6 has none.
        let reserved = u128::from(width == 32);
        Some(AddressRange { base: number & !last, size: last.saturating_sub(reserved), v4: width == 32 })
    }

    /// Parses one range, or one of each family separated by a comma.
    pub fn parse_list(text: &str) -> Option<Vec<AddressRange>> {
        let all: Vec<AddressRange> =
            text.split(',').map(|one| AddressRange::parse(one.trim())).collect::<Option<_>>()?;
        let v4 = all.iter().filter(|range| range.v4).count();
        (all.len() == 1 || (all.len() == 2 && v4 == 1)).then_some(all)
    }

    /// Returns the address of the `kubernetes` Service.
    pub fn first(&self) -> IpAddr {
        self.at(1)
    }

    pub fn is_v4(&self) -> bool {
        self.v4
    }

    pub fn contains(&self, address: IpAddr) -> bool {
        let number = match address {
            IpAddr::V4(v4) if self.v4 => u128::from(u32::from(v4)),
            IpAddr::V6(v6) if !self.v4 => u128::from(v6),
            _ => return false,
        };
        number > self.base && number <= self.base + self.size
    }

    /// Chooses a free address: a random one of the upper part, then any. The lower part is left to Services that set
    /// their clusterIP.
    pub fn choose(&self, random: u64, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let lower = (self.size / 16).clamp(16, 256).min(self.size);
        let scan = |from: u128, count: u128| {
            let start = if count == 0 { 0 } else { u128::from(random) % count };
            (0..count).map(|i| self.at(from + 1 + (start + i) % count)).find(|ip| !is_taken(*ip))
        };
        scan(lower, self.size - lower).or_else(|| scan(0, lower))
    }

    fn at(&self, offset: u128) -> IpAddr {
        let number = self.base + offset;
        if self.v4 { Ipv4Addr::from(number as u32).into() } else { Ipv6Addr::from(number).into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_range() {
        let range = AddressRange::parse("10.96.0.0/12").unwrap();
        assert_eq!(range.first().to_string(), "10.96.0.1");
        assert!(range.contains("10.96.0.10".parse().unwrap()));
        assert!(range.contains("10.111.255.254".parse().unwrap()));
        assert!(!range.contains("10.111.255.255".parse().unwrap()));
        assert!(!range.contains("10.96.0.0".parse().unwrap()));
        assert!(!range.contains("fd00::1".parse().unwrap()));
        let chosen = range.choose(0, |_| false).unwrap();
        assert_eq!(chosen.to_string(), "10.96.1.1");
    }

    #[test]
    fn a_range_of_ipv6_has_all_its_addresses_but_the_first() {
        let range = AddressRange::parse("2001:db8::/64").unwrap();
        for (address, is_in) in [
            ("2001:db8::", false),
            ("2001:db8::1", true),
            ("2001:db8::ffff:ffff:ffff:ffff", true),
            ("2001:db8:0:1::", false),
        ] {
            assert_eq!(range.contains(address.parse().unwrap()), is_in, "{address}");
        }
        assert!(range.contains(range.choose(u64::MAX, |_| false).unwrap()));
        assert!(AddressRange::parse("::/0").unwrap().contains("ffff::".parse().unwrap()));
        assert!(!AddressRange::parse("10.0.0.1/32").unwrap().contains("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn a_small_range_is_used_up_and_no_further() {
        let range = AddressRange::parse("10.0.0.0/29").unwrap();
        let mut taken = Vec::new();
        for random in 0..6 {
            let ip = range.choose(random, |ip| taken.contains(&ip)).unwrap();
            assert!(range.contains(ip) && !taken.contains(&ip));
            taken.push(ip);
        }
        assert_eq!(range.choose(1, |ip| taken.contains(&ip)), None);
    }
}
