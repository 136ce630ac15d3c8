//! Distributes CPUs across NUMA nodes if one has too few: evenly across the fewest NUMA nodes that suffice, so that no
//! worker of a parallel program has fewer CPUs than the others. Among equal choices, the one that leaves the NUMA nodes
//! most balanced wins. Pure.

use std::collections::BTreeMap;

/// The number of CPUs of each NUMA node.
pub type Shares = BTreeMap<u32, usize>;

/// Distributes `count` CPUs over NUMA nodes with these free CPUs, in groups of `group` that stay together; `None` if it
/// cannot be done evenly.
pub fn shares(free: &BTreeMap<u32, usize>, count: usize, group: usize) -> Option<Shares> {
    if group == 0 || !count.is_multiple_of(group) {
        return None;
    }
    let mut nodes: Vec<u32> = free.keys().copied().collect();
    nodes.sort_unstable_by_key(|node| (free[node], *node));
    (1..=nodes.len().min(count / group)).find_map(|most| {
        let evenly = |chosen: &Vec<u32>| even(free, chosen, count, group);
        let possible = combinations(&nodes, most).into_iter().filter_map(|chosen| evenly(&chosen));
        possible.min_by_key(|shares| unevenness(free, shares))
    })
}

/// Takes the same number from each of the chosen NUMA nodes, and the remainder group by group from as many of them as
/// possible.
fn even(free: &BTreeMap<u32, usize>, chosen: &[u32], count: usize, group: usize) -> Option<Shares> {
    let each = count / chosen.len() / group * group;
    let rest = count - each * chosen.len();
    if chosen.iter().any(|node| free[node] < each) {
        return None;
    }
    let base: Shares = chosen.iter().map(|node| (*node, each)).collect();
    if rest == 0 {
        return Some(base);
    }
    let with_room: Vec<u32> = chosen.iter().copied().filter(|node| free[node] >= each + group).collect();
    let subsets = (1..=with_room.len()).rev().flat_map(|size| combinations(&with_room, size));
    let possible = subsets.filter_map(|subset| striped(free, &base, &subset, rest, group));
    possible.min_by_key(|shares| unevenness(free, shares))
}

/// Takes the remainder, a group at a time from one NUMA node of the subset after the other.
fn striped(free: &BTreeMap<u32, usize>, base: &Shares, subset: &[u32], rest: usize, group: usize) -> Option<Shares> {
    let mut shares = base.clone();
    let mut rest = rest;
    while rest > 0 {
        let before = rest;
        for node in subset {
            let share = shares.get_mut(node)?;
            if rest > 0 && free[node] >= *share + group {
                *share += group;
                rest -= group;
            }
        }
        if rest == before {
            return None;
        }
    }
    Some(shares)
}

/// Returns the imbalance of the free CPUs. Their sum is the same for every choice, so the sum of squares orders as the
/// deviation does.
fn unevenness(free: &BTreeMap<u32, usize>, shares: &Shares) -> usize {
    free.iter().map(|(node, free)| (free - shares.get(node).copied().unwrap_or(0)).pow(2)).sum()
}

/// Returns every combination of this many items, in their order.
fn combinations(items: &[u32], size: usize) -> Vec<Vec<u32>> {
    if size == 0 {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for (at, first) in items.iter().enumerate() {
        let rest = combinations(&items[at + 1..], size - 1);
        all.extend(rest.into_iter().map(|rest| [vec![*first], rest].concat()));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_distributed_over_the_fewest_numa_nodes() {
        /// The free CPUs of each NUMA node, the count, the group, and the CPUs of each NUMA node.
        type Case = (&'static [usize], usize, usize, Option<&'static [(u32, usize)]>);
        let cases: &[Case] = &[
            // One NUMA node has them all: the one that leaves the best balance.
            (&[4, 8], 4, 1, Some(&[(1, 4)])),
            (&[8, 8], 12, 1, Some(&[(0, 6), (1, 6)])),
            (&[8, 8], 13, 1, Some(&[(0, 7), (1, 6)])),
            // Full cores.
            (&[8, 8], 12, 2, Some(&[(0, 6), (1, 6)])),
            (&[8, 8], 10, 2, Some(&[(0, 6), (1, 4)])),
            (&[8, 8], 11, 2, None),
            // The NUMA nodes stay most balanced; two cannot give the same number, three can.
            (&[2, 8, 6, 6], 12, 1, Some(&[(1, 6), (2, 6)])),
            (&[5, 5, 5], 12, 1, Some(&[(0, 4), (1, 4), (2, 4)])),
            // The remainder comes from the NUMA node with free CPUs.
            (&[4, 6], 10, 2, Some(&[(0, 4), (1, 6)])),
            (&[1, 8], 9, 1, None),
            (&[2, 2], 5, 1, None),
        ];
        for (free, count, group, expected) in cases {
            let free = (0..).zip(free.iter().copied()).collect();
            let expected = expected.map(|shares| shares.iter().copied().collect());
            assert_eq!(shares(&free, *count, *group), expected, "{count} of {free:?} by {group}");
        }
    }
}
