//! The servers that a node knows, and how each does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::order;

/// The checks in a row that a server fails before its connections are broken.
const MOST_FAILURES: u32 = 2;
/// The time for which a server that left the list keeps its connections: it says goodbye to its clients itself.
const DRAIN: Duration = Duration::from_secs(60);

/// The servers of a node.
pub struct Board {
    node: String,
    fallback: Vec<String>,
    servers: Mutex<Vec<Server>>,
}

struct Server {
    address: String,
    /// The checks and connections in a row that failed.
    failures: u32,
    /// Cancelled when the connections of the server are broken; then a new one takes its place.
    broken: CancellationToken,
}

/// A server to try.
pub struct Candidate {
    pub address: String,
    /// Cancelled when the server's connections are broken.
    pub broken: CancellationToken,
}

impl Server {
    fn new(address: String) -> Server {
        Server { address, failures: 0, broken: CancellationToken::new() }
    }
}

impl Board {
    pub fn new(node: &str, fallback: &[String]) -> Board {
        let board = Board { node: node.to_owned(), fallback: fallback.to_vec(), servers: Mutex::default() };
        board.set(order::of_node(node, fallback));
        board
    }

    /// Takes another list of servers; an empty one changes nothing. The fallback stays, after the list.
    pub fn replace(&self, list: &[String]) {
        if list.is_empty() {
            return;
        }
        let mut addresses = order::of_node(&self.node, list);
        for address in &self.fallback {
            if !addresses.contains(address) {
                addresses.push(address.clone());
            }
        }
        self.set(addresses);
    }

    fn set(&self, addresses: Vec<String>) {
        let mut servers = self.lock();
        let mut before = std::mem::take(&mut *servers);
        for address in addresses {
            let known = before.iter().position(|server| server.address == address);
            servers.push(known.map_or_else(|| Server::new(address), |index| before.swap_remove(index)));
        }
        for gone in before {
            tracing::info!(address = gone.address, "an API server left the list");
            tokio::spawn(async move {
                tokio::time::sleep(DRAIN).await;
                gone.broken.cancel();
            });
        }
    }

    /// Returns the servers to try: the healthy in the node's order, then the others.
    pub fn candidates(&self) -> Vec<Candidate> {
        let servers = self.lock();
        let mut tried: Vec<&Server> = servers.iter().collect();
        tried.sort_by_key(|server| server.failures > 0);
        tried
            .iter()
            .map(|server| Candidate { address: server.address.clone(), broken: server.broken.clone() })
            .collect()
    }

    /// Returns all servers.
    pub fn addresses(&self) -> Vec<String> {
        self.lock().iter().map(|server| server.address.clone()).collect()
    }

    /// Records that a connection failed: others are tried first until a check succeeds.
    pub fn failed(&self, address: &str) {
        self.change(address, |server| server.failures = server.failures.max(1));
    }

    /// Records a check.
    pub fn checked(&self, address: &str, is_healthy: bool) {
        self.change(address, |server| {
            if is_healthy {
                if server.failures >= MOST_FAILURES {
                    tracing::info!(address, "an API server is healthy again");
                }
                server.failures = 0;
                return;
            }
            server.failures = server.failures.saturating_add(1);
            if server.failures == MOST_FAILURES {
                tracing::warn!(address, "an API server is not healthy; its connections are closed");
                std::mem::take(&mut server.broken).cancel();
            }
        });
    }

    fn change(&self, address: &str, change: impl FnOnce(&mut Server)) {
        if let Some(server) = self.lock().iter_mut().find(|server| server.address == address) {
            change(server);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Server>> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &str) -> Vec<String> {
        names.split_whitespace().map(str::to_owned).collect()
    }

    fn tried(board: &Board) -> Vec<String> {
        board.candidates().into_iter().map(|candidate| candidate.address).collect()
    }

    #[tokio::test]
    async fn the_healthy_are_tried_first_and_the_fallback_last() {
        let board = Board::new("n", &list("z"));
        assert_eq!(tried(&board), ["z"]);
        board.replace(&list("a b c"));
        let order = tried(&board);
        assert_eq!(order.last().map(String::as_str), Some("z"));
        board.failed(&order[0]);
        assert_eq!(tried(&board), [&order[1], &order[2], &order[3], &order[0]].map(String::clone));
        board.checked(&order[0], true);
        assert_eq!(tried(&board), order);
        board.replace(&[]);
        assert_eq!(tried(&board), order, "an empty list changes nothing");
    }

    #[tokio::test]
    async fn a_server_loses_its_connections_after_two_failed_checks() {
        let board = Board::new("n", &list("a"));
        let broken = board.candidates()[0].broken.clone();
        board.checked("a", false);
        assert!(!broken.is_cancelled());
        board.checked("a", true);
        board.checked("a", false);
        assert!(!broken.is_cancelled());
        board.checked("a", false);
        assert!(broken.is_cancelled());
        assert!(!board.candidates()[0].broken.is_cancelled(), "it may have new ones");
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_left_the_list_keeps_its_connections_for_a_while() {
        let board = Board::new("n", &[]);
        board.replace(&list("a b"));
        let candidates = board.candidates();
        let broken = |name: &str| {
            let found = candidates.iter().find(|candidate| candidate.address == name);
            found.map(|candidate| candidate.broken.clone()).unwrap()
        };
        board.replace(&list("b c"));
        tokio::time::sleep(DRAIN / 2).await;
        assert!(!broken("a").is_cancelled());
        broken("a").cancelled().await;
        assert!(!broken("b").is_cancelled(), "its connections stay");
    }
}
