//! IP blocks with exceptions, and port ranges, as the disjoint intervals that the kernel's interval sets take: they
//! refuse overlaps.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use corten_nftables::Protocol;

use crate::cidr::Cidr;

/// An inclusive range of numbers.
type Range = (u128, u128);

/// Returns the first and last address of the ranges that the blocks without their exceptions cover, in order.
pub(crate) fn ranges<'a>(
    blocks: impl IntoIterator<Item = (&'a Cidr, &'a Vec<Cidr>)>,
    ipv4: bool,
) -> Vec<(IpAddr, IpAddr)> {
    let of_family = |cidr: &&Cidr| cidr.address().is_ipv4() == ipv4;
    let blocks = blocks.into_iter().filter(|(cidr, _)| of_family(cidr));
    let without = blocks.flat_map(|(cidr, except)| {
        let holes = merge(except.iter().filter(of_family).map(bounds).collect());
        subtract(bounds(cidr), &holes)
    });
    merge(without.collect()).into_iter().map(|(first, last)| (address(first, ipv4), address(last, ipv4))).collect()
}

/// The ports of a protocol from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PortRange {
    pub protocol: Protocol,
    pub first: u16,
    pub last: u16,
}

/// Merges the port ranges of every protocol.
pub(crate) fn ports(ranges: impl IntoIterator<Item = PortRange> + Clone) -> Vec<PortRange> {
    let of = |protocol: Protocol| {
        let ranges = ranges.clone().into_iter().filter(move |range| range.protocol == protocol);
        let merged = merge(ranges.map(|range| (range.first.into(), range.last.into())).collect());
        merged.into_iter().map(move |(first, last)| PortRange { protocol, first: first as u16, last: last as u16 })
    };
    [Protocol::Tcp, Protocol::Udp, Protocol::Sctp].into_iter().flat_map(of).collect()
}

fn bounds(cidr: &Cidr) -> Range {
    match cidr.address() {
        IpAddr::V4(address) => {
            let last = address.to_bits() | u32::MAX.checked_shr(cidr.length().into()).unwrap_or(0);
            (address.to_bits().into(), last.into())
        }
        IpAddr::V6(address) => {
            (address.to_bits(), address.to_bits() | u128::MAX.checked_shr(cidr.length().into()).unwrap_or(0))
        }
    }
}

fn address(number: u128, ipv4: bool) -> IpAddr {
    if ipv4 { Ipv4Addr::from_bits(number as u32).into() } else { Ipv6Addr::from_bits(number).into() }
}

/// Subtracts ordered, disjoint holes from a range.
fn subtract((mut first, last): Range, holes: &[Range]) -> Vec<Range> {
    let mut left = Vec::new();
    for (hole_first, hole_last) in holes {
        if *hole_last < first || *hole_first > last {
            continue;
        }
        if *hole_first > first {
            left.push((first, hole_first - 1));
        }
        match hole_last.checked_add(1) {
            Some(next) if next <= last => first = next,
            _ => return left,
        }
    }
    left.push((first, last));
    left
}

/// Merges overlapping and adjacent ranges.
fn merge(mut ranges: Vec<Range>) -> Vec<Range> {
    ranges.sort_unstable();
    let mut merged: Vec<Range> = Vec::new();
    for (first, last) in ranges {
        match merged.last_mut() {
            Some(previous) if first <= previous.1.saturating_add(1) => previous.1 = previous.1.max(last),
            _ => merged.push((first, last)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn cidr(cidr: &str) -> Cidr {
        cidr.parse().unwrap()
    }

    #[test]
    fn blocks_lose_their_exceptions_and_join() {
        for (blocks, expected) in [
            (vec![("0.0.0.0/0", vec![])], vec!["0.0.0.0-255.255.255.255"]),
            (vec![("10.0.0.0/24", vec!["10.0.0.0/26"])], vec!["10.0.0.64-10.0.0.255"]),
            (vec![("10.0.0.0/24", vec!["10.0.0.192/26"])], vec!["10.0.0.0-10.0.0.191"]),
            (
                vec![("10.0.0.0/24", vec!["10.0.0.64/26", "10.0.0.64/27"])],
                vec!["10.0.0.0-10.0.0.63", "10.0.0.128-10.0.0.255"],
            ),
            (vec![("10.0.0.0/25", vec![]), ("10.0.0.128/25", vec![])], vec!["10.0.0.0-10.0.0.255"]),
            (vec![("10.0.0.0/24", vec!["10.0.0.0/24"])], vec![]),
            // The exception of a block does not affect another block.
            (vec![("10.0.0.0/24", vec!["10.0.0.7/32"]), ("10.0.0.7/32", vec![])], vec!["10.0.0.0-10.0.0.255"]),
            (vec![("fd00::/64", vec![])], vec![]),
        ] {
            let blocks: Vec<(Cidr, Vec<Cidr>)> =
                blocks.iter().map(|(c, e)| (cidr(c), e.iter().map(|e| cidr(e)).collect())).collect();
            let found = ranges(blocks.iter().map(|(c, e)| (c, e)), true);
            let found: Vec<_> = found.iter().map(|(first, last)| format!("{first}-{last}")).collect();
            assert_eq!(found, expected, "{blocks:?}");
        }
    }

    #[test]
    fn ports_are_merged_by_protocol() {
        let tcp = Protocol::Tcp;
        let udp = Protocol::Udp;
        let range = |protocol, first, last| PortRange { protocol, first, last };
        let found = ports([range(udp, 53, 53), range(tcp, 80, 80), range(tcp, 81, 90), range(tcp, 85, 95)]);
        assert_eq!(found, [range(tcp, 80, 95), range(udp, 53, 53)]);
    }

    proptest! {
        #[test]
        fn an_address_is_covered_exactly_when_a_block_allows_it(
            blocks in proptest::collection::vec((any::<u32>(), 0u8..=32, proptest::collection::vec((any::<u32>(), 0u8..=8), 0..3)), 0..4),
            probes in proptest::collection::vec((any::<u32>(), any::<u8>()), 8),
        ) {
            // Exceptions lie inside their block, as the API server demands, and probes near edges.
            let blocks: Vec<(Cidr, Vec<Cidr>)> = blocks.into_iter().map(|(address, length, except)| {
                let cidr = Cidr::new(Ipv4Addr::from_bits(address).into(), length).unwrap();
                let IpAddr::V4(base) = cidr.address() else { unreachable!() };
                let host = u32::MAX.checked_shr(length.into()).unwrap_or(0);
                let except = except.into_iter().map(|(bits, more)| {
                    Cidr::new(Ipv4Addr::from_bits(base.to_bits() | (bits & host)).into(), (length + more).min(32)).unwrap()
                }).collect();
                (cidr, except)
            }).collect();
            let covered = ranges(blocks.iter().map(|(c, e)| (c, e)), true);
            for pair in covered.windows(2) {
                prop_assert!(pair[0].1 < pair[1].0);
            }
            let edges = covered.iter().flat_map(|(first, last)| [*first, *last]);
            let probes = probes.into_iter().map(|(bits, _)| IpAddr::from(Ipv4Addr::from_bits(bits)));
            for probe in edges.chain(probes) {
                let expected = blocks.iter().any(|(c, e)| c.contains(probe) && !e.iter().any(|e| e.contains(probe)));
                let found = covered.iter().any(|(first, last)| *first <= probe && probe <= *last);
                prop_assert_eq!(found, expected, "{}", probe);
            }
        }
    }
}
