//! The two IP families: their address fields in packets, and the names of their tables.
//!
//! Rules for both are the same but for these facts, so that one piece of code writes either.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::batch::Table;
use crate::expression::Reject;
use crate::field::Field;
use crate::set::DataType;
use crate::uapi::Family;

/// IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IpVersion {
    V4,
    V6,
}

impl IpVersion {
    pub const ALL: [IpVersion; 2] = [IpVersion::V4, IpVersion::V6];

    pub fn of(address: IpAddr) -> IpVersion {
        if address.is_ipv4() { IpVersion::V4 } else { IpVersion::V6 }
    }

    pub fn holds(self, address: IpAddr) -> bool {
        IpVersion::of(address) == self
    }

    pub fn family(self) -> Family {
        match self {
            IpVersion::V4 => Family::Ipv4,
            IpVersion::V6 => Family::Ipv6,
        }
    }

    /// Returns the table of this family's packets.
    pub fn table(self, name: &str) -> Table {
        Table::new(self.family(), name)
    }

    pub fn address(self) -> DataType {
        match self {
            IpVersion::V4 => DataType::Ipv4Addr,
            IpVersion::V6 => DataType::Ipv6Addr,
        }
    }

    pub fn source(self) -> Field {
        match self {
            IpVersion::V4 => Field::IpSaddr,
            IpVersion::V6 => Field::Ip6Saddr,
        }
    }

    pub fn destination(self) -> Field {
        match self {
            IpVersion::V4 => Field::IpDaddr,
            IpVersion::V6 => Field::Ip6Daddr,
        }
    }

    /// Returns the unspecified address.
    pub fn unspecified(self) -> IpAddr {
        match self {
            IpVersion::V4 => Ipv4Addr::UNSPECIFIED.into(),
            IpVersion::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns the loopback range.
    pub fn loopback(self) -> (IpAddr, u8) {
        match self {
            IpVersion::V4 => (Ipv4Addr::new(127, 0, 0, 0).into(), 8),
            IpVersion::V6 => (Ipv6Addr::LOCALHOST.into(), 128),
        }
    }

    /// Returns the multicast range.
    pub fn multicast(self) -> (IpAddr, u8) {
        match self {
            IpVersion::V4 => (Ipv4Addr::new(224, 0, 0, 0).into(), 4),
            IpVersion::V6 => (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
        }
    }

    /// Returns the number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            IpVersion::V4 => 32,
            IpVersion::V6 => 128,
        }
    }

    /// Returns the number of 32-bit registers that an address fills.
    pub fn registers(self) -> u32 {
        u32::from(self.bits() / 32)
    }

    /// Returns the reject that is no TCP reset.
    pub fn port_unreachable(self) -> Reject {
        match self {
            IpVersion::V4 => Reject::IcmpPortUnreachable,
            IpVersion::V6 => Reject::Icmp6PortUnreachable,
        }
    }
}
