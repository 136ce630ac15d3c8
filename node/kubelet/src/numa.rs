//! NUMA nodes, and the topology hints of the managers.

/// NUMA nodes, one bit each.
pub type Nodes = u64;

/// The NUMA nodes that a manager could allocate from; `None` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    pub nodes: Option<Nodes>,
    /// Whether fewer NUMA nodes would not do on an empty machine.
    pub preferred: bool,
}

/// Returns the numbers of the NUMA nodes, in order.
pub fn numbers(nodes: Nodes) -> impl Iterator<Item = u32> {
    (0..Nodes::BITS).filter(move |number| nodes & 1 << number != 0)
}

/// Returns the set of the NUMA nodes with these numbers.
pub fn nodes(numbers: impl IntoIterator<Item = u32>) -> Nodes {
    numbers.into_iter().filter(|number| *number < Nodes::BITS).fold(0, |nodes, number| nodes | 1 << number)
}

/// Returns every set of NUMA nodes on which `now` allows the allocation. The preferred sets are as small as the
/// smallest on which `ever` would allow it on an empty machine.
pub fn hints(all: Nodes, ever: &dyn Fn(Nodes) -> bool, now: &dyn Fn(Nodes) -> bool) -> Vec<Hint> {
    let mut sets = vec![all];
    // The loop counts down through the subsets of a mask, to the empty one.
    while let Some(last) = sets.last().copied().filter(|last| *last != 0) {
        sets.push((last - 1) & all);
    }
    sets.retain(|set| *set != 0);
    sets.sort_unstable_by_key(|set| (set.count_ones(), *set));
    let least = sets.iter().find(|set| ever(**set)).map_or(all.count_ones(), |set| set.count_ones());
    let possible = sets.into_iter().filter(|set| now(*set));
    possible.map(|set| Hint { nodes: Some(set), preferred: set.count_ones() == least }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(hint: Option<Hint>) -> String {
        let Some(hint) = hint else { return "refused".into() };
        let nodes = hint.nodes.map(|nodes| numbers(nodes).map(|node| node.to_string()).collect::<String>());
        format!("{}{}", nodes.unwrap_or_else(|| "*".into()), if hint.preferred { "+" } else { "-" })
    }

    #[test]
    fn hints_are_all_sets_that_suffice_and_the_smallest_are_preferred() {
        let room = |free: [u32; 2]| move |set: Nodes| numbers(set).map(|node| free[node as usize]).sum::<u32>() >= 3;
        let found = |free| {
            let hints = hints(0b11, &room([4, 4]), &room(free));
            hints.into_iter().map(|hint| shown(Some(hint))).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found([4, 4]), "0+ 1+ 01-");
        assert_eq!(found([1, 4]), "1+ 01-");
        assert_eq!(found([2, 2]), "01-");
        assert_eq!(found([1, 1]), "");
    }
}
