//! A rule, written in the order of the `nft` language.
//!
//! ```
//! use corten_nftables::{Field, Protocol, Rule};
//! // ip daddr . meta l4proto . th dport vmap @services
//! let dispatch = Rule::new().vmap(&[Field::IpDaddr, Field::L4Proto, Field::ThDport], "services");
//! // meta l4proto tcp counter jump web
//! let web = Rule::new().eq(Field::L4Proto, Protocol::Tcp).counter().jump("web");
//! # let _ = (dispatch, web);
//! ```
//!
//! Each matching statement loads from the first register on, so statements do not depend on each other. Where one value
//! must pass from statement to statement (session affinity), the caller names [`Register`]s with the `load_at`,
//! `lookup_at`, `update_at` and `dnat_at` steps.

use std::net::IpAddr;
use std::time::Duration;

use crate::attributes::Attributes;
use crate::expression::{Comparison, Expression, Nat, Reject, SetOperation, Verdict};
use crate::field::Field;
use crate::uapi::{self, Family};
use crate::value::{Bytes4, Port, Value};

/// One of the sixteen 32-bit registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(pub u32);

impl Register {
    fn number(self) -> u32 {
        uapi::REG32_00 + self.0
    }
}

/// A list of expressions, evaluated left to right until one does not match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    expressions: Vec<Expression>,
    comment: Option<String>,
}

impl Rule {
    pub fn new() -> Rule {
        Rule::default()
    }

    fn then(mut self, expression: Expression) -> Rule {
        self.expressions.push(expression);
        self
    }

    /// Returns the expressions so far.
    pub fn expressions(&self) -> &[Expression] {
        &self.expressions
    }

    // Matches.

    /// Matches `field value`.
    pub fn eq(self, field: Field, value: impl Into<Value>) -> Rule {
        self.compare(field, Comparison::Equal, value.into())
    }

    /// Matches `field != value`.
    pub fn ne(self, field: Field, value: impl Into<Value>) -> Rule {
        self.compare(field, Comparison::NotEqual, value.into())
    }

    fn compare(self, field: Field, comparison: Comparison, value: Value) -> Rule {
        let register = uapi::REG32_00;
        self.then(field.load(register)).then(Expression::Compare { comparison, register, value })
    }

    /// Matches `field address/length`.
    pub fn in_prefix(self, field: Field, address: IpAddr, length: u8) -> Rule {
        self.compare_prefix(field, Comparison::Equal, address, length)
    }

    /// Matches `field != address/length`.
    pub fn not_in_prefix(self, field: Field, address: IpAddr, length: u8) -> Rule {
        self.compare_prefix(field, Comparison::NotEqual, address, length)
    }

    fn compare_prefix(self, field: Field, comparison: Comparison, address: IpAddr, length: u8) -> Rule {
        let address = Value::from(address);
        let mask = prefix_mask(address.as_bytes().len(), length);
        let network: Value = address.as_bytes().iter().zip(mask.as_bytes()).map(|(byte, mask)| byte & mask).collect();
        self.then(field.load(uapi::REG32_00)).masked(mask).then(Expression::Compare {
            comparison,
            register: uapi::REG32_00,
            value: network,
        })
    }

    /// Matches `field & mask == value`; all three have the field's length.
    pub fn has_bits(self, field: Field, mask: impl Into<Value>, value: impl Into<Value>) -> Rule {
        let register = uapi::REG32_00;
        let value = value.into();
        let comparison = Comparison::Equal;
        self.then(field.load(register)).masked(mask.into()).then(Expression::Compare { comparison, register, value })
    }

    fn masked(self, mask: Value) -> Rule {
        let length = mask.as_bytes().len() as u32;
        let xor = mask.as_bytes().iter().map(|_| 0).collect();
        self.then(Expression::Bitwise { from: uapi::REG32_00, to: uapi::REG32_00, length, mask, xor })
    }

    /// Matches a field with at least one of these bits: `ct state new`, `ct status dnat`, `meta mark & 0x4000 != 0`.
    pub fn has_any(self, field: Field, bits: u32) -> Rule {
        self.bits(field, bits, Comparison::NotEqual)
    }

    fn bits(self, field: Field, bits: u32, comparison: Comparison) -> Rule {
        self.then(field.load(uapi::REG32_00)).masked(Bytes4(bits).into()).then(Expression::Compare {
            comparison,
            register: uapi::REG32_00,
            value: Bytes4(0).into(),
        })
    }

    /// Matches `a . b . c @set`.
    pub fn in_set(self, fields: &[Field], set: &str) -> Rule {
        self.load_at(Register(0), fields).lookup(set, None, false)
    }

    /// Matches `a . b . c != @set`.
    pub fn not_in_set(self, fields: &[Field], set: &str) -> Rule {
        self.load_at(Register(0), fields).lookup(set, None, true)
    }

