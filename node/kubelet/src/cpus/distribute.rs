//! How many processors to take from which NUMA node when one has too few: as many from each of the fewest nodes that
//! suffice, so that no worker of a parallel program waits for those beside which less was left. Among equals the choice
//! that leaves the nodes most alike. Pure.

use std::collections::BTreeMap;

/// How many of each NUMA node.
pub type Shares = BTreeMap<u32, usize>;

/// How to spread `count` over nodes with so many free processors, in groups of `group` that stay together; `None` if it
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

/// The same from each of the chosen nodes, and what does not divide group by group from as many of them as possible.
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

/// The rest, a group at a time from one node of the subset after the other.
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

/// How unlike the nodes are in what is left to them. What is left in all is the same for every choice, so the sum of
/// squares orders like the deviation.
fn unevenness(free: &BTreeMap<u32, usize>, shares: &Shares) -> usize {
    free.iter().map(|(node, free)| (free - shares.get(node).copied().unwrap_or(0)).pow(2)).sum()
}

/// Every choice of so many of the items, in their order.
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
    fn processors_come_evenly_from_the_fewest_nodes_that_have_them() {
        /// The free of each node, how many are wanted in which groups, and what each node gives.
        type Case = (&'static [usize], usize, usize, Option<&'static [(u32, usize)]>);
        let cases: &[Case] = &[
            // One node has them all: the one that is left fullest alike.
            (&[4, 8], 4, 1, Some(&[(1, 4)])),
            (&[8, 8], 12, 1, Some(&[(0, 6), (1, 6)])),
            (&[8, 8], 13, 1, Some(&[(0, 7), (1, 6)])),
            // Whole cores.
            (&[8, 8], 12, 2, Some(&[(0, 6), (1, 6)])),
            (&[8, 8], 10, 2, Some(&[(0, 6), (1, 4)])),
            (&[8, 8], 11, 2, None),
            // The nodes are left most alike; two cannot give the same, three can.
            (&[2, 8, 6, 6], 12, 1, Some(&[(1, 6), (2, 6)])),
            (&[5, 5, 5], 12, 1, Some(&[(0, 4), (1, 4), (2, 4)])),
            // The rest comes from where there is room.
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
