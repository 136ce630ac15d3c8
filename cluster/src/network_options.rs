//! The enforcement of NetworkPolicies: flags of the server, of agents, and of the agents that a server starts.

use std::ffi::OsString;

use clap::Args;

#[derive(Debug, Clone, Default, Args)]
pub struct NetworkOptions {
    /// Apply egress rules of NetworkPolicies also to traffic from pods to their own node: TCP, UDP and SCTP to any of
    /// its addresses, including the API server and host ports. By default only cluster DNS is restricted. Traffic from the
    /// node to its pods, such as probes, is always allowed.
    #[arg(long)]
    pub network_policy_host_egress: bool,
}

impl NetworkOptions {
    /// Returns the flags as arguments.
    pub fn arguments(&self) -> Vec<OsString> {
        let host_egress = self.network_policy_host_egress.then(|| "--network-policy-host-egress".into());
        host_egress.into_iter().collect()
    }
}
