//! The servers that a node knows, and how each does.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::{Health, order};

/// The checks in a row that a server fails before its connections are broken.
const MOST_FAILURES: u32 = 2;
/// The same for a server that said that it leaves: its requests are being answered.
const MOST_FAILURES_OF_LEAVING: u32 = 5;
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
    /// Whether it said in its last answer that it leaves.
    is_leaving: bool,
    /// Whether the connections were broken since the server was last healthy.
    is_broken: bool,
    /// Cancelled when the connections of the server are broken; then a new one takes its place.
    broken: CancellationToken,
}

/// The result of a check.
pub struct Checked {
    pub address: String,
    pub health: Health,
}

/// A server to try.
pub struct Candidate {
    pub address: String,
    /// Cancelled when the server's connections are broken.
    pub broken: CancellationToken,
}

impl Server {
    fn new(address: String) -> Server {
        Server { address, failures: 0, is_leaving: false, is_broken: false, broken: CancellationToken::new() }
    }
}

impl Server {
    fn checked(&mut self, health: Health) {
        match health {
            Health::Failing => {
                self.failures = self.failures.saturating_add(1);
                return;
            }
            Health::Leaving => {
                self.failures = 1;
                self.is_leaving = true;
                return;
            }
            Health::Healthy => {}
        }
        if self.failures >= MOST_FAILURES {
            tracing::info!(address = self.address, "an API server is healthy again");
        }
        self.failures = 0;
        self.is_leaving = false;
        self.is_broken = false;
    }

    /// Returns the failed checks after which its connections are broken.
    fn most_failures(&self) -> u32 {
        if self.is_leaving { MOST_FAILURES_OF_LEAVING } else { MOST_FAILURES }
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

    /// Records a check of all servers.
    pub fn checked(&self, checks: &[Checked]) {
        for Checked { address, health } in checks {
            self.change(address, |server| server.checked(*health));
        }
        self.break_connections();
    }

    /// Breaks the connections of servers that stay unhealthy, if their clients can go to another: without one they would
    /// lose watches and win nothing.
    fn break_connections(&self) {
        let mut servers = self.lock();
        if servers.iter().all(|server| server.failures > 0) {
            return;
        }
        for server in servers.iter_mut().filter(|server| server.failures >= server.most_failures() && !server.is_broken)
        {
            tracing::warn!(address = server.address, "an API server is not healthy; its connections are closed");
            server.is_broken = true;
            std::mem::take(&mut server.broken).cancel();
        }
    }

    /// Reports whether a server has failed and may still have connections, so that the next check decides about them.
    pub fn is_undecided(&self) -> bool {
        self.lock().iter().any(|server| server.failures > 0 && server.failures < MOST_FAILURES && !server.is_leaving)
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
        board.checked(&[Checked { address: order[0].clone(), health: Health::Healthy }]);
        assert_eq!(tried(&board), order);
        board.replace(&[]);
        assert_eq!(tried(&board), order, "an empty list changes nothing");
    }

    /// Records a check of the servers `a` and `b`.
    fn check(board: &Board, a: Health, b: Health) {
        let checked = |address: &str, health: Health| Checked { address: address.to_owned(), health };
        board.checked(&[checked("a", a), checked("b", b)]);
    }

    fn broken_of(board: &Board, name: &str) -> CancellationToken {
        let found = board.candidates().into_iter().find(|candidate| candidate.address == name);
        found.map(|candidate| candidate.broken).unwrap()
    }

    #[tokio::test]
    async fn a_server_loses_its_connections_after_two_failed_checks() {
        let board = Board::new("n", &list("a b"));
        let broken = broken_of(&board, "a");
        check(&board, Health::Failing, Health::Healthy);
        assert!(!broken.is_cancelled() && board.is_undecided());
        check(&board, Health::Healthy, Health::Healthy);
        assert!(!board.is_undecided());
        check(&board, Health::Failing, Health::Healthy);
        assert!(!broken.is_cancelled());
        check(&board, Health::Failing, Health::Healthy);
        assert!(broken.is_cancelled() && !board.is_undecided());
        assert!(!broken_of(&board, "a").is_cancelled(), "it may have new ones");
        check(&board, Health::Failing, Health::Healthy);
        assert!(!broken_of(&board, "a").is_cancelled(), "they are broken once");
    }

    #[tokio::test]
    async fn connections_stay_while_no_server_is_healthy() {
        let board = Board::new("n", &list("a b"));
        let broken = ["a", "b"].map(|name| broken_of(&board, name));
        for _ in 0..4 {
            check(&board, Health::Failing, Health::Failing);
        }
        assert!(broken.iter().all(|broken| !broken.is_cancelled()));
        check(&board, Health::Healthy, Health::Failing);
        assert_eq!(broken.map(|broken| broken.is_cancelled()), [false, true], "now there is another to go to");
    }

    #[tokio::test]
    async fn a_server_that_leaves_keeps_its_connections_and_gets_no_new_ones() {
        let board = Board::new("n", &list("a b"));
        let leaves = tried(&board)[0].clone();
        let broken = broken_of(&board, &leaves);
        let health = |name: &str| if name == leaves { Health::Leaving } else { Health::Healthy };
        for _ in 0..10 {
            check(&board, health("a"), health("b"));
        }
        assert!(!broken.is_cancelled());
        assert_eq!(tried(&board)[1], leaves);
        // Its listener is closed, and its requests are being answered.
        let health = |name: &str| if name == leaves { Health::Failing } else { Health::Healthy };
        check(&board, health("a"), health("b"));
        assert!(!broken.is_cancelled());
        for _ in 0..MOST_FAILURES_OF_LEAVING {
            check(&board, health("a"), health("b"));
        }
        assert!(broken.is_cancelled(), "it ended without a word");
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
