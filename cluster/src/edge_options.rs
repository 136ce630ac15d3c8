//! The flags of Gateways and Ingresses: of the server, of agents, and of the agents that a server starts.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;
use corten_gateway::resolve::PortRange;

#[derive(Debug, Clone, Default, Args)]
pub struct EdgeOptions {
    /// Serve no Gateways and Ingresses: neither the controller nor the proxies on nodes run, and Gateway API is not
    /// installed.
    #[arg(long)]
    pub disable_edge: bool,
    /// The ports of nodes where the proxies of Gateways and Ingresses listen. Clients never need them: they connect to
    /// the ports of a Gateway, at its address. They must not overlap with node ports.
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    pub edge_port_range: Option<PortRange>,
}

impl EdgeOptions {
    /// Returns the flags as arguments of an agent or server.
    pub fn arguments(&self) -> Vec<OsString> {
        let disabled = self.disable_edge.then(|| "--disable-edge".into());
        let range =
            self.edge_port_range.map(|range| format!("--edge-port-range={}-{}", range.first, range.last).into());
        disabled.into_iter().chain(range).collect()
    }
}

/// The proxy of Gateways and Ingresses alone.
#[derive(Debug, Clone, Args)]
pub struct Edge {
    /// The kubeconfig of the API server.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: PathBuf,
    /// The name of this node; defaults to the host name.
    #[arg(long, value_name = "NAME")]
    pub node_name: Option<String>,
    /// Also run the controller, which installs Gateway API and writes statuses and Services; of several processes, one
    /// leads.
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", value_name = "BOOL")]
    pub controller: bool,
    /// The ports of nodes where the proxies listen.
    #[arg(long, value_name = "FIRST-LAST", value_parser = port_range)]
    pub edge_port_range: Option<PortRange>,
    /// The descriptor of the socket by which servers find this process.
    #[arg(long, hide = true)]
    pub control_fd: Option<i32>,
    /// The descriptor of a connection to the process that this one takes over from.
    #[arg(long, hide = true)]
    pub predecessor_fd: Option<i32>,
}

/// Parses `FIRST-LAST`.
fn port_range(text: &str) -> Result<PortRange, String> {
    let invalid = || format!("{text:?} is not a range of ports, such as 28000-29999");
    let (first, last) = text.split_once('-').ok_or_else(invalid)?;
    let first: u16 = first.parse().map_err(|_| invalid())?;
    let last: u16 = last.parse().map_err(|_| invalid())?;
    if first < 1024 || first > last {
        return Err(invalid());
    }
    Ok(PortRange { first, last })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_has_two_unprivileged_ports_in_order() {
        assert_eq!(port_range("2000-3000"), Ok(PortRange { first: 2000, last: 3000 }));
        for text in ["2000", "3000-2000", "80-90", "a-b", "1024-70000"] {
            assert!(port_range(text).is_err(), "{text}");
        }
    }
}
