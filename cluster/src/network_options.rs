//! How NetworkPolicies are enforced: flags of the server, of agents, and of the agents that a server starts.

use std::ffi::OsString;

use clap::Args;

#[derive(Debug, Clone, Default, Args)]
pub struct NetworkOptions {
    /// Apply the egress rules of NetworkPolicies to what pods send to their own node too: TCP, UDP and SCTP to any of its
    /// addresses, the API server's and host ports among them. Otherwise only cluster DNS is restricted there. What the
    /// node sends to its pods, such as probes, is always allowed.
    #[arg(long)]
    pub network_policy_host_egress: bool,
}

impl NetworkOptions {
    /// The flags as a command line takes them.
    pub fn arguments(&self) -> Vec<OsString> {
        let host_egress = self.network_policy_host_egress.then(|| "--network-policy-host-egress".into());
        host_egress.into_iter().collect()
    }
}
