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
pub enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    pub const ALL: [IpFamily; 2] = [IpFamily::V4, IpFamily::V6];

    pub fn of(address: IpAddr) -> IpFamily {
        if address.is_ipv4() { IpFamily::V4 } else { IpFamily::V6 }
    }

    pub fn holds(self, address: IpAddr) -> bool {
        IpFamily::of(address) == self
    }

    pub fn family(self) -> Family {
        match self {
            IpFamily::V4 => Family::Ipv4,
            IpFamily::V6 => Family::Ipv6,
        }
    }

    /// Returns the table of this family's packets.
    pub fn table(self, name: &str) -> Table {
        Table::new(self.family(), name)
    }

    pub fn address(self) -> DataType {
        match self {
            IpFamily::V4 => DataType::Ipv4Addr,
            IpFamily::V6 => DataType::Ipv6Addr,
        }
    }

    pub fn source(self) -> Field {
        match self {
            IpFamily::V4 => Field::IpSaddr,
            IpFamily::V6 => Field::Ip6Saddr,
        }
    }

    pub fn destination(self) -> Field {
        match self {
            IpFamily::V4 => Field::IpDaddr,
            IpFamily::V6 => Field::Ip6Daddr,
        }
    }

    /// Returns the unspecified address.
    pub fn unspecified(self) -> IpAddr {
        match self {
            IpFamily::V4 => Ipv4Addr::UNSPECIFIED.into(),
            IpFamily::V6 => Ipv6Addr::UNSPECIFIED.into(),
        }
    }

    /// Returns the loopback range.
    pub fn loopback(self) -> (IpAddr, u8) {
        match self {
            IpFamily::V4 => (Ipv4Addr::new(127, 0, 0, 0).into(), 8),
            IpFamily::V6 => (Ipv6Addr::LOCALHOST.into(), 128),
        }
    }

    /// Returns the multicast range.
    pub fn multicast(self) -> (IpAddr, u8) {
        match self {
            IpFamily::V4 => (Ipv4Addr::new(224, 0, 0, 0).into(), 4),
            IpFamily::V6 => (Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0).into(), 8),
        }
    }

    /// Returns the number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            IpFamily::V4 => 32,
            IpFamily::V6 => 128,
        }
    }

    /// Returns the number of 32-bit registers that an address fills.
    pub fn registers(self) -> u32 {
        u32::from(self.bits() / 32)
    }

    /// Returns the reject that is no TCP reset.
    pub fn port_unreachable(self) -> Reject {
        match self {
            IpFamily::V4 => Reject::IcmpPortUnreachable,
            IpFamily::V6 => Reject::Icmp6PortUnreachable,
        }
    }
}