    /// Appends `a . b . c vmap @map`.
    pub fn vmap(self, fields: &[Field], map: &str) -> Rule {
        self.load_at(Register(0), fields).lookup(map, Some(uapi::REG_VERDICT), false)
    }

    fn lookup(self, set: &str, to: Option<u32>, invert: bool) -> Rule {
        self.then(Expression::Lookup { set: set.to_owned(), from: uapi::REG32_00, to, invert })
    }

    // Steps that name registers.

    /// Loads fields one after the other, from a register on.
    pub fn load_at(mut self, register: Register, fields: &[Field]) -> Rule {
        let mut number = register.number();
        for field in fields {
            self = self.then(field.load(number));
            number += field.registers();
        }
        self
    }

    /// Looks up the key at `from`; on a hit the map's data go to `to`, else the rule ends.
    pub fn lookup_at(self, map: &str, from: Register, to: Register) -> Rule {
        let to = Some(to.number());
        self.then(Expression::Lookup { set: map.to_owned(), from: from.number(), to, invert: false })
    }

    /// Continues only if the key at `from` is in the set.
    pub fn contains_at(self, set: &str, from: Register) -> Rule {
        self.then(Expression::Lookup { set: set.to_owned(), from: from.number(), to: None, invert: false })
    }

    /// Continues only if the key at `from` is not in the set.
    pub fn lacks_at(self, set: &str, from: Register) -> Rule {
        self.then(Expression::Lookup { set: set.to_owned(), from: from.number(), to: None, invert: true })
    }

    /// Takes the verdict of the key at `from`; without one the next rule is evaluated.
    pub fn vmap_at(self, map: &str, from: Register) -> Rule {
        let to = Some(uapi::REG_VERDICT);
        self.then(Expression::Lookup { set: map.to_owned(), from: from.number(), to, invert: false })
    }

    /// Appends `update @map { key timeout t : data }`; ends the rule if the map is full. Of an existing element only
    /// the timeout is renewed: its data stay.
    pub fn update_at(self, map: &str, key: Register, data: Option<Register>, timeout: Option<Duration>) -> Rule {
        self.change_at(SetOperation::Update, map, key, data, timeout)
    }

    /// Appends `delete @map { key : data }`.
    pub fn delete_at(self, map: &str, key: Register, data: Option<Register>) -> Rule {
        self.change_at(SetOperation::Delete, map, key, data, None)
    }

    fn change_at(
        self,
        operation: SetOperation,
        map: &str,
        key: Register,
        data: Option<Register>,
        timeout: Option<Duration>,
    ) -> Rule {
        self.then(Expression::DynamicSet {
            set: map.to_owned(),
            operation,
            key: key.number(),
            data: data.map(Register::number),
            timeout_ms: timeout.map(|timeout| timeout.as_millis() as u64),
        })
    }

    /// Appends `dnat to` the address and port held by registers.
    pub fn dnat_at(self, family: Family, address: Register, port: Option<Register>) -> Rule {
        self.nat(Nat::Destination, family, Some(address), port)
    }

    fn nat(self, nat: Nat, family: Family, address: Option<Register>, port: Option<Register>) -> Rule {
        self.then(Expression::Nat {
            nat,
            family: family as u8,
            address: address.map(Register::number),
            port: port.map(Register::number),
        })
    }

    // Statements.

    /// Appends `meta mark set meta mark or bits`.
    pub fn mark_or(self, bits: u32) -> Rule {
        self.change_mark(!bits, bits)
    }

    /// Appends `meta mark set meta mark and not bits`.
    pub fn mark_clear(self, bits: u32) -> Rule {
        self.change_mark(!bits, 0)
    }

    fn change_mark(self, mask: u32, xor: u32) -> Rule {
        let register = uapi::REG32_00;
        let mask = Bytes4(mask).into();
        let xor = Bytes4(xor).into();
        self.then(Field::Mark.load(register))
            .then(Expression::Bitwise { from: register, to: register, length: 4, mask, xor })
            .then(Expression::MetaSet { key: uapi::META_MARK, register })
    }

    /// Appends `ct mark set value`.
    pub fn ct_mark_set(self, value: u32) -> Rule {
        let register = uapi::REG32_00;
        self.then(Expression::Immediate { register, value: Bytes4(value).into() })
            .then(Expression::CtSet { key: uapi::CT_MARK, register })
    }

    /// Appends `dnat to address[:port]`.
    pub fn dnat_to(self, address: IpAddr, port: Option<Port>) -> Rule {
        self.nat_to(Nat::Destination, address, port)
    }

    /// Appends `snat to address`.
    pub fn snat_to(self, address: IpAddr) -> Rule {
        self.nat_to(Nat::Source, address, None)
    }

