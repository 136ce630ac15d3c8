//! The settings of all rules of a table.

use std::net::IpAddr;

use corten_nftables::{IpFamily, Table};

use crate::Config;

/// The IP family and the configuration that rules are made by, beside the Services.
pub(crate) struct Rulebook {
    pub ip: IpFamily,
    pub config: Config,
}

impl Rulebook {
    pub fn table(&self) -> Table {
        self.ip.table(&self.config.table)
    }

    /// Returns the cluster's pod CIDR of this family.
    pub fn cluster_cidr(&self) -> Option<(IpAddr, u8)> {
        self.config.cluster_cidrs.iter().copied().find(|(address, _)| self.ip.holds(*address))
    }
}
