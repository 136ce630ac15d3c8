//! The expressions of a rule, and their encoding.
//!
//! One variant per kernel expression; [`crate::Rule`] composes them. The numbers in `attributes` are those of
//! `linux/netfilter/nf_tables.h`, in its order.

use crate::attributes::Attributes;
use crate::uapi;
use crate::value::Value;

/// The decision on a packet, or the chain where its evaluation goes on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verdict {
    Accept,
    Drop,
    Continue,
    Return,
    Jump(String),
    Goto(String),
}

impl Verdict {
    pub(crate) fn encode(&self) -> Attributes {
        let (code, chain) = match self {
            Verdict::Drop => (0, None),
            Verdict::Accept => (1, None),
            Verdict::Continue => (-1, None),
            Verdict::Jump(chain) => (-3, Some(chain)),
            Verdict::Goto(chain) => (-4, Some(chain)),
            Verdict::Return => (-5, None),
        };
        let verdict = Attributes::new()
            .u32(uapi::VERDICT_CODE, code as u32)
            .maybe(chain, |attributes, chain| attributes.string(uapi::VERDICT_CHAIN, chain));
        Attributes::new().nest(uapi::DATA_VERDICT, verdict)
    }

    pub(crate) fn decode(code: i32, chain: Option<String>) -> Option<Verdict> {
        match (code, chain) {
            (0, _) => Some(Verdict::Drop),
            (1, _) => Some(Verdict::Accept),
            (-1, _) => Some(Verdict::Continue),
            (-3, Some(chain)) => Some(Verdict::Jump(chain)),
            (-4, Some(chain)) => Some(Verdict::Goto(chain)),
            (-5, _) => Some(Verdict::Return),
            _ => None,
        }
    }
}

/// The answer to a rejected packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reject {
    /// A TCP reset; the rule must have matched TCP.
    TcpReset,
    /// ICMP port unreachable, in tables of family ip.
    IcmpPortUnreachable,
    /// ICMPv6 port unreachable, in tables of family ip6.
    Icmp6PortUnreachable,
    /// Port unreachable of the packet's ICMP version, in tables of family inet and bridge.
    IcmpxPortUnreachable,
}

/// Comparison operators of `cmp`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Comparison {
    Equal = 0,
    NotEqual = 1,
}

/// Source or destination translation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Nat {
    Source = 0,
    Destination = 1,
}

/// The operation of a rule on an element of a dynamic set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum SetOperation {
    Update = 1,
    Delete = 2,
}

/// A kernel expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    Payload { base: u32, offset: u32, length: u32, register: u32 },
    Meta { key: u32, register: u32 },
    MetaSet { key: u32, register: u32 },
    Ct { key: u32, direction: Option<u8>, register: u32 },
    CtSet { key: u32, register: u32 },
    Fib { result: u32, flags: u32, register: u32 },
    Numgen { modulus: u32, offset: u32, register: u32 },
    Immediate { register: u32, value: Value },
    Verdict(Verdict),
    Compare { comparison: Comparison, register: u32, value: Value },
    Bitwise { from: u32, to: u32, length: u32, mask: Value, xor: Value },
    Lookup { set: String, from: u32, to: Option<u32>, invert: bool },
    DynamicSet { set: String, operation: SetOperation, key: u32, data: Option<u32>, timeout_ms: Option<u64> },
    Nat { nat: Nat, family: u8, address: Option<u32>, port: Option<u32> },
    Masquerade,
    Redirect { port: Option<u32> },
    Counter,
    Limit { packets: u64, seconds: u64, burst: u32 },
    Log { prefix: String },
    Reject(Reject),
}

fn value(value: &Value) -> Attributes {
    Attributes::new().bytes(uapi::DATA_VALUE, value.as_bytes())
}

