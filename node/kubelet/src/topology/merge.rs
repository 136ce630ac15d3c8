//! Merges the topology hints of all managers. Pure.

use super::{Hint, Machine, Nodes, Policy};

/// Returns the best hint for all resources together; `None` if the policy refuses it.
pub(super) fn merge(policy: Policy, machine: &Machine, resources: &[Vec<Hint>]) -> Option<Hint> {
    let all = machine.nodes;
    let impossible = Hint { nodes: None, preferred: false };
    let mut resources: Vec<Vec<Hint>> = resources.to_vec();
    for hints in &mut resources {
        if hints.is_empty() {
            hints.push(impossible);
        }
        if policy == Policy::SingleNumaNode {
            hints.retain(|hint| hint.preferred && hint.nodes.is_none_or(|nodes| nodes.count_ones() == 1));
        }
    }
    let mut best: Option<Merged> = None;
    // If no manager needs more than this many NUMA nodes, a hint with as many is better than a wider or a narrower one.
    let widest = resources.iter().filter_map(|hints| narrowest(hints)).max().unwrap_or(0);
    permute(&resources, &mut Vec::new(), &mut |chosen| {
        let merged = intersect(all, chosen);
        if merged.nodes != 0 && best.is_none_or(|best| is_better(machine, merged, best, widest)) {
            best = Some(merged);
        }
    });
    let Merged { nodes, preferred } = best.unwrap_or(Merged { nodes: all, preferred: false });
    let nodes = (policy != Policy::SingleNumaNode || nodes != all).then_some(nodes);
    (policy == Policy::BestEffort || preferred).then_some(Hint { nodes, preferred })
}

/// The intersection of one hint for each resource.
#[derive(Clone, Copy)]
struct Merged {
    nodes: Nodes,
    preferred: bool,
}

/// Calls the function with every choice of one hint for each resource.
fn permute(resources: &[Vec<Hint>], chosen: &mut Vec<Hint>, visit: &mut dyn FnMut(&[Hint])) {
    let Some((first, rest)) = resources.split_first() else { return visit(chosen) };
    for hint in first {
        chosen.push(*hint);
        permute(rest, chosen, visit);
        chosen.pop();
    }
}

/// Returns the intersection of the hints; it is preferred only if all hints have the same NUMA nodes and prefer them.
fn intersect(all: Nodes, hints: &[Hint]) -> Merged {
    let mut named = hints.iter().filter_map(|hint| hint.nodes);
    let first = named.clone().next();
    let agreed = named.all(|nodes| Some(nodes) == first);
    let nodes = hints.iter().filter_map(|hint| hint.nodes).fold(all, |nodes, other| nodes & other);
    Merged { nodes, preferred: agreed && hints.iter().all(|hint| hint.preferred) }
}

fn narrowest(hints: &[Hint]) -> Option<u32> {
    hints.iter().filter_map(|hint| hint.nodes).map(Nodes::count_ones).min()
}

/// Reports whether a merged hint is better than the best one so far.
fn is_better(machine: &Machine, merged: Merged, best: Merged, widest: u32) -> bool {
    let size = |nodes: Nodes| (nodes.count_ones(), machine.spread(nodes), nodes);
    let narrower = size(merged.nodes) < size(best.nodes);
    if merged.preferred != best.preferred {
        return merged.preferred;
    }
    if merged.preferred {
        return narrower;
    }
    let count = merged.nodes.count_ones();
    let best_count = best.nodes.count_ones();
    match best_count.cmp(&widest) {
        std::cmp::Ordering::Greater => narrower,
        std::cmp::Ordering::Equal => count == widest && narrower,
        std::cmp::Ordering::Less if count > widest => false,
        std::cmp::Ordering::Less if count != best_count => count > best_count,
        std::cmp::Ordering::Less => narrower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses `01+ 1- *`: NUMA nodes with `+` for preferred and `-` for not; `*` is any.
    fn read(text: &str) -> Vec<Vec<Hint>> {
        let hint = |word: &str| {
            let (nodes, preferred) = word.split_at(word.len() - 1);
            let nodes = nodes.chars().filter_map(|digit| digit.to_digit(10));
            let nodes = (word.len() > 1).then(|| crate::numa::nodes(nodes));
            Hint { nodes, preferred: preferred != "-" }
        };
        let resources = text.split('|').map(str::trim);
        resources.map(|words| words.split_whitespace().map(hint).collect()).collect()
    }

    fn shown(hint: Option<Hint>) -> String {
        let Some(hint) = hint else { return "refused".into() };
        let nodes =
            hint.nodes.map(|nodes| crate::numa::numbers(nodes).map(|node| node.to_string()).collect::<String>());
        format!("{}{}", nodes.unwrap_or_else(|| "*".into()), if hint.preferred { "+" } else { "-" })
    }

    fn machine(nodes: Nodes) -> Machine {
        Machine { nodes, ..Machine::default() }
    }

    #[test]
    fn the_closest_numa_nodes_are_preferred_on_request() {
        // Four NUMA nodes in a row, with growing distances.
        let distances = (0..4u32).map(|from| (from, (0..4).map(|to| 10 + 5 * u64::from(from.abs_diff(to))).collect()));
        let near = Machine { nodes: 0b1111, distances: distances.collect() };
        let hints = read("03+ 12+ 0123-");
        assert_eq!(shown(merge(Policy::BestEffort, &near, &hints)), "12+");
        assert_eq!(shown(merge(Policy::BestEffort, &machine(0b1111), &hints)), "12+", "the lower mask");
        let hints = read("02+ 23+ 0123-");
        assert_eq!(shown(merge(Policy::BestEffort, &near, &hints)), "23+");
        assert_eq!(shown(merge(Policy::BestEffort, &machine(0b1111), &hints)), "02+");
    }

    #[test]
    fn hints_are_merged_as_upstream_merges_them() {
        // Two NUMA nodes; the result of each of the three policies.
        for (hints, best_effort, restricted, single) in [
            ("*", "01+", "01+", "*+"),
            ("", "01-", "refused", "refused"),
            ("0+ 1+ 01-", "0+", "0+", "0+"),
            ("1+ 01-", "1+", "1+", "1+"),
            ("0+ 01- | 1+ 01-", "0-", "refused", "refused"),
            ("0+ 1+ 01- | 1+ 01-", "1+", "1+", "1+"),
            ("0+ 1+ 01- | *", "0+", "0+", "0+"),
            ("01+", "01+", "01+", "refused"),
            ("01+ | 0+ 1+ 01-", "01-", "refused", "refused"),
            ("01-", "01-", "refused", "refused"),
            ("0- | 01-", "0-", "refused", "refused"),
        ] {
            for (policy, expected) in
                [(Policy::BestEffort, best_effort), (Policy::Restricted, restricted), (Policy::SingleNumaNode, single)]
            {
                assert_eq!(shown(merge(policy, &machine(0b11), &read(hints))), expected, "{policy:?} {hints:?}");
            }
        }
    }

    #[test]
    fn a_hint_that_is_not_preferred_is_as_wide_as_the_widest_need() {
        // Four NUMA nodes: one resource needs two of them, the other one.
        let hints = read("01- 23- 0123- | 0- 1- 23- 0123-");
        assert_eq!(shown(merge(Policy::BestEffort, &machine(0b1111), &hints)), "01-");
    }
}