    fn nat_to(self, nat: Nat, address: IpAddr, port: Option<Port>) -> Rule {
        let family = if address.is_ipv4() { Family::Ipv4 } else { Family::Ipv6 };
        let at = Register(0);
        let port_at = Register(4);
        let rule = self.then(Expression::Immediate { register: at.number(), value: address.into() });
        match port {
            Some(port) => rule.then(Expression::Immediate { register: port_at.number(), value: port.into() }).nat(
                nat,
                family,
                Some(at),
                Some(port_at),
            ),
            None => rule.nat(nat, family, Some(at), None),
        }
    }

    /// Appends `dnat to a . b . c map @map`, where the map's data are an address and a port.
    pub fn dnat_map(self, family: Family, fields: &[Field], map: &str) -> Rule {
        let port = Register(if family == Family::Ipv6 { 4 } else { 1 });
        self.load_at(Register(0), fields).lookup_at(map, Register(0), Register(0)).dnat_at(
            family,
            Register(0),
            Some(port),
        )
    }

    /// Appends `masquerade`.
    pub fn masquerade(self) -> Rule {
        self.then(Expression::Masquerade)
    }

    /// Appends `redirect to :port`.
    pub fn redirect_to(self, port: Port) -> Rule {
        self.then(Expression::Immediate { register: uapi::REG32_00, value: port.into() })
            .then(Expression::Redirect { port: Some(uapi::REG32_00) })
    }

    /// Appends `counter`.
    pub fn counter(self) -> Rule {
        self.then(Expression::Counter)
    }

    /// Appends `limit rate packets/second burst n packets`.
    pub fn limit_per_second(self, packets: u64, burst: u32) -> Rule {
        self.then(Expression::Limit { packets, seconds: 1, burst })
    }

    /// Appends `log prefix "…"`.
    pub fn log(self, prefix: &str) -> Rule {
        self.then(Expression::Log { prefix: prefix.to_owned() })
    }

    /// Appends `reject with …`.
    pub fn reject(self, reject: Reject) -> Rule {
        self.then(Expression::Reject(reject))
    }

    pub fn accept(self) -> Rule {
        self.verdict(Verdict::Accept)
    }

    pub fn drop(self) -> Rule {
        self.verdict(Verdict::Drop)
    }

    pub fn jump(self, chain: &str) -> Rule {
        self.verdict(Verdict::Jump(chain.to_owned()))
    }

    pub fn goto(self, chain: &str) -> Rule {
        self.verdict(Verdict::Goto(chain.to_owned()))
    }

    pub fn verdict(self, verdict: Verdict) -> Rule {
        self.then(Expression::Verdict(verdict))
    }

    /// Sets `comment "…"`, at most 127 bytes.
    pub fn comment(mut self, comment: &str) -> Rule {
        self.comment = Some(comment.chars().take(120).collect());
        self
    }

    pub(crate) fn encode(&self, put: Attributes) -> Attributes {
        let expressions = self
            .expressions
            .iter()
            .fold(Attributes::new(), |list, expression| list.nest(uapi::LIST_ELEM, expression.encode()));
        put.nest(uapi::RULE_EXPRESSIONS, expressions)
            .maybe(self.comment.as_deref(), |put, comment| put.bytes(uapi::RULE_USERDATA, &comment_userdata(comment)))
    }
}

/// Encodes a comment in the type-length-value form in which `nft` keeps comments beside a rule.
pub(crate) fn comment_userdata(comment: &str) -> Vec<u8> {
    const COMMENT: u8 = 0;
    let mut userdata = vec![COMMENT, comment.len() as u8 + 1];
    userdata.extend_from_slice(comment.as_bytes());
    userdata.push(0);
    userdata
}

fn prefix_mask(bytes: usize, length: u8) -> Value {
    let mask = (0..bytes).map(|index| {
        let bits = usize::from(length).saturating_sub(index * 8).min(8);
        !(0xffu16 >> bits) as u8
    });
    mask.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefix_masks() {
        for (length, mask) in [(0, [0, 0, 0, 0]), (12, [255, 240, 0, 0]), (24, [255, 255, 255, 0]), (32, [255; 4])] {
            assert_eq!(prefix_mask(4, length).as_bytes(), mask, "/{length}");
        }
    }

    #[test]
    fn concatenated_fields_take_consecutive_registers() {
        let rule = Rule::new().load_at(Register(0), &[Field::Ip6Daddr, Field::L4Proto, Field::ThDport]);
        let registers: Vec<u32> = rule
            .expressions()
            .iter()
            .map(|expression| match expression {
                Expression::Payload { register, .. } | Expression::Meta { register, .. } => *register,
                other => panic!("unexpected {other:?}"),
            })
            .collect();
        assert_eq!(registers, [8, 12, 13]);
    }
}
