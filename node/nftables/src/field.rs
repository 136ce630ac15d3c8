//! The fields of a packet, its connection and its route that a rule can read.

use crate::expression::Expression;
use crate::uapi;
use crate::value::Value;

/// Bits of fields that hold flags.
pub mod flags {
    pub const CT_STATE_RELATED: u32 = 4;
    pub const CT_STATE_NEW: u32 = 8;
    pub const CT_STATUS_DNAT: u32 = 1 << 5;
}

/// A field, named as the `nft` language names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Field {
    /// `ether daddr`
    EtherDaddr,
    /// `ether saddr`
    EtherSaddr,
    /// `ether type`; compare with two bytes in network order
    EtherType,
    /// `arp saddr ip`
    ArpSaddrIp,
    /// `ip saddr`
    IpSaddr,
    /// `ip daddr`
    IpDaddr,
    /// `ip6 saddr`
    Ip6Saddr,
    /// `ip6 daddr`
    Ip6Daddr,
    /// `icmp type`
    IcmpType,
    /// `meta l4proto`
    L4Proto,
    /// `th sport`
    ThSport,
    /// `th dport`
    ThDport,
    /// `iifname`
    Iifname,
    /// `oifname`
    Oifname,
    /// `meta mark`
    Mark,
    /// `meta nfproto`
    Nfproto,
    /// `ct state`, as flags
    CtState,
    /// `ct direction`: compare with [`Field::DIRECTION_REPLY`]
    CtDirection,
    /// `ct status`, as flags
    CtStatus,
    /// `ct mark`
    CtMark,
    /// `ct original ip daddr`
    CtOriginalIpDaddr,
    /// `ct original ip6 daddr`
    CtOriginalIp6Daddr,
    /// `ct original proto-dst`
    CtOriginalDport,
    /// `fib daddr type`: compare with [`Field::ADDRESS_LOCAL`]
    FibDaddrType,
    /// `fib saddr type`
    FibSaddrType,
    /// `numgen random mod n`, in host byte order (see [`crate::Index`])
    Random(u32),
    /// `numgen random mod modulus offset first`
    RandomFrom { modulus: u32, first: u32 },
    /// A constant, to complete a concatenated key.
    Constant(Value),
}

impl Field {
    /// The `fib` address type of an address of this host (`RTN_LOCAL`).
    pub const ADDRESS_LOCAL: u32 = 2;

    /// The `ct direction` of packets that answer those that opened the connection.
    pub const DIRECTION_REPLY: u8 = 1;

    /// Returns the number of bytes of the field.
    pub fn length(&self) -> u32 {
        match self {
            Field::Ip6Saddr | Field::Ip6Daddr | Field::CtOriginalIp6Daddr => 16,
            Field::Iifname | Field::Oifname => 16,
            Field::EtherDaddr | Field::EtherSaddr => 6,
            Field::ThSport | Field::ThDport | Field::CtOriginalDport | Field::EtherType => 2,
            Field::L4Proto | Field::IcmpType | Field::Nfproto | Field::CtDirection => 1,
            Field::Constant(value) => value.as_bytes().len() as u32,
            _ => 4,
        }
    }

    /// Returns the number of 32-bit registers that the field fills.
    pub fn registers(&self) -> u32 {
        self.length().div_ceil(4)
    }

    /// Returns the expression that loads the field into a register.
    pub(crate) fn load(&self, register: u32) -> Expression {
        let payload = |base, offset| Expression::Payload { base, offset, length: self.length(), register };
        let meta = |key| Expression::Meta { key, register };
        let ct = |key, direction| Expression::Ct { key, direction, register };
        let original = Some(uapi::CT_DIRECTION_ORIGINAL);
        let fib = |flags| Expression::Fib { result: uapi::FIB_RESULT_ADDRTYPE, flags, register };
        match self {
            Field::EtherDaddr => payload(uapi::PAYLOAD_LINK, 0),
            Field::EtherSaddr => payload(uapi::PAYLOAD_LINK, 6),
            Field::EtherType => payload(uapi::PAYLOAD_LINK, 12),
            Field::ArpSaddrIp => payload(uapi::PAYLOAD_NETWORK, 14),
            Field::IpSaddr => payload(uapi::PAYLOAD_NETWORK, 12),
            Field::IpDaddr => payload(uapi::PAYLOAD_NETWORK, 16),
            Field::Ip6Saddr => payload(uapi::PAYLOAD_NETWORK, 8),
            Field::Ip6Daddr => payload(uapi::PAYLOAD_NETWORK, 24),
            Field::IcmpType => payload(uapi::PAYLOAD_TRANSPORT, 0),
            Field::ThSport => payload(uapi::PAYLOAD_TRANSPORT, 0),
            Field::ThDport => payload(uapi::PAYLOAD_TRANSPORT, 2),
            Field::L4Proto => meta(uapi::META_L4PROTO),
            Field::Iifname => meta(uapi::META_IIFNAME),
            Field::Oifname => meta(uapi::META_OIFNAME),
            Field::Mark => meta(uapi::META_MARK),
            Field::Nfproto => meta(uapi::META_NFPROTO),
            Field::CtState => ct(uapi::CT_STATE, None),
            Field::CtDirection => ct(uapi::CT_DIRECTION, None),
            Field::CtStatus => ct(uapi::CT_STATUS, None),
            Field::CtMark => ct(uapi::CT_MARK, None),
            Field::CtOriginalIpDaddr => ct(uapi::CT_DST_IP, original),
            Field::CtOriginalIp6Daddr => ct(uapi::CT_DST_IP6, original),
            Field::CtOriginalDport => ct(uapi::CT_PROTO_DST, original),
            Field::FibDaddrType => fib(uapi::FIB_F_DADDR),
            Field::FibSaddrType => fib(uapi::FIB_F_SADDR),
            Field::Random(modulus) => Expression::Numgen { modulus: *modulus, offset: 0, register },
            Field::RandomFrom { modulus, first } => Expression::Numgen { modulus: *modulus, offset: *first, register },
            Field::Constant(value) => Expression::Immediate { register, value: value.clone() },
        }
    }
}
