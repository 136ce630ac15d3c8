//! The pod addresses of one node: each pod has one of the 253 of its pod CIDR.

use std::net::Ipv4Addr;

use crate::config::MOST_PODS;

/// The addresses of a node that are in use.
#[derive(Debug, Clone, Copy, Default)]
pub struct Slots([u64; 4]);

impl Slots {
    /// Takes the lowest free address; `None` if all are in use.
    pub fn take(&mut self) -> Option<u8> {
        let free = self.0.iter().position(|word| *word != u64::MAX)?;
        let bit = self.0[free].trailing_ones();
        let slot = free as u32 * 64 + bit;
        if slot >= MOST_PODS {
            return None;
        }
        self.0[free] |= 1 << bit;
        u8::try_from(slot).ok()
    }

    pub fn give_back(&mut self, slot: u8) {
        self.0[usize::from(slot) / 64] &= !(1 << (slot % 64));
    }
}

/// Returns the address of a slot in a node's pod CIDR, after those of the network and the gateway.
pub fn pod_address(pod_cidr: &str, slot: u8) -> Option<Ipv4Addr> {
    let (first, _) = pod_cidr.split_once('/')?;
    let first: Ipv4Addr = first.parse().ok()?;
    Some(Ipv4Addr::from(u32::from(first).checked_add(2 + u32::from(slot))?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_address_is_given_twice() {
        let mut slots = Slots::default();
        let all: std::collections::BTreeSet<u8> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(all.len(), MOST_PODS as usize);
        slots.give_back(77);
        assert_eq!(slots.take(), Some(77));
        assert_eq!(slots.take(), None);
    }

    #[test]
    fn addresses_are_those_of_the_pod_cidr() {
        assert_eq!(pod_address("10.244.3.0/24", 0), Some(Ipv4Addr::new(10, 244, 3, 2)));
        assert_eq!(pod_address("10.244.3.0/24", 252), Some(Ipv4Addr::new(10, 244, 3, 254)));
        assert_eq!(pod_address("fd00::/64", 0), None);
        assert_eq!(pod_address("", 0), None);
    }
}
