//! Register contents: addresses, ports, protocols and their concatenations.
//!
//! A [`Value`] is exactly the content of registers: network byte order for fields of packets, host byte order for
//! values that the kernel computes (marks, random indexes). In a concatenation every field fills whole 32-bit
//! registers.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The contents of one or more registers. There are hundreds of thousands of them on a node with many Services, so the
/// usual ones, up to a concatenation of five registers, are kept in place.
#[derive(Clone)]
pub struct Value(Contents);

#[derive(Clone)]
enum Contents {
    Short { length: u8, bytes: [u8; SHORT] },
    Long(Box<[u8]>),
}

/// The most bytes in place: with the length and the discriminant, no longer than a `Vec`.
const SHORT: usize = 22;

impl Value {
    /// Returns the raw bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Contents::Short { length, bytes } => &bytes[..usize::from(*length).min(SHORT)],
            Contents::Long(bytes) => bytes,
        }
    }

    /// Makes a value of raw bytes, as the kernel listed them.
    pub fn from_bytes(bytes: &[u8]) -> Value {
        let mut short = [0; SHORT];
        let Some(target) = short.get_mut(..bytes.len()) else { return Value(Contents::Long(bytes.into())) };
        target.copy_from_slice(bytes);
        Value(Contents::Short { length: bytes.len() as u8, bytes: short })
    }

    /// Returns the value right after this one, read as one big-endian number; `None` after the last.
    pub(crate) fn successor(&self) -> Option<Value> {
        let mut bytes = self.as_bytes().to_vec();
        for byte in bytes.iter_mut().rev() {
            let (next, overflowed) = byte.overflowing_add(1);
            *byte = next;
            if !overflowed {
                return Some(Value::from_bytes(&bytes));
            }
        }
        None
    }
}

impl FromIterator<u8> for Value {
    fn from_iter<I: IntoIterator<Item = u8>>(bytes: I) -> Value {
        Value::from_bytes(&bytes.into_iter().collect::<Vec<u8>>())
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Value) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Value {}

impl PartialOrd for Value {
    fn partial_cmp(&self, other: &Value) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Value {
    fn cmp(&self, other: &Value) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Value {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Value").field(&self.as_bytes()).finish()
    }
}

/// A transport protocol, by its IP number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Protocol {
    Icmp = 1,
    Tcp = 6,
    Udp = 17,
    Sctp = 132,
}

/// A transport port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(pub u16);

/// A number in host byte order, as `numgen` makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Index(pub u32);

/// Four bytes in host byte order: marks, flags and enumerations of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes4(pub u32);

/// The whole name of a network interface.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(pub String);

/// A hardware address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mac(pub [u8; 6]);

/// A value that fills a register.
pub trait ToRegister {
    fn write(&self, registers: &mut Registers);
}

/// Registers while they are filled; as many as in the kernel, with room for an address more.
pub struct Registers {
    bytes: [u8; 80],
    length: usize,
}

impl Registers {
    fn new() -> Registers {
        Registers { bytes: [0; 80], length: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    fn value(&self) -> Value {
        Value::from_bytes(&self.bytes[..self.length])
    }
}

impl ToRegister for Ipv4Addr {
    fn write(&self, registers: &mut Registers) {
        registers.put(&self.octets());
    }
}

impl ToRegister for Ipv6Addr {
    fn write(&self, registers: &mut Registers) {
        registers.put(&self.octets());
    }
}

impl ToRegister for IpAddr {
    fn write(&self, registers: &mut Registers) {
        match self {
            IpAddr::V4(address) => address.write(registers),
            IpAddr::V6(address) => address.write(registers),
        }
    }
}

impl ToRegister for Protocol {
    fn write(&self, registers: &mut Registers) {
        registers.put(&[*self as u8]);
    }
}

impl ToRegister for u8 {
    fn write(&self, registers: &mut Registers) {
        registers.put(&[*self]);
    }
}

impl ToRegister for Port {
    fn write(&self, registers: &mut Registers) {
        registers.put(&self.0.to_be_bytes());
    }
}

impl ToRegister for Index {
    fn write(&self, registers: &mut Registers) {
        registers.put(&self.0.to_ne_bytes());
    }
}

impl ToRegister for Bytes4 {
    fn write(&self, registers: &mut Registers) {
        registers.put(&self.0.to_ne_bytes());
    }
}

impl ToRegister for Mac {
    fn write(&self, registers: &mut Registers) {
        registers.put(&self.0);
    }
}

/// The size of an interface name: the kernel's names are shorter; a longer one names no link.
const NAME: usize = 16;

impl ToRegister for InterfaceName {
    fn write(&self, registers: &mut Registers) {
        let mut name = [0; NAME];
        let length = self.0.len().min(NAME);
        name[..length].copy_from_slice(&self.0.as_bytes()[..length]);
        registers.put(&name);
    }
}

impl<T: ToRegister> From<T> for Value {
    fn from(field: T) -> Value {
        let mut registers = Registers::new();
        field.write(&mut registers);
        registers.value()
    }
}

fn concatenated(fields: &[&dyn ToRegister]) -> Value {
    let mut registers = Registers::new();
    for field in fields {
        field.write(&mut registers);
        registers.length = registers.length.next_multiple_of(4);
    }
    registers.value()
}

impl<A: ToRegister, B: ToRegister> From<(A, B)> for Value {
    fn from((a, b): (A, B)) -> Value {
        concatenated(&[&a, &b])
    }
}

impl<A: ToRegister, B: ToRegister, C: ToRegister> From<(A, B, C)> for Value {
    fn from((a, b, c): (A, B, C)) -> Value {
        concatenated(&[&a, &b, &c])
    }
}

impl<A: ToRegister, B: ToRegister, C: ToRegister, D: ToRegister> From<(A, B, C, D)> for Value {
    fn from((a, b, c, d): (A, B, C, D)) -> Value {
        concatenated(&[&a, &b, &c, &d])
    }
}

impl<A: ToRegister, B: ToRegister, C: ToRegister, D: ToRegister, E: ToRegister> From<(A, B, C, D, E)> for Value {
    fn from((a, b, c, d, e): (A, B, C, D, E)) -> Value {
        concatenated(&[&a, &b, &c, &d, &e])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn concatenations_fill_whole_registers() {
        let value = Value::from((Ipv4Addr::new(10, 96, 0, 1), Protocol::Tcp, Port(443)));
        assert_eq!(value.as_bytes(), [10, 96, 0, 1, 6, 0, 0, 0, 1, 187, 0, 0]);
        assert_eq!(Value::from(Port(443)).as_bytes(), [1, 187]);
    }

    #[test]
    fn long_and_short_values_compare_by_their_bytes() {
        let value = |length: usize, last: u8| Value::from_bytes(&[&vec![1; length][..], &[last]].concat());
        assert_eq!(std::mem::size_of::<Value>(), std::mem::size_of::<Vec<u8>>());
        for length in [0, 21, 22, 43] {
            assert_eq!(value(length, 7).as_bytes().len(), length + 1);
            assert_eq!(value(length, 7), value(length, 7));
            assert!(value(length, 7) < value(length, 8));
        }
        assert!(value(21, 2) > value(22, 2), "the first difference decides");
    }

    #[test]
    fn the_successor_carries_and_ends() {
        let next =
            |address: [u8; 4]| Value::from(Ipv4Addr::from(address)).successor().map(|value| value.as_bytes().to_vec());
        assert_eq!(next([10, 0, 0, 255]), Some(vec![10, 0, 1, 0]));
        assert_eq!(next([255; 4]), None);
    }
}