impl Expression {
    /// Returns the kernel's name of the expression.
    pub fn name(&self) -> &'static str {
        match self {
            Expression::Payload { .. } => "payload",
            Expression::Meta { .. } | Expression::MetaSet { .. } => "meta",
            Expression::Ct { .. } | Expression::CtSet { .. } => "ct",
            Expression::Fib { .. } => "fib",
            Expression::Numgen { .. } => "numgen",
            Expression::Immediate { .. } | Expression::Verdict(_) => "immediate",
            Expression::Compare { .. } => "cmp",
            Expression::Bitwise { .. } => "bitwise",
            Expression::Lookup { .. } => "lookup",
            Expression::DynamicSet { .. } => "dynset",
            Expression::Nat { .. } => "nat",
            Expression::Masquerade => "masq",
            Expression::Redirect { .. } => "redir",
            Expression::Counter => "counter",
            Expression::Limit { .. } => "limit",
            Expression::Log { .. } => "log",
            Expression::Reject(_) => "reject",
        }
    }

    pub(crate) fn encode(&self) -> Attributes {
        Attributes::new().string(uapi::EXPR_NAME, self.name()).nest(uapi::EXPR_DATA, self.data())
    }

    fn data(&self) -> Attributes {
        let put = Attributes::new();
        match self {
            Expression::Payload { base, offset, length, register } => {
                put.u32(1, *register).u32(2, *base).u32(3, *offset).u32(4, *length)
            }
            Expression::Meta { key, register } => put.u32(1, *register).u32(2, *key),
            Expression::MetaSet { key, register } => put.u32(2, *key).u32(3, *register),
            Expression::Ct { key, direction, register } => {
                put.u32(1, *register).u32(2, *key).maybe(*direction, |put, direction| put.u8(3, direction))
            }
            Expression::CtSet { key, register } => put.u32(2, *key).u32(4, *register),
            Expression::Fib { result, flags, register } => put.u32(1, *register).u32(2, *result).u32(3, *flags),
            Expression::Numgen { modulus, offset, register } => {
                put.u32(1, *register).u32(2, *modulus).u32(3, uapi::NG_RANDOM).u32(4, *offset)
            }
            Expression::Immediate { register, value: constant } => put.u32(1, *register).nest(2, value(constant)),
            Expression::Verdict(verdict) => put.u32(1, uapi::REG_VERDICT).nest(2, verdict.encode()),
            Expression::Compare { comparison, register, value: constant } => {
                put.u32(1, *register).u32(2, *comparison as u32).nest(3, value(constant))
            }
            Expression::Bitwise { from, to, length, mask, xor } => {
                put.u32(1, *from).u32(2, *to).u32(3, *length).nest(4, value(mask)).nest(5, value(xor))
            }
            Expression::Lookup { set, from, to, invert } => put
                .string(1, set)
                .u32(2, *from)
                .maybe(*to, |put, to| put.u32(3, to))
                .maybe(invert.then_some(uapi::LOOKUP_F_INV), |put, flags| put.u32(5, flags)),
            _ => self.statement_data(),
        }
    }

    fn statement_data(&self) -> Attributes {
        let put = Attributes::new();
        match self {
            Expression::DynamicSet { set, operation, key, data, timeout_ms } => put
                .string(1, set)
                .u32(3, *operation as u32)
                .u32(4, *key)
                .maybe(*data, |put, data| put.u32(5, data))
                .maybe(*timeout_ms, |put, timeout| put.u64(6, timeout)),
            Expression::Nat { nat, family, address, port } => put
                .u32(1, *nat as u32)
                .u32(2, u32::from(*family))
                .maybe(*address, |put, register| put.u32(3, register))
                .maybe(*port, |put, register| put.u32(5, register)),
            Expression::Redirect { port } => put.maybe(*port, |put, register| put.u32(1, register)),
            Expression::Limit { packets, seconds, burst } => {
                put.u64(1, *packets).u64(2, *seconds).u32(3, *burst).u32(4, 0)
            }
            Expression::Log { prefix } => put.string(2, prefix),
            Expression::Reject(Reject::IcmpPortUnreachable) => put.u32(1, 0).u8(2, 3),
            Expression::Reject(Reject::Icmp6PortUnreachable) => put.u32(1, 0).u8(2, 4),
            Expression::Reject(Reject::TcpReset) => put.u32(1, 1).u8(2, 0),
            Expression::Reject(Reject::IcmpxPortUnreachable) => put.u32(1, 2).u8(2, 1),
            _ => put,
        }
    }
}
