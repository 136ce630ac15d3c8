//! The order in which a node tries servers.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Returns the servers in the order of a node: always the same for one node, different among nodes, and unchanged among
/// the rest when one comes or goes.
pub fn of_node(node: &str, servers: &[String]) -> Vec<String> {
    let mut order = servers.to_vec();
    order.sort_by_key(|server| (weight(node, server), server.clone()));
    order.dedup();
    order
}

fn weight(node: &str, server: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    node.hash(&mut hasher);
    server.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn servers(count: usize) -> Vec<String> {
        (1..=count).map(|number| format!("10.0.0.{number}:6443")).collect()
    }

    #[test]
    fn nodes_are_spread_over_the_servers() {
        let servers = servers(3);
        let mut counts = [0; 3];
        for number in 0..300 {
            let first = of_node(&format!("node-{number}"), &servers)[0].clone();
            counts[servers.iter().position(|server| *server == first).unwrap()] += 1;
        }
        assert!(counts.iter().all(|count| *count > 60), "{counts:?}");
    }

    #[test]
    fn a_server_that_goes_leaves_the_order_of_the_rest() {
        let mut all = servers(5);
        let before = of_node("a", &all);
        let gone = before[2].clone();
        all.retain(|server| *server != gone);
        let after: Vec<String> = before.iter().filter(|server| **server != gone).cloned().collect();
        assert_eq!(of_node("a", &all), after);
        all.reverse();
        assert_eq!(of_node("a", &all), after, "the order of the list does not matter");
        all.extend(all.clone());
        assert_eq!(of_node("a", &all), after, "a server that is named twice is one");
    }
}
