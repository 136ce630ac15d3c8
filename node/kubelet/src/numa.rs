//! NUMA nodes, and the hints from which of them a manager could give.

/// NUMA nodes, one bit each.
pub type Nodes = u64;

/// From which nodes a manager could give; `None` is any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hint {
    pub nodes: Option<Nodes>,
    /// No fewer nodes would do on an empty machine.
    pub preferred: bool,
}

/// The numbers of the nodes, in order.
pub fn numbers(nodes: Nodes) -> impl Iterator<Item = u32> {
    (0..Nodes::BITS).filter(move |number| nodes & 1 << number != 0)
}

/// The nodes of these numbers.
pub fn nodes(numbers: impl IntoIterator<Item = u32>) -> Nodes {
    numbers.into_iter().filter(|number| *number < Nodes::BITS).fold(0, |nodes, number| nodes | 1 << number)
}

/// Every set of the nodes from which `now` says that enough can be given. Preferred are those that are as small as the
/// smallest from which `ever` says that enough could be given if nobody had anything.
pub fn hints(all: Nodes, ever: &dyn Fn(Nodes) -> bool, now: &dyn Fn(Nodes) -> bool) -> Vec<Hint> {
    let mut sets = vec![all];
    // Counts down through the subsets of a mask, down to the empty one.
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
