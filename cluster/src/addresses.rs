//! The addresses of this machine, while a node runs with them.
//!
//! A lease expires, a network is renumbered: the node's address is gone from the machine. Certificates, kubeconfigs, routes,
//! the Node and the endpoints of the API server all depend on it, so the process begins again with the address that the
//! machine has now, as the same process and with its listening sockets. Containers do not notice.

use std::net::IpAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::config::addresses_of_links;
use crate::supervision;

/// The time between two looks at the machine's addresses.
const INTERVAL: Duration = Duration::from_secs(1);
/// The looks in a row that must miss an address: one that is set again at once is not gone.
const LOOKS: u32 = 3;
/// Flags of a first start, with a value each.
const FIRST_START: [&str; 4] = ["--progress-fd", "--token", "--server", "--join"];

/// Waits until an address of the node is gone from this machine, and the machine has others in its place.
pub async fn lost(own: &[IpAddr], find: impl Fn() -> Result<Vec<IpAddr>>) {
    let mut missed = 0;
    loop {
        tokio::time::sleep(INTERVAL).await;
        missed = if is_gone(own, &addresses_of_links()) { missed + 1 } else { 0 };
        if missed < LOOKS {
            continue;
        }
        match find() {
            Ok(found) if found != own => {
                tracing::warn!(?own, ?found, "the addresses of this machine have changed; beginning again with them");
                return;
            }
            Ok(_) => {}
            Err(error) => tracing::debug!("the machine has no address: {error:#}"),
        }
    }
}

/// Reports whether one of the addresses is on no link.
fn is_gone(own: &[IpAddr], links: &[(String, IpAddr)]) -> bool {
    own.iter().any(|own| !links.iter().any(|(_, address)| address == own))
}

/// Replaces this process by a new one of the same binary, with the same id, flags and listening sockets.
pub fn begin_again() -> Result<()> {
    let mut words = std::env::args_os();
    let name = words.next().context("the process has no name")?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0(name).args(without_first_start(words.map(|word| word.to_string_lossy().into_owned()).collect()));
    supervision::hand_over(&mut command);
    Err(command.exec()).context("the process cannot begin again")
}

/// Removes the flags that only a first start has.
fn without_first_start(words: Vec<String>) -> Vec<String> {
    let mut kept = Vec::new();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or_default();
        if !FIRST_START.contains(&name) {
            kept.push(word);
        } else if !word.contains('=') {
            words.next();
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_gone_when_no_link_has_it() {
        let links = |text: &str| {
            text.split(' ').map(|address| ("eth0".to_owned(), address.parse().unwrap())).collect::<Vec<_>>()
        };
        let own = |text: &str| text.split(' ').map(|address| address.parse().unwrap()).collect::<Vec<IpAddr>>();
        assert!(!is_gone(&own("10.0.0.1"), &links("127.0.0.1 10.0.0.1")));
        assert!(is_gone(&own("10.0.0.1"), &links("127.0.0.1 10.0.0.2")));
        assert!(is_gone(&own("10.0.0.1 fd00::1"), &links("10.0.0.1")));
    }

    #[test]
    fn a_process_that_begins_again_has_joined() {
        let words = ["agent", "--server", "https://a:6443", "--token=x", "--node-name", "n", "--progress-fd", "5"];
        assert_eq!(without_first_start(words.map(str::to_owned).to_vec()), ["agent", "--node-name", "n"]);
    }
}
