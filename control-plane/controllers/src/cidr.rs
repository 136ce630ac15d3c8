//! A network in CIDR notation.

use std::net::IpAddr;

/// The most subnets that are enumerated: no cluster has more nodes.
const MOST_RANGES: u128 = 1 << 16;

/// A network as `10.244.0.0/16` or `fd00::/48`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    pub base: IpAddr,
    pub prefix: u8,
}

impl Cidr {
    pub fn parse(text: &str) -> Option<Cidr> {
        let (base, prefix) = text.trim().split_once('/')?;
        let (base, prefix): (IpAddr, u8) = (base.parse().ok()?, prefix.parse().ok()?);
        (prefix <= if base.is_ipv4() { 32 } else { 128 }).then_some(Cidr { base, prefix })
    }

    /// Parses one CIDR, or one per IP family separated by a comma, as `--cluster-cidr` takes them.
    pub fn parse_list(text: &str) -> Option<Vec<Cidr>> {
        let all: Vec<Cidr> = text.split(',').map(Cidr::parse).collect::<Option<_>>()?;
        let families = all.iter().filter(|one| one.base.is_ipv4()).count();
        (all.len() == 1 || (all.len() == 2 && families == 1)).then_some(all)
    }

    /// Reports whether the network contains the address.
    pub fn contains(self, address: IpAddr) -> bool {
        let (bits, width) = bits(address);
        let host_bits = u32::from(width).saturating_sub(self.prefix.into());
        let differing = bits ^ self::bits(self.base).0;
        self.base.is_ipv4() == address.is_ipv4() && differing.checked_shr(host_bits).unwrap_or(0) == 0
    }

    /// Reports whether the host bits of the base address are zero.
    pub fn is_aligned(self) -> bool {
        let (bits, width) = bits(self.base);
        bits.trailing_zeros() >= u32::from(width - self.prefix)
    }

    /// Reports whether the network contains every address of the other.
    pub fn covers(self, other: Cidr) -> bool {
        self.prefix <= other.prefix && self.contains(other.base)
    }

    pub fn overlaps(self, other: Cidr) -> bool {
        self.contains(other.base) || other.contains(self.base)
    }

    /// Returns the subnets with this prefix length, in order.
    pub fn subnets(self, prefix: u8) -> impl Iterator<Item = Cidr> {
        let width = if self.base.is_ipv4() { 32 } else { 128 };
        let bits = prefix.saturating_sub(self.prefix);
        let count = if prefix < self.prefix { 0 } else { 1u128.checked_shl(bits.into()).unwrap_or(u128::MAX) };
        let shift = u32::from(width - prefix.min(width));
        let subnet = move |index: u128| {
            let offset = index.checked_shl(shift)?;
            let base = match self.base {
                IpAddr::V4(base) => IpAddr::V4(u32::try_from(u128::from(u32::from(base)) | offset).ok()?.into()),
                IpAddr::V6(base) => IpAddr::V6((u128::from(base) | offset).into()),
            };
            Some(Cidr { base, prefix })
        };
        (0..count.min(MOST_RANGES)).filter_map(subnet)
    }
}

/// Returns the bits of an address and their number.
fn bits(address: IpAddr) -> (u128, u8) {
    match address {
        IpAddr::V4(v4) => (u32::from(v4).into(), 32),
        IpAddr::V6(v6) => (v6.into(), 128),
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_cut_in_order_and_within_themselves() {
        let cut = |text: &str, prefix: u8, skip: usize| {
            Cidr::parse(text).unwrap().subnets(prefix).nth(skip).map(|range| range.to_string())
        };
        for (network, prefix, skip, expected) in [
            ("10.244.0.0/16", 24, 0, Some("10.244.0.0/24")),
            ("10.244.0.0/16", 24, 255, Some("10.244.255.0/24")),
            ("10.244.0.0/16", 24, 256, None),
            ("10.244.0.0/16", 12, 0, None),
            ("fd00:10:244::/56", 64, 1, Some("fd00:10:244:1::/64")),
            ("fd00:10:244::/56", 64, 256, None),
            ("::/0", 128, 3, Some("::3/128")),
        ] {
            assert_eq!(cut(network, prefix, skip).as_deref(), expected, "{network} by {prefix}");
        }
        let cluster = Cidr::parse("10.244.0.0/16").unwrap();
        for (address, expected) in
            [("10.244.0.0", true), ("10.244.255.255", true), ("10.245.0.0", false), ("fd00::1", false)]
        {
            assert_eq!(cluster.contains(address.parse().unwrap()), expected, "{address}");
        }
        assert!(Cidr::parse("::/0").unwrap().contains("fd00::1".parse().unwrap()));
        assert_eq!(Cidr::parse_list("10.0.0.0/8,fd00::/48").map(|all| all.len()), Some(2));
        assert_eq!(Cidr::parse_list("10.0.0.0/8,11.0.0.0/8"), None);
    }
}
